//! The layer between SQLite and the operating system, and between the watermark file and it, through which a [`Disk`] sees and
//! decides what happens to its files. All others it passes on.

// A VFS is a table of C functions. Every unsafe block says why it is sound; the rest of the workspace has none.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use ingestd::log::watermark::{FileOperation, OBSERVER};
use rusqlite::ffi::{self, sqlite3_file, sqlite3_int64, sqlite3_io_methods, sqlite3_vfs};

use super::disk::{Disk, Operation};

/// The disks that tests have made, by their directories.
pub(super) fn disks() -> MutexGuard<'static, HashMap<PathBuf, Weak<Disk>>> {
    static DISKS: OnceLock<Mutex<HashMap<PathBuf, Weak<Disk>>>> = OnceLock::new();
    DISKS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// The disk that a file is on, if a test has taken control of it, and the file's name.
fn disk_of(path: &Path) -> Option<(Arc<Disk>, String)> {
    let disk = disks().get(path.parent()?)?.upgrade()?;
    Some((disk, path.file_name()?.to_str()?.to_owned()))
}

/// The VFS that this one is a layer over.
pub(super) struct Base(*mut sqlite3_vfs);

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
            if state.full && offset + bytes.len() as u64 > state.image(image).length() {
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
pub(super) fn layer() -> &'static Base {
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
        && handle.disk.power_is_off()
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
    if state.full && end > state.image(handle.image).length() {
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
