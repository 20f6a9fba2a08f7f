//! The flights of the first week of 2013, and what three projections must say about them.
//!
//! The values were counted independently of this program, from the file alone.

use std::io::Read;

use flate2::read::GzDecoder;

use crate::cluster::Cluster;
use crate::daemon::{Daemon, testdata};

/// Events of the week.
pub const WEEK_EVENTS: u64 = 6099;

/// Lanes of the three projections together.
pub const LANES: usize = 12;

/// The week's lines.
pub fn week() -> Vec<String> {
    let file = std::fs::File::open(testdata("flights-week.ndjson.gz")).expect("the sample is in the project");
    let mut text = String::new();
    GzDecoder::new(file).read_to_string(&mut text).expect("the sample is NDJSON");
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    assert_eq!(lines.len() as u64, WEEK_EVENTS);
    lines
}

/// A daemon that runs on `database` with the three projections applied.
pub fn daemon_with_projections(cluster: &Cluster, database: &str, settings: &str) -> Daemon {
    cluster.create_database(database);
    let mut daemon = Daemon::new(Some(&cluster.connection_string(database)), settings);
    daemon.start();
    daemon.run(&["apply", testdata("projections.yaml").to_str().expect("the path is UTF-8")]);
    daemon
}

/// Checks the three tables of `database` against the week's values.
pub fn assert_week(cluster: &Cluster, database: &str) {
    assert_week_by(|sql| cluster.psql(database, sql));
}

/// Checks the three tables against the week's values. `psql` runs SQL and returns its rows as [`Cluster::psql`] does.
pub fn assert_week_by(psql: impl Fn(&str) -> String) {
    assert_eq!(
        psql("SELECT origin, departures, cancellations, miles, longest_delay FROM airport_departures_total ORDER BY 1",),
        "EWR|2197|14|2187684|379\nJFK|2164|6|2739458|853\nLGA|1703|15|1409248|379"
    );
    assert_eq!(
        psql(
            r#"SELECT count(*), sum(last_ts), md5(string_agg(line || E'\n', '' ORDER BY line COLLATE "C"))
               FROM (SELECT last_ts, concat_ws('|', tailnum, last_ts, origin, dest) AS line FROM aircraft_last_seen) AS t"#,
        ),
        "2048|2779943544960000|f78eadcf3cc736fe95632c4708404cdd"
    );
    assert_eq!(
        psql(
            r#"SELECT count(*), sum(flights), sum(sum_delay), min(min_delay), max(max_delay),
                      md5(string_agg(line || E'\n', '' ORDER BY line COLLATE "C"))
               FROM (SELECT *, concat_ws('|', origin, dest, flights, sum_delay, min_delay, max_delay) AS line
                     FROM route_delay) AS t"#,
        ),
        "186|6064|23514|-70|851|312902178a12757cd4822485940edd7d"
    );
    assert_eq!(
        psql("SELECT projection, sum(skipped_null_key) FROM lanes.checkpoint GROUP BY 1 ORDER BY 1",),
        "aircraft_last_seen|8\nairport_departures|0\nroute_delay|0"
    );
}
