//! `utxo-store command decide`: lets a block that halts the chain spend outputs that commands have barred.
//!
//! The command that lifts a bar would come after the block in the chain log. The operator's decision therefore stands
//! in the decisions topic, at the chain offset of the block, and the sequencer lifts the bars before the block.

use std::{fmt, sync::Arc, time::Duration};

use clap::Args;
use serde::{Serialize, Serializer};

use crate::{
    blob::objects::{ObjectError, Objects},
    broker::{Broker, BrokerError, Message, retry::read_or_reopen},
    client::partitions::single_partition,
    config::Topics,
    engine::EngineError,
    event::{Block, DecisionBody, Event, LiftedOutput},
    record::{Key, Page, Slot},
    sequencer::{
        announced_object, chain_group,
        decisions::{DecisionError, DecisionLog},
        state::{BadState, ChainState},
    },
    store::{StateStore, body::ParsedBody, into_page, read::ReadError},
    tx::{Outpoint, Transaction, Txid, UtxoHash, utxo_hash},
};

/// Arguments of `utxo-store command decide`.
#[derive(Debug, Args)]
pub struct DecideArgs {
    /// Offset in the chain log of the block or reorg at which the chain is halted
    pub chain_offset: u64,
    /// Transaction that the block lists, and that spends outputs which commands have frozen, delayed or reassigned
    #[arg(long, value_name = "TXID")]
    pub accept: Txid,
}

/// A command's bar on an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bar {
    /// The output is frozen.
    Frozen,
    /// The whole transaction of the output is frozen. The decision unfreezes the whole transaction.
    FrozenTransaction,
    /// The output cannot be spent below this height, which is above the block's.
    Delayed(u32),
    /// The output belongs to a new owner.
    Reassigned,
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bar::Frozen => f.write_str("frozen"),
            Bar::FrozenTransaction => f.write_str(
                "of a frozen transaction, which is unfrozen as a whole: `freeze` the others before you go on",
            ),
            Bar::Delayed(height) => write!(f, "not spendable below height {height}"),
            Bar::Reassigned => f.write_str("reassigned"),
        }
    }
}

/// An output with the bars that are lifted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BarredOutput {
    /// Outpoint of the output.
    #[serde(serialize_with = "as_text")]
    pub outpoint: Outpoint,
    /// Bars on the output.
    pub bars: Vec<Bar>,
    /// UTXO hash of the former owner that gets the output back.
    #[serde(skip)]
    owner: Option<UtxoHash>,
}

fn as_text<S: Serializer>(outpoint: &Outpoint, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(outpoint)
}

/// A decision of an operator that is in the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OperatorDecision {
    /// Offset in the chain log of the event.
    pub chain_offset: u64,
    /// Transaction that the event's block lists.
    pub txid: Txid,
    /// Outputs that the transaction spends, with their bars.
    pub lifted: Vec<BarredOutput>,
}

impl fmt::Display for OperatorDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OperatorDecision { chain_offset, txid, lifted } = self;
        for BarredOutput { outpoint, bars, .. } in lifted {
            let bars: Vec<String> = bars.iter().map(Bar::to_string).collect();
            writeln!(f, "{outpoint} is {}: lifted for {txid}", bars.join(", "))?;
        }
        write!(
            f,
            "decided at chain offset {chain_offset}; continue the chain: POST /chain/retry, or start the instances"
        )
    }
}

/// The reason why an event cannot be decided by an operator.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum DecideError {
    #[error(transparent)]
    Broker(#[from] BrokerError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Decision(#[from] DecisionError),
    #[error(transparent)]
    State(#[from] BadState),
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error("the chain is at offset {committed}, not at {asked}: only the event that halts the chain can be decided")]
    NotTheNext { asked: u64, committed: u64 },
    #[error("the event at chain offset {0} connects no block: only such an event can be decided")]
    NotABlock(u64),
    #[error("the decisions on the event at chain offset {0} are closed: the event is handled already")]
    Closed(u64),
    #[error("no block of the event lists {0}")]
    NotListed(Txid),
    #[error("a block of the event has its transactions in an object, and no setting names the objects (objects.url)")]
    NoObjects,
    #[error("the store has no transaction {0}")]
    NoTransaction(Txid),
    #[error("no command bars an output that {0} spends; see the reason of the halt")]
    NotBarred(Txid),
    #[error("another process writes decisions at the chain offset; run the command again")]
    Contended,
}

