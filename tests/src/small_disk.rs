//! A small file system for a directory, to be filled: a tmpfs, whose size may change while it is in use.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A mounted small file system. Unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one of `bytes` on a directory.
    ///
    /// # Errors
    /// If none may be mounted here, why.
    pub fn mount(path: PathBuf, bytes: u64) -> Result<SmallDisk, String> {
        mount(&path, &format!("size={bytes}"))?;
        Ok(SmallDisk(path))
    }

    /// Leaves so many bytes free.
    ///
    /// # Errors
    /// If the size cannot be changed, why.
    pub fn leave_free(&self, bytes: u64) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let left = self.try_to_leave_free(bytes);
            // Whoever writes between the two steps makes the size too small for what is used.
            if left.is_ok() || Instant::now() >= deadline {
                return left;
            }
        }
    }

    fn try_to_leave_free(&self, bytes: u64) -> Result<(), String> {
        let used = Command::new("df").args(["--block-size=1", "--output=used"]).arg(&self.0).output();
        let used = String::from_utf8_lossy(&used.map_err(|error| error.to_string())?.stdout).into_owned();
        let used: u64 =
            used.lines().last().unwrap_or_default().trim().parse().map_err(|_| format!("df says {used}"))?;
        mount(&self.0, &format!("remount,size={}", used + bytes))
    }
}

fn mount(path: &Path, options: &str) -> Result<(), String> {
    match Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(path).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("--lazy").arg(&self.0).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "{} is still mounted", self.0.display());
    }
}
