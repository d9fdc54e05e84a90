//! The dashboard and the alert rules in `deploy/` use registered metrics only, and the dashboard shows every metric.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use strum::IntoEnumIterator;

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

/// Labels that Prometheus adds to every series.
const ADDED_LABELS: [&str; 2] = ["job", "instance"];
/// Registered metrics that are on no panel, with the reason.
const ON_NO_PANEL: [(&str, &str); 0] = [];
/// Words of an expression that are neither a label nor a metric.
const KEYWORDS: [&str; 6] = ["by", "on", "and", "or", "unless", "without"];

/// A registered metric: its type, and its labels with their values.
#[derive(Debug, Default)]
struct RegisteredMetric {
    kind: String,
    labels: BTreeMap<String, BTreeSet<String>>,
}

/// Returns every registered metric by name.
fn registered() -> BTreeMap<String, RegisteredMetric> {
    let metrics = Metrics::new();
    metrics.partition(&TopicPartition { topic: "utxo.chain".into(), partition: 0 });
    metrics.outcomes.count(OperationKind::Spend, &Outcome::Applied(Reply::None));
    metrics.observe_http("/v1/chain", "GET", 200, std::time::Duration::ZERO);
    let health = Health::new(Clock::System, std::time::Duration::from_secs(1));
    metrics.publish_health(true, health.condition_statuses().iter().map(|(name, condition)| (*name, condition.met)));
    let text = metrics.encode().unwrap();
    let mut all = BTreeMap::<String, RegisteredMetric>::new();
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
            all.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else if let Some((name, labels)) = line.split_once('{').filter(|_| !line.starts_with('#')) {
            let shown = all.get_mut(metric_of(name)).expect("a series has a type");
            for pair in labels.split_once('}').unwrap().0.split(',') {
                let (label, value) = pair.split_once('=').unwrap();
                shown.labels.entry(label.to_owned()).or_default().insert(value.trim_matches('"').to_owned());
            }
        }
    }
    all
}

/// Returns the name of the metric that a series belongs to.
fn metric_of(series: &str) -> &str {
    let histogram = |end| series.strip_suffix(end).filter(|name| HISTOGRAMS.iter().any(|known| known == name));
    ["_bucket", "_sum", "_count"].into_iter().find_map(histogram).unwrap_or(series)
}

/// Histograms: the names of their series have suffixes.
const HISTOGRAMS: [&str; 8] = [
    "utxo_create_batch_size",
    "utxo_spend_batch_size",
    "utxo_engine_batch_size",
    "utxo_engine_seconds",
    "utxo_blob_seconds",
    "utxo_create_external",
    "utxo_drain_seconds",
    "utxo_http_seconds",
];

/// Splits a text into words of letters, digits and underscores.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Returns the names of metrics in a text.
fn metric_names(text: &str) -> BTreeSet<&str> {
    words(text).filter(|word| word.starts_with("utxo_") || word.starts_with("process_")).collect()
}

/// Returns the content of each pair of brackets, with the text before the pair.
fn brackets(text: &str, (open, close): (char, char)) -> Vec<(&str, &str)> {
    let inner = |(at, _): (usize, &str)| {
        let rest = &text[at + 1..];
        Some((&text[..at], &rest[..rest.find(close)?]))
    };
    text.match_indices(open).filter_map(inner).collect()
}

