//! Incremental reader of the chain topic: each message is decoded once, because a run with thousands of blocks checks
//! as many commits.

use std::collections::BTreeSet;

use tokio::sync::{Mutex, MutexGuard};
use utxo_store::{
    broker::{TopicPartition, memory::MemoryBroker},
    event::{Block, Event},
    tx::Txid,
};

use super::commits::read_messages;

/// Reader that decodes only the messages appended since its last call.
#[derive(Default)]
pub struct ChainLog(Mutex<ChainLogContents>);

/// Facts of the decoded messages.
#[derive(Default)]
pub struct ChainLogContents {
    /// Hashes of the blocks that the event at each offset connects.
    brings: Vec<Vec<[u8; 32]>>,
    /// Hashes of the blocks that the event at each offset disconnects.
    disconnects: Vec<Vec<[u8; 32]>>,
    is_next: Vec<bool>,
    contested: BTreeSet<Txid>,
    next_sequence: u64,
}

impl ChainLog {
    /// Decodes what the topic has gained and returns the facts.
    pub async fn contents(&self, broker: &MemoryBroker) -> MutexGuard<'_, ChainLogContents> {
        let mut contents = self.0.lock().await;
        let chain = TopicPartition { topic: "chain".into(), partition: 0 };
        for message in read_messages(broker, &chain, contents.is_next.len() as u64, u64::MAX).await {
            contents.add(&Event::decode(&message.payload));
        }
        contents
    }
}

impl ChainLogContents {
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
        let is_next = sequence == Some(self.next_sequence + 1);
        self.next_sequence += u64::from(is_next);
        self.is_next.push(is_next);
        self.brings.push(brings);
        self.disconnects.push(disconnects);
    }

    /// Whether the event at this offset had the next sequence. The sequencer skips any other one (a repeat or an early
    /// one), and a later event may have disconnected its blocks.
    pub fn was_next(&self, at: u64) -> bool {
        self.is_next.get(at as usize).is_some_and(|is_next| *is_next)
    }

    /// Whether an event at this offset or later connects the block.
    pub fn brings_from(&self, at: u64, block: &Block<'_>) -> bool {
        self.brings.iter().skip(at as usize).any(|hashes| hashes.contains(&block.hash))
    }

    /// Whether an event after this offset disconnects the block.
    pub fn disconnects_after(&self, at: u64, block: &Block<'_>) -> bool {
        self.disconnects.iter().skip(at as usize + 1).any(|hashes| hashes.contains(&block.hash))
    }

    /// Whether any event disconnects a block.
    pub fn has_reorgs(&self) -> bool {
        self.disconnects.iter().any(|hashes| !hashes.is_empty())
    }

    /// Whether the chain holds a contest of the transaction.
    pub fn is_contested(&self, txid: &Txid) -> bool {
        self.contested.contains(txid)
    }
}
