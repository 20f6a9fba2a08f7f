//! The process of a peer's server, with a folder of its own. It ends when it is dropped, and when the program ends in any
//! other way.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use e2e::cluster::project;
use tempfile::TempDir;

use crate::measurement::{Failure, NotRun};

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running server.
#[derive(Debug)]
pub struct Server {
    child: Child,
    directory: TempDir,
}

impl Server {
    /// Starts `program` in `directory` with `arguments`, and waits until `answers` gives something.
    ///
    /// # Errors
    /// [`NotRun`] if it does not come up.
    pub async fn start<Answered>(
        directory: TempDir,
        program: &Path,
        arguments: &[&str],
        answers: impl AsyncFn() -> Option<Answered>,
    ) -> Result<(Server, Answered), Failure> {
        let log = File::create(directory.path().join("log"))?;
        // The kernel ends it with the thread that started it, also where no destructor runs.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program).args(arguments);
        command.current_dir(directory.path()).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let spawned = command.spawn();
        let child = spawned.map_err(|error| NotRun(format!("cannot run {}: {error}", program.display())))?;
        let mut server = Server { child, directory };
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(answered) = answers().await {
                return Ok((server, answered));
            }
            if server.child.try_wait()?.is_some() || Instant::now() > deadline {
                return Err(NotRun(format!("{} does not answer: {}", program.display(), server.last_word())).into());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn last_word(&self) -> String {
        let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        log.lines().last().unwrap_or("it said nothing").to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The path of a program.
///
/// # Errors
/// [`NotRun`] if it is not installed.
pub fn program(name: &str) -> Result<PathBuf, NotRun> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian has daemons where users do not look; scripts/setup_peers has a folder of its own.
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), project().join(".peers/bin")]);
    let mut found = folders.map(|folder| folder.join(name)).filter(|file| file.is_file());
    found.next().ok_or_else(|| NotRun(format!("{name} is not installed (scripts/setup_peers)")))
}
