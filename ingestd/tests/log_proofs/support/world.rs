//! A log on a disk under control, its producers, and a model of what they must see.
//!
//! The model is simple: a producer's stored events are a prefix of what it sent, at least as long as what was
//! acknowledged; a request that begins at or below the next number is taken, its covered part counted as duplicates; one
//! that begins above it is refused with that number; one of an epoch that a later one closed, with the later one. What the horizon has passed stays where it is for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use e2e::log_files::{self, LogFiles};
use e2e::random::Random;
use ingestd::log::drain::{Ack, Answer, Refusal, Request, Source};
use ingestd::log::reader::LogReader;
use ingestd::log::retention::{Hold, RetentionSettings};
use ingestd::log::stream_hash::{ContentHash, HASH_INTERVAL};
use ingestd::log::verify::verify;
use ingestd::log::writer::CommitLimits;
use ingestd::log::{Log, LogError, LogSettings, open};
use lanes_core::event::Event;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, oneshot};

use super::disk::{Disk, Loss};
use super::watchdog::{Watchdog, watch};

/// Requests that wait at once; fewer than a drain's inbox holds, so that submitting never waits for a dead disk.
const MOST_WAITING: usize = 60;

const NEVER: Duration = Duration::from_secs(1 << 30);

/// How a log is opened in a test.
pub fn settings(directory: &Path, drains: u64, shards: u64, batch: u64) -> LogSettings {
    LogSettings {
        data_directory: directory.to_owned(),
        drain_threads: drains as u32,
        storage_shards: shards as u32,
        limits: CommitLimits {
            events: batch as usize,
            latency: Duration::from_millis(100),
            disk_reserve_bytes: 0,
            checkpoint_pages: 1000,
        },
        max_streams: 1000,
        accept_loss: false,
    }
}

/// Event number `sequence` of a producer: always the same, so that its contents can be checked. Producers called
/// `big…` have large events, so that SQLite makes checkpoints.
pub fn event(producer: &str, sequence: u64) -> Event {
    let filling = if producer.starts_with("big") { 6000 } else { (sequence * 7 % 50) as usize };
    Event {
        event_type: "T".into(),
        key: producer.into(),
        ts: sequence as i64,
        payload: format!("{{\"n\": {sequence}, \"filling\": \"{}\"}}", "x".repeat(filling)),
    }
}

/// Gives a request to a log; does not wait for the answer.
pub fn submit(log: &Log, source: Source, events: Vec<Event>) -> oneshot::Receiver<Answer> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| Runtime::new().expect("threads can be started"));
    let (answer, reply) = oneshot::channel();
    let memory = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("the permit is free");
    let request = Request { source, events, answer, memory };
    runtime.block_on(log.submit(request)).expect("the log is not closing");
    reply
}

/// Gives events `first` to `first + count - 1` of a producer to a log; does not wait for the answer.
pub fn send(log: &Log, producer: &str, first: u64, count: u64) -> oneshot::Receiver<Answer> {
    send_in_epoch(log, (producer, 0), first, count, None)
}

/// As [`send`], for a producer in an epoch, perhaps with a hash.
fn send_in_epoch(
    log: &Log,
    (producer, epoch): (&str, u64),
    first: u64,
    count: u64,
    hash: Option<ContentHash>,
) -> oneshot::Receiver<Answer> {
    let stream = log.registry().producer(producer, epoch).expect("the name is good");
    let name = stream_name(producer, epoch);
    let events = (first..first + count).map(|sequence| event(&name, sequence)).collect();
    submit(log, Source::Producer { stream, first_sequence: first, hash }, events)
}

/// What the stream of a producer's epoch is called here, which is also the key of its events.
fn stream_name(producer: &str, epoch: u64) -> String {
    if epoch == 0 { producer.to_owned() } else { format!("{producer}/{epoch}") }
}

/// The hash that is given with an event: always the same, so that it can be checked.
fn hash_at(stream: &str, sequence: u64) -> ContentHash {
    let mut hash = [stream.len() as u8 ^ stream.as_bytes()[stream.len() - 1]; 32];
    hash[..8].copy_from_slice(&sequence.to_le_bytes());
    hash
}

