//! Facts of the events alone: transactions, inputs and outputs, and messages that are no transaction.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use utxo_store::{
    broker::partitioner::partition_of,
    event::{DeadLetterClass, Event, PartialTxEvent, Validated},
    record::{Slot, SpendingData, build::PARTIAL_OUTPUT_LIMIT},
    tx::{Outpoint, Transaction, Txid, has_slot, utxo_hash},
};

use super::{LogPosition, Logs, Rules};

/// Blocks from a coinbase to the first block that may spend it.
const MATURITY: u32 = 100;

/// An amount with its locking script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coin {
    pub satoshis: u64,
    pub script: Bytes,
}

/// One event of a whole transaction. Events of one txid differ only in data to which the txid does not commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventVersion {
    pub place: LogPosition,
    pub body: Bytes,
    pub height: u32,
    pub locked: bool,
    /// Claimed previous outputs, input by input.
    pub claims: Vec<Coin>,
}

/// A whole event that came after a partial event of the same txid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaterEvent {
    pub version: EventVersion,
    pub inputs: Vec<Outpoint>,
}

/// Source of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Events in the order of the log.
    Validated(Vec<EventVersion>),
    /// Partial transaction whose block was at this height.
    Seeded { height: u32 },
    /// Coinbase of a handled block.
    Block { body: Bytes, height: u32 },
}

/// A transaction with its inputs, outputs and source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tx {
    pub txid: Txid,
    pub coinbase: bool,
    pub inputs: Vec<Outpoint>,
    pub outputs: Vec<Option<Coin>>,
    pub origin: Origin,
}

/// All transactions and messages of the logs.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    pub txs: BTreeMap<Txid, Tx>,
    /// Transactions that spend each output.
    pub spenders: BTreeMap<Outpoint, Vec<SpendingData>>,
    /// Whole events of txids whose first event was partial: they spend nothing, but may hold slots until the sequencer
    /// releases them.
    pub later_events: BTreeMap<Txid, Vec<LaterEvent>>,
    /// Positions of the partial events of each txid.
    pub seeds: BTreeMap<Txid, Vec<LogPosition>>,
    /// Messages of the validated topic that are no transaction, with the class of their dead letter.
    pub poison: BTreeMap<LogPosition, DeadLetterClass>,
}

impl Tx {
    /// Returns the whole events; empty for partial transactions and coinbases.
    pub fn versions(&self) -> &[EventVersion] {
        match &self.origin {
            Origin::Validated(versions) => versions,
            Origin::Seeded { .. } | Origin::Block { .. } => &[],
        }
    }

    /// Returns the txids of the spent transactions.
    pub fn parents(&self) -> BTreeSet<Txid> {
        self.inputs.iter().map(|outpoint| outpoint.txid).collect()
    }

    /// Returns the height from which a coinbase is spendable.
    pub fn spending_height(&self) -> Option<u32> {
        match self.origin {
            Origin::Seeded { height } | Origin::Block { height, .. } if self.coinbase => Some(height + MATURITY),
            _ => None,
        }
    }

    /// Returns the height of the block of a partial transaction.
    pub fn seeded_at(&self) -> Option<u32> {
        match self.origin {
            Origin::Seeded { height } => Some(height),
            Origin::Validated(_) | Origin::Block { .. } => None,
        }
    }

    /// Returns the height of the first block that has this coinbase.
    pub fn first_block_height(&self) -> Option<u32> {
        match self.origin {
            Origin::Block { height, .. } => Some(height),
            Origin::Validated(_) | Origin::Seeded { .. } => None,
        }
    }

    /// Returns the height that decides which outputs get a slot.
    fn height(&self) -> u32 {
        match &self.origin {
            Origin::Validated(versions) => versions.first().map_or(0, |version| version.height),
            Origin::Seeded { height } | Origin::Block { height, .. } => *height,
        }
    }

