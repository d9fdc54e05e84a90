//! The checked stage: reads every raw value by its type and range, checks relations, and reports every error at once.

mod security;

use std::fmt;

use figment::{Figment, Profile, error::Kind as FigmentErrorKind};

use super::{
    Config,
    settings::{
        BackgroundRecovery, Blobs, Cluster, EventObjects, Http, Ingest, Kafka, Log, Outcomes, Prune, Run, Sequencer,
        Snapshots, Store, Topics, Vault,
    },
    types::{Range, SettingType},
    writable_blobs,
};
use crate::{
    blob::BlobUrl,
    broker::kafka::{AssignmentStrategy, GroupProtocol},
    engine::StoreUrl,
    text::one_line,
};

/// Least value of `run.watchdog_ms` besides 0, ms: on a busy machine a healthy thread may wait for a moment.
const LEAST_WATCHDOG_MS: u64 = 1_000;

/// An error in a configuration, with its setting and its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// Key of the setting, e.g. `kafka.brokers`; empty for an error of a whole source.
    pub key: String,
    /// File or environment variable that has the error.
    pub source: String,
    /// Text of the error, which completes the sentence "`key` …".
    pub problem: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.key.as_str() {
            "" => format!("{}: {}", self.source, self.problem),
            key => format!("{key} {} ({})", self.problem, self.source),
        };
        // Unknown keys and names of files can hold any character.
        f.write_str(&one_line(&text))
    }
}

/// Every error of a configuration; `Display` writes one line per error.
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

/// Reads settings from the merged layers, or checks the settings of a finished configuration, and collects errors.
pub(super) struct Checker<'a> {
    /// `None`: the configuration is finished.
    raw: Option<&'a Figment>,
    errors: &'a mut Vec<ConfigError>,
}

/// Source of a setting in a finished configuration.
const FINISHED: &str = "set by the program";

/// The sections that have relations; `None`: the section has an error already.
#[derive(Clone, Copy)]
struct RelatedSections<'a> {
    kafka: Option<&'a Kafka>,
    objects: Option<&'a EventObjects>,
    store: Option<&'a Store>,
    ingest: Option<&'a Ingest>,
    sequencer: Option<&'a Sequencer>,
    snapshot: Option<&'a Snapshots>,
    vault: Option<&'a Vault>,
    run: Option<&'a Run>,
    http: Option<&'a Http>,
}

impl<'a> Checker<'a> {
    pub(super) fn new(raw: &'a Figment, errors: &'a mut Vec<ConfigError>) -> Self {
        Self { raw: Some(raw), errors }
    }

    /// Reads the setting `key`; `None` after an error, which is recorded.
    pub(super) fn take<T: SettingType>(&mut self, key: &str, range: Range) -> Option<T> {
        let taken = match self.raw?.find_value(key) {
            Ok(value) => T::parse(&value, range),
            Err(error) if matches!(error.kind, FigmentErrorKind::MissingField(_)) => {
                T::absent().ok_or_else(|| "must be given".to_owned())
            }
            Err(error) => Err(error.to_string()),
        };
        taken.map_err(|problem| self.refuse(key, problem)).ok()
    }

    fn refuse(&mut self, key: &str, problem: String) {
        let path: Vec<&str> = key.split('.').collect();
        let source = match self.raw.map(|raw| raw.find_metadata(key)) {
            Some(Some(metadata)) => metadata.interpolate(&Profile::Default, &path),
            Some(None) => "nowhere".to_owned(),
            None => FINISHED.to_owned(),
        };
        self.errors.push(ConfigError { key: key.to_owned(), source, problem });
    }

    /// Records the error of a value.
    pub(super) fn check_value(&mut self, key: &str, checked: Result<(), String>) {
        if let Err(problem) = checked {
            self.refuse(key, problem);
        }
    }

    /// Records an error unless the two settings have this relation.
    fn check_order(&mut self, (low_key, low): (&str, u64), relation: Relation, (high_key, high): (&str, u64)) {
        let holds = match relation {
            Relation::Below => low < high,
            Relation::AtMost => low <= high,
        };
        if !holds {
            self.refuse(low_key, format!("is {low}, but must be {relation} {high_key}, which is {high}"));
        }
    }

