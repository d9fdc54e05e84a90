//! Retention of the topics whose events make the state: of the whole log, or of the log beyond the newest snapshot
//! (`docs/decisions/0267-retention-beyond-the-newest-snapshot.md`). Pure.

use std::{collections::BTreeMap, fmt, time::Duration};

use crate::{
    event::Topic,
    preflight::{CheckOutcome, Finding, times},
};

pub(super) const RETENTION_MS: &str = "retention.ms";
pub(super) const RETENTION_BYTES: &str = "retention.bytes";
pub(super) const CLEANUP: &str = "cleanup.policy";

/// Least retention beside snapshots. A halt or an outage can take a night, and nothing has the events of this time but
/// the topics.
const LEAST_RETENTION: Duration = Duration::from_secs(24 * 3_600);

/// Part of the log that the topics must keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NeededLog {
    /// All events: a lost store is rebuilt from offset 0.
    Whole(WholeLogReason),
    /// The events beyond the offsets of the newest complete snapshot.
    BeyondSnapshot(NewestSnapshot),
}

/// Reasons for which the whole log is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WholeLogReason {
    /// `snapshot.url` is not set.
    NotConfigured,
    /// The place has no complete snapshot.
    NoSnapshot {
        /// URL of the place.
        place: String,
    },
    /// The newest complete snapshot, or the place, cannot be used.
    Unusable {
        /// URL of the place.
        place: String,
        /// Reason for which no snapshot of the place can be used, one line.
        problem: String,
    },
}

/// The newest complete snapshot, and the part of the log that a store restored from it reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewestSnapshot {
    /// Name of the snapshot.
    pub name: String,
    /// Time since the beginning of the snapshot.
    pub age: Duration,
    /// Offsets of each partition of the log.
    pub partitions: Vec<NeededOffset>,
}

/// First offset of a partition that a restored store reads, with the offsets that the topic holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeededOffset {
    /// The topic of the store.
    pub topic: Topic,
    /// Number of the partition.
    pub partition: i32,
    /// First offset that a restored store reads.
    pub from: u64,
    /// First offset that the topic holds.
    pub low: u64,
    /// End offset of the topic.
    pub high: u64,
}

/// Findings about the retention of one topic.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RetentionFindings {
    /// Properties and offsets that endanger the state.
    pub problems: Vec<String>,
    /// Weaknesses of a topic that works.
    pub cautions: Vec<String>,
}

/// Judges the retention of a topic whose events make the state; no finding for any other topic.
pub fn find_retention(topic: Topic, config: &BTreeMap<String, String>, needed: &NeededLog) -> RetentionFindings {
    let mut findings = RetentionFindings::default();
    if !topic.is_state_source() {
        return findings;
    }
    let limit = |property: &str, unlimited: &str| config.get(property).filter(|value| *value != unlimited);
    match needed {
        NeededLog::Whole(reason) => {
            for (property, keeps) in [(RETENTION_MS, "-1"), (RETENTION_BYTES, "-1"), (CLEANUP, "delete")] {
                if let Some(value) = limit(property, keeps) {
                    let remedy = if property == CLEANUP { "" } else { reason.remedy() };
                    findings.problems.push(format!(
                        "has {property}={value}: a rebuild reads the whole topic, set {property}={keeps}{remedy}"
                    ));
                }
            }
        }
        NeededLog::BeyondSnapshot(snapshot) => {
            let lost = snapshot.find_lost_offsets(topic);
            // The feed passes over deleted blocks and reorgs.
            let is_passed_over = topic.is_fed() && !snapshot.needs_beyond(topic);
            let list = if is_passed_over { &mut findings.cautions } else { &mut findings.problems };
            list.extend(lost);
            if let Some(value) = limit(CLEANUP, "delete") {
                findings.problems.push(format!(
                    "has {CLEANUP}={value}: a restored store reads every message beyond its snapshot, set \
                     {CLEANUP}=delete"
                ));
            }
            if let Some(value) = limit(RETENTION_BYTES, "-1") {
                findings.problems.push(format!(
                    "has {RETENTION_BYTES}={value}: how long a size lasts is not known, set {RETENTION_BYTES}=-1 and \
                     limit the time ({RETENTION_MS})"
                ));
            }
            if let Some(ms) = limit(RETENTION_MS, "-1").and_then(|value| value.parse().ok()) {
                findings.judge_time(snapshot, Duration::from_millis(ms));
                findings.cautions.extend(times::find_producer_times(topic, config));
            }
        }
    }
    findings
}

