//! The program itself: what it measures is in the table and in the JSON, and what it does not know is refused.

use std::process::{Command, Output};

use serde_json::Value;

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bench")).args(arguments).output().expect("it is built")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("it prints UTF-8")
}

#[test]
fn a_quick_run_of_one_measurement_gives_its_rows_as_table_and_as_json() {
    let output = bench(&["--quick", "--only", "log/in-process"]);
    let table = text(&output.stdout);
    assert!(output.status.success(), "{table}{}", text(&output.stderr));
    let path = table.lines().find_map(|line| line.strip_prefix("written: ")).expect("it says where the JSON is");
    let report: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(report["quick"], true);
    assert!(report["machine"]["cores"].as_u64() >= Some(1) && report["machine"]["memory_gib"].as_f64() > Some(0.0));
    let rows = report["rows"].as_array().unwrap();
    // The third line of that measurement, over HTTP, was not asked for.
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["log/in-process", "log/in-process-cpu"]);
    for row in rows {
        let side = |side: &str| row["outcome"]["measured"][side].as_array().unwrap()[0].as_f64().unwrap();
        let ratio = side("ours") / side("baseline");
        assert!(side("ours") > 0.0 && ratio.is_finite(), "{row}");
        // A quick run has one round, so the value is its ratio.
        let name = row["name"].as_str().unwrap();
        let line = table.lines().find(|line| line.split_whitespace().next() == Some(name)).expect("it is in the table");
        let shown: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!((shown - ratio).abs() <= 0.01 * ratio + 0.005, "{line}: {ratio}");
    }
    assert_eq!(rows[0]["goal"]["at_least"], 0.8);
    assert!(rows[1]["goal"].is_null());
}

#[test]
fn the_list_has_what_was_asked_for_with_its_goal() {
    let list = text(&bench(&["--list", "--only", "projections"]).stdout);
    let names: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.contains(&"projections/hot-counter") && names.iter().all(|name| name.starts_with("projections/")));
    assert!(list.contains(">= 200"), "{list}");
    let growth = text(&bench(&["--growth", "--list"]).stdout);
    assert!(growth.contains("growth/keys") && !growth.contains("projections/"), "{growth}");
}

#[test]
fn a_name_that_nothing_has_is_refused_before_anything_is_measured() {
    let output = bench(&["--only", "log", "--only", "logs/http"]);
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(text(&output.stderr).contains("there is nothing called \"logs/http\" to measure"), "{output:?}");
}
