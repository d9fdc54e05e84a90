//! The incarnation of a cluster, derived from the nodes' answers. Only the queries do I/O.
//!
//! A server process that starts is in no cluster: `cluster-stable` answers with an error. The process joins a cluster
//! only by an agreement of all nodes on a new key of 48 random bits, also where the process was away for less than the
//! heartbeat's timeout, and also where the node is alone. So a process that answers with a key has run since the nodes
//! agreed on that key. The generations of partitions and of rebalances are no witness: each process counts anew, and a
//! restarted one can have the number that the process before had.
//!
//! The answer comes from a few variables. `statistics` and `namespace/…` cost the server a walk over 4,096 partitions,
//! each under its lock, and some 15 KB of text; [`IncarnationTracker::check_flushing`] alone needs them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use aerospike::{AdminPolicy, Client, Node};
use futures_util::future::join_all;
use tokio::time::Instant;

use super::{
    errors::describe_error,
    info::{InfoPairs, is_cluster_key},
    members::Members,
    view::Member,
};
use crate::engine::{EngineError, ErrorKind, Incarnation};

/// Tolerance for an uptime: nodes report whole seconds, by a clock of their own.
const TOLERANCE: Duration = Duration::from_secs(2);
/// Write blocks that may wait for one device. With more, an acknowledged write can take longer to reach the device than
/// the flush time and its margin allow.
const MAX_WRITE_QUEUE: u64 = 32;
/// Names of the lengths of the write queues: of a device or file, and of the file behind a namespace in memory.
const WRITE_QUEUES: [&str; 2] = ["write_q", "backing_write_q"];

/// The nodes as they answered last. The cluster key shows a restart. Each node's uptime is a second witness, which
/// [`check_flushing`](Self::check_flushing) reads: an uptime that falls behind the local clock is a restart. Every
/// client derives the same incarnation from a cluster key; only the count of restarts by uptime is local.
#[derive(Debug, Default)]
pub struct IncarnationTracker(Mutex<NodeHistory>);

#[derive(Debug, Default)]
struct NodeHistory {
    cluster_key: String,
    nodes: BTreeMap<String, NodeUptime>,
}

#[derive(Debug, Clone, Copy)]
struct NodeUptime {
    uptime: Duration,
    read_at: Instant,
    restarts: u32,
}

/// Answers of one node that name its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ClusterReport {
    node: String,
    cluster_key: String,
}

/// Answers of one node about its uptime and its devices.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FlushReport {
    node: String,
    uptime: Duration,
    /// Length of the longest write queue of any device, in write blocks.
    write_queue: u64,
}

impl IncarnationTracker {
    /// Asks every node for the cluster key and returns the incarnation.
    ///
    /// # Errors
    /// Retryable: a node does not answer, or the nodes are not one cluster (yet). The incarnation is unknown then.
    pub async fn read(&self, client: &Client, policy: &AdminPolicy) -> Result<Incarnation, EngineError> {
        let nodes = client.nodes();
        let stable = format!("cluster-stable:ignore-migrations=true;size={}", nodes.len());
        let commands = ["node", stable.as_str()];
        let mut reports = ask_each(&nodes, policy, &commands, |[node, key]| parse_cluster(node, key)).await?;
        check_one_cluster(&mut reports)?;
        Ok(self.observe_cluster(&reports))
    }

    /// Returns the incarnation of a cluster with several copies, if its members are those in use.
    ///
    /// # Errors
    /// Retryable: the members have changed, or a fence around them is not complete. The incarnation is unknown then.
    pub async fn read_view(&self, members: &Members) -> Result<Incarnation, EngineError> {
        let view = members.confirmed_view().await.map_err(unknown_incarnation)?;
        let report = |(node, member): (&String, &Member)| ClusterReport {
            node: node.clone(),
            cluster_key: format!("{} {}", view.key, member.name),
        };
        Ok(self.observe_cluster(&view.members.iter().map(report).collect::<Vec<_>>()))
    }

    /// Asks every node for its uptime and its write queues.
    ///
    /// # Errors
    /// Retryable: a node does not answer, or a device is far behind.
    pub async fn check_flushing(
        &self,
        client: &Client,
        policy: &AdminPolicy,
        namespace: &str,
    ) -> Result<(), EngineError> {
        let (nodes, sent_at) = (client.nodes(), Instant::now());
        let namespace = format!("namespace/{namespace}");
        let commands = ["node", "statistics", namespace.as_str()];
        let parse = |[node, statistics, namespace]: [&str; 3]| {
            parse_flush(node, &InfoPairs::new(statistics), &InfoPairs::new(namespace))
        };
        let reports = ask_each(&nodes, policy, &commands, parse).await?;
        self.observe_uptimes(&reports, sent_at, Instant::now());
        check_write_queues(&reports)
    }

