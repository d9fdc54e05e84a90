//! What each topic has to be, and what is wrong with one that is there. Pure.

use std::{collections::BTreeMap, fmt};

use crate::{
    broker::{NewTopic, kafka::DescribedTopic},
    config::Topics,
    event::Topic,
    preflight::times::{self, TimeLimit},
};

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
const MIN_IN_SYNC: &str = "min.insync.replicas";
const UNCLEAN_ELECTION: &str = "unclean.leader.election.enable";

/// All topics as the store wants them.
pub fn new_topics(topics: &Topics, made: Made) -> Vec<NewTopic> {
    let new = |topic: Topic| {
        let retention_ms = match made.outcomes_ms {
            Some(ms) if topic == Topic::Outcomes => ms.to_string(),
            _ => "-1".to_owned(),
        };
        let mut config = vec![
            (CLEANUP.to_owned(), "delete".to_owned()),
            (RETENTION_MS.to_owned(), retention_ms),
            (RETENTION_BYTES.to_owned(), "-1".to_owned()),
        ];
        config.extend(times::config(topic));
        config.extend(made.replication_factor.and_then(in_sync));
        let partitions = if topic.is_one_order() { 1 } else { made.partitions };
        NewTopic { name: topics.name(topic).to_owned(), partitions, config }
    };
    Topic::ALL.into_iter().map(new).collect()
}

/// How many of so many copies have to be in sync: what is acknowledged then survives the loss of one, and is still written while one is away.
fn in_sync(copies: i32) -> Option<(String, String)> {
    (copies > 2).then(|| (MIN_IN_SYNC.to_owned(), (copies - 1).to_string()))
}

/// The configuration of a topic that was made as `wanted`, and has as many copies as the cluster makes, where more has to be said of it by
/// that.
pub fn config_by_copies(wanted: &NewTopic, found: &Found) -> Option<Vec<(String, String)>> {
    let says_it = wanted.config.iter().any(|(property, _)| property == MIN_IN_SYNC);
    let (copies, _) = found.copies.filter(|_| !says_it)?;
    let in_sync = in_sync(i32::try_from(copies).ok()?)?;
    Some(wanted.config.iter().cloned().chain([in_sync]).collect())
}

/// A topic as it is there; what is not known of it is not judged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Number of partitions.
    pub partitions: i32,
    /// Copies of each partition, and how many of them are in sync: of the partition that has fewest.
    pub copies: Option<(usize, usize)>,
    /// Partitions that nobody leads.
    pub leaderless: Vec<i32>,
    /// Its configuration.
    pub config: BTreeMap<String, String>,
}

impl Found {
    /// Nothing else is known of it.
    pub fn of_partitions(partitions: i32) -> Self {
        Found { partitions, ..Found::default() }
    }

    /// As a cluster describes it.
    pub fn described(topic: DescribedTopic) -> Self {
        let DescribedTopic { partitions, copies, in_sync, leaderless } = topic;
        Found { partitions, copies: Some((copies, in_sync)), leaderless, ..Found::default() }
    }

    /// `min.insync.replicas`
    pub fn min_in_sync(&self) -> Option<usize> {
        self.config.get(MIN_IN_SYNC)?.parse().ok()
    }
}

impl fmt::Display for Found {
    /// Such as `3 partitions, 2 of 3 copies in sync, min.insync.replicas=2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} partition{}", self.partitions, if self.partitions == 1 { "" } else { "s" })?;
        if let Some((copies, in_sync)) = self.copies {
            write!(f, ", {in_sync} of {copies} cop{} in sync", if copies == 1 { "y" } else { "ies" })?;
        }
        self.min_in_sync().map_or(Ok(()), |least| write!(f, ", {MIN_IN_SYNC}={least}"))
    }
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
    /// What is noted of a dead letter bears its key, and would take its place.
    Supersedes {
        /// Its `cleanup.policy`.
        policy: String,
    },
    /// Messages of ours are refused by their timestamps, unless all clocks agree.
    TimeLimit(TimeLimit),
    /// Nobody can read or write these partitions now.
    Leaderless(Vec<i32>),
    /// Nobody can write to it now: so many copies are in sync, and so many have to be.
    TooFewInSync {
        /// Copies that are in sync.
        in_sync: usize,
        /// Copies that have to be.
        least: usize,
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
            Problem::Supersedes { policy } => write!(
                f,
                "has {CLEANUP}={policy}: what is noted of a dead letter bears its key and would take its place, set \
                 {CLEANUP}=delete"
            ),
            Problem::TimeLimit(limit) => {
                write!(
                    f,
                    "{limit}: a message that is delayed, or of a clock that is wrong, would be refused, {}",
                    limit.remedy()
                )
            }
            Problem::Leaderless(partitions) => {
                write!(f, "has no leader for partitions {partitions:?}: bring their brokers back")
            }
            Problem::TooFewInSync { in_sync, least } => {
                write!(f, "takes no writes: {in_sync} of its copies are in sync, and {MIN_IN_SYNC}={least}")
            }
        }
    }
}

