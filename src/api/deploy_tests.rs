//! What `deploy/` shows and warns of is what the code registers, and all of it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::status::{
    Condition, Health,
    registry::{ChainStatus, DrainStatus, GroupStatus, InFlightStatus, PartitionStatus, PipelineStatus},
};
use crate::{
    broker::TopicPartition,
    clock::Clock,
    record::{Outcome, Reply},
    telemetry::{Metrics, OperationKind},
};

const DASHBOARD: &str = include_str!("../../deploy/grafana/utxo-store.json");
const RULES: &str = include_str!("../../deploy/prometheus/utxo-store.rules.yml");

/// What Prometheus adds to every series.
const ADDED: [&str; 2] = ["job", "instance"];
/// Registered, and on no panel; with why.
const ON_NO_PANEL: [(&str, &str); 0] = [];
/// Words of an expression that are no label and no metric.
const KEYWORDS: [&str; 6] = ["by", "on", "and", "or", "unless", "without"];

/// A metric as it is shown.
#[derive(Debug, Default)]
struct Shown {
    kind: String,
    labels: BTreeMap<String, BTreeSet<String>>,
}

/// Everything that is registered, with its labels and their values.
fn registered() -> BTreeMap<String, Shown> {
    let metrics = Metrics::new();
    metrics.partition(&TopicPartition { topic: "utxo.chain".into(), partition: 0 });
    metrics.outcomes.count(OperationKind::Spend, &Outcome::Applied(Reply::None));
    let health = Health::new(Clock::System, std::time::Duration::from_secs(1));
    metrics.show_health(true, health.conditions_now().iter().map(|(name, condition)| (*name, condition.met)));
    let text = metrics.encode().unwrap();
    let mut all = BTreeMap::<String, Shown>::new();
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
            all.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else if let Some((name, labels)) = line.split_once('{').filter(|_| !line.starts_with('#')) {
            let shown = all.get_mut(base(name)).expect("a series has a type");
            for pair in labels.split_once('}').unwrap().0.split(',') {
                let (label, value) = pair.split_once('=').unwrap();
                shown.labels.entry(label.to_owned()).or_default().insert(value.trim_matches('"').to_owned());
            }
        }
    }
    all
}

/// The metric that a series belongs to.
fn base(series: &str) -> &str {
    let histogram = |end| series.strip_suffix(end).filter(|name| HISTOGRAMS.iter().any(|known| known == name));
    ["_bucket", "_sum", "_count"].into_iter().find_map(histogram).unwrap_or(series)
}

/// Their series have names of their own.
const HISTOGRAMS: [&str; 7] = [
    "utxo_create_batch_size",
    "utxo_spend_batch_size",
    "utxo_engine_batch_size",
    "utxo_engine_seconds",
    "utxo_blob_seconds",
    "utxo_create_external",
    "utxo_drain_seconds",
];

/// The words of a text.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The metrics that are named.
fn named(text: &str) -> BTreeSet<&str> {
    words(text).filter(|word| word.starts_with("utxo_")).collect()
}

/// What stands in each of these brackets, and what stands before it.
fn brackets(text: &str, (open, close): (char, char)) -> Vec<(&str, &str)> {
    let inner = |(at, _): (usize, &str)| {
        let rest = &text[at + 1..];
        Some((&text[..at], &rest[..rest.find(close)?]))
    };
    text.match_indices(open).filter_map(inner).collect()
}

/// What is wrong with an expression.
fn complaints(expression: &str, registered: &BTreeMap<String, Shown>) -> Vec<String> {
    let mut wrong = Vec::new();
    let series = named(expression);
    let mut labels: BTreeSet<&str> = ADDED.into();
    for name in &series {
        match registered.get(base(name)) {
            None => wrong.push(format!("{name} is not registered")),
            Some(shown) if shown.kind == "histogram" && base(name) == *name => {
                wrong.push(format!("{name} is a histogram, whose series have other names"));
            }
            Some(shown) => {
                labels.extend(
                    shown.labels.keys().map(String::as_str).filter(|l| *l != "le" || name.ends_with("_bucket")),
                );
            }
        }
    }
    for (before, inner) in brackets(expression, ('{', '}')) {
        let name = words(before).last().unwrap_or_default();
        let Some(shown) = registered.get(base(name)) else { continue };
        for matcher in inner.split(", ").filter(|matcher| !matcher.is_empty()) {
            let (label, values) = matcher.split_once(['=', '!']).unwrap_or((matcher, ""));
            let Some(known) = shown.labels.get(label) else {
                if !ADDED.contains(&label) {
                    wrong.push(format!("{name} has no label {label}"));
                }
                continue;
            };
            let values = values.trim_start_matches(['=', '~']).trim_matches('"').split('|');
            wrong.extend(
                values.filter(|value| !known.contains(*value)).map(|value| format!("{name}: no {label} {value}")),
            );
        }
    }
    for (before, inner) in brackets(expression, ('(', ')')) {
        let is_list =
            words(before).last().is_some_and(|word| KEYWORDS[..2].contains(&word) && before.trim_end().ends_with(word));
        let unknown = words(inner).filter(|label| is_list && !labels.contains(label));
        wrong.extend(unknown.map(|label| format!("{label} is no label of {series:?}")));
    }
    wrong
}

/// The expressions of the dashboard, each with its panel's title.
fn panels() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{panel}");
            found.push((panel["title"].as_str().unwrap().to_owned(), target["expr"].as_str().unwrap().to_owned()));
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if let Some(definition) = variable["definition"].as_str() {
            assert!(complaints(definition, &registered()).is_empty(), "{definition}");
        }
    }
    found
}

