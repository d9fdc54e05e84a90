//! Losses of the nodes of an Aerospike cluster, one after the other: the next node is lost once the copies of all
//! records are complete again. The operator of the cluster is played here, too: a node that was left out is emptied.

use std::time::{Duration, Instant};

use utxo_store::rng::SplitMix64;

use crate::aerospike_cluster::AerospikeCluster;

/// Longest time until a node has come back and the copies are complete.
const RETURN_BOUND: Duration = Duration::from_secs(300);

/// The cluster, and the node that is away.
pub struct NodeLosses<'c> {
    cluster: &'c mut AerospikeCluster,
    away: Away,
}

/// State of the node that is away.
enum Away {
    None,
    /// Dead or frozen until this time.
    Lost {
        node: usize,
        is_frozen: bool,
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
    },
}

impl<'c> NodeLosses<'c> {
    pub fn new(cluster: &'c mut AerospikeCluster) -> Self {
        NodeLosses { cluster, away: Away::Returning { since: Instant::now() } }
    }

    /// Takes the next step that is due; returns the loss if nodes were lost. `power_cuts`: all nodes may be killed at
    /// once, which loses acknowledged writes.
    pub fn turn(&mut self, rng: &mut SplitMix64, power_cuts: bool) -> Option<&'static str> {
        let now = Instant::now();
        let soon = |rng: &mut SplitMix64, seconds: &[u64]| now + Duration::from_secs(*rng.pick(seconds));
        match self.away {
            Away::None => {
                let node = rng.below(self.cluster.count() as u64) as usize;
                match rng.below(if power_cuts { 10 } else { 8 }) {
                    0..4 => {
                        self.cluster.kill(node);
                        // Also within the timeout of the heartbeats.
                        self.away = Away::Lost { node, is_frozen: false, until: soon(rng, &[0, 1, 4, 12]) };
                        Some("node killed")
                    }
                    4..8 => {
                        self.cluster.freeze(node, true);
                        // Shorter than the timeout of the heartbeats, and longer than a cut-off node serves requests.
                        self.away = Away::Lost { node, is_frozen: true, until: soon(rng, &[1, 3, 8, 15]) };
                        Some("node frozen")
                    }
                    _ => {
                        for node in 0..self.cluster.count() {
                            self.cluster.kill(node);
                        }
                        for node in 0..self.cluster.count() {
                            self.cluster.restart(node);
                        }
                        self.away = Away::Returning { since: now };
                        Some("all nodes killed")
                    }
                }
            }
            Away::Lost { node, is_frozen, until } if until <= now => {
                match (is_frozen, rng.below(2)) {
                    (true, _) => self.cluster.freeze(node, false),
                    (false, 0) => self.cluster.restart(node),
                    (false, _) => {
                        self.cluster.replace_dead(node);
                        self.away = Away::Returning { since: now };
                        return None;
                    }
                }
                self.away = Away::Outside { node, until: soon(rng, &[2, 6, 14]) };
                None
            }
            Away::Outside { node, until } if until <= now => {
                // A node that froze for less than the timeout of the heartbeats was never left out.
                if self.cluster.size(node) == 0 {
                    self.cluster.replace(node);
                }
                self.away = Away::Returning { since: now };
                None
            }
            Away::Returning { since } => {
                match self.cluster.is_whole() {
                    true => self.away = Away::None,
                    false => assert!(since.elapsed() < RETURN_BOUND, "the cluster does not become whole"),
                }
                None
            }
            Away::Lost { .. } | Away::Outside { .. } => None,
        }
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
