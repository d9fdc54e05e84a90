//! Which life of the cluster's nodes this is: what they say of themselves, and what it comes to. Pure but for the asking.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use aerospike::{AdminPolicy, Client};
use futures_util::future::join_all;
use tokio::time::Instant;

use super::{errors::one_line, info::Pairs};
use crate::engine::{EngineError, ErrorKind, Incarnation};

/// Uptimes are told in whole seconds, and by another clock than ours.
const TOLERANCE: Duration = Duration::from_secs(2);
/// Write blocks that wait for one device. With more, what was acknowledged may be on its way for longer than the margin
/// that the time of a flush is given.
const LONG_QUEUE: u64 = 32;

/// The nodes as they were last heard of. A restarted node agrees on a new cluster key with the others; should it not, its
/// uptime falls behind our clock. So an incarnation is the same for whoever asks, but for that second witness.
#[derive(Debug, Default)]
pub struct Lives(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    cluster_key: String,
    nodes: BTreeMap<String, Life>,
}

#[derive(Debug, Clone, Copy)]
struct Life {
    uptime: Duration,
    heard: Instant,
    restarts: u32,
}

/// What a node says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Said {
    node: String,
    cluster_key: String,
    cluster_size: u64,
    uptime: Duration,
    /// The longest queue of any of its devices.
    queue: u64,
}

impl Lives {
    /// Asks every node.
    ///
    /// # Errors
    /// Retryable: one does not answer, they are not one cluster (yet), or a device is far behind. Nobody knows, then.
    pub async fn ask(
        &self,
        client: &Client,
        policy: &AdminPolicy,
        namespace: &str,
    ) -> Result<Incarnation, EngineError> {
        let about = format!("namespace/{namespace}");
        let commands = ["node", "statistics", about.as_str()];
        let asked = Instant::now();
        let nodes = client.nodes();
        let answers = join_all(nodes.iter().map(|node| async {
            let answers = node.info(policy, &commands).await.map_err(|error| unknown(one_line(&error)))?;
            let answer = |command: &str| answers.get(command).map(String::as_str).unwrap_or_default();
            said(answer("node"), &Pairs::of(answer("statistics")), &Pairs::of(answer(&about)))
        }))
        .await;
        let mut said = answers.into_iter().collect::<Result<Vec<Said>, EngineError>>()?;
        said.sort_unstable_by(|one, other| one.node.cmp(&other.node));
        agree(&said)?;
        Ok(self.of(&said, asked, Instant::now()))
    }

    /// The incarnation that these answers show, to a question sent at `asked`.
    fn of(&self, said: &[Said], asked: Instant, heard: Instant) -> Incarnation {
        let mut lives = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let cluster_key = said.first().map(|said| said.cluster_key.clone()).unwrap_or_default();
        if lives.cluster_key != cluster_key {
            *lives = Known { cluster_key, nodes: BTreeMap::new() };
        }
        let mut text = lives.cluster_key.clone();
        for Said { node, uptime, .. } in said {
            let known = lives.nodes.get(node).copied();
            // It must have grown by what has passed, at the least, between that answer and this question.
            let expected =
                known.map_or(Duration::ZERO, |life| life.uptime + asked.saturating_duration_since(life.heard));
            let restarted = u32::from(*uptime + TOLERANCE < expected);
            let restarts = known.map_or(0, |life| life.restarts) + restarted;
            lives.nodes.insert(node.clone(), Life { uptime: *uptime, heard, restarts });
            text += &format!(" {node}+{restarts}");
        }
        Incarnation(text)
    }
}

fn unknown(message: impl Into<String>) -> EngineError {
    let (kind, message) = (ErrorKind::Retryable, message.into());
    EngineError { kind, operation: "incarnation", key: "all nodes".into(), message }
}

fn said(node: &str, statistics: &Pairs, namespace: &Pairs) -> Result<Said, EngineError> {
    let missing = |what: &str| unknown(format!("node `{node}` does not say its {what}"));
    let cluster_key = statistics.get("cluster_key").filter(|key| !key.is_empty() && *key != "0");
    Ok(Said {
        node: Some(node).filter(|node| !node.is_empty()).ok_or_else(|| missing("id"))?.to_owned(),
        cluster_key: cluster_key.ok_or_else(|| missing("cluster key"))?.to_owned(),
        cluster_size: statistics.number("cluster_size").ok_or_else(|| missing("cluster's size"))?,
        uptime: Duration::from_secs(statistics.number("uptime").ok_or_else(|| missing("uptime"))?),
        queue: namespace.numbers_of("write_q").max().unwrap_or(0),
    })
}