/// Returns the errors of an expression.
fn expression_errors(expression: &str, registered: &BTreeMap<String, RegisteredMetric>) -> Vec<String> {
    let mut errors = Vec::new();
    let series = metric_names(expression);
    let mut labels: BTreeSet<&str> = ADDED_LABELS.into();
    for name in &series {
        match registered.get(metric_of(name)) {
            None => errors.push(format!("{name} is not registered")),
            Some(shown) if shown.kind == "histogram" && metric_of(name) == *name => {
                errors.push(format!("{name} is a histogram, whose series have other names"));
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
        let Some(shown) = registered.get(metric_of(name)) else { continue };
        for matcher in inner.split(", ").filter(|matcher| !matcher.is_empty()) {
            let (label, values) = matcher.split_once(['=', '!']).unwrap_or((matcher, ""));
            let Some(known) = shown.labels.get(label) else {
                if !ADDED_LABELS.contains(&label) {
                    errors.push(format!("{name} has no label {label}"));
                }
                continue;
            };
            let values = values.trim_start_matches(['=', '~']).trim_matches('"').split('|');
            errors.extend(
                values.filter(|value| !known.contains(*value)).map(|value| format!("{name}: no {label} {value}")),
            );
        }
    }
    for (before, inner) in brackets(expression, ('(', ')')) {
        let is_list =
            words(before).last().is_some_and(|word| KEYWORDS[..2].contains(&word) && before.trim_end().ends_with(word));
        let unknown = words(inner).filter(|label| is_list && !labels.contains(label));
        errors.extend(unknown.map(|label| format!("{label} is no label of {series:?}")));
    }
    errors
}

/// Returns the expressions of the dashboard, each with the title of its panel.
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
            assert!(expression_errors(definition, &registered()).is_empty(), "{definition}");
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
fn panels_use_registered_metrics_and_every_metric_is_on_a_panel() {
    let all = registered();
    let panels = panels();
    for (title, expression) in &panels {
        assert_eq!(expression_errors(expression, &all), [""; 0], "{title}: {expression}");
    }
    let on_a_panel: BTreeSet<&str> =
        panels.iter().flat_map(|(_, expression)| metric_names(expression)).map(metric_of).collect();
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

/// Returns the value of a field. The lines of a value that continues, or that YAML folds (`>-`), become one line.
fn read_field(rule: &str, field: &str) -> Option<String> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut lines = rule.lines().skip_while(|line| !line.trim_start().starts_with(&format!("{field}:")));
    let first = lines.next()?;
    let value = first.trim_start()[field.len() + 1..].trim();
    let continued = lines.take_while(|line| indent(line) > indent(first)).map(str::trim);
    Some([value].into_iter().filter(|value| *value != ">-").chain(continued).collect::<Vec<_>>().join(" "))
}

#[test]
fn every_alert_rule_uses_registered_metrics_and_has_a_runbook() {
    let all = registered();
    let rules: Vec<&str> = RULES.split("      - alert: ").skip(1).collect();
    assert!(rules.len() >= 30, "{}", rules.len());
    let mut names = BTreeSet::new();
    for rule in rules {
        let name = rule.lines().next().unwrap();
        assert!(name.starts_with("UtxoStore") && names.insert(name), "{name}");
        let field = |field: &str| read_field(rule, field).unwrap_or_else(|| panic!("{name} has no {field}"));
        let expression = &field("expr");
        assert!(!metric_names(expression).is_empty(), "{name} uses no metric: {expression}");
        assert_eq!(expression_errors(expression, &all), [""; 0], "{name}: {expression}");
        assert!(field("labels").contains("severity: critical") || field("labels").contains("severity: warning"));
        for text in ["summary", "description", "runbook"] {
            assert!(field(text).len() > 10, "{name}: {text}");
        }
    }
    assert_eq!(
        metric_names(RULES).into_iter().filter(|name| !all.contains_key(metric_of(name))).collect::<Vec<_>>(),
        [""; 0]
    );
    for condition in RULES.split("condition=\"").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        assert!(Condition::iter().any(|known| known.name() == condition), "{condition}");
    }
}

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
    let mut names: Vec<String> = Condition::iter().map(|condition| condition.name().to_owned()).collect();
    collect_keys(&page, &mut names);
    let missing: Vec<_> = names.into_iter().filter(|name| !REFERENCE.contains(&format!("`{name}`"))).collect();
    assert_eq!(missing, [""; 0]);
}

/// Collects the names of all fields of a JSON value.
fn collect_keys(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            found.push(name.clone());
            collect_keys(value, found);
        }),
        Value::Array(values) => values.iter().for_each(|value| collect_keys(value, found)),
        _ => {}
    }
}

/// A test of the test: each error of an expression is found.
#[test]
fn errors_of_expressions_are_found() {
    let all = registered();
    for (expression, error) in [
        ("rate(utxo_no_such_total[5m])", "not registered"),
        ("sum by (colour) (utxo_halted)", "colour is no label"),
        ("utxo_condition_met{condition=\"happy\"}", "no condition happy"),
        ("utxo_halted{colour=\"red\"}", "has no label colour"),
        ("utxo_store_errors{type=~\"fatal|sad\"}", "no type sad"),
        ("histogram_quantile(0.9, utxo_drain_seconds)", "is a histogram"),
        ("sum by (le) (utxo_drain_seconds_sum)", "le is no label"),
    ] {
        let found = expression_errors(expression, &all);
        assert!(found.len() == 1 && found[0].contains(error), "{expression}: {found:?}");
    }
    assert_eq!(
        expression_errors("max by (job, topic) (utxo_lag_seconds{job=~\"$job\", topic=\"utxo.chain\"})", &all),
        [""; 0]
    );
}
