//! What must hold of every commit: everything below the offset is in the store, or a dead letter.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use utxo_store::{
    broker::{Broker, Committed, Message, TopicPartition, memory::MemoryBroker},
    engine::{RecordEngine, memory::MemoryEngine},
    event::{Block, DeadLetter, Event},
    prepare::{PrepareSettings, Prepared, prepare},
    record::{Key, Page, TxState, Verdict},
    sequencer::state::ChainState,
    store::Store,
    tx::Txid,
};

use super::{chain_log::ChainLog, trace::Observer};
use crate::world::World;

/// Looks at each commit; the store is the one without faults.
pub struct CommitCheck {
    pub broker: MemoryBroker,
    pub store: Store,
    /// The same.
    pub memory: Arc<MemoryEngine>,
    pub settings: PrepareSettings,
    pub observer: Arc<Observer>,
    chain: ChainLog,
    checked: Mutex<BTreeMap<TopicPartition, u64>>,
}

impl CommitCheck {
    pub fn new(world: &World, observer: Arc<Observer>) -> Self {
        let (broker, store, memory) = (world.broker.clone(), world.store.clone(), world.memory.clone());
        let settings = PrepareSettings::of(&world.store);
        let (chain, checked) = Default::default();
        CommitCheck { broker, store, memory, settings, observer, chain, checked }
    }

    /// The group was set back: from there on everything is looked at again.
    pub fn set_back(&self, topic: &str, offsets: impl Iterator<Item = (i32, u64)>) {
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        checked.extend(offsets.map(|(partition, offset)| (TopicPartition { topic: topic.into(), partition }, offset)));
    }

    /// Looks at what has been committed since the last time.
    pub async fn check(&self, offsets: &[(TopicPartition, Committed)]) {
        for (partition, committed) in offsets {
            if let Err(what) = self.check_one(partition, committed).await {
                self.observer.violation(format!("{partition} was committed up to {}: {what}", committed.offset));
            }
        }
    }

    async fn check_one(&self, partition: &TopicPartition, committed: &Committed) -> Result<(), String> {
        let from = {
            let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
            checked.insert(partition.clone(), committed.offset).unwrap_or(0)
        };
        if committed.offset < from {
            return Err(format!("it had been committed up to {from}"));
        }
        let state = ChainState::from_metadata(&committed.metadata).unwrap_or_default();
        for message in read(&self.broker, partition, from, committed.offset).await {
            let at = message.offset;
            let missing = match &*partition.topic {
                "chain" => self.chain_event(&message, &state).await,
                _ => self.transaction(partition, &message).await,
            };
            missing.map_err(|what| format!("offset {at}: {what}"))?;
        }
        Ok(())
    }

    async fn transaction(&self, partition: &TopicPartition, message: &Message) -> Result<(), String> {
        let txid = match prepare(&self.settings, message) {
            Ok(Prepared::Validated(tx)) => tx.txid,
            Ok(Prepared::Seeded(seed)) => seed.txid,
            Err(_) => return self.dead_letter(partition, message.offset).await,
        };
        let master = self.master(txid).await;
        if let Some(master) = master.as_ref().filter(|master| master.state() == TxState::Live) {
            self.all_pages(master).await?;
        }
        match master.map(|page| page.state()) {
            Some(TxState::Live | TxState::Conflicting(Verdict::Conflicting(_)) | TxState::Pruned(_)) => Ok(()),
            Some(TxState::Conflicting(_)) if self.is_contested(txid).await => Ok(()),
            state => match self.dead_letter(partition, message.offset).await {
                Ok(()) => Ok(()),
                Err(_) => Err(format!("{txid} is {state:?}, and nobody will decide it")),
            },
        }
    }

    /// Every page of a live transaction can be spent, or is pruned before its master, as all of it is spent.
    async fn all_pages(&self, master: &Page) -> Result<(), String> {
        for number in 1..=master.master.as_ref().map_or(0, |bins| bins.total_extra_recs) {
            let read = self.memory.read(&[Key::Page(master.txid, number)]).await.remove(0);
            let page = utxo_store::store::into_page(read.map_err(|error| error.to_string())?);
            let state = page.map(|page| page.state());
            let went_first = matches!(state, Some(TxState::Pruned(_))) && master.all_spent();
            if state != Some(TxState::Live) && !went_first {
                return Err(format!("{} is live, and its page {number} is {state:?}", master.txid));
            }
        }
        Ok(())
    }