#[derive(Debug)]
struct Producer {
    name: String,
    epoch: u64,
    /// The numbers, multiples of [`HASH_INTERVAL`], with which a hash was acknowledged.
    hashed: BTreeSet<u64>,
    /// The number that the log expects.
    next: u64,
    /// All events up to this number are acknowledged.
    acknowledged: u64,
    /// The greatest number ever sent.
    sent: u64,
}

impl Producer {
    fn stream(&self) -> String {
        stream_name(&self.name, self.epoch)
    }
}

/// What a request must be answered with, and what that acknowledges.
#[derive(Debug)]
struct Waiting {
    /// In any order if there are two.
    expected: Vec<Answer>,
    replies: Vec<oneshot::Receiver<Answer>>,
    /// Index of the producer and the last number.
    numbered: Option<(usize, u64)>,
    /// Numbers of anonymous events.
    anonymous: Vec<u64>,
    /// Whether a hash was given.
    hashed: bool,
}

/// A log, its disk, its producers.
pub struct World {
    directory: TempDir,
    disk: Arc<Disk>,
    log: Option<Log>,
    random: Random,
    producers: Vec<Producer>,
    /// Producer and epoch ► how many events it has, of the epochs that later ones closed.
    closed: BTreeMap<(usize, u64), u64>,
    /// Number of an anonymous event ► whether it is acknowledged.
    anonymous: BTreeMap<u64, bool>,
    next_anonymous: u64,
    waiting: Vec<Waiting>,
    /// Type, key and time of the event at each position that was at or below a horizon.
    shown: Vec<(String, String, i64)>,
    /// Nothing above this position may be deleted.
    hold: Arc<AtomicU64>,
    log_id: Option<String>,
    what: String,
    trace: Vec<String>,
    _watchdog: Watchdog,
}

impl World {
    /// An empty log with a few producers; `what` names the round in messages.
    pub fn new(what: &str, seed: u64) -> World {
        let mut random = Random::new(seed);
        let directory = tempfile::tempdir().expect("the temporary directory can be written");
        let disk = Disk::new(directory.path());
        let names = ["a", "b", "c", "big"];
        let count = random.within(2..=4) as usize;
        let skipped = random.within(0..=(names.len() - count) as u64) as usize;
        let producers = names[skipped..skipped + count]
            .iter()
            .map(|name| Producer {
                name: (*name).to_owned(),
                epoch: 0,
                hashed: BTreeSet::new(),
                next: 1,
                acknowledged: 0,
                sent: 0,
            })
            .collect();
        let what = format!("{what}, LOG_SEED={seed}");
        let watchdog = watch(what.clone());
        let mut world = World {
            directory,
            disk,
            log: None,
            random,
            producers,
            closed: BTreeMap::new(),
            anonymous: BTreeMap::new(),
            next_anonymous: 0,
            waiting: Vec::new(),
            shown: Vec::new(),
            hold: Arc::default(),
            log_id: None,
            what,
            trace: Vec::new(),
            _watchdog: watchdog,
        };
        world.open_until_it_works();
        world
    }

    /// The round's random numbers.
    pub fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    fn log(&self) -> &Log {
        self.log.as_ref().expect("the log is open")
    }

    fn note(&mut self, step: String) {
        self.trace.push(step);
    }

    fn open(&mut self) -> Result<Log, LogError> {
        let (drains, shards) = (self.random.within(1..=4), self.random.within(1..=5));
        let batch = *self.random.pick(&[100, 1000, 10_000]);
        self.note(format!("open with {drains} drains, {shards} shards, {batch} events a batch"));
        open(&settings(self.directory.path(), drains, shards, batch))
    }

    /// Opens the log after a crash or at the beginning; now and then the power goes again meanwhile.
    fn open_until_it_works(&mut self) {
        loop {
            if self.random.chance(1, 4) {
                let operations = self.random.within(0..=60);
                self.note(format!("the power goes after {operations} operations of the next start"));
                self.disk.cut_power_after(operations);
            }
            let opened = self.open();
            let power_was_lost = self.disk.stop_cutting();
            match opened {
                Ok(log) if !power_was_lost => {
                    self.log = Some(log);
                    break;
                }
                Ok(log) => drop(log.close()),
                Err(error) => assert!(power_was_lost, "the log does not open: {error}"),
            }
            self.lose_power();
        }
        let horizon = self.log().horizon().position();
        self.check_files(Some(horizon), false);
        for producer in &mut self.producers {
            // What recovery kept is at or below the horizon: it must never get lost.
            producer.next = producer.acknowledged + 1;
        }
        // What it cut must not come back.
        self.anonymous.retain(|_, acknowledged| *acknowledged);
        if self.random.chance(1, 3) {
            self.start_retention();
        }
    }