    fn check_kafka(&mut self, kafka: &Kafka) {
        let session = ("kafka.session_timeout_ms", kafka.session_timeout_ms);
        // Kafka recommends a heartbeat interval of at most a third of the session timeout.
        if kafka.heartbeat_interval_ms * 3 > kafka.session_timeout_ms {
            let problem = format!("is {}, but must be at most a third of {}", kafka.heartbeat_interval_ms, session.0);
            self.refuse("kafka.heartbeat_interval_ms", problem);
        }
        // librdkafka refuses to start otherwise.
        self.check_order(session, Relation::AtMost, ("kafka.max_poll_interval_ms", kafka.max_poll_interval_ms));
        if kafka.group_protocol == GroupProtocol::Consumer {
            if kafka.assignment.is_some() {
                let problem =
                    "must not be set where kafka.group_protocol is consumer: the brokers assign the partitions";
                self.refuse("kafka.assignment", problem.to_owned());
            }
            if kafka.instance_id.is_some() {
                let problem = "must not be set where kafka.group_protocol is consumer: an instance that was killed \
                               would be refused under its name until its session ends";
                self.refuse("kafka.instance_id", problem.to_owned());
            }
        } else if kafka.instance_id.is_some() && kafka.assignment == Some(AssignmentStrategy::CooperativeSticky) {
            let problem = "must not be cooperative-sticky where kafka.instance_id is set: a partition that moves could \
                           be left without an owner";
            self.refuse("kafka.assignment", problem.to_owned());
        }
        // One fetch and one batch must fit into the budget of fetched bytes.
        let budget = ("kafka.fetch_budget_bytes", kafka.fetch_budget_bytes);
        let fetched = ("kafka.max_partition_fetch_bytes", kafka.max_partition_fetch_bytes.into());
        self.check_order(fetched, Relation::AtMost, budget);
        self.check_order(("kafka.batch_bytes", kafka.batch_bytes.into()), Relation::AtMost, budget);
    }

    /// Checks that entries with a protocol name the protocol of the section, or of the property that the section
    /// replaces.
    fn check_brokers(&mut self, kafka: &Kafka) {
        let property =
            kafka.properties.get("security.protocol").and_then(|name| name.to_ascii_lowercase().parse().ok());
        let protocol = property.filter(|_| !kafka.security.is_configured()).unwrap_or(kafka.security.protocol);
        if let Err(problem) = kafka.brokers.check_protocol(protocol) {
            self.refuse("kafka.brokers", problem);
        }
    }

    fn check_sequencer(&mut self, sequencer: &Sequencer) {
        if let Some(Err(problem)) = sequencer.objects_url.as_ref().map(check_openable) {
            self.refuse("sequencer.objects_url", problem);
        }
    }

    fn check_objects(&mut self, objects: &EventObjects) {
        let checked = objects.url.as_ref().map(|url| match url {
            BlobUrl::Memory => Err("is memory://, where no other process writes: name a directory or S3".to_owned()),
            url => check_openable(url),
        });
        if let Some(Err(problem)) = checked {
            self.refuse("objects.url", problem);
        }
    }

    fn check_snapshot(&mut self, snapshot: &Snapshots) {
        let checked = snapshot.url.as_ref().map(|url| match url {
            BlobUrl::Memory => Err("is memory://, which is gone with the process: name a directory or S3".to_owned()),
            BlobUrl::Web(_) => Err("is a web server, which lists no objects: name a directory or S3".to_owned()),
            url => check_openable(url),
        });
        if let Some(Err(problem)) = checked {
            self.refuse("snapshot.url", problem);
        }
    }

