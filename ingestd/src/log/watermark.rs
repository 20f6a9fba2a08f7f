//! The watermark: a small file beside the shards that tells how far the log had come.
//!
//! A flipped bit in a WAL makes SQLite drop every later commit without an error, and a file can be lost or replaced by
//! an older copy. The shards alone cannot tell. So the watermark holds, independently of them, the log's id, its floor
//! and horizon, and the number of each shard's last commit. At start a shard that is missing or behind its number has
//! lost commits.
//!
//! Format: two slots of 16384 bytes, little-endian: magic `PLWATER1`, generation u64, log id (16 bytes), floor u64,
//! horizon u64, number of shards u32, zero u32, one commit number u64 per shard, CRC-32C u32 of all that. The valid
//! slot with the greater generation counts. Only the slot that the last sync did not cover is written, so one that is
//! torn leaves the other.
//!
//! It is written as the horizon moves and synced once a second, off the way of acknowledgements: what it says was
//! durable in the shards before. Blind spot: loss within the last second together with a power cut.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use uuid::Uuid;

use super::directory::MAXIMUM_SHARDS;

/// The file's name.
pub const FILE_NAME: &str = "watermark";

const SLOT_BYTES: usize = 16_384;
const MAGIC: &[u8; 8] = b"PLWATER1";
const HEADER_BYTES: usize = 56;

/// An operation on the file, as it is about to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileOperation<'a> {
    /// Read all of it.
    Read,
    /// Open it for writing, or create it.
    Open,
    /// Write so many bytes at an offset.
    Write(u64, &'a [u8]),
    /// Make what was written survive the machine.
    Sync,
    /// Make its name survive the machine.
    SyncDirectory,
}

/// Is told of each operation on a watermark file before it is done, and may let it fail. Proofs set it, once a process; a
/// daemon has none.
pub static OBSERVER: OnceLock<fn(&Path, FileOperation<'_>) -> io::Result<()>> = OnceLock::new();

fn about_to(path: &Path, operation: FileOperation<'_>) -> io::Result<()> {
    OBSERVER.get().map_or(Ok(()), |observer| observer(path, operation))
}

/// How far a log has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watermark {
    /// The log's id.
    pub log_id: Uuid,
    /// The position up to which retention has deleted.
    pub floor: u64,
    /// Every position up to this one was committed.
    pub horizon: u64,
    /// The number of each shard's last commit, by shard number, of all shards that there are.
    pub commit_numbers: Vec<u64>,
}

