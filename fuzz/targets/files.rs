//! Damaged files of a log, given to `log verify` and to the recovery of a start.
//!
//! Input: a byte that says which image of a small log is damaged and whether losses are accepted, then changes: a file's
//! number, a kind, a place (two bytes), a value. The images are a log that was closed, and one whose daemon was killed, with
//! its WAL. What a start accepts, `log verify` finds no worse than before, and a second start accepts it without being told
//! to give anything up.

#![no_main]

use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ingestd::log::drain::{Request, Source};
use ingestd::log::verify::verify;
use ingestd::log::writer::CommitLimits;
use ingestd::log::{Log, LogSettings, open};
use lanes_core::event::Event;
use libfuzzer_sys::fuzz_target;
use tokio::sync::{Semaphore, oneshot};

const SHARDS: u32 = 2;

/// The files of a folder: name and contents.
type Image = Vec<(String, Vec<u8>)>;

static IMAGES: LazyLock<[Image; 2]> = LazyLock::new(images);

fn settings(directory: &Path, accept_loss: bool) -> LogSettings {
    LogSettings {
        data_directory: directory.to_owned(),
        drain_threads: SHARDS,
        storage_shards: SHARDS,
        limits: CommitLimits {
            events: 10_000,
            latency: Duration::from_millis(100),
            disk_reserve_bytes: 0,
            checkpoint_pages: 1_000,
        },
        max_streams: 1_000,
        accept_loss,
    }
}

fn images() -> [Image; 2] {
    let directory = tempfile::tempdir().expect("temporary files can be written");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let log = open(&settings(directory.path(), false)).expect("the folder is empty");
    for (producer, first) in [("a", 1), ("b", 1), ("c", 1), ("a", 31)] {
        runtime.block_on(store(&log, producer, first, 30));
    }
    let killed = read(directory.path());
    log.close().expect("it closes in order");
    [read(directory.path()), killed]
}

async fn store(log: &Log, producer: &str, first_sequence: u64, count: u64) {
    let stream = log.registry().producer(producer, 0).expect("a valid name");
    let (answer, reply) = oneshot::channel();
    let memory = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("it has one");
    let events = (first_sequence..first_sequence + count)
        .map(|number| Event {
            event_type: "T".to_owned(),
            key: producer.to_owned(),
            ts: number as i64,
            payload: format!("{{\"n\":{number}}}"),
        })
        .collect();
    let source = Source::Producer { stream, first_sequence, hash: None };
    log.submit(Request { source, events, answer, memory }).await.expect("it is open");
    reply.await.expect("it is open").expect("it is in order");
}

/// All files but the lock. SQLite makes the index of the WAL anew.
fn read(directory: &Path) -> Image {
    let mut image: Image = (std::fs::read_dir(directory).expect("it is there"))
        .map(|entry| entry.expect("it can be read").path())
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?.to_owned();
            let wanted = name != "ingestd.lock" && !name.ends_with("-shm");
            wanted.then(|| (name, std::fs::read(&path).expect("it can be read")))
        })
        .collect();
    image.sort_unstable();
    image
}

fn damage(image: &mut Image, change: &[u8]) {
    let [file, kind, high, low, value] = *change else { return };
    let count = image.len();
    let (_, contents) = &mut image[file as usize % count];
    if contents.is_empty() {
        return;
    }
    let at = u16::from_be_bytes([high, low]) as usize % contents.len();
    match kind % 5 {
        0 => contents[at] ^= value,
        1 => contents[at] = value,
        2 => contents.truncate(at),
        // A page of zeros, as a file system may leave it.
        3 => contents.iter_mut().skip(at & !0xfff).take(4096).for_each(|byte| *byte = 0),
        _ => {
            let from = value as usize * 256 % contents.len();
            let part: Vec<u8> = contents.iter().skip(from).take(64).copied().collect();
            contents.iter_mut().skip(at).zip(part).for_each(|(byte, other)| *byte = other);
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((choice, changes)) = input.split_first() else { return };
    let mut image = IMAGES[usize::from(choice & 1)].clone();
    changes.chunks(5).for_each(|change| damage(&mut image, change));
    let directory = tempfile::tempdir().expect("temporary files can be written");
    for (name, contents) in &image {
        std::fs::write(directory.path().join(name), contents).expect("the folder is ours");
    }
    let before = verify(directory.path());
    let Ok(log) = open(&settings(directory.path(), choice & 2 != 0)) else { return };
    log.close().expect("it closes in order");
    // A start does not read the events, so what made them unreadable before may still do so.
    if let Ok(before) = before {
        let after = verify(directory.path()).expect("it could be read before");
        assert!(after.fault_count <= before.fault_count, "before:\n{before}\nafter:\n{after}");
    }
    let log = open(&settings(directory.path(), false)).expect("it was open before");
    log.close().expect("it closes in order");
});
