//! SQL-2: an upgraded catalog equals a fresh one, and what users made with the old version is still there.
//!
//! One test serves every version: whatever lies in `sql/frozen` is installed, filled by `tests/upgrade/VERSION.data.sql`
//! and upgraded; `tests/upgrade/VERSION.kept.sql` must answer the same before and after.

use std::fs::read_to_string;

use e2e::cluster::{Cluster, project};

/// The versions that have a frozen script.
fn frozen_versions() -> Vec<String> {
    let mut versions: Vec<String> = std::fs::read_dir(project().join("sql/frozen"))
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .map(|name| name.strip_prefix("pg_lanes--").unwrap().strip_suffix(".sql").unwrap().to_owned())
        .collect();
    versions.sort_by_key(|version| version.split('.').map(|part| part.parse::<u32>().unwrap()).collect::<Vec<_>>());
    versions
}

fn sql(name: &str) -> String {
    read_to_string(project().join("tests/upgrade").join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn an_upgraded_catalog_equals_a_fresh_one() {
    let cluster = Cluster::start();
    cluster.create_database("fresh");
    let catalog = sql("catalog.sql");
    let fresh = cluster.psql("fresh", &catalog);
    assert!(fresh.lines().count() > 200, "{fresh}");

    let versions = frozen_versions();
    assert!(versions.iter().any(|version| version == "0.1.0"));
    for (number, version) in versions.iter().enumerate() {
        let database = format!("upgraded_{number}");
        cluster.create_database_with(&database, "");
        cluster.psql(&database, &format!("CREATE EXTENSION pg_lanes VERSION '{version}'"));
        assert_ne!(cluster.psql(&database, &catalog), fresh, "{version} is not an old version");
        cluster.psql(&database, &sql(&format!("{version}.data.sql")));
        let kept = sql(&format!("{version}.kept.sql"));
        let before = cluster.psql(&database, &kept);
        assert!(!before.is_empty());

        cluster.psql(&database, "ALTER EXTENSION pg_lanes UPDATE");
        assert_eq!(cluster.psql(&database, &kept), before, "after the upgrade from {version}");
        let upgraded = cluster.psql(&database, &catalog);
        let missing: Vec<_> = fresh.lines().filter(|line| !upgraded.lines().any(|other| other == *line)).collect();
        let left_over: Vec<_> = upgraded.lines().filter(|line| !fresh.lines().any(|other| other == *line)).collect();
        assert!(upgraded == fresh, "from {version}, missing: {missing:#?}\nleft over: {left_over:#?}");

        // A dump of the upgraded database is as good as one of a fresh database.
        let copy = format!("copy_{number}");
        cluster.create_database_with(&copy, "TEMPLATE template0");
        cluster.psql(&copy, &cluster.dump(&database));
        assert_eq!(cluster.psql(&copy, &kept), before, "after dump and restore of the upgrade from {version}");
    }
}

/// Postgres takes the shortest chain of steps, so a shortcut could skip one that matters.
#[test]
fn every_old_version_has_one_way_to_the_newest() {
    let cluster = Cluster::start();
    cluster.create_database("shop");
    let newest = cluster.psql("shop", "SELECT extversion FROM pg_extension WHERE extname = 'pg_lanes'");
    let versions = frozen_versions();
    for (number, version) in versions.iter().enumerate() {
        let mut way = versions[number..].to_vec();
        way.push(newest.clone());
        let query = format!(
            "SELECT path FROM pg_extension_update_paths('pg_lanes') WHERE source = '{version}' AND target = '{newest}'"
        );
        assert_eq!(cluster.psql("shop", &query), way.join("--"));
    }
}