/// Services that a decision needs.
pub struct DecideServices<'a> {
    /// The broker that holds the log.
    pub broker: &'a Arc<dyn Broker>,
    /// Names of the topics.
    pub topics: &'a Topics,
    /// Consumer group of the instances.
    pub group: &'a str,
    /// The store that the instances fill.
    pub store: &'a StateStore,
    /// The objects of large blocks, where a setting names them.
    pub objects: Option<&'a Objects>,
}

/// Attempts to be the next record at the chain offset.
const ATTEMPTS: usize = 10;
/// Wait for the next messages of a partition.
const WAIT: Duration = Duration::from_millis(100);

impl DecideServices<'_> {
    /// Publishes the decision that lets `txid` spend its barred outputs in the event at `chain_offset`, which the chain
    /// has not handled yet. A repeat publishes nothing.
    ///
    /// # Errors
    /// The event is not the next of the chain, connects no block, or is decided. The transaction is not listed, or no
    /// command bars its previous outputs. The log or the store does not answer.
    pub async fn decide(&self, chain_offset: u64, txid: Txid) -> Result<OperatorDecision, DecideError> {
        let chain = single_partition(self.topics.chain.as_str());
        let committed = self.broker.committed(&chain_group(self.group), std::slice::from_ref(&chain)).await?;
        let committed = committed.into_iter().next().flatten();
        let next = committed.as_ref().map_or(0, |committed| committed.offset);
        if next != chain_offset {
            return Err(DecideError::NotTheNext { asked: chain_offset, committed: next });
        }
        let state = committed.map(|committed| ChainState::from_metadata(&committed.metadata)).transpose()?;
        let message = self.read_event(chain_offset).await?.ok_or(DecideError::NotABlock(chain_offset))?;
        let height = match Event::decode(&message.payload) {
            Ok(Event::BlockMined(mined)) if mined.block.longest_chain => {
                self.find_listing_height(std::slice::from_ref(&mined.block), txid).await?
            }
            Ok(Event::Reorg(reorg)) if !reorg.connected.is_empty() => {
                self.find_listing_height(&reorg.connected, txid).await?
            }
            _ => return Err(DecideError::NotABlock(chain_offset)),
        };
        let height = height.ok_or(DecideError::NotListed(txid))?;
        let lifted = self.find_barred(txid, height).await?;
        if lifted.is_empty() {
            return Err(DecideError::NotBarred(txid));
        }
        let output = |barred: &BarredOutput| LiftedOutput { outpoint: barred.outpoint, owner: barred.owner };
        let outputs: Vec<LiftedOutput> = lifted.iter().map(output).collect();
        let from = state.unwrap_or_default().decisions_from;
        self.publish(chain_offset, from, txid, outputs).await?;
        Ok(OperatorDecision { chain_offset, txid, lifted })
    }

    async fn read_event(&self, chain_offset: u64) -> Result<Option<Message>, BrokerError> {
        let chain = single_partition(self.topics.chain.as_str());
        let (_, end) = self.broker.watermarks(&chain).await?;
        let mut reader = self.broker.read(&chain, chain_offset).await?;
        while reader.position() <= chain_offset && chain_offset < end {
            let messages = read_or_reopen(&mut reader, self.broker.as_ref(), &chain, WAIT).await?;
            if let Some(first) = messages.into_iter().next() {
                return Ok(Some(first).filter(|message| message.offset == chain_offset));
            }
        }
        Ok(None)
    }

    /// Returns the height of the block that lists the transaction.
    async fn find_listing_height(&self, blocks: &[Block<'_>], txid: Txid) -> Result<Option<u32>, DecideError> {
        for block in blocks {
            for subtree in &block.subtrees {
                let is_listed = match announced_object(subtree) {
                    None => subtree.transactions.inline().into_iter().flatten().any(|listed| listed == txid),
                    Some(announced) => {
                        let mut txids = self.objects.ok_or(DecideError::NoObjects)?.txids(announced).await?;
                        loop {
                            let next = txids.next().await?;
                            if next.is_empty() || next.contains(&txid) {
                                break !next.is_empty();
                            }
                        }
                    }
                };
                if is_listed {
                    return Ok(Some(block.height));
                }
            }
        }
        Ok(None)
    }

    /// Finds the outputs that the transaction spends and that commands have barred at this height.
    async fn find_barred(&self, txid: Txid, height: u32) -> Result<Vec<BarredOutput>, DecideError> {
        let master = self.store.master(txid).await?.filter(|master| master.body().is_some());
        let master = master.ok_or(DecideError::NoTransaction(txid))?;
        let body = self.store.body(&master).await.map_err(ReadError::from)?;
        let body = ParsedBody::parse(txid, &body).map_err(ReadError::from)?;
        let mut barred = Vec::new();
        for input in body.transaction().into_iter().flat_map(Transaction::inputs) {
            let outpoint = input.outpoint;
            let claimed =
                input.previous.map(|output| utxo_hash(&outpoint.txid, outpoint.vout, output.script, output.satoshis));
            let (page, offset) = self.store.locate_slot(outpoint);
            let records = self.store.read(vec![Key::Page(outpoint.txid, page)]).await?;
            if let Some(page) = records.into_iter().find_map(into_page) {
                barred.extend(find_bars(&page, offset, txid, claimed, height).map(|(bars, owner)| BarredOutput {
                    outpoint,
                    bars,
                    owner,
                }));
            }
        }
        Ok(barred)
    }

    /// Publishes the decision as the next record at the chain offset, unless the log has it.
    async fn publish(
        &self,
        chain_offset: u64,
        from: u64,
        txid: Txid,
        outputs: Vec<LiftedOutput>,
    ) -> Result<(), DecideError> {
        let (broker, producer) = (self.broker.clone(), self.broker.producer().await?);
        let topic = self.topics.decisions.as_str();
        let mut log = DecisionLog::open(broker, producer, topic, from, chain_offset).await?;
        for _ in 0..ATTEMPTS {
            let lifted = log.table().lifted_outputs(chain_offset);
            if outputs.iter().all(|output| lifted.contains(output)) {
                return Ok(());
            }
            if log.table().handled_below() > chain_offset {
                return Err(DecideError::Closed(chain_offset));
            }
            log.publish(chain_offset, DecisionBody::Lifted { txid, outputs: outputs.clone() }).await?;
        }
        Err(DecideError::Contended)
    }
}

