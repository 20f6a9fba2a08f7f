//! What the tests of the log share.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ingestd::log::drain::{Ack, Answer, Request, Source};
use ingestd::log::reader::{LogReader, StoredEvent};
use ingestd::log::shard::{ShardHeader, read_header};
use ingestd::log::stream_hash::ContentHash;
use ingestd::log::verify::{Verification, verify};
use ingestd::log::watermark::{self, Reading, Watermark, WatermarkWriter};
use ingestd::log::writer::CommitLimits;
use ingestd::log::{Log, LogSettings};
use lanes_core::event::Event;
use tokio::sync::{Semaphore, oneshot};

/// How long a state may take to come about before a test gives up.
const PATIENCE: Duration = Duration::from_secs(300);

/// Settings of a log in `directory`.
pub fn settings(directory: &Path, drains: u32, shards: u32) -> LogSettings {
    LogSettings {
        data_directory: directory.to_owned(),
        drain_threads: drains,
        storage_shards: shards,
        limits: CommitLimits {
            events: 10_000,
            latency: Duration::from_millis(100),
            disk_reserve_bytes: 0,
            checkpoint_pages: 1000,
        },
        max_streams: 1000,
        accept_loss: false,
    }
}

/// Makes the watermark say something else, as an earlier sync or a crash would have left it.
pub fn set_watermark(directory: &Path, change: impl FnOnce(&mut Watermark)) {
    let Reading::Valid(mut watermark) = watermark::read(directory).unwrap() else { panic!("there is a watermark") };
    std::fs::remove_file(directory.join(watermark::FILE_NAME)).unwrap();
    change(&mut watermark);
    WatermarkWriter::create(directory, &watermark).unwrap();
}

/// Makes a shard's header say an earlier moment.
pub fn set_header(directory: &Path, shard: u32, change: impl FnOnce(&mut ShardHeader)) {
    let path = ingestd::log::directory::shard_path(directory, shard);
    let connection = rusqlite::Connection::open(&path).unwrap();
    let mut header = read_header(&connection, &path, shard).unwrap();
    change(&mut header);
    header.write(&connection, shard).unwrap();
}

/// The event `number` of a producer whose events have the key `key`.
pub fn event(key: &str, number: u64) -> Event {
    Event { event_type: "T".into(), key: key.into(), ts: number as i64, payload: format!("{{\"n\": {number}}}") }
}

/// Sends `count` events of `producer` in epoch 0 from `first` on; does not wait.
pub async fn send(log: &Log, producer: &str, first: u64, count: u64) -> oneshot::Receiver<Answer> {
    send_in_epoch(log, producer, 0, first, count).await
}

/// Sends `count` events of `producer` in `epoch` from `first` on; does not wait.
pub async fn send_in_epoch(log: &Log, producer: &str, epoch: u64, first: u64, count: u64) -> oneshot::Receiver<Answer> {
    let stream = log.registry().producer(producer, epoch).unwrap();
    let (answer, reply) = oneshot::channel();
    let memory = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
    let events = (first..first + count).map(|number| event(producer, number)).collect();
    let source = Source::Producer { stream, first_sequence: first, hash: None };
    log.submit(Request { source, events, answer, memory }).await.unwrap();
    reply
}

/// Sends events of `producer` with the hash of all up to their last one, and waits for the acknowledgement.
pub async fn send_hashed(log: &Log, producer: &str, first: u64, count: u64, hash: ContentHash) -> Ack {
    let stream = log.registry().producer(producer, 0).unwrap();
    let (answer, reply) = oneshot::channel();
    let memory = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
    let events = (first..first + count).map(|number| event(producer, number)).collect();
    let source = Source::Producer { stream, first_sequence: first, hash: Some(hash) };
    log.submit(Request { source, events, answer, memory }).await.unwrap();
    reply.await.unwrap().unwrap()
}

/// Sends and waits for the answer.
pub async fn store(log: &Log, producer: &str, first: u64, count: u64) -> Answer {
    send(log, producer, first, count).await.await.unwrap()
}

/// The log's files, which must be without a fault.
pub fn verified(directory: &Path) -> Verification {
    let verification = verify(directory).unwrap();
    assert_eq!(verification.fault_count, 0, "{verification}");
    verification
}

/// Everything in a log that is without a fault and whose horizon is `horizon`.
pub fn read_all(directory: &Path, horizon: u64) -> Vec<StoredEvent> {
    assert_eq!(verified(directory).horizon, horizon);
    read_from(directory, 0, horizon)
}

/// The events after a position.
pub fn read_from(directory: &Path, after: u64, horizon: u64) -> Vec<StoredEvent> {
    LogReader::open(directory).unwrap().read(after, horizon, u64::MAX, usize::MAX).unwrap().events
}

/// Numbers of a producer's events, in position order.
pub fn numbers(events: &[StoredEvent], producer: &str) -> Vec<i64> {
    events.iter().filter(|stored| stored.event.key == producer).map(|stored| stored.event.ts).collect()
}

/// How many events the files hold between two positions, the first one excluded.
pub fn events_in(directory: &Path, after: u64, until: u64) -> u64 {
    let shards = ingestd::log::directory::existing_shards(directory).unwrap();
    let count = |shard: u32| -> u64 {
        let path = ingestd::log::directory::shard_path(directory, shard);
        let sql = "SELECT count(*) FROM event WHERE position > ?1 AND position <= ?2";
        ingestd::log::shard::open_reader(&path).unwrap().query_row(sql, [after, until], |row| row.get(0)).unwrap()
    };
    shards.into_iter().map(count).sum()
}

/// Waits until `condition` holds.
pub fn wait_until(mut condition: impl FnMut() -> bool, otherwise: impl Fn() -> String) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{}", otherwise());
        std::thread::sleep(Duration::from_millis(5));
    }
}