    /// Returns the incarnation that these reports of one cluster show.
    fn observe_cluster(&self, reports: &[ClusterReport]) -> Incarnation {
        let mut history = self.history();
        let cluster_key = reports.first().map(|report| report.cluster_key.clone()).unwrap_or_default();
        if history.cluster_key != cluster_key {
            *history = NodeHistory { cluster_key, nodes: BTreeMap::new() };
        }
        let mut text = history.cluster_key.clone();
        for ClusterReport { node, .. } in reports {
            text += &format!(" {node}+{}", history.nodes.get(node).map_or(0, |node| node.restarts));
        }
        Incarnation(text)
    }

    /// Counts the restarts that these uptimes show. The query was sent at `sent_at`, the last answer came at `read_at`.
    fn observe_uptimes(&self, reports: &[FlushReport], sent_at: Instant, read_at: Instant) {
        let mut history = self.history();
        for FlushReport { node, uptime, .. } in reports {
            let previous = history.nodes.get(node).copied();
            // Since the previous report the uptime must have grown at least by the time from its answer to this query.
            let expected =
                previous.map_or(Duration::ZERO, |node| node.uptime + sent_at.saturating_duration_since(node.read_at));
            let restarted = u32::from(*uptime + TOLERANCE < expected);
            let restarts = previous.map_or(0, |node| node.restarts) + restarted;
            history.nodes.insert(node.clone(), NodeUptime { uptime: *uptime, read_at, restarts });
        }
    }

