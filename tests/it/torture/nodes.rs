//! Losses of the nodes of an Aerospike cluster, one after the other: the next node is lost once the copies of all
//! records are complete again. Nodes are killed, frozen, and cut off from the others or from all. The operator of the
//! cluster is played here, too: a node that was left out is emptied.

use std::time::{Duration, Instant};

use utxo_store::rng::SplitMix64;

use crate::{aerospike_cluster::AerospikeCluster, cut_network::CutNetwork};

/// Longest time until a node has come back and the copies are complete.
const RETURN_BOUND: Duration = Duration::from_secs(300);

/// Time after which the operator looks once more for a node that is outside the cluster.
const SECOND_LOOK: Duration = Duration::from_secs(40);

/// The cluster, and the node that is away.
pub struct NodeLosses<'c> {
    cluster: &'c mut AerospikeCluster,
    away: Away,
}

/// State of the node that is away.
enum Away {
    None,
    /// Dead, frozen or cut off until this time.
    Lost {
        node: usize,
        loss: Loss,
        until: Instant,
    },
    /// Runs with its old records, outside the cluster, until this time.
    Outside {
        node: usize,
        until: Instant,
    },
    /// Started empty, or with all other nodes, at this time.
    Returning {
        since: Instant,
        /// The operator has looked for nodes that are still outside.
        has_looked: bool,
    },
}

impl Away {
    fn returning() -> Self {
        Away::Returning { since: Instant::now(), has_looked: false }
    }
}

/// How a node is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    Killed,
    Frozen,
    /// Clients reach the node, the other nodes do not.
    CutFromPeers,
    CutFromAll,
}

impl Loss {
    fn name(self) -> &'static str {
        match self {
            Loss::Killed => "node killed",
            Loss::Frozen => "node frozen",
            Loss::CutFromPeers => "node cut off from the others",
            Loss::CutFromAll => "node cut off from all",
        }
    }
}

impl<'c> NodeLosses<'c> {
    pub fn new(cluster: &'c mut AerospikeCluster) -> Self {
        NodeLosses { cluster, away: Away::returning() }
    }

    /// Takes the next step that is due; returns the loss if nodes were lost. `power_cuts`: all nodes may be killed at
    /// once, which loses acknowledged writes.
    pub fn turn(&mut self, rng: &mut SplitMix64, power_cuts: bool) -> Option<&'static str> {
        let now = Instant::now();
        let soon = |rng: &mut SplitMix64, seconds: &[u64]| now + Duration::from_secs(*rng.pick(seconds));
        match self.away {
            Away::None if power_cuts && rng.below(10) >= 8 => {
                (0..self.cluster.count()).for_each(|node| self.cluster.kill(node));
                (0..self.cluster.count()).for_each(|node| self.cluster.restart(node));
                self.away = Away::returning();
                Some("all nodes killed")
            }
            Away::None => {
                let node = rng.below(self.cluster.count() as u64) as usize;
                let kinds = [Loss::Killed, Loss::Frozen, Loss::CutFromPeers, Loss::CutFromAll];
                let possible = if self.cluster.network().is_some() { &kinds[..] } else { &kinds[..2] };
                let loss = *rng.pick(possible);
                self.set_lost(node, loss, true);
                let until = match loss {
                    // Also within the timeout of the heartbeats.
                    Loss::Killed => soon(rng, &[0, 1, 4, 12]),
                    // Shorter than the timeout of the heartbeats, and longer than a cut-off node serves requests.
                    _ => soon(rng, &[1, 3, 8, 15]),
                };
                self.away = Away::Lost { node, loss, until };
                Some(loss.name())
            }
            Away::Lost { node, loss, until } if until <= now => {
                if loss == Loss::Killed && rng.below(2) == 1 {
                    self.cluster.replace_dead(node);
                    self.away = Away::returning();
                } else {
                    self.set_lost(node, loss, false);
                    self.away = Away::Outside { node, until: soon(rng, &[2, 6, 14]) };
                }
                None
            }
            Away::Outside { node, until } if until <= now => {
                // A node that froze for less than the timeout of the heartbeats was never left out.
                if self.cluster.size(node) == 0 {
                    self.cluster.replace(node);
                }
                self.away = Away::returning();
                None
            }
            Away::Returning { .. } if self.cluster.is_whole() => {
                self.away = Away::None;
                None
            }
            Away::Returning { since, has_looked } => {
                assert!(since.elapsed() < RETURN_BOUND, "the cluster does not become whole: {}", self.describe());
                // A node whose cut ended early looked like a member: it served from its old state for a while.
                if !has_looked && since.elapsed() > SECOND_LOOK {
                    let outside = (0..self.cluster.count()).find(|node| self.cluster.size(*node) == 0);
                    outside.into_iter().for_each(|node| self.cluster.replace(node));
                    self.away = Away::Returning { since, has_looked: true };
                }
                None
            }
            Away::Lost { .. } | Away::Outside { .. } => None,
        }
    }

    /// Loses a node, or ends the loss.
    fn set_lost(&mut self, node: usize, loss: Loss, is_lost: bool) {
        let cut = |cluster: &AerospikeCluster, cut: fn(&CutNetwork, usize, bool)| {
            cut(cluster.network().expect("nodes are cut off where they have networks"), node, is_lost);
        };
        match (loss, is_lost) {
            (Loss::Killed, true) => self.cluster.kill(node),
            (Loss::Killed, false) => self.cluster.restart(node),
            (Loss::Frozen, _) => self.cluster.freeze(node, is_lost),
            (Loss::CutFromPeers, _) => cut(self.cluster, CutNetwork::cut_from_peers),
            (Loss::CutFromAll, _) => cut(self.cluster, CutNetwork::cut_from_all),
        }
    }

    /// Returns the state of each node as one line.
    fn describe(&self) -> String {
        let ask = |node| {
            let statistics = self.cluster.ask(node, "statistics");
            let wanted = ["cluster_size", "cluster_key", "cluster_integrity", "objects", "uptime"];
            let found =
                statistics.split(';').filter(|pair| wanted.iter().any(|name| pair.starts_with(&format!("{name}="))));
            let name = self.cluster.ask(node, "cluster-name");
            format!("node {node} ({name}): {}", found.collect::<Vec<_>>().join(" "))
        };
        (0..self.cluster.count()).map(ask).collect::<Vec<_>>().join("; ")
    }

    /// Returns whether no node is away, and the copies are complete.
    pub fn is_whole(&self) -> bool {
        matches!(self.away, Away::None)
    }

    /// Waits until no node is away.
    pub fn end(&mut self, rng: &mut SplitMix64) {
        while !self.is_whole() {
            self.turn(rng, false);
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}
