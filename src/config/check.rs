//! The second stage: from raw values to checked ones, with every error at once.

mod security;

use std::fmt;

use figment::{Figment, Profile, error::Kind};

use super::{
    Config,
    settings::{Blobs, Cluster, Http, Ingest, Kafka, Log, Prune, Run, Sequencer, Store, Topics},
    types::{Range, SettingType},
    writable_blobs,
};
use crate::{
    blob::BlobUrl,
    broker::kafka::{AssignmentStrategy, GroupProtocol},
    text::one_line,
};

/// A machine with much to do may rightly keep a thread waiting for a moment.
const SHORTEST_WATCH_MS: u64 = 1_000;

/// One thing that is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The setting, e.g. `kafka.brokers`; empty when the source as a whole is wrong.
    pub key: String,
    /// The file or the environment variable that says so.
    pub source: String,
    /// What is wrong, completing the sentence "`key` …".
    pub problem: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = match self.key.as_str() {
            "" => format!("{}: {}", self.source, self.problem),
            key => format!("{key} {} ({})", self.problem, self.source),
        };
        // Names of settings and of files can be anything.
        f.write_str(&one_line(&told))
    }
}

/// Everything that is wrong with a configuration, one a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl std::error::Error for ConfigErrors {}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

/// Takes settings out of the merged layers and collects what is wrong with them.
pub(super) struct Checker<'a> {
    raw: &'a Figment,
    errors: &'a mut Vec<ConfigError>,
}

impl<'a> Checker<'a> {
    pub(super) fn new(raw: &'a Figment, errors: &'a mut Vec<ConfigError>) -> Self {
        Self { raw, errors }
    }

    /// The setting `key`, or `None` and an error.
    pub(super) fn take<T: SettingType>(&mut self, key: &str, range: Range) -> Option<T> {
        let taken = match self.raw.find_value(key) {
            Ok(value) => T::parse(&value, range),
            Err(error) if matches!(error.kind, Kind::MissingField(_)) => {
                T::absent().ok_or_else(|| "must be given".to_owned())
            }
            Err(error) => Err(error.to_string()),
        };
        taken.map_err(|problem| self.refuse(key, problem)).ok()
    }

    fn refuse(&mut self, key: &str, problem: String) {
        let path: Vec<&str> = key.split('.').collect();
        let source = match self.raw.find_metadata(key) {
            Some(metadata) => metadata.interpolate(&Profile::Default, &path),
            None => "nowhere".to_owned(),
        };
        self.errors.push(ConfigError { key: key.to_owned(), source, problem });
    }

    /// The two settings must stand in this relation.
    fn ordered(&mut self, (low_key, low): (&str, u64), relation: Relation, (high_key, high): (&str, u64)) {
        let holds = match relation {
            Relation::Below => low < high,
            Relation::AtMost => low <= high,
        };
        if !holds {
            self.refuse(low_key, format!("is {low}, but must be {relation} {high_key}, which is {high}"));
        }
    }

    fn kafka(&mut self, kafka: &Kafka) {
        let session = ("kafka.session_timeout_ms", kafka.session_timeout_ms);
        // Kafka's own advice: three heartbeats may be lost before a member is given up.
        if kafka.heartbeat_interval_ms * 3 > kafka.session_timeout_ms {
            let problem = format!("is {}, but must be at most a third of {}", kafka.heartbeat_interval_ms, session.0);
            self.refuse("kafka.heartbeat_interval_ms", problem);
        }
        // librdkafka refuses to start otherwise.
        self.ordered(session, Relation::AtMost, ("kafka.max_poll_interval_ms", kafka.max_poll_interval_ms));
        if kafka.group_protocol == GroupProtocol::Consumer {
            if kafka.assignment.is_some() {
                let problem =
                    "must not be set where kafka.group_protocol is consumer: the brokers spread the partitions";
                self.refuse("kafka.assignment", problem.to_owned());
            }
            if kafka.instance_id.is_some() {
                let problem = "must not be set where kafka.group_protocol is consumer: an instance that was killed would be refused under its name until its session ends";
                self.refuse("kafka.instance_id", problem.to_owned());
            }
        } else if kafka.instance_id.is_some() && kafka.assignment == Some(AssignmentStrategy::CooperativeSticky) {
            let problem = "must not be cooperative-sticky where kafka.instance_id is set: what is to move could be left to nobody";
            self.refuse("kafka.assignment", problem.to_owned());
        }
        // What is fetched or handed on at once has to fit into what is held.
        let budget = ("kafka.fetch_budget_bytes", kafka.fetch_budget_bytes);
        let fetched = ("kafka.max_partition_fetch_bytes", kafka.max_partition_fetch_bytes.into());
        self.ordered(fetched, Relation::AtMost, budget);
        self.ordered(("kafka.batch_bytes", kafka.batch_bytes.into()), Relation::AtMost, budget);
    }

    /// The protocol that entries of the list begin with is that of the section, or that of the property that was there
    /// before it.
    fn brokers(&mut self, kafka: &Kafka) {
        let moved = kafka.properties.get("security.protocol").and_then(|said| said.to_ascii_lowercase().parse().ok());
        let protocol = moved.filter(|_| !kafka.security.says_something()).unwrap_or(kafka.security.protocol);
        if let Err(problem) = kafka.brokers.check_protocol(protocol) {
            self.refuse("kafka.brokers", problem);
        }
    }

