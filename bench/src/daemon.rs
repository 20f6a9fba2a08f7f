//! A daemon in a process of its own, with the settings that users have.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Failure;

/// How long it may take to start.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running daemon; killed if it is dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    address: String,
}

impl Daemon {
    /// Starts one whose data are in `directory`. `settings` are further lines of TOML.
    pub fn start(directory: &Path, shards: u32, settings: &str) -> Result<Daemon, Failure> {
        let program = std::env::current_exe()?.with_file_name("ingestd");
        let data = directory.join("data");
        std::fs::create_dir(&data)?;
        // Freed at once, for the daemon to take.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let file = directory.join("ingestd.toml");
        let text = format!(
            "data_directory = '{}'\nlisten = \"{address}\"\ndrain_threads = {shards}\nstorage_shards = {shards}\n{settings}\n",
            data.display()
        );
        std::fs::write(&file, text)?;
        let log = std::fs::File::create(directory.join("log"))?;
        let mut command = Command::new(&program);
        command.arg("--config").arg(&file).arg("run").stdin(Stdio::null()).stderr(log);
        let child = command.spawn().map_err(|error| format!("cannot run {}: {error}", program.display()))?;
        let daemon = Daemon { child, address };
        let deadline = Instant::now() + PATIENCE;
        while ureq::get(format!("http://{}/readyz", daemon.address)).call().is_err() {
            if Instant::now() > deadline {
                return Err(format!("the daemon does not start: {}", read_log(directory)).into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(daemon)
    }

    /// `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its resident memory in KiB.
    pub fn resident_kib(&self) -> Result<u64, Failure> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("the kernel tells no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }

    /// Ends it by SIGTERM and waits.
    pub fn stop(mut self) -> Result<(), Failure> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the daemon ended with {status}").into()) }
    }
}

fn read_log(directory: &Path) -> String {
    std::fs::read_to_string(directory.join("log")).unwrap_or_default()
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
