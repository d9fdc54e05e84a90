//! Required properties of each topic, and the problems of an existing topic. Pure.

use std::{collections::BTreeMap, fmt, sync::Arc};

use crate::{
    broker::{BrokerError, NewTopic, kafka::DescribedTopic},
    config::Topics,
    event::Topic,
    preflight::{
        Finding,
        message_size::{MessageLimits, find_caution, find_problem, topic_limit},
        replication::{MIN_IN_SYNC, UNCLEAN_ELECTION, find_replication, min_in_sync_config},
        retention::{CLEANUP, NeededLog, RETENTION_BYTES, RETENTION_MS, find_retention},
        times,
    },
};

/// Settings for the creation of missing topics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewTopicSettings {
    /// Number of partitions of a topic that may have many.
    pub partitions: i32,
    /// Replicas of each topic; `None`: the default of the cluster.
    pub replication_factor: Option<i32>,
    /// Retention of the topic of outcomes, ms; `None`: unlimited, as for every other topic.
    pub outcomes_ms: Option<u64>,
}

impl NewTopicSettings {
    /// Creates settings with this number of partitions and unlimited retention.
    pub fn with_partitions(partitions: i32) -> Self {
        NewTopicSettings { partitions, replication_factor: None, outcomes_ms: None }
    }
}

/// Describes every topic of the store for its creation.
pub fn new_topics(topics: &Topics, settings: NewTopicSettings) -> Vec<NewTopic> {
    let new = |topic: Topic| {
        let retention_ms = match settings.outcomes_ms {
            Some(ms) if topic == Topic::Outcomes => ms.to_string(),
            _ => "-1".to_owned(),
        };
        let mut config = vec![
            (CLEANUP.to_owned(), "delete".to_owned()),
            (RETENTION_MS.to_owned(), retention_ms),
            (RETENTION_BYTES.to_owned(), "-1".to_owned()),
            (UNCLEAN_ELECTION.to_owned(), "false".to_owned()),
        ];
        config.push(topic_limit(topic));
        config.extend(times::topic_config(topic));
        config.extend(settings.replication_factor.and_then(min_in_sync_config));
        let partitions = if topic.is_single_partition() { 1 } else { settings.partitions };
        NewTopic { name: topics.name(topic).to_owned(), partitions, config }
    };
    Topic::all().map(new).collect()
}

/// Returns the configuration for a topic that was created as `wanted` with the default number of replicas of the
/// cluster, where that number requires `min.insync.replicas`.
pub fn config_for_replicas(wanted: &NewTopic, found: &ObservedTopic) -> Option<Vec<(String, String)>> {
    let has_min_in_sync = wanted.config.iter().any(|(property, _)| property == MIN_IN_SYNC);
    let (copies, _) = found.copies.filter(|_| !has_min_in_sync)?;
    let min_in_sync = min_in_sync_config(i32::try_from(copies).ok()?)?;
    Some(wanted.config.iter().cloned().chain([min_in_sync]).collect())
}

/// An existing topic as the cluster describes it. Unknown properties are not checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservedTopic {
    /// Number of partitions of the topic.
    pub partitions: i32,
    /// Replicas of each partition and replicas in sync, of the partition with the fewest replicas in sync.
    pub copies: Option<(usize, usize)>,
    /// Brokers of the cluster that are up.
    pub brokers: Option<usize>,
    /// Numbers of the partitions without a leader.
    pub leaderless: Vec<i32>,
    /// Configuration of the topic, by property.
    pub config: BTreeMap<String, String>,
}

impl ObservedTopic {
    /// Creates a topic of which only the number of partitions is known.
    pub fn with_partition_count(partitions: i32) -> Self {
        ObservedTopic { partitions, ..ObservedTopic::default() }
    }

    /// Converts the description that a cluster gives.
    pub fn from_description(topic: DescribedTopic) -> Self {
        let DescribedTopic { partitions, copies, in_sync, leaderless, brokers } = topic;
        let (copies, brokers) = (Some((copies, in_sync)), Some(brokers));
        ObservedTopic { partitions, copies, brokers, leaderless, ..ObservedTopic::default() }
    }

    /// Returns `min.insync.replicas`, where known.
    pub fn min_in_sync(&self) -> Option<usize> {
        self.config.get(MIN_IN_SYNC)?.parse().ok()
    }
}