    /// Returns the initial slots.
    pub fn slots(&self, rules: &Rules) -> Vec<Slot> {
        let slot = |(output, vout): (&Option<Coin>, u32)| match output {
            Some(coin) if has_slot(&self.txid, &coin.script, self.height(), rules.network) => {
                Slot::Unspent(utxo_hash(&self.txid, vout, &coin.script, coin.satoshis))
            }
            _ => Slot::Nil,
        };
        self.outputs.iter().zip(0..).map(slot).collect()
    }
}

impl Facts {
    /// Reads the validated topic.
    pub fn of(logs: &Logs, rules: &Rules) -> Facts {
        let mut facts = Facts::default();
        let mut messages: Vec<_> = logs.validated.iter().map(|logged| (logged.place(), &logged.message)).collect();
        // Events of one txid share a partition: the offset is their order, whatever their timestamps.
        messages.sort_by_key(|(place, _)| (place.partition, place.offset));
        for (place, message) in messages {
            let answer = match Event::decode(&message.payload) {
                Ok(Event::Validated(event)) => validated(place, message, &event),
                Ok(Event::Seeded(event)) => seeded(message, &event),
                _ => Err(DeadLetterClass::Decode),
            };
            let answer = answer.and_then(|tx| match partition_of(&tx.txid.0, rules.partitions) {
                Some(own) if own != place.partition => Err(DeadLetterClass::Decode),
                _ => Ok(tx),
            });
            if let Ok(tx) = &answer {
                facts.note_kinds(place, tx);
            }
            if let Err(class) = answer.and_then(|tx| facts.add(tx, rules)) {
                facts.poison.insert(place, class);
            }
        }
        facts
    }

    fn note_kinds(&mut self, place: LogPosition, tx: &Tx) {
        match &tx.origin {
            Origin::Seeded { .. } => self.seeds.entry(tx.txid).or_default().push(place),
            Origin::Validated(versions) if self.txs.get(&tx.txid).is_some_and(|known| known.seeded_at().is_some()) => {
                let later_event =
                    |version: &EventVersion| LaterEvent { version: version.clone(), inputs: tx.inputs.clone() };
                self.later_events.entry(tx.txid).or_default().extend(versions.iter().map(later_event));
            }
            Origin::Validated(_) | Origin::Block { .. } => {}
        }
    }

    /// Returns the transactions that spend an output of `parent`.
    pub fn children(&self, parent: &Txid) -> impl Iterator<Item = Txid> + use<'_> {
        let of = |vout| Outpoint { txid: *parent, vout };
        self.spenders.range(of(0)..=of(u32::MAX)).flat_map(|(_, spenders)| spenders.iter().map(|spender| spender.txid))
    }

    /// Whether a slot may name this transaction, at least temporarily.
    pub fn may_be_named(&self, txid: &Txid, outpoint: &Outpoint) -> bool {
        let of = |spender: &SpendingData| spender.txid == *txid;
        let spends = self.spenders.get(outpoint).is_some_and(|all| all.iter().any(of));
        spends || self.later_events.get(txid).into_iter().flatten().any(|later| later.inputs.contains(outpoint))
    }

    /// Whether a slot may name this transaction and input, at least temporarily.
    pub fn may_hold(&self, holder: &SpendingData, outpoint: &Outpoint) -> bool {
        let named = |inputs: &[Outpoint]| inputs.get(holder.input as usize) == Some(outpoint);
        let spends = self.spenders.get(outpoint).is_some_and(|all| all.contains(holder));
        spends || self.later_events.get(&holder.txid).into_iter().flatten().any(|later| named(&later.inputs))
    }

    /// Adds a transaction, or another event of a known one, which must not contradict it.
    pub fn add(&mut self, tx: Tx, rules: &Rules) -> Result<(), DeadLetterClass> {
        let Some(known) = self.txs.get_mut(&tx.txid) else {
            for (outpoint, input) in tx.inputs.iter().zip(0..) {
                self.spenders.entry(*outpoint).or_default().push(SpendingData { txid: tx.txid, input });
            }
            self.txs.insert(tx.txid, tx);
            return Ok(());
        };
        let hashes = |tx: &Tx| tx.slots(rules).into_iter().map(|slot| slot.hash()).collect::<Vec<_>>();
        let differ =
            hashes(known).into_iter().zip(hashes(&tx)).any(|pair| matches!(pair, (Some(a), Some(b)) if a != b));
        if differ || known.coinbase != tx.coinbase {
            return Err(DeadLetterClass::SeedMismatch);
        }
        if let (Origin::Validated(versions), Origin::Validated(more)) = (&mut known.origin, tx.origin) {
            versions.extend(more);
        }
        Ok(())
    }

    /// Returns the coinbase of a block; `None` if its bytes are no transaction.
    pub fn coinbase(body: &Bytes, height: u32) -> Option<Tx> {
        let parsed = Transaction::parse(body).ok()?;
        let origin = Origin::Block { body: body.clone(), height };
        Some(Tx { txid: parsed.txid(), coinbase: true, inputs: vec![], outputs: outputs(&parsed, body), origin })
    }

    /// Returns the output of an outpoint, if the output exists and has a slot.
    pub fn output(&self, outpoint: &Outpoint, rules: &Rules) -> Option<&Coin> {
        let tx = self.txs.get(&outpoint.txid)?;
        let coin = tx.outputs.get(outpoint.vout as usize)?.as_ref()?;
        has_slot(&tx.txid, &coin.script, tx.height(), rules.network).then_some(coin)
    }
}

