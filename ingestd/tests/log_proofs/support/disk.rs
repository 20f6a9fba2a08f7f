//! A disk that loses power, fails or fills up when a test says so: a layer between SQLite and the operating system.
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

// A VFS is a table of C functions. Every unsafe block says why it is sound; the rest of the workspace has none.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use e2e::random::Random;
use ingestd::log::watermark::{FileOperation, OBSERVER};
use rusqlite::ffi::{self, sqlite3_file, sqlite3_int64, sqlite3_io_methods, sqlite3_vfs};

const SECTOR: u64 = 512;

/// What the operating system writes back as a whole.
const PAGE: u64 = 4096;

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
struct State {
    power_is_off: bool,
    /// Operations until the power goes.
    power_left: Option<u64>,
    fault: Option<Fault>,
    failed: Option<String>,
    full: bool,
    refused_for_room: u64,
    open_files: u64,
    images: HashMap<u64, Image>,
    next_image: u64,
    /// Name ► image, now and at the last sync of the directory.
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
}

/// A file's contents as far as they matter for a power cut.
#[derive(Debug, Default, Clone)]
struct Image {
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
    fn write(&mut self, offset: u64, bytes: &[u8]) {
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

    fn truncate(&mut self, length: u64) {
        if length < self.length {
            // What is behind the new end reads as zeros when the file grows again.
            self.write(length, &vec![0; (self.length - length) as usize]);
        }
        self.length = length;
        self.lengths.push(length);
    }

    fn sync(&mut self) {
        let longest = self.pieces.iter().map(Piece::end).max().unwrap_or(0).max(self.length);
        self.durable.resize(self.durable.len().max(longest as usize), 0);
        for piece in self.pieces.iter().filter(|piece| !piece.doubtful) {
            self.durable[piece.offset as usize..piece.end() as usize].copy_from_slice(&piece.bytes);
        }
        self.durable.resize(self.length as usize, 0);
        self.pieces.retain(|piece| piece.doubtful);
        self.lengths.clear();
    }

    fn sync_failed(&mut self) {
        for piece in &mut self.pieces {
            piece.doubtful = true;
        }
    }

    /// What a power cut leaves.
    fn after_power_cut(&self, loss: Loss, random: &mut Random) -> Vec<u8> {
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

impl Disk {
    /// Takes control of the SQLite files of `directory`, until the value is dropped.
    pub fn new(directory: &Path) -> Arc<Disk> {
        layer();
        let directory = std::fs::canonicalize(directory).expect("the test's directory exists");
        let disk = Arc::new(Disk { directory: directory.clone(), state: Mutex::default() });
        disks().insert(directory, Arc::downgrade(&disk));
        disk
    }

    fn state(&self) -> MutexGuard<'_, State> {
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
            let length = contents.len() as u64;
            after.images.insert(image, Image { durable: contents, length, ..Image::default() });
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
    fn admit(&mut self, operation: Operation, name: &str) -> Result<(), c_int> {
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
    fn image_of(&mut self, name: &str, contents: impl FnOnce() -> Vec<u8>) -> u64 {
        *self.names.entry(name.to_owned()).or_insert_with(|| {
            // A file that was there before the disk was made, or a new one.
            let durable = contents();
            let image = self.next_image;
            self.next_image += 1;
            if !durable.is_empty() {
                self.durable_names.insert(name.to_owned(), image);
            }
            let length = durable.len() as u64;
            self.images.insert(image, Image { durable, length, ..Image::default() });
            image
        })
    }

    fn image(&mut self, image: u64) -> &mut Image {
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

fn disks() -> MutexGuard<'static, HashMap<PathBuf, Weak<Disk>>> {
    static DISKS: OnceLock<Mutex<HashMap<PathBuf, Weak<Disk>>>> = OnceLock::new();
    DISKS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// The disk that a file is on, if a test has taken control of it, and the file's name.
fn disk_of(path: &Path) -> Option<(Arc<Disk>, String)> {
    let disk = disks().get(path.parent()?)?.upgrade()?;
    Some((disk, path.file_name()?.to_str()?.to_owned()))
}

/// The VFS that this one is a layer over.
struct Base(*mut sqlite3_vfs);

// SAFETY: SQLite's built-in VFS lives as long as the process, is never changed, and is meant for use by many threads.
unsafe impl Send for Base {}
// SAFETY: as above.
unsafe impl Sync for Base {}

/// What the layer is for SQLite's files, for the watermark file.
fn observe(path: &Path, operation: FileOperation<'_>) -> std::io::Result<()> {
    let Some((disk, name)) = disk_of(path) else { return Ok(()) };
    let mut state = disk.state();
    let kind = match operation {
        FileOperation::Read | FileOperation::Open => Operation::Open,
        FileOperation::Write(..) => Operation::Write,
        FileOperation::Sync | FileOperation::SyncDirectory => Operation::Sync,
    };
    let admitted = state.admit(kind, &name);
    if let (Err(_), FileOperation::Sync) = (admitted, operation) {
        let image = state.names[&name];
        state.image(image).sync_failed();
    }
    admitted.map_err(|code| {
        let full = code == ffi::SQLITE_FULL;
        std::io::Error::from(if full { std::io::ErrorKind::StorageFull } else { std::io::ErrorKind::Other })
    })?;
    match operation {
        FileOperation::Read => {}
        FileOperation::Open => drop(state.image_of(&name, || std::fs::read(path).unwrap_or_default())),
        FileOperation::Write(offset, bytes) => {
            let image = state.names[&name];
            if state.full && offset + bytes.len() as u64 > state.image(image).length {
                return Err(std::io::ErrorKind::StorageFull.into());
            }
            state.image(image).write(offset, bytes);
        }
        FileOperation::Sync => {
            let image = state.names[&name];
            state.image(image).sync();
        }
        FileOperation::SyncDirectory => state.durable_names = state.names.clone(),
    }
    Ok(())
}

/// The layer, registered as the default at the first call.
fn layer() -> &'static Base {
    static BASE: OnceLock<Base> = OnceLock::new();
    BASE.get_or_init(|| {
        let _ = OBSERVER.set(observe);
        // SAFETY: the name is a C string. The copy of the base's table is leaked, so it outlives every use. Its functions
        // that are not replaced take a VFS only to find `pAppData` and the like, which the copy has as well.
        unsafe {
            let base = ffi::sqlite3_vfs_find(c"unix".as_ptr());
            assert!(!base.is_null(), "SQLite has a VFS for Unix");
            let mut layer = Box::new(*base);
            layer.pNext = std::ptr::null_mut();
            layer.zName = c"test disk".as_ptr();
            layer.szOsFile += size_of::<LayerFile>() as c_int;
            layer.xOpen = Some(open);
            layer.xDelete = Some(delete);
            assert_eq!(ffi::sqlite3_vfs_register(Box::into_raw(layer), 1), ffi::SQLITE_OK);
            Base(base)
        }
    })
}

/// A file of the layer; the base's file follows it in memory.
#[repr(C)]
struct LayerFile {
    file: sqlite3_file,
    /// Null where no test has taken control of the directory.
    handle: *mut Handle,
}

struct Handle {
    disk: Arc<Disk>,
    name: String,
    image: u64,
    /// The next sync covers the directory as well: SQLite's rule for new journals and WAL files.
    syncs_directory: bool,
}

/// The base's file.
///
/// # Safety
/// `file` is an open file of this layer.
unsafe fn base_file(file: *mut sqlite3_file) -> *mut sqlite3_file {
    // SAFETY: SQLite allots `szOsFile` bytes, that is this layer's part and the base's.
    unsafe { file.cast::<LayerFile>().add(1).cast() }
}

/// The base's functions for a file.
///
/// # Safety
/// `file` is an open file of this layer.
unsafe fn methods<'a>(file: *mut sqlite3_file) -> &'a sqlite3_io_methods {
    // SAFETY: the base has set its functions when it opened the file; they are static.
    unsafe { &*(*base_file(file)).pMethods }
}

/// What the layer knows of a file.
///
/// # Safety
/// `file` is an open file of this layer, and SQLite uses one file in one thread at a time.
unsafe fn handle<'a>(file: *mut sqlite3_file) -> Option<&'a mut Handle> {
    // SAFETY: the pointer is null or comes from a Box that only `close` frees.
    unsafe { (*file.cast::<LayerFile>()).handle.as_mut() }
}

/// Calls one of the base's functions for a file.
macro_rules! base {
    ($file:expr, $function:ident $(, $argument:expr)*) => {
        // SAFETY: SQLite calls with an open file of this layer; the base gets its own part of it and the same arguments.
        unsafe { (methods($file).$function.expect("the base has all functions"))(base_file($file) $(, $argument)*) }
    };
}

/// The handle of a file in a function that SQLite calls.
macro_rules! handle {
    ($file:expr) => {
        // SAFETY: SQLite calls with an open file of this layer, in one thread at a time.
        unsafe { handle($file) }
    };
}

unsafe extern "C" fn open(
    _vfs: *mut sqlite3_vfs,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    flags_out: *mut c_int,
) -> c_int {
    let base = layer().0;
    let closed = LayerFile { file: sqlite3_file { pMethods: std::ptr::null() }, handle: std::ptr::null_mut() };
    // SAFETY: the memory is SQLite's and large enough. A file without methods is one that SQLite does not close.
    unsafe { std::ptr::write(file.cast(), closed) };
    let open_base = || {
        // SAFETY: the base opens its own part of the file with the arguments that SQLite gave.
        match unsafe { ((*base).xOpen.expect("the base opens files"))(base, name, base_file(file), flags, flags_out) } {
            ffi::SQLITE_OK => Ok(()),
            code => Err(code),
        }
    };
    // SAFETY: SQLite's name is null (for a temporary file) or a C string.
    let path = (!name.is_null()).then(|| unsafe { path_of(name) });
    let opened = match path.and_then(disk_of) {
        None => open_base().map(|()| std::ptr::null_mut()),
        Some((disk, name)) => disk.open_file(name, flags, open_base, || contents_of(file)).map(Box::into_raw),
    };
    match opened {
        Ok(handle) => {
            // SAFETY: the memory is this layer's part of the file.
            unsafe { std::ptr::write(file.cast(), LayerFile { file: sqlite3_file { pMethods: &METHODS }, handle }) };
            ffi::SQLITE_OK
        }
        Err(code) => code,
    }
}

impl Disk {
    fn open_file(
        self: Arc<Disk>,
        name: String,
        flags: c_int,
        open_base: impl FnOnce() -> Result<(), c_int>,
        contents: impl FnOnce() -> Vec<u8>,
    ) -> Result<Box<Handle>, c_int> {
        let mut guard = self.state();
        let state = &mut *guard;
        state.admit(Operation::Open, &name)?;
        open_base()?;
        let image = state.image_of(&name, contents);
        state.open_files += 1;
        drop(guard);
        let journals = ffi::SQLITE_OPEN_MAIN_JOURNAL | ffi::SQLITE_OPEN_SUPER_JOURNAL | ffi::SQLITE_OPEN_WAL;
        let syncs_directory = flags & ffi::SQLITE_OPEN_CREATE != 0 && flags & journals != 0;
        Ok(Box::new(Handle { disk: self, name, image, syncs_directory }))
    }
}

/// What is in a file that the base has just opened.
fn contents_of(file: *mut sqlite3_file) -> Vec<u8> {
    let mut size: sqlite3_int64 = 0;
    assert_eq!(base!(file, xFileSize, &mut size), ffi::SQLITE_OK, "the file has a size");
    let mut contents = vec![0; size as usize];
    if size > 0 {
        let code = base!(file, xRead, contents.as_mut_ptr().cast(), size as c_int, 0);
        assert_eq!(code, ffi::SQLITE_OK, "the file can be read");
    }
    contents
}

/// # Safety
/// `name` is a C string that outlives the result.
unsafe fn path_of<'a>(name: *const c_char) -> &'a Path {
    // SAFETY: the caller's promise.
    Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes()))
}

unsafe extern "C" fn delete(_vfs: *mut sqlite3_vfs, name: *const c_char, sync_directory: c_int) -> c_int {
    let base = layer().0;
    // SAFETY: SQLite gives a C string.
    let found = disk_of(unsafe { path_of(name) });
    let mut state = found.as_ref().map(|(disk, name)| (disk.state(), name));
    if let Some((state, name)) = &mut state
        && let Err(code) = state.admit(Operation::Delete, name)
    {
        return code;
    }
    // SAFETY: the base deletes the file that SQLite named; without a sync, which the layer stands for.
    let code = unsafe { ((*base).xDelete.expect("the base deletes files"))(base, name, 0) };
    if let Some((mut state, name)) = state
        && code == ffi::SQLITE_OK
    {
        state.names.remove(name);
        if sync_directory != 0 {
            state.durable_names = state.names.clone();
        }
    }
    code
}

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    // SAFETY: SQLite closes an open file of this layer, once; the handle, if any, comes from a Box.
    unsafe {
        let handle = std::mem::replace(&mut (*file.cast::<LayerFile>()).handle, std::ptr::null_mut());
        if !handle.is_null() {
            let handle = Box::from_raw(handle);
            handle.disk.state().open_files -= 1;
        }
    }
    base!(file, xClose)
}

unsafe extern "C" fn read(file: *mut sqlite3_file, to: *mut c_void, count: c_int, offset: sqlite3_int64) -> c_int {
    if let Some(handle) = handle!(file)
        && handle.disk.state().power_is_off
    {
        return ffi::SQLITE_IOERR_READ;
    }
    base!(file, xRead, to, count, offset)
}

unsafe extern "C" fn write(file: *mut sqlite3_file, from: *const c_void, count: c_int, offset: sqlite3_int64) -> c_int {
    let Some(handle) = handle!(file) else { return base!(file, xWrite, from, count, offset) };
    let mut state = handle.disk.state();
    if let Err(code) = state.admit(Operation::Write, &handle.name) {
        return code;
    }
    let end = offset as u64 + count as u64;
    if state.full && end > state.image(handle.image).length {
        state.refused_for_room += 1;
        return ffi::SQLITE_FULL;
    }
    let code = base!(file, xWrite, from, count, offset);
    if code == ffi::SQLITE_OK {
        // SAFETY: SQLite gives `count` bytes.
        let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), count as usize) };
        state.image(handle.image).write(offset as u64, bytes);
    }
    code
}