    /// From now on everything that was read may go, or some of it.
    fn start_retention(&mut self) {
        let maximum_bytes = if self.random.chance(1, 2) { None } else { Some(self.random.within(1..=200_000)) };
        let settings = RetentionSettings {
            age: if maximum_bytes.is_some() { Duration::from_secs(1 << 30) } else { Duration::ZERO },
            maximum_bytes,
            interval: Duration::from_millis(2),
            delete_rows: self.random.within(10..=1000),
            producer_age: NEVER,
        };
        self.note(format!("{settings:?}"));
        let hold = Arc::clone(&self.hold);
        let hold = Box::new(move || Hold::Above(hold.load(Ordering::SeqCst)));
        self.log
            .as_mut()
            .expect("the log is open")
            .start_retention(Arc::new(Mutex::new(settings)), hold)
            .expect("it can be started");
    }

    fn lose_power(&mut self) {
        let loss = *self.random.pick(&[Loss::Lost, Loss::Torn]);
        self.note(format!("power is lost: {loss:?}"));
        self.disk.lose_power(loss, &mut self.random);
    }

    /// New events of a producer.
    pub fn append(&mut self) {
        let (producer, count) = (self.any_producer(), self.any_count());
        self.request(producer, self.producers[producer].next, count);
    }

    /// Events that were sent before, in other batches, perhaps with new ones behind them.
    pub fn resend(&mut self) {
        let (producer, count) = (self.any_producer(), self.any_count());
        let next = self.producers[producer].next;
        let first = self.random.within(next.saturating_sub(300).max(1)..=next);
        self.request(producer, first, count);
    }

    /// A request that skips numbers.
    pub fn skip(&mut self) {
        let producer = self.any_producer();
        let next = self.producers[producer].next;
        let (given, count) = (next + self.random.within(1..=9), self.any_count());
        let name = self.producers[producer].stream();
        self.note(format!("{name} skips to {given}"));
        let reply = self.send(producer, given, count, None);
        let expected = vec![Err(Refusal::Gap { expected: next, given })];
        self.wait_for(Waiting { expected, replies: vec![reply], numbered: None, anonymous: Vec::new(), hashed: false });
    }

    /// A producer begins its next life.
    pub fn begin_epoch(&mut self) {
        self.settle();
        let producer = self.any_producer();
        let step = self.random.within(1..=3);
        let state = &mut self.producers[producer];
        if state.next > 1 {
            self.closed.insert((producer, state.epoch), state.next - 1);
        }
        let (name, epoch) = (state.name.clone(), state.epoch + step);
        *state = Producer { name, epoch, hashed: BTreeSet::new(), next: 1, acknowledged: 0, sent: 0 };
        let count = self.any_count();
        self.request(producer, 1, count);
    }

    /// A request of a life that is over.
    pub fn send_in_closed_epoch(&mut self) {
        // The log knows that it is over when it has taken something of the present one.
        let over = |(producer, _): &(usize, u64)| self.producers[*producer].next > 1;
        let candidates: Vec<(usize, u64)> = self.closed.keys().copied().filter(over).collect();
        if candidates.is_empty() {
            return;
        }
        let (producer, epoch) = *self.random.pick(&candidates);
        let Producer { name, epoch: current, .. } = &self.producers[producer];
        let (name, current) = (name.clone(), *current);
        self.note(format!("{name} sends in epoch {epoch}"));
        let first = self.random.within(1..=self.closed[&(producer, epoch)] + 2);
        let reply = send_in_epoch(self.log(), (&name, epoch), first, 1, None);
        let expected = vec![Err(Refusal::Epoch { current, given: epoch })];
        self.wait_for(Waiting { expected, replies: vec![reply], numbered: None, anonymous: Vec::new(), hashed: false });
    }

    fn send(&self, producer: usize, first: u64, count: u64, hash: Option<ContentHash>) -> oneshot::Receiver<Answer> {
        let Producer { name, epoch, .. } = &self.producers[producer];
        send_in_epoch(self.log(), (name, *epoch), first, count, hash)
    }