fn outputs(parsed: &Transaction<'_>, bytes: &Bytes) -> Vec<Option<Coin>> {
    let coin =
        |output: utxo_store::tx::Output<'_>| Coin { satoshis: output.satoshis, script: bytes.slice_ref(output.script) };
    parsed.outputs().map(coin).map(Some).collect()
}

fn validated(
    place: LogPosition,
    message: &utxo_store::broker::Message,
    event: &Validated<'_>,
) -> Result<Tx, DeadLetterClass> {
    let parsed = Transaction::parse(event.tx).map_err(|_| DeadLetterClass::Decode)?;
    let txid = parsed.txid();
    if message.key.as_ref() != txid.0 {
        return Err(DeadLetterClass::Decode);
    }
    let body = message.payload.slice_ref(event.tx);
    let inputs: Vec<Outpoint> = parsed.inputs().map(|input| input.outpoint).collect();
    let claims: Vec<Coin> = parsed
        .inputs()
        .filter_map(|input| input.previous)
        .map(|previous| Coin { satoshis: previous.satoshis, script: body.slice_ref(previous.script) })
        .collect();
    let outputs = outputs(&parsed, &body);
    let sum = |coins: &mut dyn Iterator<Item = &Coin>| coins.map(|coin| u128::from(coin.satoshis)).sum::<u128>();
    let (paid, made) = (sum(&mut claims.iter()), sum(&mut outputs.iter().flatten()));
    let distinct = inputs.iter().collect::<BTreeSet<_>>().len();
    let whole = claims.len() == inputs.len() && distinct == inputs.len() && !parsed.is_coinbase();
    if !whole || outputs.is_empty() || made > paid || paid > u128::from(u64::MAX) {
        return Err(DeadLetterClass::Invalid);
    }
    let version = EventVersion { place, body, height: event.height, locked: event.locked, claims };
    Ok(Tx { txid, coinbase: false, inputs, outputs, origin: Origin::Validated(vec![version]) })
}

fn seeded(message: &utxo_store::broker::Message, event: &PartialTxEvent<'_>) -> Result<Tx, DeadLetterClass> {
    if message.key.as_ref() != event.txid.0 {
        return Err(DeadLetterClass::Decode);
    }
    let count = event.outputs.last().map_or(0, |last| last.vout as usize + 1);
    if count > PARTIAL_OUTPUT_LIMIT as usize {
        return Err(DeadLetterClass::Invalid);
    }
    let mut outputs = vec![None; count];
    for output in &event.outputs {
        let script = message.payload.slice_ref(output.script);
        outputs[output.vout as usize] = Some(Coin { satoshis: output.satoshis, script });
    }
    let origin = Origin::Seeded { height: event.height };
    Ok(Tx { txid: event.txid, coinbase: event.coinbase, inputs: vec![], outputs, origin })
}
