use std::sync::{Arc, Mutex};

use super::*;
use crate::record::{Outcome, Rejection, Reply};

fn line<'a>(text: &'a str, start: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(start)).map(str::trim)
}

#[test]
fn every_metric_has_a_standard_prefix_and_a_help_text() {
    let metrics = Metrics::new();
    metrics.partition(&TopicPartition { topic: "t".into(), partition: 0 });
    metrics.outcomes.count(OperationKind::Spend, &Outcome::Applied(Reply::None));
    metrics.publish_health(true, [("assigned", true)]);
    metrics.observe_http("/v1/chain", "GET", 200, Duration::from_millis(1));
    let text = metrics.encode().unwrap();
    let mut seen = 0;
    for name in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()) {
        seen += 1;
        assert!(name.starts_with("utxo_") || name.starts_with("process_"), "{name}");
        let help = line(&text, &format!("# HELP {name} ")).unwrap_or_default();
        assert!(help.len() > 10 && help.ends_with('.'), "{name}: {help:?}");
    }
    assert_eq!(seen, 68, "a metric is declared and never shown");
}

#[test]
#[cfg(target_os = "linux")]
fn memory_and_files_are_those_of_this_process() {
    let metrics = Metrics::new();
    let value = |name: &str| line(&metrics.encode().unwrap(), &format!("{name} ")).unwrap().parse::<f64>().unwrap();
    let (memory, fds) = ("process_resident_memory_bytes", "process_open_fds");
    let before = (value(memory), value(fds));
    let held = vec![1_u8; 64 << 20];
    let files: Vec<_> = (0..50).map(|_| std::fs::File::open("/proc/self/status").unwrap()).collect();
    let after = (value(memory), value(fds));
    assert!(after.0 - before.0 > f64::from(32 << 20), "{before:?} {after:?}");
    // Other tests open and close files meanwhile.
    assert!(after.1 - before.1 > 25.0, "{before:?} {after:?}");
    drop((held, files));
}

#[test]
fn outcomes_are_counted_by_operation_and_code() {
    let metrics = Metrics::new();
    let kind = OperationKind::Spend;
    metrics.outcomes.count(kind, &Outcome::Applied(Reply::None));
    metrics.outcomes.count(kind, &Outcome::Applied(Reply::None));
    metrics.outcomes.count(kind, &Outcome::Rejected(Rejection::Locked));
    metrics.outcomes.count(OperationKind::Create, &Outcome::Rejected(Rejection::Locked));
    metrics.outcomes.count(OperationKind::Create, &Outcome::AlreadyApplied(Reply::None));
    let text = metrics.encode().unwrap();
    let count =
        |code, operation| line(&text, &format!("utxo_outcomes_total{{code=\"{code}\",operation=\"{operation}\"}}"));
    assert_eq!(count("APPLIED", "spend"), Some("2"));
    assert_eq!(count("LOCKED", "spend"), Some("1"));
    assert_eq!(count("LOCKED", "create"), Some("1"));
    assert_eq!(count("ALREADY_APPLIED", "create"), Some("1"));
    assert_eq!(count("APPLIED", "create"), None);
}

#[test]
fn each_label_value_has_a_metric_of_its_own() {
    let metrics = Metrics::new();
    metrics.dead_letters.of(DeadLetterClass::MissingParent).inc();
    metrics.store_errors.of(ErrorKind::TooBig).inc_by(3);
    metrics.engine_seconds.of(OperationKind::Scan).observe(0.003);
    let text = metrics.encode().unwrap();
    assert_eq!(line(&text, "utxo_dead_letters_total{class=\"missing-parent\"}"), Some("1"));
    assert_eq!(line(&text, "utxo_dead_letters_total{class=\"decode\"}"), Some("0"));
    assert_eq!(line(&text, "utxo_store_errors{type=\"too_big\"}"), Some("3"));
    assert_eq!(line(&text, "utxo_engine_seconds_bucket{operation=\"scan\",le=\"0.0025\"}"), Some("0"));
    assert_eq!(line(&text, "utxo_engine_seconds_bucket{operation=\"scan\",le=\"0.005\"}"), Some("1"));
}

#[test]
fn a_removed_partition_is_not_shown() {
    let metrics = Metrics::new();
    let [assigned, removed] = [0, 1].map(|partition| TopicPartition { topic: "t".into(), partition });
    metrics.partition(&assigned).watermark.set(7);
    metrics.partition(&removed).watermark.set(8);
    assert_eq!(metrics.encode().unwrap().matches("{partition=\"1\",topic=\"t\"}").count(), 14);
    metrics.remove_partition(&removed);
    let text = metrics.encode().unwrap();
    assert_eq!(line(&text, "utxo_watermark_offset{partition=\"0\",topic=\"t\"}"), Some("7"));
    assert!(!text.contains("partition=\"1\""), "{text}");
}

#[test]
fn two_sets_of_metrics_do_not_mix() {
    let (one, other) = (Metrics::new(), Metrics::new());
    one.contests.inc();
    assert_eq!((one.contests.get(), other.contests.get()), (1, 0));
}

/// Writer that collects the log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn logged(pretty: bool, filter: &str, log: impl FnOnce()) -> String {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = logging::subscriber(pretty, filter, move || writer.clone()).unwrap();
    tracing::subscriber::with_default(subscriber, log);
    String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()
}

#[test]
fn json_logs_are_one_object_a_line_and_pretty_ones_are_not() {
    let json = logged(false, "info", || {
        tracing::info!(offset = 7, "halted");
        tracing::debug!("not this");
    });
    assert_eq!(json.lines().count(), 1, "{json}");
    let line: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&line["message"], &line["offset"]), (&"halted".into(), &7.into()));
    let pretty = logged(true, "debug", || tracing::debug!("this"));
    assert!(pretty.contains("this") && !pretty.starts_with('{'), "{pretty}");
}

#[test]
fn a_bad_filter_and_a_second_set_up_are_errors() {
    let bad = init_logging(LogFormat::Json, "a=b=c").unwrap_err();
    assert!(bad.to_string().contains("a=b=c"), "{bad}");
    // Later tests of this process log through the same set-up: the filter passes errors only.
    init_logging(LogFormat::Json, "error").unwrap();
    assert!(log::log_enabled!(log::Level::Error), "the log crate is not bridged");
    let twice = init_logging(LogFormat::Json, "error").unwrap_err();
    assert!(matches!(twice, LoggingError::Twice(_)), "{twice}");
}