impl WholeLogReason {
    /// Returns the end of a message about a topic with limited retention.
    fn remedy(&self) -> &'static str {
        match self {
            WholeLogReason::NotConfigured => "",
            WholeLogReason::NoSnapshot { .. } => ", or create a snapshot (`utxo-store snapshot create`)",
            WholeLogReason::Unusable { .. } => ", or create a new snapshot (`utxo-store snapshot create`)",
        }
    }
}

impl RetentionFindings {
    /// Compares the time for which a topic keeps its messages with the age of the snapshot.
    ///
    /// The messages that the snapshot needs are as old as the snapshot, or older by the lag that the group had. At half
    /// the retention a new snapshot has as much time again to be created before the older one is of no use.
    fn judge_time(&mut self, snapshot: &NewestSnapshot, retention: Duration) {
        let (keeps, name, age) = (describe(retention), &snapshot.name, describe(snapshot.age));
        if retention < LEAST_RETENTION {
            let least = LEAST_RETENTION.as_millis();
            self.problems.push(format!(
                "has {RETENTION_MS}={}: an outage of that time loses events that no snapshot has, set \
                 {RETENTION_MS}={least} or more",
                retention.as_millis()
            ));
        }
        if snapshot.age >= retention {
            self.problems.push(format!(
                "keeps messages for {keeps}, and the newest snapshot {name} is {age} old: create a snapshot now \
                 (`utxo-store snapshot create`)"
            ));
        } else if snapshot.age >= retention / 2 {
            let left = describe(retention - snapshot.age);
            self.cautions.push(format!(
                "keeps messages for {keeps}, and the newest snapshot {name} is {age} old: create the next one within \
                 {left} (`utxo-store snapshot create`)"
            ));
        }
    }
}

impl NewestSnapshot {
    /// Returns whether the topic has lost its end: an offset that a restored store reads from is above it.
    fn needs_beyond(&self, topic: Topic) -> bool {
        self.partitions.iter().any(|needed| needed.topic == topic && needed.from > needed.high)
    }

    /// Describes the first partition of the topic that does not hold the offset from which a restored store reads.
    fn find_lost_offsets(&self, topic: Topic) -> Option<String> {
        let name = &self.name;
        let lost = self.partitions.iter().find(|needed| needed.topic == topic && !needed.is_held())?;
        let NeededOffset { partition, from, low, high, .. } = lost;
        Some(format!(
            "holds offsets {low} to {high} of partition {partition}, and the newest snapshot {name} needs offset \
             {from}: create a snapshot now (`utxo-store snapshot create`)"
        ))
    }
}

impl NeededOffset {
    fn is_held(&self) -> bool {
        (self.low..=self.high).contains(&self.from)
    }
}

impl NeededLog {
    /// Returns the finding on the place of the snapshots.
    pub fn finding(&self) -> Finding {
        let outcome = match self {
            NeededLog::BeyondSnapshot(_) => CheckOutcome::Ok,
            NeededLog::Whole(WholeLogReason::NotConfigured) => CheckOutcome::Skipped,
            NeededLog::Whole(_) => CheckOutcome::Warning,
        };
        Finding::new("snapshots", outcome, self.to_string())
    }
}

impl fmt::Display for NeededLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NeededLog::BeyondSnapshot(NewestSnapshot { name, age, .. }) => {
                write!(
                    f,
                    "the newest complete snapshot is {name}, {} old: the topics are compared with its offsets",
                    describe(*age)
                )
            }
            NeededLog::Whole(WholeLogReason::NotConfigured) => f.write_str("snapshot.url is not set"),
            NeededLog::Whole(WholeLogReason::NoSnapshot { place }) => {
                write!(f, "no complete snapshot at {place} (snapshot.url): run `utxo-store snapshot create`")
            }
            NeededLog::Whole(WholeLogReason::Unusable { place, problem }) => {
                write!(f, "no snapshot at {place} can be used (snapshot.url): {problem}")
            }
        }
    }
}

