//! A file's contents as far as they matter for a power cut: what syncs have covered, and what was written since.

use std::collections::BTreeMap;

use e2e::random::Random;

use super::disk::Loss;

const SECTOR: u64 = 512;

/// What the operating system writes back as a whole.
const PAGE: u64 = 4096;

/// A file's contents as far as they matter for a power cut.
#[derive(Debug, Default, Clone)]
pub(super) struct Image {
    /// What syncs have covered.
    durable: Vec<u8>,
    /// What was written since, in order.
    pieces: Vec<Piece>,
    /// The length now.
    length: u64,
    /// The lengths since the last sync.
    lengths: Vec<u64>,
}

#[derive(Debug, Clone)]
struct Piece {
    offset: u64,
    bytes: Vec<u8>,
    /// A sync that should have covered it has failed.
    doubtful: bool,
}

impl Piece {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

impl Image {
    /// A file with these contents, all of which a sync has covered.
    pub(super) fn synced(contents: Vec<u8>) -> Image {
        Image { length: contents.len() as u64, durable: contents, ..Image::default() }
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        let (first_page, last_page) = (offset / PAGE, end.div_ceil(PAGE));
        for piece in self.pieces.iter_mut().filter(|piece| piece.doubtful) {
            // The operating system writes a page back as a whole.
            piece.doubtful = piece.offset / PAGE >= last_page || piece.end().div_ceil(PAGE) <= first_page;
        }
        self.pieces.push(Piece { offset, bytes: bytes.to_vec(), doubtful: false });
        self.length = self.length.max(end);
        self.lengths.push(self.length);
    }

    pub(super) fn truncate(&mut self, length: u64) {
        if length < self.length {
            // What is behind the new end reads as zeros when the file grows again.
            self.write(length, &vec![0; (self.length - length) as usize]);
        }
        self.length = length;
        self.lengths.push(length);
    }

    pub(super) fn sync(&mut self) {
        let longest = self.pieces.iter().map(Piece::end).max().unwrap_or(0).max(self.length);
        self.durable.resize(self.durable.len().max(longest as usize), 0);
        for piece in self.pieces.iter().filter(|piece| !piece.doubtful) {
            self.durable[piece.offset as usize..piece.end() as usize].copy_from_slice(&piece.bytes);
        }
        self.durable.resize(self.length as usize, 0);
        self.pieces.retain(|piece| piece.doubtful);
        self.lengths.clear();
    }

    pub(super) fn sync_failed(&mut self) {
        for piece in &mut self.pieces {
            piece.doubtful = true;
        }
    }

    /// What a power cut leaves.
    pub(super) fn after_power_cut(&self, loss: Loss, random: &mut Random) -> Vec<u8> {
        if loss == Loss::Lost {
            return self.durable.clone();
        }
        let longest = self.pieces.iter().map(Piece::end).max().unwrap_or(0).max(self.length);
        let mut contents = self.durable.clone();
        contents.resize(contents.len().max(longest as usize), 0);
        // Sector ► what was written to it, in order.
        let mut sectors: BTreeMap<u64, Vec<(u64, &[u8])>> = BTreeMap::new();
        for piece in &self.pieces {
            let mut offset = piece.offset;
            while offset < piece.end() {
                let end = piece.end().min((offset / SECTOR + 1) * SECTOR);
                let bytes = &piece.bytes[(offset - piece.offset) as usize..(end - piece.offset) as usize];
                sectors.entry(offset / SECTOR).or_default().push((offset, bytes));
                offset = end;
            }
        }
        let odds = random.within(1..=9);
        for writes in sectors.values() {
            let reached = if random.chance(odds, 10) { random.within(1..=writes.len() as u64) } else { 0 };
            for (offset, bytes) in &writes[..reached as usize] {
                contents[*offset as usize..*offset as usize + bytes.len()].copy_from_slice(bytes);
            }
        }
        let mut lengths = self.lengths.clone();
        lengths.push(self.durable.len() as u64);
        contents.resize(*random.pick(&lengths) as usize, 0);
        contents
    }
}

mod tests {
    use super::*;

    #[test]
    fn a_later_sync_does_not_cover_what_one_that_failed_should_have() {
        let mut image = Image::default();
        image.write(0, b"first");
        image.sync_failed();
        image.write(PAGE, b"second");
        image.sync();
        assert_eq!(image.durable[..5], [0; 5]);
        assert_eq!(image.durable[PAGE as usize..], *b"second");
        image.write(10, b"third");
        image.sync();
        assert_eq!(image.durable[..15], *b"first\0\0\0\0\0third");
    }
}
