//! One flipped bit in a database or WAL file: the damage is named, or nothing is different. Never silently fewer events.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use e2e::log_files;
use e2e::random::{Random, seeds};
use ingestd::log::drain::Ack;
use ingestd::log::open;
use ingestd::log::reader::LogReader;
use ingestd::log::watermark::{self, Reading};

use crate::support::disk::Disk;
use crate::support::watchdog::watch;
use crate::support::world::{event, send, settings};

/// Long names, so that they are hit.
const PRODUCERS: [&str; 3] =
    ["producer-with-a-long-name-a", "producer-with-a-long-name-b", "producer-with-a-long-name-c"];

/// Seeds that once found a fault: a stream's name, and a page's number of receipts.
const REGRESSIONS: [u64; 2] = [5_810_852_213_228_130_835, 16_742_197_129_215_353_896];

/// Flips per seed.
const FLIPS: u64 = 40;

/// The files of a log whose every event is acknowledged, in two shards.
struct Original {
    /// Name ► contents.
    files: BTreeMap<String, Vec<u8>>,
    /// Producer, in position order, of the producers' events; each has its own numbers from 1.
    order: Vec<String>,
    /// Events of each producer.
    events: u64,
    /// Where pages and frames lie that matter.
    live: Vec<(String, Range<usize>)>,
}

/// All of it in the databases, or the last part of it in the WAL files.
fn original(random: &mut Random, with_wal: bool) -> Original {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let disk = Disk::new(path);
    let mut events = 0;
    let most = *random.pick(&[5, 150]);
    let ends = if with_wal { &[true, false][..] } else { &[true] };
    for clean_end in ends {
        let log = open(&settings(path, 2, 2, 100)).unwrap();
        for _ in 0..random.within(2..=6) {
            let count = random.within(1..=most);
            let replies = PRODUCERS.map(|producer| send(&log, producer, events + 1, count));
            replies.into_iter().for_each(|reply| assert_eq!(reply.blocking_recv().unwrap().unwrap().stored, count));
            events += count;
        }
        if *clean_end {
            log.close().unwrap();
        } else {
            // The watermark's blind spot is what came after its last write.
            let horizon = log.horizon().position();
            while !matches!(watermark::read(path), Ok(Reading::Valid(watermark)) if watermark.horizon == horizon) {
                std::thread::yield_now();
            }
            disk.cut_power();
            let _ = log.close();
            disk.restart_process();
        }
    }
    // Before the check, whose readers would make shared memory and may leave it.
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if name != "ingestd.lock" {
            files.insert(name, std::fs::read(entry.path()).unwrap());
        }
    }
    let rows = log_files::check(path, None).unwrap().rows;
    let order: Vec<String> = rows.into_iter().map(|row| row.key).filter(|key| PRODUCERS.contains(&&**key)).collect();
    assert_eq!(order.len() as u64, PRODUCERS.len() as u64 * events);
    let live = live_parts(&files);
    Original { files, order, events, live }
}

fn big_endian(bytes: &[u8], offset: usize) -> u32 {
    u32::from_be_bytes(bytes[offset..offset + 4].try_into().unwrap())
}

/// The pages of the databases that no newer version in a WAL replaces, and the frames of the WAL files, by the file
/// formats (<https://sqlite.org/fileformat2.html>).
fn live_parts(files: &BTreeMap<String, Vec<u8>>) -> Vec<(String, Range<usize>)> {
    const WAL_HEADER: usize = 32;
    const FRAME_HEADER: usize = 24;
    let mut live = Vec::new();
    for (name, database) in files.iter().filter(|(name, _)| name.ends_with(".db")) {
        let page_size = usize::from(u16::from_be_bytes([database[16], database[17]]));
        assert_eq!(big_endian(database, 36), 0, "nothing was deleted, so no page is free");
        let wal_name = format!("{name}-wal");
        let wal = files.get(&wal_name).map_or(&[][..], Vec::as_slice);
        let frames = wal.len().saturating_sub(WAL_HEADER) / (FRAME_HEADER + page_size);
        let replaced: BTreeSet<usize> = (0..frames)
            .map(|frame| big_endian(wal, WAL_HEADER + frame * (FRAME_HEADER + page_size)) as usize)
            .collect();
        let pages = (1..=database.len() / page_size).filter(|page| !replaced.contains(page));
        live.extend(pages.map(|page| (name.clone(), (page - 1) * page_size..page * page_size)));
        if frames > 0 {
            live.push((wal_name, 0..WAL_HEADER + frames * (FRAME_HEADER + page_size)));
        }
    }
    live.extend(files.get(watermark::FILE_NAME).map(|file| (watermark::FILE_NAME.to_owned(), 0..file.len())));
    live
}

/// What came of a flip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    RefusedToStart,
    StoppedTheReader,
    Unchanged,
}

fn write_files(original: &Original, directory: &Path, flipped: (&str, usize, u8)) {
    for (name, contents) in &original.files {
        let mut contents = contents.clone();
        if name == flipped.0 {
            contents[flipped.1] ^= 1 << flipped.2;
        }
        std::fs::write(directory.join(name), contents).unwrap();
    }
}

