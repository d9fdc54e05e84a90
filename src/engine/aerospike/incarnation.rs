//! The incarnation of a cluster, derived from the nodes' answers. Only the queries do I/O.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use aerospike::{AdminPolicy, Client};
use futures_util::future::join_all;
use tokio::time::Instant;

use super::{errors::describe_error, info::InfoPairs};
use crate::engine::{EngineError, ErrorKind, Incarnation};

/// Tolerance for an uptime: nodes report whole seconds, by a clock of their own.
const TOLERANCE: Duration = Duration::from_secs(2);
/// Write blocks that may wait for one device. With more, an acknowledged write can take longer to reach the device than
/// the flush time and its margin allow.
const MAX_WRITE_QUEUE: u64 = 32;

/// The nodes as they answered last. A restarted node agrees on a new cluster key with the others. Should the cluster
/// key not change, the node's uptime shows the restart: it falls behind the local clock. Every instance derives the
/// same incarnation from a cluster key; only the count of restarts by uptime is local.
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

/// Answers of one node to the info commands of this module.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NodeReport {
    node: String,
    cluster_key: String,
    cluster_size: u64,
    uptime: Duration,
    /// Length of the longest write queue of any device, in write blocks.
    write_queue: u64,
}

impl IncarnationTracker {
    /// Queries every node and returns the incarnation.
    ///
    /// # Errors
    /// Retryable: a node does not answer, the nodes are not one cluster (yet), or a device is far behind. The
    /// incarnation is unknown then.
    pub async fn read(
        &self,
        client: &Client,
        policy: &AdminPolicy,
        namespace: &str,
    ) -> Result<Incarnation, EngineError> {
        let namespace_command = format!("namespace/{namespace}");
        let commands = ["node", "statistics", namespace_command.as_str()];
        let sent_at = Instant::now();
        let nodes = client.nodes();
        let answers = join_all(nodes.iter().map(|node| async {
            let answers =
                node.info(policy, &commands).await.map_err(|error| unknown_incarnation(describe_error(&error)))?;
            let answer = |command: &str| answers.get(command).map(String::as_str).unwrap_or_default();
            let (statistics, namespace) = (answer("statistics"), answer(&namespace_command));
            parse_report(answer("node"), &InfoPairs::new(statistics), &InfoPairs::new(namespace))
        }))
        .await;
        let mut reports = answers.into_iter().collect::<Result<Vec<NodeReport>, EngineError>>()?;
        reports.sort_unstable_by(|one, other| one.node.cmp(&other.node));
        check_one_cluster(&reports)?;
        Ok(self.observe(&reports, sent_at, Instant::now()))
    }

    /// Returns the incarnation that these reports show. The query was sent at `sent_at`, the last answer came at
    /// `read_at`.
    fn observe(&self, reports: &[NodeReport], sent_at: Instant, read_at: Instant) -> Incarnation {
        let mut history = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let cluster_key = reports.first().map(|report| report.cluster_key.clone()).unwrap_or_default();
        if history.cluster_key != cluster_key {
            *history = NodeHistory { cluster_key, nodes: BTreeMap::new() };
        }
        let mut text = history.cluster_key.clone();
        for NodeReport { node, uptime, .. } in reports {
            let previous = history.nodes.get(node).copied();
            // Since the previous report the uptime must have grown at least by the time from its answer to this query.
            let expected =
                previous.map_or(Duration::ZERO, |node| node.uptime + sent_at.saturating_duration_since(node.read_at));
            let restarted = u32::from(*uptime + TOLERANCE < expected);
            let restarts = previous.map_or(0, |node| node.restarts) + restarted;
            history.nodes.insert(node.clone(), NodeUptime { uptime: *uptime, read_at, restarts });
            text += &format!(" {node}+{restarts}");
        }
        Incarnation(text)
    }
}

fn unknown_incarnation(message: impl Into<String>) -> EngineError {
    let (kind, message) = (ErrorKind::Retryable, message.into());
    EngineError { kind, operation: "incarnation", key: "all nodes".into(), message }
}

fn parse_report(node: &str, statistics: &InfoPairs, namespace: &InfoPairs) -> Result<NodeReport, EngineError> {
    let missing = |what: &str| unknown_incarnation(format!("node `{node}` does not report its {what}"));
    let cluster_key = statistics.get("cluster_key").filter(|key| !key.is_empty() && *key != "0");
    Ok(NodeReport {
        node: Some(node).filter(|node| !node.is_empty()).ok_or_else(|| missing("id"))?.to_owned(),
        cluster_key: cluster_key.ok_or_else(|| missing("cluster key"))?.to_owned(),
        cluster_size: statistics.number("cluster_size").ok_or_else(|| missing("cluster's size"))?,
        uptime: Duration::from_secs(statistics.number("uptime").ok_or_else(|| missing("uptime"))?),
        write_queue: namespace.numbers_ending_in("write_q").max().unwrap_or(0),
    })
}

