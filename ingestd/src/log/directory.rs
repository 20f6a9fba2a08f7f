//! The data directory: one daemon at a time, no surprises about where the files are.
//!
//! The directory must exist, belong to the daemon's user and not be reached through a symbolic link. A lock file keeps
//! a second daemon out for as long as the first one lives; the kernel gives the lock back when a process dies.
//!
//! Files: `ingestd.lock`, `watermark`, and per store shard `shard-NNNN.db` with SQLite's `-wal` and `-shm`; of a damaged
//! one that an operator gave up `shard-NNNN.db.corrupt.TIME`, likewise, which nobody reads.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The most store shards a log can have: one for each drain thread that there can be.
pub const MAXIMUM_SHARDS: u32 = 1024;

const LOCK_FILE: &str = "ingestd.lock";

/// Why a data directory cannot be used. The text is one line and names the directory.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// It does not exist or is no directory.
    #[error("data directory {0} does not exist or is not a directory; create it first")]
    Missing(PathBuf),
    /// Some part of its path is a symbolic link.
    #[error("data directory {0} is reached through a symbolic link; name {1} instead")]
    Symlink(PathBuf, PathBuf),
    /// It belongs to somebody else.
    #[error("data directory {0} belongs to user {1}, but ingestd runs as user {2}")]
    Owner(PathBuf, u32, u32),
    /// Another daemon uses it.
    #[error("data directory {0} is in use by another ingestd (process {1})")]
    InUse(PathBuf, String),
    /// The operating system refused something, for example to write.
    #[error("data directory {0}: cannot {1}: {2}")]
    Io(PathBuf, &'static str, std::io::Error),
}

/// A checked data directory. While this value lives, no other daemon can open the directory.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    _lock: File,
}

impl Directory {
    /// Checks `path` and takes its lock.
    ///
    /// # Errors
    /// [`DirectoryError`]; nothing in the directory has been changed then, except that the lock file may exist.
    pub fn open(path: &Path) -> Result<Directory, DirectoryError> {
        let io = |what: &'static str| move |error| DirectoryError::Io(path.to_owned(), what, error);
        if !path.is_dir() {
            return Err(DirectoryError::Missing(path.to_owned()));
        }
        let absolute = std::path::absolute(path).map_err(io("resolve it"))?;
        let real = fs::canonicalize(path).map_err(io("resolve it"))?;
        if normalized(&absolute) != real {
            return Err(DirectoryError::Symlink(path.to_owned(), real));
        }
        let owner = fs::metadata(&real).map_err(io("read its owner"))?.uid();
        let user = rustix::process::geteuid().as_raw();
        if owner != user {
            return Err(DirectoryError::Owner(path.to_owned(), owner, user));
        }
        let mut lock = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(real.join(LOCK_FILE))
            .map_err(io("open its lock file"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut process = String::new();
                let _ = lock.read_to_string(&mut process);
                return Err(DirectoryError::InUse(path.to_owned(), process.trim().to_owned()));
            }
            Err(TryLockError::Error(error)) => return Err(io("lock its lock file")(error)),
        }
        let record = |lock: &mut File| {
            lock.set_len(0)?;
            lock.rewind()?;
            writeln!(lock, "{}", std::process::id())
        };
        record(&mut lock).map_err(io("write its lock file"))?;
        Ok(Directory { path: real, _lock: lock })
    }

    /// The directory's path, absolute and without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// `.` and `..` and doubled slashes taken out by name alone, which is right where no part is a symbolic link.
fn normalized(path: &Path) -> PathBuf {
    let mut result = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => {
                result.pop();
            }
            std::path::Component::CurDir => {}
            other => result.push(other),
        }
    }
    result
}

/// The file of store shard `shard` in `directory`.
pub fn shard_path(directory: &Path, shard: u32) -> PathBuf {
    directory.join(format!("shard-{shard:04}.db"))
}

/// The numbers of the shard files in `directory`, ascending.
///
/// # Errors
/// What the operating system says.
pub fn existing_shards(directory: &Path) -> std::io::Result<Vec<u32>> {
    let mut shards = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let Some(digits) = name.to_str().and_then(|name| name.strip_prefix("shard-")?.strip_suffix(".db")) else {
            continue;
        };
        if digits.len() == 4 && digits.bytes().all(|digit| digit.is_ascii_digit()) {
            shards.extend(digits.parse::<u32>());
        }
    }
    shards.sort_unstable();
    Ok(shards)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_daemon_is_kept_out_and_told_by_whom() {
        let directory = tempfile::tempdir().unwrap();
        let first = Directory::open(directory.path()).unwrap();
        let error = Directory::open(directory.path()).unwrap_err();
        assert!(matches!(&error, DirectoryError::InUse(_, process) if *process == std::process::id().to_string()));
        drop(first);
        Directory::open(directory.path()).unwrap();
    }

    #[test]
    fn missing_directories_and_links_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("none");
        assert!(matches!(Directory::open(&missing), Err(DirectoryError::Missing(_))));
        let real = directory.path().join("real");
        fs::create_dir_all(real.join("inner")).unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert!(matches!(Directory::open(&link), Err(DirectoryError::Symlink(..))));
        assert!(matches!(Directory::open(&link.join("inner")), Err(DirectoryError::Symlink(..))));
        Directory::open(&real.join("./inner/../inner")).unwrap();
    }

    #[test]
    fn only_shard_files_count_as_shards() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["shard-0003.db", "shard-0000.db", "shard-0003.db-wal", "shard-1.db", "shard-00x1.db", "other.db"] {
            fs::write(directory.path().join(name), "").unwrap();
        }
        assert_eq!(existing_shards(directory.path()).unwrap(), [0, 3]);
        assert_eq!(shard_path(Path::new("/d"), 3), Path::new("/d/shard-0003.db"));
    }
}