    /// Two tries of one request by two threads at once.
    pub fn send_twice_at_once(&mut self) {
        let (producer, count) = (self.any_producer(), self.any_count());
        let next = self.producers[producer].next;
        let first = self.random.within(next.saturating_sub(20).max(1)..=next);
        let (one, numbered) = self.expect(producer, first, count);
        let next_sequence = self.producers[producer].next;
        let two = Ok(Ack { stored: 0, duplicates: count, next_sequence });
        let Producer { name, epoch, .. } = &self.producers[producer];
        let (name, epoch) = (name.clone(), *epoch);
        self.note(format!("{} sends {count} from {first} twice at once", stream_name(&name, epoch)));
        let log = self.log();
        let replies = std::thread::scope(|scope| {
            let send = || send_in_epoch(log, (&name, epoch), first, count, None);
            let tries = [(); 2].map(|()| scope.spawn(send));
            tries.into_iter().map(|a_try| a_try.join().expect("sending works")).collect()
        });
        let (expected, numbered) = (vec![one, two], Some(numbered));
        self.wait_for(Waiting { expected, replies, numbered, anonymous: Vec::new(), hashed: false });
    }

    /// Events without a producer.
    pub fn append_anonymous(&mut self) {
        let first = self.next_anonymous;
        self.next_anonymous += self.random.within(1..=20);
        let numbers: Vec<u64> = (first..self.next_anonymous).collect();
        self.note(format!("{} anonymous events from {first}", numbers.len()));
        let events = numbers.iter().map(|number| event("anonymous", *number)).collect();
        self.anonymous.extend(numbers.iter().map(|number| (*number, false)));
        let reply = submit(self.log(), Source::Anonymous, events);
        let (expected, replies) = (Vec::new(), vec![reply]);
        self.wait_for(Waiting { expected, replies, numbered: None, anonymous: numbers, hashed: false });
    }

    fn any_producer(&mut self) -> usize {
        self.random.within(0..=self.producers.len() as u64 - 1) as usize
    }

    fn any_count(&mut self) -> u64 {
        // Single events, small requests, and such as take more than one stripe (256 events).
        let most = *self.random.pick(&[1, 10, 10, 100, 600]);
        self.random.within(1..=most)
    }

    fn request(&mut self, producer: usize, first: u64, count: u64) {
        let name = self.producers[producer].stream();
        self.note(format!("{name} sends {count} from {first}"));
        // Now and then up to where hashes stay.
        let to_interval = HASH_INTERVAL - (first - 1) % HASH_INTERVAL;
        let count = if to_interval <= 600 && self.random.chance(1, 4) { to_interval } else { count };
        let (expected, numbered) = self.expect(producer, first, count);
        let hashed = self.random.chance(1, 2);
        let reply = self.send(producer, first, count, hashed.then(|| hash_at(&name, first + count - 1)));
        self.wait_for(Waiting {
            expected: vec![expected],
            replies: vec![reply],
            numbered: Some(numbered),
            anonymous: Vec::new(),
            hashed,
        });
    }

    /// The answer to a request that is taken, after which the model expects its successor.
    fn expect(&mut self, producer: usize, first: u64, count: u64) -> (Answer, (usize, u64)) {
        let state = &mut self.producers[producer];
        let last = first + count - 1;
        let duplicates = count.min(state.next - first);
        state.next = state.next.max(last + 1);
        state.sent = state.sent.max(last);
        (Ok(Ack { stored: count - duplicates, duplicates, next_sequence: state.next }), (producer, last))
    }

    fn wait_for(&mut self, waiting: Waiting) {
        self.waiting.push(waiting);
        if self.waiting.len() >= MOST_WAITING {
            self.settle();
        }
    }

    /// Waits for all answers; each must be as the model says.
    pub fn settle(&mut self) {
        self.note("settle".to_owned());
        for waiting in std::mem::take(&mut self.waiting) {
            let Waiting { replies, expected, numbered, anonymous, hashed } = waiting;
            let answers =
                replies.into_iter().map(|reply| Some(reply.blocking_recv().expect("it is answered"))).collect();
            self.compare(answers, (expected, numbered, anonymous), hashed);
        }
    }