/// Whether all nodes of one cluster have answered, none of them far behind with its writes.
fn agree(said: &[Said]) -> Result<(), EngineError> {
    let Some(first) = said.first() else { return Err(unknown("no node is known")) };
    if let Some(other) = said.iter().find(|said| said.cluster_key != first.cluster_key) {
        return Err(unknown(format!("nodes {} and {} are not in one cluster", first.node, other.node)));
    }
    if first.cluster_size != said.len() as u64 {
        return Err(unknown(format!("the cluster has {} nodes, {} answered", first.cluster_size, said.len())));
    }
    match said.iter().find(|said| said.queue > LONG_QUEUE) {
        Some(behind) => {
            Err(unknown(format!("node {} has {} blocks that wait to be written", behind.node, behind.queue)))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: &str, uptime: u64) -> Said {
        Said {
            node: id.into(),
            cluster_key: "BDD96".into(),
            cluster_size: 2,
            uptime: Duration::from_secs(uptime),
            queue: 0,
        }
    }

    #[test]
    fn what_a_node_says_is_read_and_what_it_does_not_say_is_refused() {
        let statistics = "cluster_size=1;cluster_key=BDD96DB1C6F;uptime=7";
        let namespace = Pairs::of("storage-engine.file[0].write_q=3;storage-engine.file[1].write_q=5;write_q_x=9");
        let heard = said("A1", &Pairs::of(statistics), &namespace).unwrap();
        let expected = Said { cluster_key: "BDD96DB1C6F".into(), cluster_size: 1, queue: 5, ..node("A1", 7) };
        assert_eq!(heard, expected);
        for without in ["cluster_size=1;", "cluster_key=BDD96DB1C6F;", ";uptime=7"] {
            let error = said("A1", &Pairs::of(&statistics.replace(without, "")), &namespace).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Retryable, "{without}");
        }
        // A node that has not agreed with the others yet.
        let alone = statistics.replace("BDD96DB1C6F", "0");
        assert!(said("A1", &Pairs::of(&alone), &namespace).is_err());
        assert!(said("", &Pairs::of(statistics), &namespace).is_err());
    }

    #[test]
    fn all_nodes_of_one_cluster_must_have_answered_and_be_done_with_their_writes() {
        agree(&[node("A1", 1), node("A2", 1)]).unwrap();
        let other_key = Said { cluster_key: "X".into(), ..node("A2", 1) };
        let behind = Said { queue: LONG_QUEUE + 1, ..node("A2", 1) };
        for (said, word) in [
            (vec![], "no node"),
            (vec![node("A1", 1)], "2 nodes, 1 answered"),
            (vec![node("A1", 1), other_key], "not in one cluster"),
            (vec![node("A1", 1), behind], "33 blocks"),
        ] {
            let error = agree(&said).unwrap_err();
            assert!(error.kind == ErrorKind::Retryable && error.message.contains(word), "{error}");
        }
    }

    #[test]
    fn a_restart_shows_in_the_cluster_key_or_in_the_uptime() {
        let (lives, start) = (Lives::default(), Instant::now());
        let look = |said: Said, after: u64| {
            let at = start + Duration::from_secs(after);
            lives.of(&[said], at, at)
        };
        let first = look(node("A1", 100), 0);
        for (uptime, after) in [(101, 0), (100, 1), (130, 31), (1_099, 1_001)] {
            assert_eq!(look(node("A1", uptime), after), first, "{uptime} after {after}");
        }
        // Up for longer than when it was last looked at before that, and yet another life.
        let second = look(node("A1", 1_150), 2_000);
        assert_ne!(second, first);
        assert_eq!(look(node("A1", 1_160), 2_010), second);
        assert_ne!(look(Said { cluster_key: "X".into(), ..node("A1", 1_161) }, 2_011), second);
        assert_ne!(look(node("A2", 1_161), 2_011), second);
    }
}
