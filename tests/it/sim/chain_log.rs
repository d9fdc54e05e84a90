//! What the chain topic says, read and decoded once however often it is asked: a run of thousands of blocks has as many commits.

use std::collections::BTreeSet;

use tokio::sync::{Mutex, MutexGuard};
use utxo_store::{
    broker::{TopicPartition, memory::MemoryBroker},
    event::{Block, Event},
    tx::Txid,
};

use super::commits::read;

/// Reads the chain topic as it grows.
#[derive(Default)]
pub struct ChainLog(Mutex<ChainSays>);

/// What is in it so far.
#[derive(Default)]
pub struct ChainSays {
    /// By offset: blocks that it brings, and blocks that leave.
    brings: Vec<Vec<[u8; 32]>>,
    disconnects: Vec<Vec<[u8; 32]>>,
    in_turn: Vec<bool>,
    contested: BTreeSet<Txid>,
    next_sequence: u64,
}

impl ChainLog {
    /// All that has been written until now.
    pub async fn says(&self, broker: &MemoryBroker) -> MutexGuard<'_, ChainSays> {
        let mut says = self.0.lock().await;
        let chain = TopicPartition { topic: "chain".into(), partition: 0 };
        for message in read(broker, &chain, says.in_turn.len() as u64, u64::MAX).await {
            says.add(&Event::decode(&message.payload));
        }
        says
    }
}

impl ChainSays {
    fn add<E>(&mut self, event: &Result<Event<'_>, E>) {
        let hashes = |blocks: &[Block<'_>]| blocks.iter().map(|block| block.hash).collect::<Vec<_>>();
        let (sequence, brings, disconnects) = match event {
            Ok(Event::BlockMined(mined)) => (Some(mined.sequence), vec![mined.block.hash], Vec::new()),
            Ok(Event::Reorg(reorg)) => (Some(reorg.sequence), hashes(&reorg.connected), hashes(&reorg.disconnected)),
            Ok(Event::Contest(contest)) => {
                self.contested.insert(contest.txid);
                (None, Vec::new(), Vec::new())
            }
            _ => (None, Vec::new(), Vec::new()),
        };
        let in_turn = sequence == Some(self.next_sequence + 1);
        self.next_sequence += u64::from(in_turn);
        self.in_turn.push(in_turn);
        self.brings.push(brings);
        self.disconnects.push(disconnects);
    }

    /// Whether the event at this offset had the next sequence: another one, a repeat or one that came too early, is passed over, and its
    /// blocks may have left since.
    pub fn was_in_turn(&self, at: u64) -> bool {
        self.in_turn.get(at as usize).is_some_and(|in_turn| *in_turn)
    }

    /// Whether an event at this offset or behind it brings a block.
    pub fn brings_from(&self, at: u64, block: &Block<'_>) -> bool {
        self.brings.iter().skip(at as usize).any(|hashes| hashes.contains(&block.hash))
    }

    /// Whether an event behind this offset takes a block away.
    pub fn disconnects_behind(&self, at: u64, block: &Block<'_>) -> bool {
        self.disconnects.iter().skip(at as usize + 1).any(|hashes| hashes.contains(&block.hash))
    }

    /// Whether any block has left the longest chain.
    pub fn has_reorgs(&self) -> bool {
        self.disconnects.iter().any(|hashes| !hashes.is_empty())
    }

    /// Whether anybody has contested a transaction.
    pub fn is_contested(&self, txid: &Txid) -> bool {
        self.contested.contains(txid)
    }
}