    /// The acknowledgements that came before a crash. A log that is closing may refuse anything, and then it expects less
    /// than the model does.
    fn settle_after_crash(&mut self) {
        for waiting in std::mem::take(&mut self.waiting) {
            let replies = waiting.replies.into_iter();
            let mut answers: Vec<Option<Answer>> =
                replies.map(|mut reply| reply.try_recv().ok().filter(Answer::is_ok)).collect();
            if let Some((producer, last)) = waiting.numbered {
                for ack in answers.iter_mut().flatten().flatten() {
                    let expected = waiting.expected.iter().flatten().find(|expected| expected.stored == ack.stored);
                    let next = expected.map_or(0, |expected| expected.next_sequence);
                    let possible = last + 1..=self.producers[producer].next;
                    assert!(possible.contains(&ack.next_sequence), "{ack:?}, possible are {possible:?}");
                    ack.next_sequence = next;
                }
            }
            self.compare(answers, (waiting.expected, waiting.numbered, waiting.anonymous), waiting.hashed);
        }
    }

    fn compare(
        &mut self,
        answers: Vec<Option<Answer>>,
        (mut expected, numbered, anonymous): (Vec<Answer>, Option<(usize, u64)>, Vec<u64>),
        hashed: bool,
    ) {
        for answer in answers.into_iter().flatten() {
            if anonymous.is_empty() {
                let place = expected.iter().position(|expected| *expected == answer);
                let place = place.unwrap_or_else(|| panic!("the answer is {answer:?}, not one of {expected:?}"));
                let _ = expected.swap_remove(place);
            } else {
                let stored = anonymous.len() as u64;
                let right = matches!(answer, Ok(Ack { stored: s, duplicates: 0, .. }) if s == stored);
                assert!(right, "{stored} anonymous events are answered with {answer:?}");
            }
            if answer.is_ok() {
                if let Some((producer, last)) = numbered {
                    let state = &mut self.producers[producer];
                    state.acknowledged = state.acknowledged.max(last);
                    if hashed && last % HASH_INTERVAL == 0 && answer.is_ok_and(|ack| ack.stored > 0) {
                        state.hashed.insert(last);
                    }
                }
                self.anonymous.extend(anonymous.iter().map(|number| (*number, true)));
            }
        }
    }

    /// Reads what is new up to the horizon, as lanes do.
    pub fn read(&mut self) {
        let horizon = self.log().horizon().position();
        let after = self.shown.len() as u64;
        let (events, bytes) = (self.random.within(1..=2000), self.random.within(1..=1 << 20) as usize);
        self.note(format!("read after {after} up to {horizon}"));
        let reader = LogReader::open(self.directory.path()).expect("the log can be read");
        let read = reader.read(after, horizon, events, bytes).expect("the log can be read").events;
        assert!(!read.is_empty() || after == horizon, "there is something to read");
        for (stored, position) in read.into_iter().zip(after + 1..) {
            assert_eq!(stored.position, position);
            self.shown.push((stored.event.event_type, stored.event.key, stored.event.ts));
        }
        self.hold.store(self.shown.len() as u64, Ordering::SeqCst);
        assert!(self.shown.len() as u64 <= horizon, "a reader is shown a position above the horizon (LOG-3)");
    }

    /// An orderly stop: everything taken is stored and acknowledged. Perhaps the power goes after it.
    pub fn close_and_reopen(&mut self) {
        self.note("close".to_owned());
        self.log.take().expect("the log is open").close().expect("everything can be written");
        self.settle();
        self.check_files(None, true);
        if self.random.chance(1, 3) {
            self.lose_power();
        }
        self.open_until_it_works();
    }

    /// The power goes at this moment, or has gone already if that was planned.
    pub fn lose_power_and_reopen(&mut self) {
        self.end_log();
        self.lose_power();
        self.open_until_it_works();
    }

    /// The power goes after so many operations of the disk while requests come in.
    pub fn lose_power_within(&mut self, operations: u64) {
        self.settle();
        self.note(format!("the power goes after {operations} operations"));
        self.disk.cut_power_after(operations);
        for _ in 0..self.random.within(1..=MOST_WAITING as u64 - 1) {
            match self.random.within(0..=9) {
                0..=5 => self.append(),
                6..=7 => self.resend(),
                8 => self.send_twice_at_once(),
                _ => self.append_anonymous(),
            }
        }
        self.lose_power_and_reopen();
    }