/// Starts the log with one bit flipped and compares everything that it says with what was stored.
fn start_with(original: &Original, flipped: (&str, usize, u8)) -> Result<Outcome, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    write_files(original, path, flipped);
    let log = match open(&settings(path, 2, 2, 100)) {
        Ok(log) => log,
        Err(error) => {
            let error = error.to_string();
            let named = error.contains("shard-") || error.contains("damaged") || error.contains("lost");
            return if named { Ok(Outcome::RefusedToStart) } else { Err(format!("refused without a reason: {error}")) };
        }
    };
    let horizon = log.horizon().position();
    let compare = || {
        let read = LogReader::open(path).and_then(|reader| reader.read(0, horizon, u64::MAX, usize::MAX));
        let read = match read {
            Ok(chunk) => chunk.events,
            Err(error) if error.to_string().contains("damaged: ") || error.to_string().contains("shard-") => {
                return Ok(Outcome::StoppedTheReader);
            }
            Err(error) => return Err(format!("the reader stops without a reason: {error}")),
        };
        let mut numbers: BTreeMap<&str, u64> = BTreeMap::new();
        let mut found = read.iter().filter(|stored| !stored.event.event_type.starts_with("ingestd."));
        for (producer, place) in original.order.iter().zip(1..) {
            let number = numbers.entry(producer).or_default();
            *number += 1;
            let stored = found.next().ok_or_else(|| format!("silently fewer events: {place} is not there"))?;
            if stored.event != event(producer, *number) {
                return Err(format!("event {number} of {producer} has changed: {stored:?}"));
            }
        }
        if let Some(more) = found.next() {
            return Err(format!("an event that nobody sent: {more:?}"));
        }
        for producer in PRODUCERS {
            let expected = Ack { stored: 0, duplicates: original.events, next_sequence: original.events + 1 };
            let answer = send(&log, producer, 1, original.events).blocking_recv().unwrap();
            if answer != Ok(expected) {
                return Err(format!("{producer} is answered {answer:?}, not {expected:?}"));
            }
        }
        Ok(Outcome::Unchanged)
    };
    let outcome = compare();
    let _ = log.close();
    outcome
}

/// Flips bits in the files whose names end with `suffix`.
fn flip_bits(suffix: &str, with_wal: bool, seed: u64) {
    let _watchdog = watch(format!("flipped bits, LOG_SEED={seed}"));
    let mut random = Random::new(seed);
    let original = original(&mut random, with_wal);
    let live: Vec<_> = original.live.iter().filter(|(name, _)| name.ends_with(suffix)).collect();
    let files: Vec<_> = original.files.iter().filter(|(name, _)| name.ends_with(suffix)).collect();
    let mut hits = 0;
    let mut outcomes = Vec::new();
    for number in 0..FLIPS {
        // Three of four flips are aimed at what matters, where there is something; the others go anywhere.
        let (name, offset) = if random.chance(3, 4) {
            let (name, range) = *random.pick(&live);
            let used: Vec<usize> = range.clone().filter(|offset| original.files[name][*offset] != 0).collect();
            (name, *random.pick(&used))
        } else {
            let (name, contents) = *random.pick(&files);
            (name, random.within(0..=contents.len() as u64 - 1) as usize)
        };
        hits += u64::from(live.iter().any(|(file, range)| file == name && range.contains(&offset)));
        let bit = random.within(0..=7) as u8;
        let outcome = start_with(&original, (name, offset, bit)).unwrap_or_else(|fault| {
            panic!("LOG_SEED={seed}, flip {number} (bit {bit} of byte {offset} of {name}): {fault}")
        });
        outcomes.push(outcome);
    }
    assert!(hits >= FLIPS / 2, "only {hits} of {FLIPS} flips hit what matters");
    let count = |wanted| outcomes.iter().filter(|outcome| **outcome == wanted).count();
    println!(
        "flipped bits, LOG_SEED={seed}: {FLIPS}, {hits} in live pages; {} starts refused, {} readers stopped, {} without effect",
        count(Outcome::RefusedToStart),
        count(Outcome::StoppedTheReader),
        count(Outcome::Unchanged)
    );
}

#[test]
fn a_flipped_bit_in_a_database_is_named_or_changes_nothing() {
    for seed in REGRESSIONS.into_iter().chain(seeds(2)) {
        flip_bits(".db", false, seed);
        flip_bits(".db", true, seed);
    }
}

/// The other slot still says enough, or the file is named as damaged.
#[test]
fn a_flipped_bit_in_the_watermark_is_named_or_changes_nothing() {
    for seed in seeds(2) {
        flip_bits(watermark::FILE_NAME, true, seed);
    }
}

#[test]
fn a_flipped_bit_in_a_wal_is_named_or_changes_nothing() {
    for seed in seeds(4) {
        flip_bits("-wal", true, seed);
    }
}
