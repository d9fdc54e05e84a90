//! Rule for every commit: each event below the offset is in the store or has a dead letter.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use utxo_store::{
    broker::{Broker, CommittedOffset, Message, TopicPartition, memory::MemoryBroker},
    engine::{RecordEngine, memory::MemoryEngine},
    event::{Block, DeadLetter, Event},
    prepare::{PrepareSettings, PreparedEvent, prepare},
    record::{Key, Page, Stamp, TxState, Verdict},
    sequencer::state::ChainState,
    store::StateStore,
    tx::Txid,
};

use super::{chain_log::ChainLog, trace::Observer};
use crate::harness::World;

/// Checker of commits; its store is the one without injected faults.
pub struct CommitCheck {
    pub broker: MemoryBroker,
    pub store: StateStore,
    /// The engine of `store`.
    pub memory: Arc<MemoryEngine>,
    pub settings: PrepareSettings,
    pub observer: Arc<Observer>,
    chain: ChainLog,
    checked: Mutex<BTreeMap<TopicPartition, u64>>,
    /// The last committed offset and era of the chain.
    progress: Mutex<(u64, u32)>,
}

impl CommitCheck {
    pub fn new(world: &World, observer: Arc<Observer>) -> Self {
        let (broker, store, memory) = (world.broker.clone(), world.store.clone(), world.memory.clone());
        let settings = PrepareSettings::of(&world.store);
        let (chain, checked, progress) = Default::default();
        CommitCheck { broker, store, memory, settings, observer, chain, checked, progress }
    }

    /// Records that an operator has reset the group: offsets from there on are checked again.
    pub fn record_offset_reset(&self, topic: &str, offsets: impl Iterator<Item = (i32, u64)>) {
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        checked.extend(offsets.map(|(partition, offset)| (TopicPartition { topic: topic.into(), partition }, offset)));
    }

    /// Checks the offsets committed since the previous call.
    pub async fn check(&self, offsets: &[(TopicPartition, CommittedOffset)]) {
        for (partition, committed) in offsets {
            if let Err(what) = self.check_one(partition, committed).await {
                self.observer
                    .record_violation(format!("the commit of {partition} up to {} is wrong: {what}", committed.offset));
            }
        }
    }

    async fn check_one(&self, partition: &TopicPartition, committed: &CommittedOffset) -> Result<(), String> {
        let from = {
            let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
            checked.insert(partition.clone(), committed.offset).unwrap_or(0)
        };
        if committed.offset < from {
            return Err(format!("the earlier commit was up to {from}"));
        }
        let state = ChainState::from_metadata(&committed.metadata).unwrap_or_default();
        if &*partition.topic == "chain" {
            *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = (committed.offset, state.era);
        }
        for message in read_messages(&self.broker, partition, from, committed.offset).await {
            let at = message.offset;
            let missing = match &*partition.topic {
                "chain" => self.check_chain_event(&message, &state).await,
                _ => self.check_transaction(partition, &message).await,
            };
            missing.map_err(|what| format!("offset {at}: {what}"))?;
        }
        Ok(())
    }

    async fn check_transaction(&self, partition: &TopicPartition, message: &Message) -> Result<(), String> {
        let txid = match prepare(&self.settings, message) {
            Ok(PreparedEvent::Validated(tx)) => tx.txid,
            Ok(PreparedEvent::Seeded(seed)) => seed.txid,
            Err(_) => return self.check_dead_letter(partition, message.offset).await,
        };
        let master = self.master(txid).await;
        if let Some(master) = master.as_ref().filter(|master| master.state() == TxState::Live) {
            self.check_pages(master).await?;
        }
        match master.map(|page| page.state()) {
            Some(TxState::Live | TxState::Conflicting(Verdict::Conflicting(_)) | TxState::Pruned(_)) => Ok(()),
            Some(TxState::Conflicting(_)) if self.is_contested(txid).await => Ok(()),
            state => match self.check_dead_letter(partition, message.offset).await {
                Ok(()) => Ok(()),
                Err(_) => Err(format!("{txid} is {state:?}, and no contest of it is in the chain log")),
            },
        }
    }

    /// Every page of a live transaction is spendable. A page of a transaction that is all spent may be pruned before
    /// its master.
    async fn check_pages(&self, master: &Page) -> Result<(), String> {
        for number in 1..=master.master.as_ref().map_or(0, |bins| bins.total_extra_recs) {
            let read = self.memory.read(&[Key::Page(master.txid, number)]).await.remove(0);
            let page = utxo_store::store::into_page(read.map_err(|error| error.to_string())?);
            let state = page.as_ref().map(|page| page.state());
            let went_first = matches!(state, Some(TxState::Pruned(_))) && master.is_all_spent();
            let is_flagged_early = page.is_some_and(|page| page.conflicting && self.is_handled_again(&page));
            if state != Some(TxState::Live) && !went_first && !is_flagged_early {
                return Err(format!("{} is live, but its page {number} is {state:?}", master.txid));
            }
        }
        Ok(())
    }

    /// Returns whether the chain has yet to handle again the event that last changed the page. A node that lost the
    /// master and not this page leaves the flag of a verdict that the chain repeats.
    fn is_handled_again(&self, page: &Page) -> bool {
        let (handled, era) = *self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let is_of_earlier_era = |stamp: Stamp| stamp.era() < era.into();
        page.chain_pos.is_some_and(|stamp| is_of_earlier_era(stamp) && stamp.chain_offset() >= handled)
    }