#[test]
fn the_histograms_are_those_that_are_registered() {
    let all = registered();
    let histograms: BTreeSet<_> =
        all.iter().filter(|(_, shown)| shown.kind == "histogram").map(|(name, _)| name.as_str()).collect();
    assert_eq!(histograms, HISTOGRAMS.into());
}

#[test]
fn every_panel_shows_what_is_registered_and_everything_is_on_one() {
    let all = registered();
    let panels = panels();
    for (title, expression) in &panels {
        assert_eq!(complaints(expression, &all), [""; 0], "{title}: {expression}");
    }
    let on_a_panel: BTreeSet<&str> = panels.iter().flat_map(|(_, expression)| named(expression)).map(base).collect();
    let missing = all
        .keys()
        .filter(|name| !on_a_panel.contains(name.as_str()) && !ON_NO_PANEL.iter().any(|(excused, _)| excused == name));
    assert_eq!(missing.collect::<Vec<_>>(), [""; 0]);
    let boxes: BTreeSet<String> = serde_json::from_str::<Value>(DASHBOARD).unwrap()["panels"]
        .as_array()
        .unwrap()
        .iter()
        .map(|panel| panel["gridPos"].to_string())
        .collect();
    assert_eq!(boxes.len(), serde_json::from_str::<Value>(DASHBOARD).unwrap()["panels"].as_array().unwrap().len());
}

#[test]
fn every_rule_asks_for_what_is_registered_and_says_what_to_do() {
    let all = registered();
    let rules: Vec<&str> = RULES.split("      - alert: ").skip(1).collect();
    assert!(rules.len() >= 30, "{}", rules.len());
    let mut names = BTreeSet::new();
    for rule in rules {
        let name = rule.lines().next().unwrap();
        assert!(name.starts_with("UtxoStore") && names.insert(name), "{name}");
        let field = |field: &str| {
            let found = rule.lines().find_map(|line| line.trim_start().strip_prefix(field)?.strip_prefix(": "));
            found.unwrap_or_else(|| panic!("{name} has no {field}"))
        };
        let expression = field("expr");
        assert!(!named(expression).is_empty(), "{name} asks for nothing: {expression}");
        assert_eq!(complaints(expression, &all), [""; 0], "{name}: {expression}");
        assert!(field("labels").contains("severity: critical") || field("labels").contains("severity: warning"));
        for told in ["summary", "description", "runbook"] {
            assert!(field(told).len() > 10, "{name}: {told}");
        }
    }
    assert_eq!(named(RULES).into_iter().filter(|name| !all.contains_key(base(name))).collect::<Vec<_>>(), [""; 0]);
    for condition in RULES.split("condition=\"").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        assert!(Condition::ALL.iter().any(|known| known.name() == condition), "{condition}");
    }
}

/// The reference page for operators.
#[test]
fn the_reference_names_every_condition_and_every_field_of_the_state_page() {
    const REFERENCE: &str = include_str!("../../docs/reference/state-page.md");
    let health = Health::new(Clock::System, std::time::Duration::from_secs(1));
    let status_registry = health.status_registry();
    let partition = PartitionStatus { oldest_in_flight: Some(InFlightStatus::default()), ..PartitionStatus::default() };
    status_registry.publish_pipeline(PipelineStatus { partitions: vec![partition], ..PipelineStatus::default() });
    status_registry.publish_group(GroupStatus {
        rebalances: Metrics::new().rebalances.now(),
        commit_failures: Metrics::new().commit_failures.now(),
        last_drain: Some(DrainStatus::default()),
    });
    status_registry
        .publish_chain(ChainStatus { partition: Some(PartitionStatus::default()), ..ChainStatus::default() });
    let page = serde_json::to_value(status_registry.page(&health)).unwrap();
    let mut names: Vec<String> = Condition::ALL.iter().map(|condition| condition.name().to_owned()).collect();
    keys(&page, &mut names);
    let missing: Vec<_> = names.into_iter().filter(|name| !REFERENCE.contains(&format!("`{name}`"))).collect();
    assert_eq!(missing, [""; 0]);
}

/// The names of all fields.
fn keys(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            found.push(name.clone());
            keys(value, found);
        }),
        Value::Array(values) => values.iter().for_each(|value| keys(value, found)),
        _ => {}
    }
}

/// That the test itself finds what is wrong.
#[test]
fn what_is_wrong_is_found() {
    let all = registered();
    for (expression, complaint) in [
        ("rate(utxo_no_such_total[5m])", "not registered"),
        ("sum by (colour) (utxo_halted)", "colour is no label"),
        ("utxo_condition_met{condition=\"happy\"}", "no condition happy"),
        ("utxo_halted{colour=\"red\"}", "has no label colour"),
        ("utxo_store_errors{type=~\"fatal|sad\"}", "no type sad"),
        ("histogram_quantile(0.9, utxo_drain_seconds)", "is a histogram"),
        ("sum by (le) (utxo_drain_seconds_sum)", "le is no label"),
    ] {
        let found = complaints(expression, &all);
        assert!(found.len() == 1 && found[0].contains(complaint), "{expression}: {found:?}");
    }
    assert_eq!(
        complaints("max by (job, topic) (utxo_lag_seconds{job=~\"$job\", topic=\"utxo.chain\"})", &all),
        [""; 0]
    );
}
