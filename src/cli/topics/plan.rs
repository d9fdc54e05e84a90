//! What each topic has to be, and what is wrong with one that is there. Pure.

use std::{collections::BTreeMap, fmt};

use super::topic_name;
use crate::{broker::NewTopic, config::Topics, event::Topic};

/// How topics that are missing are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// Partitions of those that have many.
    pub partitions: i32,
    /// Copies of each; `None`: as many as the cluster makes by default.
    pub replication_factor: Option<i32>,
    /// For how long outcomes are kept, ms; everything else is for good.
    pub outcomes_ms: Option<u64>,
}

impl Made {
    /// With so many partitions, and everything kept.
    pub fn with_partitions(partitions: i32) -> Self {
        Made { partitions, replication_factor: None, outcomes_ms: None }
    }
}

const RETENTION_MS: &str = "retention.ms";
const RETENTION_BYTES: &str = "retention.bytes";
const CLEANUP: &str = "cleanup.policy";

/// Whether a topic is one order of everything in it.
fn is_single(topic: Topic) -> bool {
    match topic {
        Topic::BlockMined | Topic::Reorgs | Topic::Chain | Topic::Decisions => true,
        Topic::ValidatedTxs | Topic::Outcomes | Topic::DeadLetters => false,
    }
}

/// Whether a rebuild reads all of it, so that nothing of it may ever go.
fn makes_the_state(topic: Topic) -> bool {
    match topic {
        Topic::ValidatedTxs | Topic::BlockMined | Topic::Reorgs | Topic::Chain | Topic::Decisions => true,
        Topic::Outcomes | Topic::DeadLetters => false,
    }
}

/// All topics as the store wants them.
pub fn new_topics(topics: &Topics, made: Made) -> Vec<NewTopic> {
    let new = |topic| {
        let retention_ms = match made.outcomes_ms {
            Some(ms) if topic == Topic::Outcomes => ms.to_string(),
            _ => "-1".to_owned(),
        };
        let mut config = vec![
            (CLEANUP.to_owned(), "delete".to_owned()),
            (RETENTION_MS.to_owned(), retention_ms),
            (RETENTION_BYTES.to_owned(), "-1".to_owned()),
        ];
        // What is acknowledged then survives the loss of a copy, and is still written while one is away.
        let in_sync = made.replication_factor.filter(|copies| *copies > 2).map(|copies| copies - 1);
        config.extend(in_sync.map(|copies| ("min.insync.replicas".to_owned(), copies.to_string())));
        let partitions = if is_single(topic) { 1 } else { made.partitions };
        NewTopic { name: topic_name(topics, topic).to_owned(), partitions, config }
    };
    Topic::ALL.into_iter().map(new).collect()
}

/// A topic as it is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Number of partitions.
    pub partitions: i32,
    /// Its configuration; what is not named is not known.
    pub config: BTreeMap<String, String>,
}

/// What must not stay as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// It is not there.
    Missing,
    /// It is a log of one order, and has so many partitions.
    Partitions(i32),
    /// A rebuild reads all of it, and it forgets.
    Forgets {
        /// The property that says so.
        property: String,
        /// Its value.
        value: String,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Missing => f.write_str("does not exist"),
            Problem::Partitions(count) => write!(f, "has {count} partitions: it is one order, and must have one"),
            Problem::Forgets { property, value } => {
                let keeps = if property == CLEANUP { "delete" } else { "-1" };
                write!(f, "has {property}={value}: a rebuild reads all of it, set {property}={keeps}")
            }
        }
    }
}

/// What is wrong with a topic; `None`: it is not there.
pub fn problems(topic: Topic, found: Option<&Found>) -> Vec<Problem> {
    let Some(found) = found else { return vec![Problem::Missing] };
    let mut problems = Vec::new();
    if is_single(topic) && found.partitions != 1 {
        problems.push(Problem::Partitions(found.partitions));
    }
    let kept = [(RETENTION_MS, "-1"), (RETENTION_BYTES, "-1"), (CLEANUP, "delete")];
    for (property, keeps) in kept.into_iter().filter(|_| makes_the_state(topic)) {
        if let Some(value) = found.config.get(property).filter(|value| *value != keeps) {
            problems.push(Problem::Forgets { property: property.to_owned(), value: value.clone() });
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn found(partitions: i32, config: &[(&str, &str)]) -> Found {
        let config = config.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        Found { partitions, config }
    }

    #[test]
    fn what_is_made_is_as_it_has_to_be() {
        let made = Made { partitions: 5, replication_factor: Some(3), outcomes_ms: Some(7) };
        let new = new_topics(&Config::default().kafka.topics, made);
        for (topic, new) in Topic::ALL.into_iter().zip(&new) {
            let found = Found { partitions: new.partitions, config: new.config.iter().cloned().collect() };
            assert_eq!(problems(topic, Some(&found)), [], "{}", new.name);
            assert_eq!(found.config["min.insync.replicas"], "2");
            let kept = if topic == Topic::Outcomes { "7" } else { "-1" };
            assert_eq!(found.config[RETENTION_MS], kept, "{}", new.name);
        }
        assert_eq!(new.iter().filter(|topic| topic.partitions == 5).count(), 3);
        let plain = new_topics(&Config::default().kafka.topics, Made::with_partitions(1));
        assert!(plain.iter().flat_map(|topic| &topic.config).all(|(key, _)| key != "min.insync.replicas"));
    }

    #[test]
    fn what_forgets_or_has_no_order_is_named() {
        let told = |topic, partitions, config: &[(&str, &str)]| {
            let told: Vec<String> =
                problems(topic, Some(&found(partitions, config))).iter().map(Problem::to_string).collect();
            told.join("; ")
        };
        assert_eq!(problems(Topic::Chain, None), [Problem::Missing]);
        assert_eq!(told(Topic::Chain, 3, &[]), "has 3 partitions: it is one order, and must have one");
        assert_eq!(told(Topic::ValidatedTxs, 3, &[(RETENTION_MS, "-1"), (CLEANUP, "delete")]), "");
        let forgets = told(Topic::Decisions, 1, &[(RETENTION_MS, "604800000"), (CLEANUP, "compact,delete")]);
        assert!(forgets.contains("retention.ms=604800000") && forgets.contains("set retention.ms=-1"), "{forgets}");
        assert!(forgets.contains("set cleanup.policy=delete"), "{forgets}");
        assert!(told(Topic::Reorgs, 1, &[(RETENTION_BYTES, "1000")]).contains("retention.bytes=1000"));
        assert_eq!(told(Topic::Outcomes, 3, &[(RETENTION_MS, "1")]), "");
        assert_eq!(told(Topic::DeadLetters, 3, &[(RETENTION_MS, "1")]), "");
    }
}