/// Returns the bars of commands on a slot that keep `spender` from spending the slot in a block at this height, and the
/// former owner that gets the output back. `claimed` is the UTXO hash of the output that the spender names.
fn find_bars(
    page: &Page,
    offset: u32,
    spender: Txid,
    claimed: Option<UtxoHash>,
    height: u32,
) -> Option<(Vec<Bar>, Option<UtxoHash>)> {
    let slot = page.utxos.as_ref()?.get(offset as usize)?;
    if slot.spender().is_some_and(|holder| holder.txid == spender) {
        return None;
    }
    let frozen = matches!(slot, Slot::Frozen(_)).then_some(Bar::Frozen);
    let whole = page.frozen.then_some(Bar::FrozenTransaction);
    let delayed = page.utxo_spendable_in.get(&offset).filter(|from| **from > height).map(|from| Bar::Delayed(*from));
    let is_former = |hash: &UtxoHash| {
        let mut entries = page.reassignments.iter().filter(|entry| entry.offset == offset);
        slot.hash() != Some(*hash) && entries.any(|entry| entry.utxo_hash == *hash)
    };
    let owner = claimed.filter(is_former);
    let bars: Vec<Bar> = frozen.into_iter().chain(whole).chain(delayed).chain(owner.map(|_| Bar::Reassigned)).collect();
    (!bars.is_empty()).then_some((bars, owner))
}