/// Writes a time in days, hours or minutes, rounded down.
fn describe(time: Duration) -> String {
    const UNITS: [(u64, &str); 3] = [(24 * 3_600, "days"), (3_600, "hours"), (60, "minutes")];
    let seconds = time.as_secs();
    let unit = UNITS.into_iter().find(|(length, _)| seconds >= 2 * length);
    unit.map_or_else(|| format!("{seconds} seconds"), |(length, unit)| format!("{} {unit}", seconds / length))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = LEAST_RETENTION;

    fn with(config: &[(&str, &str)]) -> BTreeMap<String, String> {
        config.iter().map(|(property, value)| ((*property).to_owned(), (*value).to_owned())).collect()
    }

    fn beyond(age: Duration, partitions: Vec<NeededOffset>) -> NeededLog {
        NeededLog::BeyondSnapshot(NewestSnapshot { name: "S".to_owned(), age, partitions })
    }

    fn days(count: u32) -> (&'static str, String) {
        (RETENTION_MS, (DAY * count).as_millis().to_string())
    }

    #[test]
    fn without_a_snapshot_the_topics_keep_everything() {
        let limited = with(&[(RETENTION_MS, "604800000"), (RETENTION_BYTES, "1000"), (CLEANUP, "compact")]);
        let place = "file:///snapshots".to_owned();
        let remedies = [
            (WholeLogReason::NotConfigured, ""),
            (
                WholeLogReason::NoSnapshot { place: place.clone() },
                ", or create a snapshot (`utxo-store snapshot create`)",
            ),
            (
                WholeLogReason::Unusable { place, problem: "no".to_owned() },
                ", or create a new snapshot (`utxo-store snapshot create`)",
            ),
        ];
        for (reason, remedy) in remedies {
            let needed = NeededLog::Whole(reason);
            let findings = find_retention(Topic::Decisions, &limited, &needed);
            assert_eq!(
                findings.problems,
                [
                    format!("has retention.ms=604800000: a rebuild reads the whole topic, set retention.ms=-1{remedy}"),
                    format!(
                        "has retention.bytes=1000: a rebuild reads the whole topic, set retention.bytes=-1{remedy}"
                    ),
                    "has cleanup.policy=compact: a rebuild reads the whole topic, set cleanup.policy=delete".to_owned(),
                ]
            );
            for topic in [Topic::Outcomes, Topic::DeadLetters] {
                assert_eq!(find_retention(topic, &limited, &needed), RetentionFindings::default());
            }
            let kept = with(&[(RETENTION_MS, "-1"), (RETENTION_BYTES, "-1"), (CLEANUP, "delete")]);
            assert_eq!(find_retention(Topic::Decisions, &kept, &needed), RetentionFindings::default());
        }
    }

    #[test]
    fn with_a_snapshot_the_retention_is_longer_than_its_age() {
        let judged = |age, ms: &str| find_retention(Topic::Chain, &with(&[(RETENTION_MS, ms)]), &beyond(age, vec![]));
        let (_, week) = days(7);
        assert_eq!(judged(DAY * 3, &week), RetentionFindings::default());
        assert_eq!(judged(DAY * 400, "-1"), RetentionFindings::default(), "an old snapshot, and the whole log");
        let due = judged(DAY * 5, &week);
        assert_eq!(
            (due.problems.as_slice(), due.cautions.as_slice()),
            (
                &[][..],
                &["keeps messages for 7 days, and the newest snapshot S is 5 days old: create the next one within 2 \
                   days (`utxo-store snapshot create`)"
                    .to_owned()][..]
            )
        );
        assert_eq!(judged(DAY * 7 / 2, &week).cautions.len(), 1, "at half the retention");
        let late = judged(DAY * 7, &week);
        assert_eq!(late.cautions, [""; 0]);
        assert_eq!(
            late.problems,
            ["keeps messages for 7 days, and the newest snapshot S is 7 days old: create a snapshot now (`utxo-store \
              snapshot create`)"]
        );
        let short = judged(Duration::from_secs(60), "86399999");
        assert_eq!(
            short.problems,
            ["has retention.ms=86399999: an outage of that time loses events that no snapshot has, set \
              retention.ms=86400000 or more"]
        );
        assert_eq!(judged(Duration::from_secs(60), "86400000"), RetentionFindings::default());
    }

    #[test]
    fn with_a_snapshot_sizes_and_compaction_stay_problems() {
        let limited = with(&[(RETENTION_BYTES, "1000"), (CLEANUP, "compact,delete")]);
        let problems = find_retention(Topic::Reorgs, &limited, &beyond(DAY, vec![])).problems;
        assert!(problems[0].ends_with("set cleanup.policy=delete"), "{problems:?}");
        assert!(problems[1].contains("retention.bytes=1000") && problems[1].contains("set retention.bytes=-1"));
        assert_eq!(problems.len(), 2);
    }

    #[test]
    fn offsets_of_the_snapshot_that_a_topic_does_not_hold_are_named() {
        let at = |topic, partition, from| NeededOffset { topic, partition, from, low: 10, high: 20 };
        let needed = beyond(
            DAY,
            vec![
                at(Topic::ValidatedTxs, 0, 10),
                at(Topic::ValidatedTxs, 1, 9),
                at(Topic::Chain, 0, 20),
                at(Topic::Decisions, 0, 21),
            ],
        );
        let problems = |topic| find_retention(topic, &BTreeMap::new(), &needed).problems;
        assert_eq!(
            problems(Topic::ValidatedTxs),
            ["holds offsets 10 to 20 of partition 1, and the newest snapshot S needs offset 9: create a snapshot now \
              (`utxo-store snapshot create`)"]
        );
        assert!(problems(Topic::Decisions)[0].contains("needs offset 21"));
        assert_eq!((problems(Topic::Chain), problems(Topic::Reorgs)), (vec![], vec![]));
    }

    #[test]
    fn deletion_by_the_times_of_producers_is_a_caution() {
        let cautions = |topic, kind: &str| {
            let config = with(&[(RETENTION_MS, "604800000"), ("message.timestamp.type", kind)]);
            find_retention(topic, &config, &beyond(DAY, vec![])).cautions
        };
        assert!(cautions(Topic::ValidatedTxs, "CreateTime")[0].ends_with("set message.timestamp.type=LogAppendTime"));
        assert_eq!(cautions(Topic::ValidatedTxs, "LogAppendTime"), [""; 0]);
        assert_eq!(cautions(Topic::Chain, "CreateTime"), [""; 0], "the store stamps with the time of production");
    }

    #[test]
    fn the_place_of_the_snapshots_has_a_finding() {
        let place = "file:///snapshots".to_owned();
        let unusable = WholeLogReason::Unusable { place: place.clone(), problem: "damaged".to_owned() };
        for (needed, line) in [
            (NeededLog::Whole(WholeLogReason::NotConfigured), "skipped  snapshots: snapshot.url is not set"),
            (
                NeededLog::Whole(WholeLogReason::NoSnapshot { place }),
                "WARNING  snapshots: no complete snapshot at file:///snapshots (snapshot.url): run `utxo-store \
                 snapshot create`",
            ),
            (
                NeededLog::Whole(unusable),
                "WARNING  snapshots: no snapshot at file:///snapshots can be used (snapshot.url): damaged",
            ),
            (
                beyond(Duration::from_secs(7_200), vec![]),
                "ok       snapshots: the newest complete snapshot is S, 2 hours old: the topics are compared with its \
                 offsets",
            ),
        ] {
            assert_eq!(needed.finding().to_string(), line);
        }
        assert_eq!(
            [0, 119, 120].map(|seconds| describe(Duration::from_secs(seconds))),
            ["0 seconds", "119 seconds", "2 minutes"]
        );
    }
}