/// What is wrong with a topic; `None`: it is not there.
pub fn problems(topic: Topic, found: Option<&Found>) -> Vec<Problem> {
    let Some(found) = found else { return vec![Problem::Missing] };
    let mut problems = Vec::new();
    if topic.is_one_order() && found.partitions != 1 {
        problems.push(Problem::Partitions(found.partitions));
    }
    let kept = [(RETENTION_MS, "-1"), (RETENTION_BYTES, "-1"), (CLEANUP, "delete")];
    for (property, keeps) in kept.into_iter().filter(|_| topic.makes_the_state()) {
        if let Some(value) = found.config.get(property).filter(|value| *value != keeps) {
            problems.push(Problem::Forgets { property: property.to_owned(), value: value.clone() });
        }
    }
    if topic == Topic::DeadLetters
        && let Some(policy) = found.config.get(CLEANUP).filter(|policy| *policy != "delete")
    {
        problems.push(Problem::Supersedes { policy: policy.clone() });
    }
    problems.extend(times::too_narrow(topic, &found.config).into_iter().map(Problem::TimeLimit));
    if !found.leaderless.is_empty() {
        problems.push(Problem::Leaderless(found.leaderless.clone()));
    }
    if let (Some((_, in_sync)), Some(least)) = (found.copies, found.min_in_sync())
        && in_sync < least
    {
        problems.push(Problem::TooFewInSync { in_sync, least });
    }
    problems
}

/// How a topic that works could lose what was acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caution {
    /// Dead letters that nobody has looked at go.
    Forgets {
        /// The property that says so.
        property: &'static str,
        /// Its value.
        value: String,
    },
    /// Nobody else has it.
    OneCopy,
    /// A write is acknowledged by one copy though there are more.
    OneInSync,
    /// A copy that lacks something may become the leader.
    UncleanElection,
    /// Events of an earlier time cannot be produced.
    TimeLimit(TimeLimit),
}

impl fmt::Display for Caution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Caution::Forgets { property, value } => write!(
                f,
                "has {property}={value}: dead letters that nobody has looked at are forgotten, set {property}=-1"
            ),
            Caution::TimeLimit(limit) => {
                write!(f, "{limit}: an event with an older timestamp cannot be produced, {}", limit.remedy())
            }
            Caution::OneCopy => f.write_str("has one copy: it goes with its broker's disk"),
            Caution::OneInSync => {
                write!(f, "has {MIN_IN_SYNC}=1: what one copy alone has is acknowledged, set {MIN_IN_SYNC}=2")
            }
            Caution::UncleanElection => write!(
                f,
                "has {UNCLEAN_ELECTION}=true: a copy that lacks what was acknowledged may become the leader, set \
                 {UNCLEAN_ELECTION}=false"
            ),
        }
    }
}