impl fmt::Display for ObservedTopic {
    /// Writes for example `3 partitions, 2 of 3 copies in sync, min.insync.replicas=2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} partition{}", self.partitions, if self.partitions == 1 { "" } else { "s" })?;
        if let Some((copies, in_sync)) = self.copies {
            write!(f, ", {in_sync} of {copies} cop{} in sync", if copies == 1 { "y" } else { "ies" })?;
        }
        self.min_in_sync().map_or(Ok(()), |least| write!(f, ", {MIN_IN_SYNC}={least}"))
    }
}

/// Describes the problems of a topic, which must be repaired before an instance starts; `None` for `found`: the topic
/// does not exist. The retention is judged by [`find_retention`].
pub fn find_problems(topic: Topic, found: Option<&ObservedTopic>) -> Vec<String> {
    let Some(found) = found else { return vec!["does not exist".to_owned()] };
    let mut problems = Vec::new();
    if topic.is_single_partition() && found.partitions != 1 {
        let count = found.partitions;
        problems.push(format!("has {count} partitions: it is one order, so that it must have one partition"));
    }
    let against_compaction = match topic {
        Topic::DeadLetters => Some("a note on a dead letter has the same key and would replace it"),
        Topic::Outcomes => Some("an outcome of many transactions has no key and would be refused"),
        _ => None,
    };
    if let Some(why) = against_compaction
        && let Some(policy) = found.config.get(CLEANUP).filter(|policy| *policy != "delete")
    {
        problems.push(format!("has {CLEANUP}={policy}: {why}, set {CLEANUP}=delete"));
    }
    problems.extend(times::find_narrow_limits(topic, &found.config));
    if !found.leaderless.is_empty() {
        problems.push(format!("has no leader for partitions {:?}: bring their brokers back", found.leaderless));
    }
    if let (Some((_, in_sync)), Some(least)) = (found.copies, found.min_in_sync())
        && in_sync < least
    {
        problems.push(format!("takes no writes: {in_sync} of its copies are in sync, and {MIN_IN_SYNC}={least}"));
    }
    problems
}

/// Describes the weaknesses of the retention of a topic that works.
pub fn find_cautions(topic: Topic, found: &ObservedTopic) -> Vec<String> {
    let mut cautions = Vec::new();
    for property in [RETENTION_MS, RETENTION_BYTES].into_iter().filter(|_| topic == Topic::DeadLetters) {
        if let Some(value) = found.config.get(property).filter(|value| *value != "-1") {
            cautions.push(format!(
                "has {property}={value}: dead letters that nobody has read are deleted, set {property}=-1"
            ));
        }
    }
    cautions.extend(times::find_age_limits(topic, &found.config));
    cautions
}

/// Existence and configuration of one topic, as the brokers answer.
#[derive(Debug)]
pub struct TopicStatus {
    /// The topic of the store.
    pub topic: Topic,
    /// Properties of the topic; `None`: the topic does not exist, or `unknown` has the reason.
    pub found: Option<ObservedTopic>,
    /// Error of the brokers on the topic or on its configuration.
    pub unknown: Option<BrokerError>,
    /// Sizes of messages that the producer and the consumer are set to.
    pub limits: MessageLimits,
    /// Copies that the settings demand (`kafka.replication_factor`).
    pub wanted_copies: Option<usize>,
    /// Part of the log that the topics must keep.
    pub needed: Arc<NeededLog>,
}