    fn history(&self) -> MutexGuard<'_, NodeHistory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends all commands to every node at once; `parse` gets the answers of a node in the order of the commands.
pub async fn ask_each<const N: usize, T>(
    nodes: &[Arc<Node>],
    policy: &AdminPolicy,
    commands: &[&str; N],
    parse: impl Fn([&str; N]) -> Result<T, EngineError>,
) -> Result<Vec<T>, EngineError> {
    let answers = join_all(nodes.iter().map(|node| async {
        let answers = node.info(policy, commands).await.map_err(|error| unknown_incarnation(describe_error(&error)))?;
        parse(commands.map(|command| answers.get(command).map(String::as_str).unwrap_or_default()))
    }));
    answers.await.into_iter().collect()
}

fn unknown_incarnation(message: impl Into<String>) -> EngineError {
    let (kind, message) = (ErrorKind::Retryable, message.into());
    EngineError { kind, operation: "incarnation", key: "all nodes".into(), message }
}

fn missing(node: &str, what: &str) -> EngineError {
    unknown_incarnation(format!("node `{node}` does not report its {what}"))
}

pub fn parse_node(node: &str) -> Result<String, EngineError> {
    if node.is_empty() { Err(missing(node, "id")) } else { Ok(node.to_owned()) }
}

/// Parses the answer to `cluster-stable`.
fn parse_cluster(node: &str, answer: &str) -> Result<ClusterReport, EngineError> {
    let node = parse_node(node)?;
    match is_cluster_key(answer) {
        true => Ok(ClusterReport { node, cluster_key: answer.to_owned() }),
        false => Err(unknown_incarnation(format!("node {node} has no stable cluster: `{answer}`"))),
    }
}

fn parse_flush(node: &str, statistics: &InfoPairs, namespace: &InfoPairs) -> Result<FlushReport, EngineError> {
    Ok(FlushReport {
        node: parse_node(node)?,
        uptime: Duration::from_secs(statistics.number("uptime").ok_or_else(|| missing(node, "uptime"))?),
        write_queue: namespace.numbers_ending_in(&WRITE_QUEUES).max().unwrap_or(0),
    })
}

/// Sorts the reports by node. All nodes of one cluster must have answered, each once; each server compares the number
/// of nodes that were asked with the size of its cluster.
fn check_one_cluster(reports: &mut [ClusterReport]) -> Result<(), EngineError> {
    reports.sort_unstable_by(|one, other| one.node.cmp(&other.node));
    let Some(first) = reports.first() else { return Err(unknown_incarnation("the client knows no node")) };
    if let Some(other) = reports.iter().find(|report| report.cluster_key != first.cluster_key) {
        return Err(unknown_incarnation(format!("nodes {} and {} are not in one cluster", first.node, other.node)));
    }
    match reports.windows(2).find(|pair| pair[0].node == pair[1].node) {
        Some(pair) => Err(unknown_incarnation(format!("node {} has answered for another node", pair[0].node))),
        None => Ok(()),
    }
}

/// Checks that no device is far behind with its writes.
fn check_write_queues(reports: &[FlushReport]) -> Result<(), EngineError> {
    match reports.iter().find(|report| report.write_queue > MAX_WRITE_QUEUE) {
        Some(FlushReport { node, write_queue, .. }) => {
            Err(unknown_incarnation(format!("node {node} has {write_queue} write blocks waiting for a device")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: &str) -> ClusterReport {
        ClusterReport { node: id.into(), cluster_key: "BDD96".into() }
    }

    fn uptime(id: &str, seconds: u64) -> FlushReport {
        FlushReport { node: id.into(), uptime: Duration::from_secs(seconds), write_queue: 0 }
    }

    #[test]
    fn only_a_key_names_a_cluster() {
        assert_eq!(parse_cluster("A1", "BDD96").unwrap(), member("A1"));
        // A process that has joined no cluster yet, a size that differs, an error with a key behind, an old server.
        for answer in
            ["ERROR:7:unstable cluster", "ERROR:7:cluster not specified size", "ERROR:7:unstable clusterBDD96", "0", ""]
        {
            let error = parse_cluster("A1", answer).unwrap_err();
            assert!(error.kind == ErrorKind::Retryable && error.message.contains("no stable cluster"), "{error}");
        }
        assert!(parse_cluster("", "BDD96").is_err());
    }

    #[test]
    fn uptime_and_write_queues_are_parsed_and_an_incomplete_report_is_refused() {
        let statistics = "cluster_size=1;uptime=7";
        for (namespace, write_queue) in [
            ("storage-engine.file[0].write_q=3;storage-engine.file[1].write_q=5;write_q_x=9", 5),
            ("storage-engine.stripe[0].backing_write_q=40;storage-engine.stripe[0].defrag_q=90", 40),
            ("objects=1", 0),
        ] {
            let report = parse_flush("A1", &InfoPairs::new(statistics), &InfoPairs::new(namespace)).unwrap();
            assert_eq!(report, FlushReport { write_queue, ..uptime("A1", 7) });
        }
        assert!(parse_flush("A1", &InfoPairs::new("cluster_size=1"), &InfoPairs::default()).is_err());
        assert!(parse_flush("", &InfoPairs::new(statistics), &InfoPairs::default()).is_err());
    }

    #[test]
    fn every_node_of_one_cluster_must_answer_for_itself() {
        let mut reports = [member("A2"), member("A1")];
        check_one_cluster(&mut reports).unwrap();
        assert_eq!(reports, [member("A1"), member("A2")], "the same order for every client");
        let other_key = ClusterReport { cluster_key: "X".into(), ..member("A2") };
        for (mut reports, word) in [
            (vec![], "knows no node"),
            (vec![member("A1"), other_key], "not in one cluster"),
            (vec![member("A1"), member("A1")], "answered for another node"),
        ] {
            let error = check_one_cluster(&mut reports).unwrap_err();
            assert!(error.kind == ErrorKind::Retryable && error.message.contains(word), "{error}");
        }
    }

    #[test]
    fn a_long_write_queue_is_an_error() {
        let behind = |write_queue| [uptime("A1", 1), FlushReport { write_queue, ..uptime("A2", 1) }];
        check_write_queues(&behind(MAX_WRITE_QUEUE)).unwrap();
        let error = check_write_queues(&behind(MAX_WRITE_QUEUE + 1)).unwrap_err();
        assert!(error.kind == ErrorKind::Retryable && error.message.contains("33 write blocks"), "{error}");
    }

    #[test]
    fn a_restart_shows_in_the_cluster_key_or_in_the_uptime() {
        let (tracker, start) = (IncarnationTracker::default(), Instant::now());
        let observe = |id: &str, seconds: u64, after: u64| {
            let at = start + Duration::from_secs(after);
            tracker.observe_uptimes(&[uptime(id, seconds)], at, at);
            tracker.observe_cluster(&[member(id)])
        };
        let first = tracker.observe_cluster(&[member("A1")]);
        for (uptime, after) in [(100, 0), (101, 0), (100, 1), (130, 31), (1_099, 1_001)] {
            assert_eq!(observe("A1", uptime, after), first, "{uptime} after {after}");
        }
        // The uptime is longer than at the previous report, but shorter than the time passed since: the node restarted.
        let second = observe("A1", 1_150, 2_000);
        assert_ne!(second, first);
        assert_eq!(observe("A1", 1_160, 2_010), second);
        assert_eq!(tracker.observe_cluster(&[member("A1")]), second, "a look without an uptime");
        assert_ne!(tracker.observe_cluster(&[ClusterReport { cluster_key: "X".into(), ..member("A1") }]), second);
        assert_ne!(tracker.observe_cluster(&[member("A2")]), second);
    }
}
