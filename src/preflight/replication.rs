//! Copies of the topics: what a cluster of three or more brokers has to keep, and what a smaller one should. Pure.
//!
//! Three copies, of which two are in sync, survive the loss of one broker: every acknowledged message is on a second
//! one, and writes continue.

use super::topics::ObservedTopic;
use crate::event::Topic;

/// Property of a topic: number of copies that an acknowledged message has at least.
pub const MIN_IN_SYNC: &str = "min.insync.replicas";
/// Property of a topic: whether a copy that lacks acknowledged messages may become the leader.
pub const UNCLEAN_ELECTION: &str = "unclean.leader.election.enable";

/// Copies of each topic in a cluster that has so many brokers.
const COPIES: usize = 3;
/// Copies in sync that a topic with three or more copies needs at least.
const IN_SYNC: usize = 2;

/// Returns the number of copies of a new topic: the setting, or three in a cluster of three or more brokers. `None`:
/// the default of the cluster.
pub fn copies_of_new_topics(setting: Option<i32>, brokers: usize) -> Option<i32> {
    setting.or((brokers >= COPIES).then_some(COPIES as i32))
}

/// Returns `min.insync.replicas` for this number of copies: of three or more copies all but one. An acknowledged
/// message then survives the loss of one copy, and writes continue while one copy is away.
pub fn min_in_sync_config(copies: i32) -> Option<(String, String)> {
    (copies > 2).then(|| (MIN_IN_SYNC.to_owned(), (copies - 1).to_string()))
}

/// Findings about the copies of one topic.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ReplicationFindings {
    /// Properties that must be repaired before an instance starts.
    pub problems: Vec<String>,
    /// Weaknesses of a topic that works.
    pub cautions: Vec<String>,
}

/// Judges the copies of a topic. `setting` is `kafka.replication_factor`.
///
/// A topic needs as many copies as the setting says, or three in a cluster of three or more brokers. Where three are
/// needed, `min.insync.replicas` and `unclean.leader.election.enable` are judged as strictly. A topic with three copies
/// is in such a cluster, also while brokers are away.
pub fn find_replication(topic: Topic, found: &ObservedTopic, setting: Option<usize>) -> ReplicationFindings {
    let mut findings = ReplicationFindings::default();
    let Some((copies, in_sync)) = found.copies.filter(|(copies, _)| *copies > 0) else { return findings };
    let needed = needed_copies(found, setting).unwrap_or(1);
    if copies < needed {
        findings.problems.push(too_few_copies(copies, needed, found.brokers));
    }
    // A message that clients read at once, and that no rebuild needs, may go with its broker where there is but one.
    let is_lasting = topic.is_state_source() || topic == Topic::DeadLetters;
    if needed < COPIES && !is_lasting {
        return findings;
    }
    if copies == 1 {
        if needed == 1 {
            findings.cautions.push("has one copy: it goes with its broker's disk".to_owned());
        }
        return findings;
    }
    let is_strict = needed >= COPIES;
    let mut judge = |text: String| if is_strict { findings.problems.push(text) } else { findings.cautions.push(text) };
    if found.min_in_sync().is_some_and(|least| least < IN_SYNC) {
        judge(format!(
            "has {MIN_IN_SYNC}=1: a message that only one copy has is acknowledged, set {MIN_IN_SYNC}={IN_SYNC}"
        ));
    }
    if found.config.get(UNCLEAN_ELECTION).is_some_and(|value| value == "true") {
        judge(format!(
            "has {UNCLEAN_ELECTION}=true: a copy that lacks acknowledged messages may become the leader, set \
             {UNCLEAN_ELECTION}=false"
        ));
    }
    if copies >= COPIES && found.min_in_sync().is_some_and(|least| least >= copies) {
        let (least, fewer) = (found.min_in_sync().unwrap_or(copies), copies - 1);
        findings.cautions.push(format!(
            "has {MIN_IN_SYNC}={least} with {copies} copies: the loss of one broker stops all writes, set \
             {MIN_IN_SYNC}={fewer}"
        ));
    }
    if in_sync < copies && found.min_in_sync().is_some_and(|least| in_sync >= least) {
        findings.cautions.push(format!(
            "has {in_sync} of {copies} copies in sync: bring the missing broker back before another one is lost"
        ));
    }
    findings
}

fn needed_copies(found: &ObservedTopic, setting: Option<usize>) -> Option<usize> {
    let (copies, _) = found.copies?;
    setting.or((copies.max(found.brokers.unwrap_or(0)) >= COPIES).then_some(COPIES))
}

/// Describes the copies of the topic of committed offsets, which the cluster creates itself; `None`: they are enough.
pub fn offsets_topic_problem(found: &ObservedTopic, setting: Option<usize>) -> Option<String> {
    let (copies, _) = found.copies?;
    let needed = needed_copies(found, setting)?;
    (copies < needed).then(|| {
        format!(
            "{}; set offsets.topic.replication.factor={needed} for new clusters",
            too_few_copies(copies, needed, found.brokers)
        )
    })
}

