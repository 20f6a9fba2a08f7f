//! rsyslog with its main queue on disk and ompgsql: one producer writes syslog lines into a Unix socket, and each message is
//! an UPSERT of the total, many a transaction.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use e2e::cluster::Cluster;
use tempfile::TempDir;

use super::checkins::{self, TOTAL};
use super::server::{Server, program};
use super::{DATABASE, Lines, directory};
use crate::measurement::{Failure, NotRun};

/// Messages of a transaction.
const TRANSACTION: usize = 128;

/// Events a second until all were in the total.
pub async fn to_total(cluster: &Cluster, events: &Lines) -> Result<f64, Failure> {
    checkins::create_table(cluster, DATABASE);
    let reader = cluster.connect(DATABASE).await;
    let (_server, mut stream) = start(cluster).await?;
    let started = Instant::now();
    let producer = tokio::task::spawn_blocking({
        let events = Arc::clone(events);
        move || {
            for line in events.iter() {
                // RFC 5424: priority, version, time, host, program, process, kind, no structured data.
                writeln!(stream, "<134>1 2013-01-01T05:15:00Z localhost checkins - - - {line}")?;
            }
            stream.flush()
        }
    });
    producer.await??;
    checkins::wait_for_total(&reader, TOTAL, events.len()).await?;
    Ok(events.len() as f64 / started.elapsed().as_secs_f64())
}

async fn start(cluster: &Cluster) -> Result<(Server, std::io::BufWriter<UnixStream>), Failure> {
    let directory = directory()?;
    let (file, socket) = (directory.path().join("rsyslog.conf"), directory.path().join("socket"));
    std::fs::write(&file, configuration(cluster, &directory, &socket))?;
    let path = |path: &Path| path.to_str().map(str::to_owned).ok_or("a path that is not UTF-8");
    let (file, process) = (path(&file)?, path(&directory.path().join("process"))?);
    let arguments = ["-n", "-f", &file, "-i", &process];
    let program = program("rsyslogd")?;
    // It would run without the modules that it does not find.
    let check = Command::new(&program).args(["-N1", "-f", &file]).output()?;
    if !check.status.success() {
        let said = String::from_utf8_lossy(&check.stderr);
        let error = said.lines().find(|line| line.contains("error")).unwrap_or_default();
        return Err(NotRun(format!("rsyslogd refuses its settings: {error}")).into());
    }
    let answers = async || UnixStream::connect(&socket).ok();
    let (server, stream) = Server::start(directory, &program, &arguments, answers).await?;
    Ok((server, std::io::BufWriter::new(stream)))
}

fn configuration(cluster: &Cluster, directory: &TempDir, socket: &Path) -> String {
    let upsert = "INSERT INTO total AS t SELECT e.line -> 'payload' ->> 'show', 1, (e.line ->> 'ts')::bigint \
                  FROM (SELECT '%msg%'::json AS line) AS e \
                  ON CONFLICT (show) DO UPDATE SET n = t.n + 1, last = greatest(t.last, excluded.last)";
    format!(
        r#"global(workDirectory="{directory}")
module(load="imptcp")
module(load="ompgsql")
main_queue(queue.type="Disk" queue.filename="main" queue.syncqueuefiles="on" queue.checkpointinterval="1"
    queue.size="10000000" queue.timeoutenqueue="600000" queue.dequeuebatchsize="{TRANSACTION}")
input(type="imptcp" path="{socket}")
template(name="upsert" type="string" option.stdsql="on" string="{upsert}")
action(type="ompgsql" conninfo="postgresql:///{DATABASE}?host={host}&port={port}&user=postgres" template="upsert")
"#,
        directory = directory.path().display(),
        socket = socket.display(),
        host = cluster.socket(),
        port = cluster.port(),
    )
}
