//! Under a service manager: the unit file, and what the daemon tells of itself.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use e2e::cluster::project;
use e2e::daemon::{Daemon, program};

fn unit() -> String {
    fs::read_to_string(project().join("ingestd/ingestd.service")).unwrap()
}

fn setting(name: &str) -> String {
    let unit = unit();
    let line = unit.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
    line.unwrap_or_else(|| panic!("the unit file sets no {name}")).to_owned()
}

#[test]
fn the_unit_file_is_understood_and_allows_what_the_daemon_may_need() {
    // Queries at once, store shards, drains: the most that the settings allow, as in the design.
    let (queries, shards, drains) = (128u64, 256u64, 256u64);
    let need = 4 * queries * shards + 4 * queries + 3 * (shards + 3) + 2 * drains + 256;
    assert!(setting("LimitNOFILE").parse::<u64>().unwrap() >= need);
    assert_eq!(setting("Type"), "notify");
    assert_eq!(setting("ExecReload"), "/bin/kill -HUP $MAINPID");
    if Command::new("systemd-analyze").arg("--version").output().is_ok() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ingestd.service");
        let installed = unit().replace("/usr/local/bin/ingestd", program().to_str().unwrap());
        fs::write(&path, installed).unwrap();
        let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("ingestd.service"), "{said}");
    }
}

/// The states of one notification.
fn notified(manager: &UnixDatagram) -> Vec<String> {
    let mut bytes = [0; 4096];
    let length = manager.recv(&mut bytes).expect("the daemon tells its state");
    String::from_utf8(bytes[..length].to_vec()).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn the_manager_is_told_when_the_daemon_is_ready_reloads_and_stops() {
    let mut daemon = Daemon::new(None, "");
    let socket = daemon.settings_path().with_file_name("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let mut command = daemon.command(&["run"]);
    command.env("NOTIFY_SOCKET", &socket);
    daemon.start_command(command);
    assert_eq!(notified(&manager), ["READY=1"]);
    // Ready means that the row that tells of the start is durable.
    assert!(daemon.status()["log"]["horizon"].as_u64().unwrap() >= 1);

    daemon.signal("HUP");
    let reloading = notified(&manager);
    assert_eq!(reloading[0], "RELOADING=1");
    let micros = reloading[1].strip_prefix("MONOTONIC_USEC=").unwrap();
    assert!(micros.parse::<u64>().unwrap() > 0);
    assert_eq!(notified(&manager), ["READY=1"]);

    assert!(daemon.stop().success());
    assert_eq!(notified(&manager), ["STOPPING=1"]);
}