fn too_few_copies(copies: usize, needed: usize, brokers: Option<usize>) -> String {
    let of = brokers.map_or_else(String::new, |brokers| format!(" in a cluster of {brokers} brokers"));
    let noun = if copies == 1 { "copy" } else { "copies" };
    format!(
        "has {copies} {noun}{of}: the loss of a broker stops its partitions, add copies up to {needed} \
         (kafka-reassign-partitions), or set kafka.replication_factor={copies}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(brokers: usize, (copies, in_sync): (usize, usize), config: &[(&str, &str)]) -> ObservedTopic {
        ObservedTopic {
            copies: Some((copies, in_sync)),
            brokers: Some(brokers),
            config: config.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect(),
            ..ObservedTopic::with_partition_count(1)
        }
    }

    const CARELESS: &[(&str, &str)] = &[(MIN_IN_SYNC, "1"), (UNCLEAN_ELECTION, "true")];
    const CAREFUL: &[(&str, &str)] = &[(MIN_IN_SYNC, "2"), (UNCLEAN_ELECTION, "false")];
    const ONE_IN_SYNC: &str = "has min.insync.replicas=1: a message that only one copy has is acknowledged, set \
                               min.insync.replicas=2";
    const UNCLEAN: &str = "has unclean.leader.election.enable=true: a copy that lacks acknowledged messages may become \
                           the leader, set unclean.leader.election.enable=false";

    fn judged(topic: Topic, found: &ObservedTopic, setting: Option<usize>) -> (Vec<String>, Vec<String>) {
        let ReplicationFindings { problems, cautions } = find_replication(topic, found, setting);
        (problems, cautions)
    }

    #[test]
    fn three_brokers_demand_three_copies_two_in_sync_and_clean_elections() {
        let one = "has 1 copy in a cluster of 3 brokers: the loss of a broker stops its partitions, add copies up to 3 \
                   (kafka-reassign-partitions), or set kafka.replication_factor=1";
        for topic in Topic::all() {
            let none: (Vec<String>, Vec<String>) = Default::default();
            assert_eq!(judged(topic, &found(3, (3, 3), CAREFUL), None), none, "{topic:?}");
            let (problems, cautions) = judged(topic, &found(3, (3, 3), CARELESS), None);
            assert_eq!((problems, cautions.len()), (vec![ONE_IN_SYNC.to_owned(), UNCLEAN.to_owned()], 0), "{topic:?}");
            assert_eq!(judged(topic, &found(3, (1, 1), CAREFUL), None).0, [one], "{topic:?}");
            assert!(judged(topic, &found(5, (2, 2), CAREFUL), None).0[0].starts_with("has 2 copies in a cluster of 5"));
            assert_eq!(judged(topic, &found(2, (3, 2), CARELESS), None).0, [ONE_IN_SYNC, UNCLEAN], "a broker is away");
            // Two brokers may be a cluster of three that has lost one: the setting decides.
            assert!(judged(topic, &found(2, (2, 2), CAREFUL), Some(3)).0[0].starts_with("has 2 copies"), "{topic:?}");
            assert_eq!(judged(topic, &found(3, (1, 1), CAREFUL), Some(1)).0, [""; 0], "accepted by the setting");
        }
    }

    #[test]
    fn weak_replication_of_a_smaller_cluster_is_a_caution_for_topics_that_last() {
        let one_copy = "has one copy: it goes with its broker's disk";
        for (copies, config, expected) in
            [(1, CARELESS, vec![one_copy]), (2, CARELESS, vec![ONE_IN_SYNC, UNCLEAN]), (2, CAREFUL, vec![])]
        {
            let found = found(2, (copies, copies), config);
            let none = Vec::<String>::new();
            for topic in [Topic::Chain, Topic::DeadLetters] {
                let expected = expected.iter().map(|text| text.to_string()).collect();
                assert_eq!(judged(topic, &found, None), (none.clone(), expected));
            }
            assert_eq!(judged(Topic::Outcomes, &found, None), (none.clone(), none));
        }
        let unknown = ObservedTopic::with_partition_count(1);
        assert_eq!(find_replication(Topic::Chain, &unknown, Some(3)), ReplicationFindings::default());
    }

    #[test]
    fn a_lost_broker_and_a_number_that_allows_no_loss_are_cautions() {
        let all = [(MIN_IN_SYNC, "3"), (UNCLEAN_ELECTION, "false")];
        let (problems, cautions) = judged(Topic::Chain, &found(3, (3, 3), &all), None);
        assert_eq!(problems, [""; 0]);
        assert!(cautions[0].ends_with("stops all writes, set min.insync.replicas=2"), "{cautions:?}");
        let (problems, cautions) = judged(Topic::Chain, &found(2, (3, 2), CAREFUL), None);
        assert_eq!(problems, [""; 0]);
        assert!(cautions[0].starts_with("has 2 of 3 copies in sync: bring the missing broker back"), "{cautions:?}");
    }

    #[test]
    fn new_topics_of_three_brokers_have_three_copies() {
        assert_eq!([1, 2, 3, 9].map(|brokers| copies_of_new_topics(None, brokers)), [None, None, Some(3), Some(3)]);
        assert_eq!(copies_of_new_topics(Some(1), 3), Some(1));
        assert_eq!([1, 2].map(min_in_sync_config), [None, None]);
        assert_eq!(min_in_sync_config(5).unwrap().1, "4");
    }

    #[test]
    fn committed_offsets_need_as_many_copies() {
        assert_eq!(offsets_topic_problem(&found(3, (3, 3), &[]), None), None);
        assert_eq!(offsets_topic_problem(&found(1, (1, 1), &[]), None), None);
        let problem = offsets_topic_problem(&found(3, (1, 1), &[]), None).unwrap();
        assert!(problem.ends_with("set offsets.topic.replication.factor=3 for new clusters"), "{problem}");
        assert_eq!(offsets_topic_problem(&found(3, (1, 1), &[]), Some(1)), None);
    }
}