fn encode(watermark: &Watermark, generation: u64) -> Vec<u8> {
    debug_assert!(watermark.commit_numbers.len() <= MAXIMUM_SHARDS as usize);
    let mut bytes = Vec::with_capacity(SLOT_BYTES);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&generation.to_le_bytes());
    bytes.extend_from_slice(watermark.log_id.as_bytes());
    bytes.extend_from_slice(&watermark.floor.to_le_bytes());
    bytes.extend_from_slice(&watermark.horizon.to_le_bytes());
    bytes.extend_from_slice(&(watermark.commit_numbers.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&0u32.to_le_bytes());
    for number in &watermark.commit_numbers {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    bytes.resize(SLOT_BYTES, 0);
    bytes
}

/// The contents of a slot with their generation; none if the slot is not valid.
fn decode(slot: &[u8]) -> Option<(u64, Watermark)> {
    let number = |at: usize| Some(u64::from_le_bytes(slot.get(at..at + 8)?.try_into().ok()?));
    let small = |at: usize| Some(u32::from_le_bytes(slot.get(at..at + 4)?.try_into().ok()?));
    if slot.get(..8)? != MAGIC {
        return None;
    }
    let shards = small(48)?;
    if shards > MAXIMUM_SHARDS {
        return None;
    }
    let end = HEADER_BYTES + 8 * shards as usize;
    if crc32c::crc32c(slot.get(..end)?) != small(end)? {
        return None;
    }
    let commit_numbers = (0..shards as usize).map(|shard| number(HEADER_BYTES + 8 * shard)).collect::<Option<_>>()?;
    let log_id = Uuid::from_slice(slot.get(16..32)?).ok()?;
    Some((number(8)?, Watermark { log_id, floor: number(32)?, horizon: number(40)?, commit_numbers }))
}

/// What a watermark file says.
#[derive(Debug, PartialEq, Eq)]
pub enum Reading {
    /// There is no file.
    Absent,
    /// There is one, and neither slot is valid.
    Damaged,
    /// It says this.
    Valid(Watermark),
}

/// Reads the watermark in `directory`.
///
/// # Errors
/// What the operating system says, except that there is no such file.
pub fn read(directory: &Path) -> io::Result<Reading> {
    Ok(match read_bytes(&directory.join(FILE_NAME))? {
        None => Reading::Absent,
        Some(bytes) => newest(&bytes).map_or(Reading::Damaged, |(_, _, watermark)| Reading::Valid(watermark)),
    })
}

/// The contents of the file; none if there is no file.
fn read_bytes(path: &Path) -> io::Result<Option<Vec<u8>>> {
    about_to(path, FileOperation::Read)?;
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Slot number, generation and contents of the valid slot with the greatest generation.
fn newest(bytes: &[u8]) -> Option<(usize, u64, Watermark)> {
    let slots = bytes.chunks(SLOT_BYTES).take(2).enumerate();
    slots
        .filter_map(|(slot, bytes)| decode(bytes).map(|(generation, watermark)| (slot, generation, watermark)))
        .max_by_key(|(_, generation, _)| *generation)
}

/// Writes the watermark of a running log.
#[derive(Debug)]
pub struct WatermarkWriter {
    path: PathBuf,
    file: File,
    slot: usize,
    generation: u64,
}

impl WatermarkWriter {
    /// Opens or creates the file in `directory`, writes `watermark` and syncs it, the directory too.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn create(directory: &Path, watermark: &Watermark) -> io::Result<WatermarkWriter> {
        let path = directory.join(FILE_NAME);
        let before = read_bytes(&path)?.unwrap_or_default();
        let (slot, generation) = newest(&before).map_or((0, 0), |(slot, generation, _)| (1 - slot, generation));
        about_to(&path, FileOperation::Open)?;
        let file = File::options().write(true).create(true).truncate(false).open(&path)?;
        // The newest slot may have been written by a process that was killed before it synced. Both slots would be at
        // risk if the other one were written first.
        about_to(&path, FileOperation::Sync)?;
        file.sync_data()?;
        let mut writer = WatermarkWriter { path, file, slot, generation };
        writer.write(watermark)?;
        writer.sync()?;
        about_to(&writer.path, FileOperation::SyncDirectory)?;
        File::open(directory)?.sync_all()?;
        Ok(writer)
    }

    /// Writes `watermark`, which survives the process but not yet the machine.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn write(&mut self, watermark: &Watermark) -> io::Result<()> {
        self.generation += 1;
        let (bytes, offset) = (encode(watermark, self.generation), (self.slot * SLOT_BYTES) as u64);
        about_to(&self.path, FileOperation::Write(offset, &bytes))?;
        self.file.write_all_at(&bytes, offset)
    }

    /// Makes what was written survive the machine.
    ///
    /// # Errors
    /// What the operating system says; then it must be written again, because a later sync does not cover it.
    pub fn sync(&mut self) -> io::Result<()> {
        about_to(&self.path, FileOperation::Sync)?;
        self.file.sync_data()?;
        self.slot = 1 - self.slot;
        Ok(())
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watermark(horizon: u64) -> Watermark {
        Watermark { log_id: Uuid::from_u128(7), floor: 3, horizon, commit_numbers: vec![1, horizon, 5] }
    }

    #[test]
    fn the_last_write_is_read_back_and_a_torn_one_leaves_the_last_synced() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(read(directory.path()).unwrap(), Reading::Absent);
        let mut writer = WatermarkWriter::create(directory.path(), &watermark(10)).unwrap();
        for horizon in 11..20 {
            writer.write(&watermark(horizon)).unwrap();
            assert_eq!(read(directory.path()).unwrap(), Reading::Valid(watermark(horizon)));
            if horizon % 3 == 0 {
                writer.sync().unwrap();
            }
        }
        // The last sync was at 18; the slot that was written since is torn at any byte.
        let whole = std::fs::read(writer.path()).unwrap();
        let (slot, _, _) = newest(&whole).unwrap();
        for at in 0..HEADER_BYTES + 3 * 8 + 4 {
            let mut torn = whole.clone();
            torn[slot * SLOT_BYTES + at] ^= 0x10;
            std::fs::write(writer.path(), &torn).unwrap();
            assert_eq!(read(directory.path()).unwrap(), Reading::Valid(watermark(18)), "byte {at}");
        }
        std::fs::write(writer.path(), vec![0; 2 * SLOT_BYTES]).unwrap();
        assert_eq!(read(directory.path()).unwrap(), Reading::Damaged);
    }

    #[test]
    fn a_reopened_file_goes_on_from_the_newest_slot() {
        let directory = tempfile::tempdir().unwrap();
        for horizon in 1..5 {
            let mut writer = WatermarkWriter::create(directory.path(), &watermark(horizon)).unwrap();
            assert_eq!(read(directory.path()).unwrap(), Reading::Valid(watermark(horizon)));
            writer.write(&watermark(horizon + 100)).unwrap();
            assert_eq!(read(directory.path()).unwrap(), Reading::Valid(watermark(horizon + 100)));
        }
    }

    #[test]
    fn as_many_shards_as_there_can_be_fit_into_a_slot() {
        let full = Watermark { commit_numbers: vec![u64::MAX; MAXIMUM_SHARDS as usize], ..watermark(1) };
        assert_eq!(encode(&full, 1).len(), SLOT_BYTES);
        assert_eq!(decode(&encode(&full, 9)), Some((9, full)));
    }
}
