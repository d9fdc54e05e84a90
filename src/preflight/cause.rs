//! Causes of findings that need an operator, in the order in which an operator mends the causes.

use serde::Serialize;
use strum::EnumIter;

/// Cause of a warning or a failed check. The order is the order of the work: each cause can be the reason of those
/// after the cause, and nothing after a cause can be judged before the cause is mended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, EnumIter, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A setting is unknown, out of range or contradicts another.
    Configuration,
    /// No broker answers this machine.
    Brokers,
    /// The login lacks rights on topics or groups.
    Permissions,
    /// The store does not answer, or cannot be opened.
    StoreAway,
    /// The store is open in another process.
    StoreInUse,
    /// Servers or disks of the store take no more writes, or soon will not.
    FullDevice,
    /// A topic does not exist.
    MissingTopic,
    /// A topic was deleted and created again.
    RecreatedTopic,
    /// The store was made from another log, or for another group.
    CrossedStores,
    /// The store of the group is empty.
    LostNamespace,
    /// Parts of the store's records are gone.
    LostPart,
    /// The settings contradict facts that the store keeps.
    StoreFacts,
    /// A rebuild has not ended.
    UnfinishedRebuild,
    /// A restore, import or migration has not ended.
    UnfinishedLoad,
    /// The blob store or a place of objects cannot be used.
    Blobs,
    /// The topics no longer hold the next offsets of the group.
    LostOffsets,
    /// The chain is halted.
    HaltedChain,
    /// A partition of validated transactions is halted.
    HaltedPartition,
    /// The next block, reorg, transaction or object has not come.
    MissingInput,
    /// The restored store reads the log again.
    CatchingUp,
    /// An instance does not answer, is not ready, or does not commit; or none runs.
    Instance,
    /// Records of the store contradict each other.
    DamagedRecords,
    /// Dead letters wait for a decision.
    DeadLetters,
    /// A topic has fewer copies than it should have, or may forget events.
    TopicSettings,
}

/// First step and page of one cause.
struct Advice {
    first_step: &'static str,
    page: &'static str,
}

impl Cause {
    /// Returns what an operator does first, as one line.
    pub fn first_step(self) -> &'static str {
        self.advice().first_step
    }

    /// Returns the page of the documents with all steps, as a path in the repository.
    pub fn page(self) -> &'static str {
        self.advice().page
    }

    fn advice(self) -> Advice {
        let (first_step, page) = match self {
            Cause::Configuration => {
                ("correct the named setting; `config check` reads the settings alone", "docs/operating/configure.md")
            }
            Cause::Brokers => {
                ("check that the brokers run and that this machine reaches them", "docs/operating/kafka.md")
            }
            Cause::Permissions => ("grant the named rights to the login", "docs/operating/kafka.md"),
            Cause::StoreAway => {
                ("check that the store runs; instances wait and continue by themselves", "docs/operating/aerospike.md")
            }
            Cause::StoreInUse => ("ask the process that has the store open by --instance", "docs/operating/install.md"),
            Cause::FullDevice => {
                ("give the store room; leave the instances running", "docs/operating/exits/full-device.md")
            }
            Cause::MissingTopic => {
                ("run `topics create`, or correct the name in kafka.topics", "docs/operating/kafka.md")
            }
            Cause::RecreatedTopic => {
                ("stop every instance, and every producer of the topic", "docs/operating/exits/recreated-topic.md")
            }
            Cause::CrossedStores => (
                "compare store.url with kafka.group; or all topics were created again",
                "docs/operating/exits/crossed-stores.md",
            ),
            Cause::LostNamespace => {
                ("stop every instance; do not delete anything", "docs/operating/exits/lost-namespace.md")
            }
            Cause::LostPart => ("bring the missing node back with its data", "docs/operating/exits/lost-part.md"),
            Cause::StoreFacts => (
                "set the value that the store was made with, or undo the change",
                "docs/operating/upgrade.md#refusals-at-a-start",
            ),
            Cause::UnfinishedRebuild => (
                "wait for the rebuild, or continue it by `replay --rebuild --resume`",
                "docs/operating/halts-and-recovery.md#rebuild",
            ),
            Cause::UnfinishedLoad => (
                "repeat the command that loads the store; the command continues",
                "docs/operating/exits/restore-a-snapshot.md",
            ),
            Cause::Blobs => ("mount or correct the place that the message names", "docs/operating/configure.md"),
            Cause::LostOffsets => {
                ("stop every instance; restore the topic if a copy exists", "docs/operating/exits/lost-offsets.md")
            }
            Cause::HaltedChain => {
                ("read the reason, and mend the block feed before a retry", "docs/operating/exits/halted-chain.md")
            }
            Cause::HaltedPartition => {
                ("read the reason, and mend the producer before a retry", "docs/operating/exits/halted-partition.md")
            }
            Cause::MissingInput => {
                ("publish what the message names; the wait then ends", "docs/operating/halts-and-recovery.md")
            }
            Cause::CatchingUp => {
                ("wait; do not trust `unspent` before the lag is 0", "docs/operating/exits/restore-a-snapshot.md")
            }
            Cause::Instance => ("read /health/ready, /state and the log of the instance", "docs/operating/monitor.md"),
            Cause::DamagedRecords => {
                ("keep the store as it is; run `verify` again at rest", "docs/operating/halts-and-recovery.md#verify")
            }
            Cause::DeadLetters => (
                "run `dead-letters list`; mend the producer, then replay or discard",
                "docs/operating/halts-and-recovery.md#dead-letters",
            ),
            Cause::TopicSettings => ("change the named settings of the topic", "docs/operating/kafka.md"),
        };
        Advice { first_step, page }
    }
}

#[cfg(test)]
mod tests {
    use strum::IntoEnumIterator;

    use super::*;

    #[test]
    fn each_cause_has_a_page_that_exists() {
        for cause in Cause::iter() {
            let (file, anchor) = cause.page().split_once('#').unwrap_or((cause.page(), ""));
            let text = std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file));
            let text = text.unwrap_or_else(|error| panic!("{cause:?}: {file}: {error}")).to_lowercase();
            let heading = format!("# {}\n", anchor.replace('-', " "));
            assert!(anchor.is_empty() || text.contains(&heading), "{cause:?}: {file} has no {anchor}");
            assert!(cause.first_step().len() < 90 && !cause.first_step().contains('\n'), "{cause:?}");
        }
    }
}