    async fn chain_event(&self, message: &Message, state: &ChainState) -> Result<(), String> {
        match Event::decode(&message.payload) {
            Ok(Event::Contest(contest)) => match self.master(contest.txid).await.map(|page| page.state()) {
                Some(TxState::Live | TxState::Conflicting(Verdict::Conflicting(_)) | TxState::Pruned(_)) => Ok(()),
                // A contest whose contestant a node forgot is passed over: its event comes again.
                _ if self.memory.restarts() > 0 => Ok(()),
                state => Err(format!("the contestant {} is {state:?}", contest.txid)),
            },
            Ok(Event::BlockMined(mined)) if mined.sequence <= state.sequence && mined.block.longest_chain => {
                match self.was_in_turn(message.offset).await {
                    true => self.connected(message.offset, &mined.block).await,
                    false => Ok(()),
                }
            }
            Ok(Event::Reorg(reorg)) if reorg.sequence <= state.sequence => {
                if !self.was_in_turn(message.offset).await {
                    return Ok(());
                }
                for block in &reorg.disconnected {
                    self.disconnected(message.offset, block).await?;
                }
                for block in &reorg.connected {
                    self.connected(message.offset, block).await?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// What a block lists is live and mined, unless a later event takes the block away.
    async fn connected(&self, at: u64, block: &Block<'_>) -> Result<(), String> {
        if self.chain.says(&self.broker).await.disconnects_behind(at, block) {
            return Ok(());
        }
        for txid in listed(block) {
            let mined = self.is_mined(txid, block, |page| page.state() == TxState::Live).await;
            // All its outputs were spent since, by what is mined.
            let forgotten = self.master(txid).await.is_some_and(|page| page.pruned.is_some() && !page.conflicting);
            if !mined && !forgotten {
                return Err(format!("{txid} is not set mined in block {}", block.block_id));
            }
        }
        Ok(())
    }

    /// Nothing is mined in a block that has left, unless a later event brings it again.
    async fn disconnected(&self, at: u64, block: &Block<'_>) -> Result<(), String> {
        // The same event may bring it, too.
        if self.chain.says(&self.broker).await.brings_from(at, block) {
            return Ok(());
        }
        for txid in listed(block) {
            if self.is_mined(txid, block, |_| true).await {
                return Err(format!("{txid} is still mined in block {}, which has left", block.block_id));
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

    async fn was_in_turn(&self, at: u64) -> bool {
        self.chain.says(&self.broker).await.was_in_turn(at)
    }

    async fn is_contested(&self, txid: Txid) -> bool {
        self.chain.says(&self.broker).await.is_contested(&txid)
    }

    async fn dead_letter(&self, partition: &TopicPartition, offset: u64) -> Result<(), String> {
        let letters = dead_letters(&self.broker).await;
        match letters.contains(&(partition.topic.to_string(), partition.partition, offset)) {
            true => Ok(()),
            false => Err("it is neither in the store nor a dead letter".to_owned()),
        }
    }
}

fn listed(block: &Block<'_>) -> Vec<Txid> {
    let mut txids = Vec::new();
    for subtree in &block.subtrees {
        txids.extend(subtree.transactions.inline().into_iter().flatten());
    }
    txids
}

/// Messages of a partition, up to its end at most.
pub async fn read(broker: &MemoryBroker, partition: &TopicPartition, from: u64, to: u64) -> Vec<Message> {
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

/// The places that dead letters name.
pub async fn dead_letters(broker: &MemoryBroker) -> BTreeSet<(String, i32, u64)> {
    let mut places = BTreeSet::new();
    for partition in 0..crate::world::PARTITIONS {
        let partition = TopicPartition { topic: "dead-letters".into(), partition };
        for message in read(broker, &partition, 0, u64::MAX).await {
            if let Ok(letter) = DeadLetter::from_headers(&message.headers) {
                places.insert((letter.topic, letter.partition, letter.offset));
            }
        }
    }
    places
}