    fn sequencer(&mut self, sequencer: &Sequencer) {
        if let Some(Err(problem)) = sequencer.objects_url.as_ref().map(openable) {
            self.refuse("sequencer.objects_url", problem);
        }
    }

    fn topics(&mut self, topics: &Topics) {
        let named = [
            ("kafka.topics.validated_txs", &topics.validated_txs),
            ("kafka.topics.block_mined", &topics.block_mined),
            ("kafka.topics.reorgs", &topics.reorgs),
            ("kafka.topics.chain", &topics.chain),
            ("kafka.topics.decisions", &topics.decisions),
            ("kafka.topics.outcomes", &topics.outcomes),
            ("kafka.topics.dead_letters", &topics.dead_letters),
        ];
        for (i, (key, topic)) in named.iter().enumerate() {
            if let Some((other, _)) = named[..i].iter().find(|(_, earlier)| earlier == topic) {
                self.refuse(key, format!("is {:?}, as {other} is; each topic needs its own name", topic.as_str()));
            }
        }
    }

    fn store(&mut self, store: &Store) {
        match store.blob_url() {
            Err(problem) => self.refuse("store.url", problem),
            Ok(Some(url)) => {
                let opened = writable_blobs(&url, &store.url).and_then(|()| openable(&url));
                if let Err(problem) = opened {
                    match store.blobs.url {
                        Some(_) => self.refuse("store.blobs.url", problem),
                        None => self.refuse("store.url", format!("has an externalStore that {problem}")),
                    }
                }
            }
            Ok(None) if store.externalize_all_transactions => {
                let problem =
                    "is true, but there is no blob store: set store.blobs.url (or externalStore in store.url)";
                self.refuse("store.externalize_all_transactions", problem.to_owned());
            }
            Ok(None) if store.url.bounds_records() => {
                let problem = "is a store that bounds its records, so large bodies need a blob store: set store.blobs.url (or \
                               externalStore in store.url)";
                self.refuse("store.url", problem.to_owned());
            }
            Ok(None) => {}
        }
        let Blobs { access_key_id, secret_access_key, secret_access_key_file, .. } = &store.blobs;
        let secret = secret_access_key.is_some() || secret_access_key_file.is_some();
        self.together(
            ("store.blobs.access_key_id", access_key_id.is_some()),
            ("store.blobs.secret_access_key", secret),
        );
        let Cluster { user, password, password_file, .. } = &store.aerospike;
        let password = password.is_some() || password_file.is_some();
        self.together(("store.aerospike.user", user.is_some()), ("store.aerospike.password", password));
    }

    /// Neither of the two is of any use without the other.
    fn together(&mut self, a: (&str, bool), b: (&str, bool)) {
        for ((key, given), (other, other_given)) in [(a, b), (b, a)] {
            if given && !other_given {
                self.refuse(key, format!("is given without {other}"));
            }
        }
    }

    fn ingest(&mut self, ingest: &Ingest) {
        let longest = ("ingest.retry_pause_max_ms", ingest.retry_pause_max_ms);
        self.ordered(("ingest.retry_pause_ms", ingest.retry_pause_ms), Relation::AtMost, longest);
    }
}

/// Whether this binary can open the store; the error completes the sentence "`key` …", and does not repeat the URL.
fn openable(url: &BlobUrl) -> Result<(), String> {
    match url.missing_feature() {
        None => Ok(()),
        Some(feature) => Err(format!(
            "is a blob store that is not in this build: build it with --features {feature}, or name a directory \
             (file:///absolute/path)"
        )),
    }
}

#[derive(Clone, Copy)]
enum Relation {
    Below,
    AtMost,
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Relation::Below => "below",
            Relation::AtMost => "at most",
        })
    }
}

/// Checks each section by itself and then against the others; `None` when something was wrong.
pub(super) fn check(checker: &mut Checker<'_>) -> Option<Config> {
    let mut kafka = Kafka::take(checker);
    let mut store = Store::take(checker);
    checker.read_secrets(&mut kafka, &mut store);
    let ingest = Ingest::take(checker);
    let sequencer = Sequencer::take(checker);
    let prune = Prune::take(checker);
    let run = Run::take(checker);
    let http = Http::take(checker);
    let log = Log::take(checker);
    if let Some(kafka) = &kafka {
        checker.kafka(kafka);
        checker.brokers(kafka);
        checker.security(kafka);
        checker.topics(&kafka.topics);
    }
    if let Some(store) = &store {
        checker.store(store);
    }
    if let Some(ingest) = &ingest {
        checker.ingest(ingest);
    }
    if let Some(sequencer) = &sequencer {
        checker.sequencer(sequencer);
    }
    if let Some(run) = run.as_ref().filter(|run| (1..SHORTEST_WATCH_MS).contains(&run.watchdog_ms)) {
        let problem = format!("is {}, but must be 0 (never) or at least {SHORTEST_WATCH_MS}", run.watchdog_ms);
        checker.refuse("run.watchdog_ms", problem);
    }
    if let (Some(ingest), Some(sequencer)) = (&ingest, &sequencer) {
        let wait = ("sequencer.block_wait_ms", sequencer.block_wait_ms);
        checker.ordered(("ingest.flag_grace_ms", ingest.flag_grace_ms), Relation::Below, wait);
    }
    let (ingest, sequencer, prune) = (ingest?, sequencer?, prune?);
    let (kafka, store, run, http, log) = (kafka?, store?, run?, http?, log?);
    Some(Config { kafka, store, ingest, sequencer, prune, run, http, log, ignored_variables: Vec::new() })
}
