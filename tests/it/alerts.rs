//! Every alert of `deploy/prometheus` fires in a test of promtool, and stays quiet in another one. promtool runs the
//! tests where Debian's package `prometheus` is installed.

use std::{collections::BTreeSet, path::Path, process::Command};

const RULES: &str = include_str!("../../deploy/prometheus/utxo-store.rules.yml");
const TESTS: &str = include_str!("../../deploy/prometheus/utxo-store.rules.test.yml");

/// Returns the names of the alerts in a file of rules.
fn alerts(rules: &str) -> BTreeSet<&str> {
    rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect()
}

/// Returns the alerts that a file of tests expects to fire at least once, and the alerts that it expects to stay quiet
/// at least once.
fn expected(tests: &str) -> (BTreeSet<&str>, BTreeSet<&str>) {
    let (mut firing, mut quiet) = (BTreeSet::new(), BTreeSet::new());
    let mut alert = "";
    for line in tests.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("alertname: ") {
            alert = name;
        } else if line == "exp_alerts: []" {
            quiet.insert(alert);
        } else if line.starts_with("- exp_labels: ") {
            firing.insert(alert);
        }
    }
    (firing, quiet)
}

/// Returns one line for each alert that a file of tests leaves out, and for each tested alert without a rule.
fn gaps(rules: &str, tests: &str) -> Vec<String> {
    let alerts = alerts(rules);
    let (firing, quiet) = expected(tests);
    let never_fires = alerts.difference(&firing).map(|name| format!("{name} fires in no test"));
    let never_quiet = alerts.difference(&quiet).map(|name| format!("{name} stays quiet in no test"));
    let tested: BTreeSet<&str> = firing.union(&quiet).copied().collect();
    let unknown = tested.difference(&alerts).map(|name| format!("{name} has no rule"));
    never_fires.chain(never_quiet).chain(unknown).collect()
}

#[test]
fn every_alert_fires_in_one_test_and_stays_quiet_in_another() {
    assert!(alerts(RULES).len() >= 30, "{:?}", alerts(RULES));
    assert_eq!(gaps(RULES, TESTS), [""; 0]);
}

#[test]
fn an_alert_without_a_test_is_found() {
    let rules = "- alert: Tested\n- alert: Loud\n- alert: Silent\n- alert: New\n";
    let test = |name: &str, expected: &str| format!("alertname: {name}\n{expected}\n");
    let (fires, is_quiet) = ("exp_alerts:\n- exp_labels: { severity: warning }", "exp_alerts: []");
    let tests = [
        test("Tested", fires),
        test("Tested", is_quiet),
        test("Loud", fires),
        test("Silent", is_quiet),
        test("Old", fires),
    ];
    let found = [
        "New fires in no test",
        "Silent fires in no test",
        "Loud stays quiet in no test",
        "New stays quiet in no test",
        "Old has no rule",
    ];
    assert_eq!(gaps(rules, &tests.concat()), found);
}

#[test]
fn promtool_accepts_the_rules_and_their_tests() {
    if Command::new("promtool").arg("--version").output().is_err() {
        eprintln!("SKIPPED: alert rules: `promtool` is not installed (Debian's package prometheus)");
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/prometheus");
    for (action, file) in [("check", "utxo-store.rules.yml"), ("test", "utxo-store.rules.test.yml")] {
        let run = Command::new("promtool").args([action, "rules"]).arg(folder.join(file)).output().unwrap();
        let output = [run.stdout, run.stderr].concat();
        assert!(run.status.success(), "promtool {action} rules {file}: {}", String::from_utf8_lossy(&output));
    }
}