impl TopicStatus {
    /// Describes the problems, which must be repaired before an instance starts.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = find_problems(self.topic, self.found.as_ref());
        if let Some(found) = &self.found {
            problems.extend(find_retention(self.topic, &found.config, &self.needed).problems);
            problems.extend(find_problem(self.topic, &found.config, &self.limits));
            problems.extend(find_replication(self.topic, found, self.wanted_copies).problems);
        }
        problems
    }

    /// Describes the weaknesses of a topic that works.
    pub fn cautions(&self) -> Vec<String> {
        let Some(found) = &self.found else { return Vec::new() };
        let mut cautions = find_cautions(self.topic, found);
        cautions.extend(find_retention(self.topic, &found.config, &self.needed).cautions);
        cautions.extend(find_replication(self.topic, found, self.wanted_copies).cautions);
        cautions.extend(find_caution(self.topic, &found.config, &self.limits));
        cautions
    }

    /// Returns the finding on this topic of this name.
    pub fn finding(&self, name: &str) -> Finding {
        let check = format!("topic {name}");
        if let (None, Some(error)) = (&self.found, &self.unknown) {
            return Finding::failed(check, error);
        }
        let mut cautions = self.cautions();
        cautions.extend(self.unknown.iter().filter(|_| self.topic.is_state_source()).map(|error| {
            format!("whether the topic keeps every message is unknown ({error}): allow DescribeConfigs to this login")
        }));
        let found = self.found.as_ref().map(ObservedTopic::to_string).unwrap_or_default();
        Finding::from_problems(check, &found, &self.problems(), &cautions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::Config,
        preflight::{
            message_size::LIMITS,
            retention::{NewestSnapshot, WholeLogReason},
        },
    };
    use std::time::Duration;

    fn found(partitions: i32, config: &[(&str, &str)]) -> ObservedTopic {
        let config = config.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        ObservedTopic { config, ..ObservedTopic::with_partition_count(partitions) }
    }

    #[test]
    fn created_topics_have_no_problems_and_no_cautions() {
        let settings = NewTopicSettings { partitions: 5, replication_factor: Some(3), outcomes_ms: Some(7) };
        let new = new_topics(&Config::default().kafka.topics, settings);
        for (topic, new) in Topic::all().zip(&new) {
            let config = new.config.iter().cloned().collect();
            let found =
                ObservedTopic { copies: Some((3, 3)), config, ..ObservedTopic::with_partition_count(new.partitions) };
            assert_eq!(find_problems(topic, Some(&found)), [""; 0], "{}", new.name);
            assert_eq!(find_cautions(topic, &found), [""; 0], "{}", new.name);
            let needed = NeededLog::Whole(WholeLogReason::NotConfigured);
            assert_eq!(find_retention(topic, &found.config, &needed), Default::default(), "{}", new.name);
            let replicated = ObservedTopic { brokers: Some(3), ..found.clone() };
            assert_eq!(find_replication(topic, &replicated, None), Default::default(), "{}", new.name);
            assert_eq!(found.config[UNCLEAN_ELECTION], "false");
            assert_eq!(found.config["min.insync.replicas"], "2");
            let kept = if topic == Topic::Outcomes { "7" } else { "-1" };
            assert_eq!(found.config[RETENTION_MS], kept, "{}", new.name);
        }
        assert_eq!(new.iter().filter(|topic| topic.partitions == 5).count(), 3);
        let plain = new_topics(&Config::default().kafka.topics, NewTopicSettings::with_partitions(1));
        assert!(plain.iter().flat_map(|topic| &topic.config).all(|(key, _)| key != "min.insync.replicas"));
    }

    #[test]
    fn min_insync_replicas_follows_the_default_replication_of_the_cluster() {
        let new = |replication_factor| {
            let settings = NewTopicSettings { replication_factor, ..NewTopicSettings::with_partitions(1) };
            new_topics(&Config::default().kafka.topics, settings).remove(0)
        };
        let by_copies = |wanted: &NewTopic, copies| config_for_replicas(wanted, &copied(copies, copies, &[]));
        assert_eq!(by_copies(&new(None), 3), Some(new(Some(3)).config));
        assert_eq!([1, 2].map(|copies| by_copies(&new(None), copies)), [None, None]);
        assert_eq!(by_copies(&new(Some(3)), 3), None, "the topic was created with it");
        assert_eq!(config_for_replicas(&new(None), &ObservedTopic::with_partition_count(1)), None);
    }

    #[test]
    fn compaction_and_wrong_partition_counts_are_problems() {
        let described = |topic, partitions, config: &[(&str, &str)]| {
            find_problems(topic, Some(&found(partitions, config))).join("; ")
        };
        assert_eq!(find_problems(Topic::Chain, None), ["does not exist"]);
        assert_eq!(
            described(Topic::Chain, 3, &[]),
            "has 3 partitions: it is one order, so that it must have one partition"
        );
        assert_eq!(described(Topic::ValidatedTxs, 3, &[(RETENTION_MS, "-1"), (CLEANUP, "delete")]), "");
        assert_eq!(described(Topic::Outcomes, 3, &[(RETENTION_MS, "1")]), "");
        assert_eq!(described(Topic::DeadLetters, 3, &[(RETENTION_MS, "1")]), "", "retention is a caution");
        for topic in [Topic::DeadLetters, Topic::Outcomes] {
            let compacts = described(topic, 3, &[(CLEANUP, "compact")]);
            assert!(compacts.contains("cleanup.policy=compact") && compacts.ends_with("set cleanup.policy=delete"));
        }
        assert_eq!(described(Topic::DeadLetters, 3, &[(CLEANUP, "delete")]), "");
    }

    fn copied(copies: usize, in_sync: usize, config: &[(&str, &str)]) -> ObservedTopic {
        ObservedTopic { copies: Some((copies, in_sync)), ..found(1, config) }
    }

    #[test]
    fn missing_replicas_and_missing_leaders_are_problems() {
        let described = |found: &ObservedTopic| find_problems(Topic::Outcomes, Some(found)).join("; ");
        assert_eq!(described(&copied(3, 2, &[(MIN_IN_SYNC, "2")])), "");
        let few = described(&copied(3, 1, &[(MIN_IN_SYNC, "2")]));
        assert!(few.starts_with("takes no writes: 1 of its copies") && few.ends_with("replicas=2"), "{few}");
        let leaderless = described(&ObservedTopic { leaderless: vec![0, 2], ..copied(1, 1, &[]) });
        assert!(leaderless.contains("partitions [0, 2]"), "{leaderless}");
    }

    #[test]
    fn retention_of_dead_letters_is_a_caution() {
        let described = |topic, config: &[(&str, &str)]| find_cautions(topic, &found(1, config)).join("; ");
        let deletes = [(RETENTION_MS, "604800000"), (RETENTION_BYTES, "1000")];
        let cautioned = described(Topic::DeadLetters, &deletes);
        assert!(cautioned.contains("retention.ms=604800000") && cautioned.contains("set retention.bytes=-1"));
        assert_eq!(described(Topic::DeadLetters, &[(RETENTION_MS, "-1"), (RETENTION_BYTES, "-1")]), "");
        assert_eq!(described(Topic::Outcomes, &deletes), "", "clients read outcomes at once");
    }

    #[test]
    fn the_status_of_a_topic_compares_the_sizes_of_messages() {
        let status = |topic, bytes: &str| {
            let found = Some(found(1, &[("max.message.bytes", bytes)]));
            let needed = Arc::new(NeededLog::Whole(WholeLogReason::NotConfigured));
            TopicStatus { topic, found, unknown: None, limits: LIMITS, wanted_copies: None, needed }
        };
        let of_events = status(Topic::ValidatedTxs, "1000");
        assert!(of_events.problems()[0].contains("lower objects.inline_event_bytes"), "{:?}", of_events.problems());
        assert!(status(Topic::DeadLetters, "1000").cautions()[0].contains("max.message.bytes=1000"));
        assert_eq!(status(Topic::ValidatedTxs, "1048588").problems(), [""; 0]);
    }

    #[test]
    fn the_status_of_a_topic_judges_its_retention() {
        let found = Some(found(1, &[(RETENTION_MS, "604800000")]));
        let needed = Arc::new(NeededLog::Whole(WholeLogReason::NotConfigured));
        let status =
            TopicStatus { topic: Topic::Chain, found, unknown: None, limits: LIMITS, wanted_copies: None, needed };
        assert!(status.problems()[0].ends_with("set retention.ms=-1"), "{:?}", status.problems());
        let age = Duration::from_secs(4 * 86_400);
        let snapshot = NewestSnapshot { name: "S".to_owned(), age, partitions: Vec::new() };
        let status = TopicStatus { needed: Arc::new(NeededLog::BeyondSnapshot(snapshot)), ..status };
        assert_eq!(status.problems(), [""; 0]);
        assert!(status.cautions()[0].contains("create the next one within 3 days"), "{:?}", status.cautions());
    }

    #[test]
    fn a_topic_is_printed_with_its_known_properties() {
        assert_eq!(ObservedTopic::with_partition_count(1).to_string(), "1 partition");
        let found = ObservedTopic { partitions: 3, ..copied(3, 2, &[(MIN_IN_SYNC, "2")]) };
        assert_eq!(found.to_string(), "3 partitions, 2 of 3 copies in sync, min.insync.replicas=2");
        assert_eq!(copied(1, 1, &[]).to_string(), "1 partition, 1 of 1 copy in sync");
    }
}