    fn check_vault(&mut self, vault: &Vault, kafka: Option<&Kafka>, store: Option<&Store>) {
        let is_database = |url: &StoreUrl| matches!(url, StoreUrl::Sql(_));
        match &vault.url {
            Some(url) if !is_database(url) => {
                self.refuse("vault.url", "is no database: name sqlite:///path or postgres://user@host/database".into());
            }
            Some(url) if store.is_some_and(|store| store.url == *url) => {
                self.refuse("vault.url", "is store.url: the vault needs a database of its own".into());
            }
            _ => {}
        }
        if vault.answers_token_file.is_some() && vault.answers_url.is_none() {
            self.refuse("vault.answers_token_file", "has no vault.answers_url, for which the token is".into());
        }
        if kafka.is_some_and(|kafka| kafka.group == vault.group) {
            self.refuse("vault.group", "is kafka.group: the vault reads the whole log by itself".into());
        }
        if let Some(url) = &vault.answers_url
            && !["http://", "https://"].iter().any(|scheme| url.starts_with(scheme))
        {
            self.refuse("vault.answers_url", "does not begin with http:// or https://".into());
        }
        let longest = ("vault.longest_lease_ms", vault.longest_lease_ms);
        self.check_order(("vault.lease_ms", vault.lease_ms), Relation::AtMost, longest);
        self.check_order(("vault.selection_ttl_ms", vault.selection_ttl_ms), Relation::AtMost, longest);
    }