    /// The process dies, the machine stays up.
    pub fn kill_and_reopen(&mut self) {
        self.end_log();
        self.note("the process dies".to_owned());
        self.disk.restart_process();
        self.open_until_it_works();
    }

    fn end_log(&mut self) {
        self.disk.cut_power();
        // Whether the last batches could be written is what the model finds out from the answers.
        let _ = self.log.take().expect("the log is open").close();
        self.settle_after_crash();
    }

    /// Checks the files against the model. What is in them at or below a horizon must never go away again.
    fn check_files(&mut self, horizon: Option<u64>, exact: bool) {
        let files = log_files::check(self.directory.path(), horizon).unwrap_or_else(|error| panic!("{error}"));
        let faults = verify(self.directory.path()).expect("the log can be read").faults;
        assert!(faults.is_empty(), "ingestd log verify finds {faults:#?}");
        let log_id = self.log_id.get_or_insert_with(|| files.log_id.clone());
        assert_eq!(*log_id, files.log_id, "a log keeps its id");
        check_contents(&files);
        let floor = files.floor as usize;
        let allowed = self.hold.load(Ordering::SeqCst);
        assert!(files.floor <= allowed, "retention has deleted up to {floor}, somebody needs what is above {allowed}");
        for ((producer, epoch), events) in &self.closed {
            let name = stream_name(&self.producers[*producer].name, *epoch);
            let stored = files.last_numbers.get(&name).copied().unwrap_or(0);
            assert_eq!(stored, *events, "{name} has as many events as were acknowledged when it was closed");
        }
        for (stream, hashes) in &files.hashes {
            for (number, hash) in hashes {
                assert_eq!(hash[..], hash_at(stream, *number), "the hash at {number} of {stream}");
            }
        }
        for producer in &mut self.producers {
            let stream = producer.stream();
            let stored = files.last_numbers.get(&stream).copied().unwrap_or(0);
            for number in &producer.hashed {
                let kept = files.hashes.get(&stream).is_some_and(|hashes| hashes.contains_key(number));
                assert!(kept, "{stream} has lost its hash at {number}");
            }
            let (name, Producer { acknowledged, sent, next, .. }) = (stream, producer);
            assert!(stored >= *acknowledged, "{name}: {acknowledged} are acknowledged, {stored} are stored (LOG-2)");
            assert!(stored <= *sent, "{name}: {sent} were sent, {stored} are stored");
            assert!(!exact || stored == *next - 1, "{name}: {next} should be next, {stored} are stored");
            *acknowledged = stored;
        }
        // What retention has deleted was shown before: nobody lets go of what it has not read.
        let kept = files.rows.into_iter().filter(|row| row.position > files.floor);
        let now: Vec<_> =
            self.shown[..floor].iter().cloned().chain(kept.map(|row| (row.event_type, row.key, row.ts))).collect();
        let same = now.len() >= self.shown.len() && now[..self.shown.len()] == self.shown[..];
        assert!(same, "what was at or below a horizon is not where it was (LOG-1)");

        let mut times: BTreeMap<u64, u64> = BTreeMap::new();
        for (_, _, number) in now.iter().filter(|(_, key, _)| key == "anonymous") {
            *times.entry(*number as u64).or_default() += 1;
        }
        for (number, acknowledged) in &mut self.anonymous {
            match times.remove(number) {
                None => assert!(!*acknowledged && !exact, "anonymous event {number} is lost (LOG-2)"),
                Some(1) => *acknowledged = true,
                Some(times) => panic!("anonymous event {number} is stored {times} times"),
            }
        }
        assert!(times.is_empty(), "events that nobody sent: {times:?}");
        self.shown = now;
    }
}

/// The rows hold what was sent, under the number that it had.
fn check_contents(files: &LogFiles) {
    for row in &files.rows {
        let expected = event(&row.key, row.ts as u64);
        let same = row.event_type == expected.event_type && row.payload == expected.payload;
        assert!(same, "position {} has other contents than were sent: {row:?}", row.position);
        let numbered = row.stream == row.key && row.sequence == row.ts as u64;
        assert!(
            numbered || row.key == "anonymous",
            "position {} has another number than was sent: {row:?}",
            row.position
        );
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- {} ---\n{}", self.what, self.trace.join("\n"));
            // Its threads may wait for a disk that is off.
            self.disk.cut_power();
        }
        if let Some(log) = self.log.take() {
            let _ = log.close();
        }
    }
}