/// Checks that all nodes of one cluster have answered and that no device is far behind with its writes.
fn check_one_cluster(reports: &[NodeReport]) -> Result<(), EngineError> {
    let Some(first) = reports.first() else { return Err(unknown_incarnation("the client knows no node")) };
    if let Some(other) = reports.iter().find(|report| report.cluster_key != first.cluster_key) {
        return Err(unknown_incarnation(format!("nodes {} and {} are not in one cluster", first.node, other.node)));
    }
    if first.cluster_size != reports.len() as u64 {
        let message = format!("the cluster has {} nodes, {} answered", first.cluster_size, reports.len());
        return Err(unknown_incarnation(message));
    }
    match reports.iter().find(|report| report.write_queue > MAX_WRITE_QUEUE) {
        Some(slow) => {
            let NodeReport { node, write_queue, .. } = slow;
            Err(unknown_incarnation(format!("node {node} has {write_queue} write blocks waiting for a device")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: &str, uptime: u64) -> NodeReport {
        NodeReport {
            node: id.into(),
            cluster_key: "BDD96".into(),
            cluster_size: 2,
            uptime: Duration::from_secs(uptime),
            write_queue: 0,
        }
    }

    #[test]
    fn a_report_is_parsed_and_an_incomplete_report_is_refused() {
        let statistics = "cluster_size=1;cluster_key=BDD96DB1C6F;uptime=7";
        let namespace = InfoPairs::new("storage-engine.file[0].write_q=3;storage-engine.file[1].write_q=5;write_q_x=9");
        let report = parse_report("A1", &InfoPairs::new(statistics), &namespace).unwrap();
        let cluster_key = "BDD96DB1C6F".into();
        let expected = NodeReport { cluster_key, cluster_size: 1, write_queue: 5, ..node("A1", 7) };
        assert_eq!(report, expected);
        for without in ["cluster_size=1;", "cluster_key=BDD96DB1C6F;", ";uptime=7"] {
            let error = parse_report("A1", &InfoPairs::new(&statistics.replace(without, "")), &namespace).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Retryable, "{without}");
        }
        // A node that has not agreed on a cluster key with the others yet.
        let alone = statistics.replace("BDD96DB1C6F", "0");
        assert!(parse_report("A1", &InfoPairs::new(&alone), &namespace).is_err());
        assert!(parse_report("", &InfoPairs::new(statistics), &namespace).is_err());
    }

    #[test]
    fn every_node_of_one_cluster_must_answer_with_short_write_queues() {
        check_one_cluster(&[node("A1", 1), node("A2", 1)]).unwrap();
        let other_key = NodeReport { cluster_key: "X".into(), ..node("A2", 1) };
        let slow = NodeReport { write_queue: MAX_WRITE_QUEUE + 1, ..node("A2", 1) };
        for (reports, word) in [
            (vec![], "knows no node"),
            (vec![node("A1", 1)], "2 nodes, 1 answered"),
            (vec![node("A1", 1), other_key], "not in one cluster"),
            (vec![node("A1", 1), slow], "33 write blocks"),
        ] {
            let error = check_one_cluster(&reports).unwrap_err();
            assert!(error.kind == ErrorKind::Retryable && error.message.contains(word), "{error}");
        }
    }

    #[test]
    fn a_restart_shows_in_the_cluster_key_or_in_the_uptime() {
        let (tracker, start) = (IncarnationTracker::default(), Instant::now());
        let observe = |report: NodeReport, after: u64| {
            let at = start + Duration::from_secs(after);
            tracker.observe(&[report], at, at)
        };
        let first = observe(node("A1", 100), 0);
        for (uptime, after) in [(101, 0), (100, 1), (130, 31), (1_099, 1_001)] {
            assert_eq!(observe(node("A1", uptime), after), first, "{uptime} after {after}");
        }
        // The uptime is longer than at the previous report, but shorter than the time passed since: the node restarted.
        let second = observe(node("A1", 1_150), 2_000);
        assert_ne!(second, first);
        assert_eq!(observe(node("A1", 1_160), 2_010), second);
        assert_ne!(observe(NodeReport { cluster_key: "X".into(), ..node("A1", 1_161) }, 2_011), second);
        assert_ne!(observe(node("A2", 1_161), 2_011), second);
    }
}
