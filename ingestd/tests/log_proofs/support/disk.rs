//! A disk that loses power, fails or fills up when a test says so, by a layer between SQLite and the operating system
//! (`layer.rs`).
//!
//! The layer is SQLite's default VFS in this process and passes everything on to the one for Unix. For a directory that
//! a test has made a [`Disk`] it also keeps, for every file, what a sync has covered and what was written since:
//!
//! - [`Disk::lose_power`] puts into the directory what a power cut leaves: every write that no sync covered is lost, or
//!   torn (each 512-byte sector as it was or as one of the later writes left it, the length likewise). A file's name is
//!   as durable as the last sync of the directory. Shared memory (`-shm`) is discarded.
//! - [`Disk::fail`] lets one operation fail, once. After a failed sync, what it should have covered is not written by a
//!   later sync either, unless it is written again: that is how Linux behaves.
//! - [`Disk::cut_power`] lets every operation fail from then on, so that a log's threads end.
//! - [`Disk::fill`] refuses every write that makes a file longer.
//!
//! Real syncs are not made: the layer's own images decide what is durable. Of what the log writes into the directory by
//! other means, the watermark file is seen as well, by its observer; the lock file stays as it is.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_int;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use e2e::random::Random;
use rusqlite::ffi;

use super::image::Image;
use super::layer::{disks, layer};

/// What can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Open,
    Write,
    Sync,
    Truncate,
    Delete,
}

/// One operation that fails, once.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// Which operations count.
    pub operations: &'static [Operation],
    /// The how-many-th of them fails, from 1.
    pub number: u64,
    /// With SQLITE_FULL, or with the I/O error of its kind.
    pub full: bool,
}

/// What a power cut does to what no sync has covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// All of it is gone.
    Lost,
    /// Each sector is gone or not.
    Torn,
}

/// A directory whose SQLite files are under a test's control.
#[derive(Debug)]
pub struct Disk {
    directory: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    power_is_off: bool,
    /// Operations until the power goes.
    power_left: Option<u64>,
    fault: Option<Fault>,
    failed: Option<String>,
    pub(super) full: bool,
    pub(super) refused_for_room: u64,
    pub(super) open_files: u64,
    images: HashMap<u64, Image>,
    next_image: u64,
    /// Name ► image, now and at the last sync of the directory.
    pub(super) names: BTreeMap<String, u64>,
    pub(super) durable_names: BTreeMap<String, u64>,
}

impl Disk {
    /// Takes control of the SQLite files of `directory`, until the value is dropped.
    pub fn new(directory: &Path) -> Arc<Disk> {
        layer();
        let directory = std::fs::canonicalize(directory).expect("the test's directory exists");
        let disk = Arc::new(Disk { directory: directory.clone(), state: Mutex::default() });
        disks().insert(directory, Arc::downgrade(&disk));
        disk
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on every operation fails.
    pub fn cut_power(&self) {
        self.state().power_is_off = true;
    }

    /// Whether every operation fails.
    pub fn power_is_off(&self) -> bool {
        self.state().power_is_off
    }

    /// After `operations` more operations every one fails.
    pub fn cut_power_after(&self, operations: u64) {
        self.state().power_left = Some(operations);
    }

    /// Takes back [`Disk::cut_power_after`]; true if it has happened already.
    pub fn stop_cutting(&self) -> bool {
        let mut state = self.state();
        state.power_left = None;
        state.power_is_off
    }

    /// Ends what [`Disk::cut_power`] began. Nothing is lost: that is how a process dies. All files must be closed.
    pub fn restart_process(&self) {
        let mut state = self.state();
        assert_eq!(state.open_files, 0, "the log must be closed first");
        state.power_is_off = false;
        state.power_left = None;
        self.remove_shared_memory();
    }

    /// Puts into the directory what a power cut leaves, and turns the power on. All files must be closed.
    pub fn lose_power(&self, loss: Loss, random: &mut Random) {
        let mut state = self.state();
        assert_eq!(state.open_files, 0, "the log must be closed first");
        let mut names = state.durable_names.clone();
        if loss == Loss::Torn {
            let all: Vec<String> = state.names.keys().chain(state.durable_names.keys()).cloned().collect();
            for name in all {
                if random.chance(1, 2) {
                    match state.names.get(&name) {
                        Some(image) => names.insert(name, *image),
                        None => names.remove(&name),
                    };
                }
            }
        }
        for name in state.names.keys() {
            let _ = std::fs::remove_file(self.directory.join(name));
        }
        let mut after = State { next_image: state.next_image, ..State::default() };
        for (name, image) in names {
            let contents = state.images[&image].after_power_cut(loss, random);
            std::fs::write(self.directory.join(&name), &contents).expect("the directory is the test's");
            after.images.insert(image, Image::synced(contents));
            after.names.insert(name, image);
        }
        after.durable_names.clone_from(&after.names);
        *state = after;
        self.remove_shared_memory();
    }

    fn remove_shared_memory(&self) {
        for entry in std::fs::read_dir(&self.directory).expect("the directory is the test's").flatten() {
            if entry.file_name().as_bytes().ends_with(b"-shm") {
                std::fs::remove_file(entry.path()).expect("the directory is the test's");
            }
        }
    }

    /// Lets one operation fail, counted from now.
    pub fn fail(&self, fault: Fault) {
        let mut state = self.state();
        state.fault = Some(fault);
        state.failed = None;
    }

    /// What has failed because of [`Disk::fail`], if its turn has come.
    pub fn failed(&self) -> Option<String> {
        self.state().failed.clone()
    }

    /// Takes back [`Disk::fail`]; gives what has failed, if its turn has come.
    pub fn stop_failing(&self) -> Option<String> {
        let mut state = self.state();
        state.fault = None;
        state.failed.take()
    }

    /// From now on no file gets longer.
    pub fn fill(&self) {
        self.state().full = true;
    }

    /// There is room again.
    pub fn free(&self) {
        self.state().full = false;
    }

    /// How many writes were refused for lack of room.
    pub fn refused_for_room(&self) -> u64 {
        self.state().refused_for_room
    }
}

impl State {
    /// Whether an operation may go on; else SQLite's code for its failure.
    pub(super) fn admit(&mut self, operation: Operation, name: &str) -> Result<(), c_int> {
        if !self.power_is_off
            && let Some(left) = &mut self.power_left
        {
            self.power_is_off = *left == 0;
            *left = left.saturating_sub(1);
        }
        if self.power_is_off {
            return Err(error_code(operation));
        }
        if let Some(fault) = &mut self.fault
            && fault.operations.contains(&operation)
        {
            fault.number -= 1;
            if fault.number == 0 {
                let code = if fault.full { ffi::SQLITE_FULL } else { error_code(operation) };
                self.failed = Some(format!("{operation:?} of {name} with code {code}"));
                self.fault = None;
                return Err(code);
            }
        }
        Ok(())
    }