    /// Returns whether a later event of the chain has changed the master.
    async fn is_changed_after(&self, txid: Txid, event: &Message) -> bool {
        let stamp = self.master(txid).await.and_then(|page| page.chain_pos);
        stamp.is_some_and(|stamp| stamp.chain_offset() > event.offset)
    }

    async fn check_chain_event(&self, message: &Message, state: &ChainState) -> Result<(), String> {
        match Event::decode(&message.payload) {
            Ok(Event::Contest(contest)) => match self.master(contest.txid).await.map(|page| page.state()) {
                Some(TxState::Live | TxState::Conflicting(Verdict::Conflicting(_)) | TxState::Pruned(_)) => Ok(()),
                // A block that is being handled has revived the tombstone, and makes the content next.
                Some(TxState::Stub(Verdict::Conflicting(_))) if self.is_changed_after(contest.txid, message).await => {
                    Ok(())
                }
                // A contest whose contestant a node lost is passed over: the event of the contestant is read again.
                _ if self.memory.restart_count() > 0 => Ok(()),
                state => Err(format!("the contestant {} is {state:?}", contest.txid)),
            },
            Ok(Event::BlockMined(mined)) if mined.sequence <= state.sequence && mined.block.longest_chain => {
                match self.was_next(message.offset).await {
                    true => self.check_connected(message.offset, &mined.block).await,
                    false => Ok(()),
                }
            }
            Ok(Event::Reorg(reorg)) if reorg.sequence <= state.sequence => {
                if !self.was_next(message.offset).await {
                    return Ok(());
                }
                for block in &reorg.disconnected {
                    self.check_disconnected(message.offset, block).await?;
                }
                for block in &reorg.connected {
                    self.check_connected(message.offset, block).await?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Every transaction that a block lists is live and mined, unless a later event disconnects the block.
    async fn check_connected(&self, at: u64, block: &Block<'_>) -> Result<(), String> {
        if self.chain.contents(&self.broker).await.disconnects_after(at, block) {
            return Ok(());
        }
        for txid in listed_txids(block) {
            let mined = self.is_mined(txid, block, |page| page.state() == TxState::Live).await;
            // A pruned transaction qualifies, too: mined transactions have spent all its outputs since.
            let forgotten = self.master(txid).await.is_some_and(|page| page.pruned.is_some() && !page.conflicting);
            if !mined && !forgotten {
                return Err(format!("{txid} is not set mined in block {}", block.block_id));
            }
        }
        Ok(())
    }

    /// No transaction is mined in a disconnected block, unless the same or a later event connects the block again.
    async fn check_disconnected(&self, at: u64, block: &Block<'_>) -> Result<(), String> {
        // The same event may connect the block, too.
        if self.chain.contents(&self.broker).await.brings_from(at, block) {
            return Ok(());
        }
        for txid in listed_txids(block) {
            if self.is_mined(txid, block, |_| true).await {
                return Err(format!("{txid} is still mined in the disconnected block {}", block.block_id));
            }
        }
        Ok(())
    }

    async fn is_mined(&self, txid: Txid, block: &Block<'_>, counts: impl Fn(&Page) -> bool) -> bool {
        let page = self.master(txid).await.filter(|page| counts(page));
        let master = page.as_ref().and_then(|page| page.master.as_ref());
        master.is_some_and(|master| master.mined.iter().any(|mined| mined.block_id == block.block_id))
    }

    async fn master(&self, txid: Txid) -> Option<Arc<Page>> {
        self.store.master(txid).await.ok()?
    }

    async fn was_next(&self, at: u64) -> bool {
        self.chain.contents(&self.broker).await.was_next(at)
    }

    async fn is_contested(&self, txid: Txid) -> bool {
        self.chain.contents(&self.broker).await.is_contested(&txid)
    }

    async fn check_dead_letter(&self, partition: &TopicPartition, offset: u64) -> Result<(), String> {
        let letters = dead_letters(&self.broker).await;
        match letters.contains(&(partition.topic.to_string(), partition.partition, offset)) {
            true => Ok(()),
            false => Err("the event is neither in the store nor in a dead letter".to_owned()),
        }
    }
}

fn listed_txids(block: &Block<'_>) -> Vec<Txid> {
    let mut txids = Vec::new();
    for subtree in &block.subtrees {
        txids.extend(subtree.transactions.inline().into_iter().flatten());
    }
    txids
}

/// Reads the messages of a partition from `from` to `to`, at most to its present end.
pub async fn read_messages(broker: &MemoryBroker, partition: &TopicPartition, from: u64, to: u64) -> Vec<Message> {
    let to = broker.watermarks(partition).await.map_or(0, |(_, high)| high).min(to);
    let mut messages = Vec::new();
    let Ok(mut reader) = broker.read(partition, from).await else { return messages };
    while reader.position() < to {
        let Ok(batch) = reader.next(Duration::ZERO).await else { return messages };
        messages.extend(batch);
    }
    messages.retain(|message| message.offset < to);
    messages
}

/// Returns the source topic, partition and offset of every dead letter.
pub async fn dead_letters(broker: &MemoryBroker) -> BTreeSet<(String, i32, u64)> {
    let mut places = BTreeSet::new();
    for partition in 0..crate::harness::PARTITIONS {
        let partition = TopicPartition { topic: "dead-letters".into(), partition };
        for message in read_messages(broker, &partition, 0, u64::MAX).await {
            if let Ok(letter) = DeadLetter::from_headers(&message.headers) {
                places.insert((letter.topic, letter.partition, letter.offset));
            }
        }
    }
    places
}