unsafe extern "C" fn truncate(file: *mut sqlite3_file, size: sqlite3_int64) -> c_int {
    let Some(handle) = handle!(file) else { return base!(file, xTruncate, size) };
    let mut state = handle.disk.state();
    if let Err(code) = state.admit(Operation::Truncate, &handle.name) {
        return code;
    }
    let code = base!(file, xTruncate, size);
    if code == ffi::SQLITE_OK {
        state.image(handle.image).truncate(size as u64);
    }
    code
}

unsafe extern "C" fn sync(file: *mut sqlite3_file, flags: c_int) -> c_int {
    let Some(handle) = handle!(file) else { return base!(file, xSync, flags) };
    let mut state = handle.disk.state();
    if let Err(code) = state.admit(Operation::Sync, &handle.name) {
        state.image(handle.image).sync_failed();
        return code;
    }
    state.image(handle.image).sync();
    if std::mem::take(&mut handle.syncs_directory) {
        state.durable_names = state.names.clone();
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn file_size(file: *mut sqlite3_file, size: *mut sqlite3_int64) -> c_int {
    base!(file, xFileSize, size)
}

unsafe extern "C" fn lock(file: *mut sqlite3_file, level: c_int) -> c_int {
    base!(file, xLock, level)
}

unsafe extern "C" fn unlock(file: *mut sqlite3_file, level: c_int) -> c_int {
    base!(file, xUnlock, level)
}

unsafe extern "C" fn check_reserved_lock(file: *mut sqlite3_file, result: *mut c_int) -> c_int {
    base!(file, xCheckReservedLock, result)
}

unsafe extern "C" fn file_control(file: *mut sqlite3_file, operation: c_int, argument: *mut c_void) -> c_int {
    base!(file, xFileControl, operation, argument)
}

unsafe extern "C" fn sector_size(file: *mut sqlite3_file) -> c_int {
    base!(file, xSectorSize)
}

unsafe extern "C" fn device_characteristics(file: *mut sqlite3_file) -> c_int {
    base!(file, xDeviceCharacteristics)
}

unsafe extern "C" fn shm_map(
    file: *mut sqlite3_file,
    page: c_int,
    page_size: c_int,
    extend: c_int,
    address: *mut *mut c_void,
) -> c_int {
    base!(file, xShmMap, page, page_size, extend, address)
}

unsafe extern "C" fn shm_lock(file: *mut sqlite3_file, offset: c_int, count: c_int, flags: c_int) -> c_int {
    base!(file, xShmLock, offset, count, flags)
}

unsafe extern "C" fn shm_barrier(file: *mut sqlite3_file) {
    base!(file, xShmBarrier);
}

unsafe extern "C" fn shm_unmap(file: *mut sqlite3_file, delete: c_int) -> c_int {
    base!(file, xShmUnmap, delete)
}

/// Version 2: without memory mapping, which would write past the layer.
static METHODS: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

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