    /// The image of a file that is being opened.
    pub(super) fn image_of(&mut self, name: &str, contents: impl FnOnce() -> Vec<u8>) -> u64 {
        *self.names.entry(name.to_owned()).or_insert_with(|| {
            // A file that was there before the disk was made, or a new one.
            let durable = contents();
            let image = self.next_image;
            self.next_image += 1;
            if !durable.is_empty() {
                self.durable_names.insert(name.to_owned(), image);
            }
            self.images.insert(image, Image::synced(durable));
            image
        })
    }

    pub(super) fn image(&mut self, image: u64) -> &mut Image {
        self.images.get_mut(&image).expect("an open file has an image")
    }
}

fn error_code(operation: Operation) -> c_int {
    match operation {
        Operation::Open => ffi::SQLITE_CANTOPEN,
        Operation::Write => ffi::SQLITE_IOERR_WRITE,
        Operation::Sync => ffi::SQLITE_IOERR_FSYNC,
        Operation::Truncate => ffi::SQLITE_IOERR_TRUNCATE,
        Operation::Delete => ffi::SQLITE_IOERR_DELETE,
    }
}

mod tests {
    use super::*;
    use rusqlite::Connection;

    /// Whether a row is still there when the power goes after its commit.
    fn survives(synchronous: &str, loss: Loss, seed: u64, before_the_cut: impl FnOnce(&Disk, &Connection)) -> bool {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.db");
        let disk = Disk::new(directory.path());
        let connection = Connection::open(&path).unwrap();
        let setup = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE t (a);";
        connection.execute_batch(setup).unwrap();
        connection.pragma_update(None, "synchronous", synchronous).unwrap();
        before_the_cut(&disk, &connection);
        disk.cut_power();
        drop(connection);
        disk.lose_power(loss, &mut Random::new(seed));
        let rows: u64 =
            Connection::open(&path).unwrap().query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap();
        rows > 0
    }

    fn insert(connection: &Connection) -> rusqlite::Result<()> {
        connection.execute_batch("INSERT INTO t VALUES (1)")
    }

    #[test]
    fn only_what_a_sync_has_covered_survives_a_power_cut() {
        assert!(survives("FULL", Loss::Lost, 1, |_, connection| insert(connection).unwrap()));
        assert!(!survives("OFF", Loss::Lost, 1, |_, connection| insert(connection).unwrap()));
        let torn = |seed| survives("OFF", Loss::Torn, seed, |_, connection| insert(connection).unwrap());
        let kept = (0..100).filter(|seed| torn(*seed)).count();
        assert!((1..100).contains(&kept), "{kept} of 100 torn commits are whole");
    }

    #[test]
    fn a_later_sync_does_not_make_up_for_one_that_failed() {
        // The second commit's sync covers the first one's frames only because SQLite writes them again.
        let fault = Fault { operations: &[Operation::Sync], number: 1, full: false };
        assert!(survives("FULL", Loss::Lost, 1, |disk, connection| {
            disk.fail(fault);
            insert(connection).unwrap_err();
            assert!(disk.stop_failing().is_some());
            insert(connection).unwrap();
        }));
    }
}
