//! What the events themselves say, whatever was made of them: which transactions there are, what they spend and make, and
//! which messages can be no transaction.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use utxo_store::{
    broker::partitioner::partition_of,
    event::{DeadLetterClass, Event, Seeded, Validated},
    record::{Slot, SpendingData, build::MOST_SEEDED},
    tx::{Outpoint, Transaction, Txid, has_slot, utxo_hash},
};

use super::{Logs, Place, Rules};

/// A coinbase can be spent in a block this much higher than its own.
const MATURITY: u32 = 100;

/// An amount and who may spend it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coin {
    pub satoshis: u64,
    pub script: Bytes,
}

/// One event of a whole transaction. Events for one txid differ at most in what the txid does not commit to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    pub place: Place,
    pub body: Bytes,
    pub height: u32,
    pub locked: bool,
    /// What it says of the outputs that it spends, input by input.
    pub claims: Vec<Coin>,
}

/// An event that came after one of a partial transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Second {
    pub version: Version,
    pub inputs: Vec<Outpoint>,
}

/// Where a transaction comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Events, in the order of the log.
    Validated(Vec<Version>),
    /// A partial transaction; its block was at this height.
    Seeded { height: u32 },
    /// A block that was handled.
    Block { body: Bytes, height: u32 },
}

/// A transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tx {
    pub txid: Txid,
    pub coinbase: bool,
    pub inputs: Vec<Outpoint>,
    pub outputs: Vec<Option<Coin>>,
    pub origin: Origin,
}

/// All of them.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    pub txs: BTreeMap<Txid, Tx>,
    /// Who names an output as an input.
    pub spenders: BTreeMap<Outpoint, Vec<SpendingData>>,
    /// Events of whole transactions whose first event was a partial one: they spend nothing, but may hold slots until the
    /// sequencer has given them back.
    pub second: BTreeMap<Txid, Vec<Second>>,
    /// Where events of partial transactions are.
    pub seeds: BTreeMap<Txid, Vec<Place>>,
    /// Messages of the validated topic that are no transaction, and the only answer to them.
    pub poison: BTreeMap<Place, DeadLetterClass>,
}

impl Tx {
    /// Its events; none where it does not come from any.
    pub fn versions(&self) -> &[Version] {
        match &self.origin {
            Origin::Validated(versions) => versions,
            Origin::Seeded { .. } | Origin::Block { .. } => &[],
        }
    }

    /// The transactions whose outputs it spends.
    pub fn parents(&self) -> BTreeSet<Txid> {
        self.inputs.iter().map(|outpoint| outpoint.txid).collect()
    }

    /// From which height a coinbase can be spent.
    pub fn spending_height(&self) -> Option<u32> {
        match self.origin {
            Origin::Seeded { height } | Origin::Block { height, .. } if self.coinbase => Some(height + MATURITY),
            _ => None,
        }
    }

    /// The height of the block of a partial transaction.
    pub fn seeded_at(&self) -> Option<u32> {
        match self.origin {
            Origin::Seeded { height } => Some(height),
            Origin::Validated(_) | Origin::Block { .. } => None,
        }
    }

    /// The height of the block that brought it first.
    pub fn brought_at(&self) -> Option<u32> {
        match self.origin {
            Origin::Block { height, .. } => Some(height),
            Origin::Validated(_) | Origin::Seeded { .. } => None,
        }
    }

    /// The height that decides which outputs get a slot.
    fn height(&self) -> u32 {
        match &self.origin {
            Origin::Validated(versions) => versions.first().map_or(0, |version| version.height),
            Origin::Seeded { height } | Origin::Block { height, .. } => *height,
        }
    }

    /// Its slots, as they start.
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
        // Events for one txid share a partition: there the offset is their order, whatever their timestamps say.
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

    fn note_kinds(&mut self, place: Place, tx: &Tx) {
        match &tx.origin {
            Origin::Seeded { .. } => self.seeds.entry(tx.txid).or_default().push(place),
            Origin::Validated(versions) if self.txs.get(&tx.txid).is_some_and(|known| known.seeded_at().is_some()) => {
                let second = |version: &Version| Second { version: version.clone(), inputs: tx.inputs.clone() };
                self.second.entry(tx.txid).or_default().extend(versions.iter().map(second));
            }
            Origin::Validated(_) | Origin::Block { .. } => {}
        }
    }

    /// Transactions that spend an output of this one.
    pub fn children(&self, parent: &Txid) -> impl Iterator<Item = Txid> + use<'_> {
        let of = |vout| Outpoint { txid: *parent, vout };
        self.spenders.range(of(0)..=of(u32::MAX)).flat_map(|(_, spenders)| spenders.iter().map(|spender| spender.txid))
    }

    /// Whether a slot may name this transaction, be it only for a while.
    pub fn may_be_named(&self, txid: &Txid, outpoint: &Outpoint) -> bool {
        let of = |spender: &SpendingData| spender.txid == *txid;
        let spends = self.spenders.get(outpoint).is_some_and(|all| all.iter().any(of));
        spends || self.second.get(txid).into_iter().flatten().any(|second| second.inputs.contains(outpoint))
    }

    /// Whether a slot may name this transaction, and this input of it, be it only for a while.
    pub fn may_hold(&self, holder: &SpendingData, outpoint: &Outpoint) -> bool {
        let named = |inputs: &[Outpoint]| inputs.get(holder.input as usize) == Some(outpoint);
        let spends = self.spenders.get(outpoint).is_some_and(|all| all.contains(holder));
        spends || self.second.get(&holder.txid).into_iter().flatten().any(|second| named(&second.inputs))
    }

    /// Another event for a known transaction adds a version, and must not contradict it.
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

    /// Makes a transaction of the coinbase of a block; `None` where its bytes are none.
    pub fn coinbase(body: &Bytes, height: u32) -> Option<Tx> {
        let parsed = Transaction::parse(body).ok()?;
        let origin = Origin::Block { body: body.clone(), height };
        Some(Tx { txid: parsed.txid(), coinbase: true, inputs: vec![], outputs: outputs(&parsed, body), origin })
    }

    /// The output that an outpoint names, where there is one with a slot.
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
    place: Place,
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
    let version = Version { place, body, height: event.height, locked: event.locked, claims };
    Ok(Tx { txid, coinbase: false, inputs, outputs, origin: Origin::Validated(vec![version]) })
}

fn seeded(message: &utxo_store::broker::Message, event: &Seeded<'_>) -> Result<Tx, DeadLetterClass> {
    if message.key.as_ref() != event.txid.0 {
        return Err(DeadLetterClass::Decode);
    }
    let count = event.outputs.last().map_or(0, |last| last.vout as usize + 1);
    if count > MOST_SEEDED as usize {
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