    fn check_topics(&mut self, topics: &Topics) {
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

    fn check_store(&mut self, store: &Store) {
        match store.blob_url() {
            Err(problem) => self.refuse("store.url", problem),
            Ok(Some(url)) => {
                let opened = writable_blobs(&url, &store.url).and_then(|()| check_openable(&url));
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
                let problem = "is a store that bounds its records, so large bodies need a blob store: set \
                               store.blobs.url (or externalStore in store.url)";
                self.refuse("store.url", problem.to_owned());
            }
            Ok(None) => {}
        }
        let Blobs { access_key_id, secret_access_key, secret_access_key_file, .. } = &store.blobs;
        let secret = secret_access_key.is_some() || secret_access_key_file.is_some();
        self.check_both_or_none(
            ("store.blobs.access_key_id", access_key_id.is_some()),
            ("store.blobs.secret_access_key", secret),
        );
        let Cluster { user, password, password_file, .. } = &store.aerospike;
        let password = password.is_some() || password_file.is_some();
        self.check_both_or_none(("store.aerospike.user", user.is_some()), ("store.aerospike.password", password));
    }

    /// Records an error where one of the two settings is given without the other.
    fn check_both_or_none(&mut self, a: (&str, bool), b: (&str, bool)) {
        for ((key, given), (other, other_given)) in [(a, b), (b, a)] {
            if given && !other_given {
                self.refuse(key, format!("is given without {other}"));
            }
        }
    }

    fn check_http(&mut self, http: &Http) {
        self.check_both_or_none(
            ("http.tls_certificate_file", http.tls_certificate_file.is_some()),
            ("http.tls_key_file", http.tls_key_file.is_some()),
        );
        if let Err(problem) = http.check_access() {
            self.refuse("http.api", problem);
        }
        if http.max_bytes_in_flight / 3 < http.max_body_bytes {
            let why = "is less than three times http.max_body_bytes: the largest body would never fit";
            self.refuse("http.max_bytes_in_flight", why.to_owned());
        }
    }

    fn check_ingest(&mut self, ingest: &Ingest) {
        let longest = ("ingest.retry_pause_max_ms", ingest.retry_pause_max_ms);
        self.check_order(("ingest.retry_pause_ms", ingest.retry_pause_ms), Relation::AtMost, longest);
    }

    fn check_run(&mut self, run: &Run) {
        if (1..LEAST_WATCHDOG_MS).contains(&run.watchdog_ms) {
            let problem = format!("is {}, but must be 0 (never) or at least {LEAST_WATCHDOG_MS}", run.watchdog_ms);
            self.refuse("run.watchdog_ms", problem);
        }
    }

    /// Checks the relations of the settings within each section, then those between sections.
    fn check_relations(&mut self, sections: RelatedSections<'_>) {
        let RelatedSections { kafka, objects, store, ingest, sequencer, snapshot, vault, run, http } = sections;
        if let Some(kafka) = kafka {
            self.check_kafka(kafka);
            self.check_brokers(kafka);
            self.check_security(kafka);
            self.check_topics(&kafka.topics);
        }
        if let Some(store) = store {
            self.check_store(store);
        }
        if let Some(objects) = objects {
            self.check_objects(objects);
        }
        if let Some(ingest) = ingest {
            self.check_ingest(ingest);
        }
        if let Some(sequencer) = sequencer {
            self.check_sequencer(sequencer);
        }
        if let Some(snapshot) = snapshot {
            self.check_snapshot(snapshot);
        }
        if let Some(vault) = vault {
            self.check_vault(vault, kafka, store);
        }
        if let Some(http) = http {
            self.check_http(http);
        }
        if let Some(run) = run {
            self.check_run(run);
        }
        if let (Some(ingest), Some(sequencer)) = (ingest, sequencer) {
            let wait = ("sequencer.block_wait_ms", sequencer.block_wait_ms);
            self.check_order(("ingest.flag_grace_ms", ingest.flag_grace_ms), Relation::Below, wait);
        }
    }
}

/// Checks that this binary can open the blob store. The error completes the sentence "`key` …" and has no URL.
fn check_openable(url: &BlobUrl) -> Result<(), String> {
    match url.missing_feature() {
        None => Ok(()),
        Some(feature) => Err(format!(
            "is a blob store that is not in this build: build it with --features {feature}, or name a directory \
             (file:///absolute/path)"
        )),
    }
}

#[derive(Clone, Copy, strum::Display)]
enum Relation {
    #[strum(to_string = "below")]
    Below,
    #[strum(to_string = "at most")]
    AtMost,
}

/// Reads each section by itself, then checks the relations; `None` after an error.
pub(super) fn check(checker: &mut Checker<'_>) -> Option<Config> {
    let mut kafka = Kafka::take(checker);
    let objects = EventObjects::take(checker);
    let mut store = Store::take(checker);
    checker.read_secrets(&mut kafka, &mut store);
    let ingest = Ingest::take(checker);
    let sequencer = Sequencer::take(checker);
    let outcomes = Outcomes::take(checker);
    let prune = Prune::take(checker);
    let recovery = BackgroundRecovery::take(checker);
    let snapshot = Snapshots::take(checker);
    let vault = Vault::take(checker);
    let run = Run::take(checker);
    let http = Http::take(checker);
    let log = Log::take(checker);
    checker.check_relations(RelatedSections {
        kafka: kafka.as_ref(),
        objects: objects.as_ref(),
        store: store.as_ref(),
        ingest: ingest.as_ref(),
        sequencer: sequencer.as_ref(),
        snapshot: snapshot.as_ref(),
        vault: vault.as_ref(),
        run: run.as_ref(),
        http: http.as_ref(),
    });
    let (objects, ingest, sequencer, outcomes) = (objects?, ingest?, sequencer?, outcomes?);
    let (prune, recovery, snapshot, vault) = (prune?, recovery?, snapshot?, vault?);
    let (kafka, store, run, http, log) = (kafka?, store?, run?, http?, log?);
    Some(Config {
        kafka,
        objects,
        store,
        ingest,
        sequencer,
        outcomes,
        prune,
        recovery,
        snapshot,
        vault,
        run,
        http,
        log,
        ignored_names: Vec::new(),
        aliases: Vec::new(),
    })
}

/// Checks a finished configuration: each value by itself, then the relations.
pub(super) fn check_finished(config: &Config, errors: &mut Vec<ConfigError>) {
    let checker = &mut Checker { raw: None, errors };
    let Config { kafka, objects, store, ingest, sequencer, outcomes, prune, recovery, .. } = config;
    let Config { snapshot, vault, run, http, log, .. } = config;
    kafka.check_values(checker);
    objects.check_values(checker);
    store.check_values(checker);
    ingest.check_values(checker);
    sequencer.check_values(checker);
    outcomes.check_values(checker);
    prune.check_values(checker);
    recovery.check_values(checker);
    snapshot.check_values(checker);
    vault.check_values(checker);
    run.check_values(checker);
    http.check_values(checker);
    log.check_values(checker);
    checker.check_secrets_are_read(kafka, store);
    checker.check_relations(RelatedSections {
        kafka: Some(kafka),
        objects: Some(objects),
        store: Some(store),
        ingest: Some(ingest),
        sequencer: Some(sequencer),
        snapshot: Some(snapshot),
        vault: Some(vault),
        run: Some(run),
        http: Some(http),
    });
}