/// What should be otherwise with a topic that a rebuild reads, or that of the dead letters, which operators read.
pub fn cautions(topic: Topic, found: &Found) -> Vec<Caution> {
    let is_kept = topic.makes_the_state() || topic == Topic::DeadLetters;
    let copies = found.copies.map(|(copies, _)| copies).filter(|_| is_kept);
    let many = copies.is_some_and(|copies| copies > 1);
    let is = |property: &str, value: &str| found.config.get(property).is_some_and(|found| found == value);
    let bounds = [RETENTION_MS, RETENTION_BYTES].into_iter().filter(|_| topic == Topic::DeadLetters);
    let forgets = bounds.filter_map(|property| {
        let value = found.config.get(property).filter(|value| *value != "-1")?.clone();
        Some(Caution::Forgets { property, value })
    });
    let loses = [
        (copies == Some(1), Caution::OneCopy),
        (many && is(MIN_IN_SYNC, "1"), Caution::OneInSync),
        (many && is(UNCLEAN_ELECTION, "true"), Caution::UncleanElection),
    ]
    .into_iter()
    .filter_map(|(holds, caution)| holds.then_some(caution));
    let times = times::refuses_old(topic, &found.config).into_iter().map(Caution::TimeLimit);
    forgets.chain(loses).chain(times).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn found(partitions: i32, config: &[(&str, &str)]) -> Found {
        let config = config.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        Found { config, ..Found::of_partitions(partitions) }
    }

    #[test]
    fn what_is_made_is_as_it_has_to_be() {
        let made = Made { partitions: 5, replication_factor: Some(3), outcomes_ms: Some(7) };
        let new = new_topics(&Config::default().kafka.topics, made);
        for (topic, new) in Topic::ALL.into_iter().zip(&new) {
            let config = new.config.iter().cloned().collect();
            let found = Found { copies: Some((3, 3)), config, ..Found::of_partitions(new.partitions) };
            assert_eq!(problems(topic, Some(&found)), [], "{}", new.name);
            assert_eq!(cautions(topic, &found), [], "{}", new.name);
            assert_eq!(found.config["min.insync.replicas"], "2");
            let kept = if topic == Topic::Outcomes { "7" } else { "-1" };
            assert_eq!(found.config[RETENTION_MS], kept, "{}", new.name);
        }
        assert_eq!(new.iter().filter(|topic| topic.partitions == 5).count(), 3);
        let plain = new_topics(&Config::default().kafka.topics, Made::with_partitions(1));
        assert!(plain.iter().flat_map(|topic| &topic.config).all(|(key, _)| key != "min.insync.replicas"));
    }

    #[test]
    fn what_the_cluster_makes_copies_of_by_itself_is_to_be_in_sync_by_their_number() {
        let new = |replication_factor| {
            let made = Made { replication_factor, ..Made::with_partitions(1) };
            new_topics(&Config::default().kafka.topics, made).remove(0)
        };
        let by_copies = |wanted: &NewTopic, copies| config_by_copies(wanted, &copied(copies, copies, &[]));
        assert_eq!(by_copies(&new(None), 3), Some(new(Some(3)).config));
        assert_eq!([1, 2].map(|copies| by_copies(&new(None), copies)), [None, None]);
        assert_eq!(by_copies(&new(Some(3)), 3), None, "it was made so");
        assert_eq!(config_by_copies(&new(None), &Found::of_partitions(1)), None);
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
        assert_eq!(told(Topic::DeadLetters, 3, &[(RETENTION_MS, "1")]), "", "it is warned of");
        let supersedes = told(Topic::DeadLetters, 3, &[(CLEANUP, "compact")]);
        assert!(supersedes.contains("cleanup.policy=compact") && supersedes.ends_with("set cleanup.policy=delete"));
        assert_eq!(told(Topic::DeadLetters, 3, &[(CLEANUP, "delete")]), "");
    }

    fn copied(copies: usize, in_sync: usize, config: &[(&str, &str)]) -> Found {
        Found { copies: Some((copies, in_sync)), ..found(1, config) }
    }

    #[test]
    fn what_takes_no_writes_or_has_no_leader_is_named() {
        let told = |found: &Found| {
            let told: Vec<String> = problems(Topic::Outcomes, Some(found)).iter().map(Problem::to_string).collect();
            told.join("; ")
        };
        assert_eq!(told(&copied(3, 2, &[(MIN_IN_SYNC, "2")])), "");
        let few = told(&copied(3, 1, &[(MIN_IN_SYNC, "2")]));
        assert!(few.starts_with("takes no writes: 1 of its copies") && few.ends_with("replicas=2"), "{few}");
        let leaderless = told(&Found { leaderless: vec![0, 2], ..copied(1, 1, &[]) });
        assert!(leaderless.contains("partitions [0, 2]"), "{leaderless}");
    }

    #[test]
    fn dead_letters_that_go_before_anybody_has_looked_at_them_are_cautioned_of() {
        let told = |topic, config: &[(&str, &str)]| {
            let told: Vec<String> = cautions(topic, &found(1, config)).iter().map(Caution::to_string).collect();
            told.join("; ")
        };
        let forgets = [(RETENTION_MS, "604800000"), (RETENTION_BYTES, "1000")];
        let cautioned = told(Topic::DeadLetters, &forgets);
        assert!(cautioned.contains("retention.ms=604800000") && cautioned.contains("set retention.bytes=-1"));
        assert_eq!(told(Topic::DeadLetters, &[(RETENTION_MS, "-1"), (RETENTION_BYTES, "-1")]), "");
        assert_eq!(told(Topic::Outcomes, &forgets), "", "who listens has heard of it");
    }

    #[test]
    fn what_could_be_lost_with_a_broker_is_cautioned_of_where_it_is_kept_for_good() {
        use Caution::{OneCopy, OneInSync, UncleanElection};
        let careless = [(MIN_IN_SYNC, "1"), (UNCLEAN_ELECTION, "true")];
        let careful = [(MIN_IN_SYNC, "2"), (UNCLEAN_ELECTION, "false")];
        for (copies, config, expected) in
            [(1, &careless, vec![OneCopy]), (3, &careless, vec![OneInSync, UncleanElection]), (3, &careful, vec![])]
        {
            let found = copied(copies, copies, config);
            assert_eq!(cautions(Topic::Chain, &found), expected);
            assert_eq!(cautions(Topic::DeadLetters, &found), expected);
            assert_eq!(cautions(Topic::Outcomes, &found), []);
        }
        assert_eq!(cautions(Topic::Chain, &Found::of_partitions(1)), [], "nothing is known of its copies");
    }

    #[test]
    fn a_topic_is_shown_with_what_is_known_of_it() {
        assert_eq!(Found::of_partitions(1).to_string(), "1 partition");
        let found = Found { partitions: 3, ..copied(3, 2, &[(MIN_IN_SYNC, "2")]) };
        assert_eq!(found.to_string(), "3 partitions, 2 of 3 copies in sync, min.insync.replicas=2");
        assert_eq!(copied(1, 1, &[]).to_string(), "1 partition, 1 of 1 copy in sync");
    }
}
