//! From a message to work: decode, check, hash. Pure, and the only part that is done outside the order of the log.

mod apart;

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    broker::{Message, partitioner::partition_of},
    event::{DeadLetterClass, Event, Seeded, Validated},
    record::{
        Key, Marks, Page, Spend, SpendSlot, StoredOutput,
        build::{self, HEIGHT_LIMIT, Inline, OtherPages, Pages},
    },
    store::{Store, StoreSettings},
    tx::{Network, Transaction, Txid},
};

/// What the store is set up for; the same for every event.
#[derive(Debug, Clone, Copy)]
pub struct PrepareSettings {
    /// Decides which outputs get a slot.
    pub network: Network,
    /// Slots a page.
    pub utxo_batch_size: u32,
    /// Which bodies are kept with their masters.
    pub inline: Inline,
}

impl PrepareSettings {
    /// For events whose transactions go into this store.
    pub fn of(store: &Store) -> Self {
        let StoreSettings { network, utxo_batch_size, .. } = store.settings;
        PrepareSettings { network, utxo_batch_size, inline: store.inline() }
    }
}

/// A transaction that is ready to be worked on.
#[derive(Debug)]
pub struct PreparedTx {
    /// Its id.
    pub txid: Txid,
    /// Height of the block that it can first be in.
    pub height: u32,
    /// Its inputs, by the page that they take slots of; in the order of the first input of each.
    pub groups: Vec<SpendGroup>,
    /// Its master, live, with its body; `creating` where there are other pages.
    pub page: Arc<Page>,
    /// Where it takes more than one write: the other pages, which may be none.
    pub others: Option<Arc<OtherPages>>,
    /// Where it was read, for a dead letter.
    pub source: Message,
}

/// The inputs that take slots of one page.
#[derive(Debug)]
pub struct SpendGroup {
    /// The transaction whose outputs are spent.
    pub parent: Txid,
    /// Its page.
    pub page: u32,
    /// The slots, in the order of the inputs.
    pub slots: Arc<Vec<SpendSlot>>,
}

impl SpendGroup {
    /// The record whose slots are taken.
    pub fn key(&self) -> Key {
        Key::Page(self.parent, self.page)
    }
}

impl PreparedTx {
    /// The operation that takes a group's slots.
    pub fn spend(&self, group: &SpendGroup, marks: Marks) -> Spend {
        let signals = group.page > 0;
        Spend { spender: self.txid, height: self.height, slots: group.slots.clone(), marks, signals }
    }
}

/// A partial transaction that is ready to be stored.
#[derive(Debug)]
pub struct PreparedSeed {
    /// Its id.
    pub txid: Txid,
    /// Its master, live and mined in block 0, with its body; `creating` where there are other pages.
    pub page: Arc<Page>,
    /// Where it takes more than one write: the other pages, which may be none.
    pub others: Option<Arc<OtherPages>>,
    /// Where it was read, for a dead letter.
    pub source: Message,
}

/// What became of a message.
#[derive(Debug)]
pub enum Prepared {
    /// A whole transaction.
    Validated(Arc<PreparedTx>),
    /// Outputs only.
    Seeded(Arc<PreparedSeed>),
}

impl Prepared {
    /// Which transaction.
    pub fn txid(&self) -> Txid {
        match self {
            Prepared::Validated(tx) => tx.txid,
            Prepared::Seeded(seed) => seed.txid,
        }
    }
}

/// A message that can never be worked on: by what it alone shows, unless it says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Poison {
    /// The step that found it.
    pub stage: &'static str,
    /// Which kind of wrong.
    pub class: DeadLetterClass,
    /// What is wrong, with the field.
    pub message: String,
}

impl Poison {
    fn new(class: DeadLetterClass, message: impl ToString) -> Self {
        Poison { stage: "prepare", class, message: message.to_string() }
    }
}

/// Decodes and checks a message of the topic of validated transactions.
pub fn prepare(settings: &PrepareSettings, message: &Message) -> Result<Prepared, Poison> {
    let decode = |error: &dyn ToString| Poison::new(DeadLetterClass::Decode, error.to_string());
    match Event::decode(&message.payload).map_err(|error| decode(&error))? {
        Event::Validated(validated) => prepare_validated(settings, message, &validated).map(Prepared::Validated),
        Event::Seeded(seeded) => prepare_seeded(settings, message, &seeded).map(Prepared::Seeded),
        other => Err(decode(&format!("a {} event does not belong in this topic", other.kind().name()))),
    }
}

/// Events of one transaction share a partition, so that the log has an order for them: that to which its key belongs.
///
/// # Errors
/// It lies elsewhere.
pub fn check_place(partition: i32, partitions: i32, message: &Message) -> Result<(), Poison> {
    match partition_of(&message.key, partitions) {
        Some(own) if own != partition => {
            let why = format!(
                "it lies in partition {partition}, but its key belongs to {own} of {partitions}: producers must place keys by \
                 murmur2, as the Java client does (librdkafka: partitioner=murmur2_random)"
            );
            Err(Poison::new(DeadLetterClass::Decode, why))
        }
        _ => Ok(()),
    }
}

fn check_key(message: &Message, txid: &Txid) -> Result<(), Poison> {
    if message.key.as_ref() == txid.0 {
        return Ok(());
    }
    let key = shown_key(&message.key);
    Err(Poison::new(
        DeadLetterClass::Decode,
        format!("the key {key} is not the transaction's id {txid} (internal order)"),
    ))
}

/// As much of it as an id has. A key can be nearly as large as a message may be, and a dead letter that carries it in a
/// header again would be too large to publish.
fn shown_key(key: &[u8]) -> String {
    match key.get(..size_of::<Txid>()) {
        Some(start) if key.len() > start.len() => format!("{}… of {} bytes", hex::encode(start), key.len()),
        _ => hex::encode(key),
    }
}

fn prepare_validated(
    settings: &PrepareSettings,
    message: &Message,
    validated: &Validated<'_>,
) -> Result<Arc<PreparedTx>, Poison> {
    let tx = Transaction::parse(validated.tx).map_err(|error| Poison::new(DeadLetterClass::Decode, error))?;
    let txid = tx.txid();
    check_key(message, &txid)?;
    if tx.is_coinbase() {
        let why = "inputs: a coinbase comes with its block, not as a validated transaction";
        return Err(Poison::new(DeadLetterClass::Invalid, why));
    }
    tx.check().map_err(|error| Poison::new(DeadLetterClass::Invalid, error))?;
    if validated.height >= HEIGHT_LIMIT {
        let why = format!("height: {} is not below {HEIGHT_LIMIT}", validated.height);
        return Err(Poison::new(DeadLetterClass::Invalid, why));
    }
    let body = message.payload.slice_ref(validated.tx);
    let groups = group_inputs(&tx, &body, settings.utxo_batch_size);
    let setting = setting(settings, validated.height, message);
    let start = build::Start { locked: validated.locked, ..build::Start::default() };
    let pages = build::pages_of(&tx, body, txid, &setting, &start)
        .map_err(|error| Poison::new(DeadLetterClass::Invalid, error))?;
    let Pages { master, others } = pages.keeping(settings.inline, &setting);
    let (page, others) = (Arc::new(master), others.map(Arc::new));
    Ok(Arc::new(PreparedTx { txid, height: validated.height, groups, page, others, source: message.clone() }))
}

/// The inputs by page, in the order of the first input of each.
pub fn group_inputs(tx: &Transaction<'_>, body: &Bytes, utxo_batch_size: u32) -> Vec<SpendGroup> {
    let mut groups: Vec<SpendGroup> = Vec::new();
    let mut places = std::collections::HashMap::with_hasher(foldhash::fast::FixedState::default());
    for (index, input) in tx.inputs().enumerate() {
        let Some(previous) = input.previous else { continue };
        let outpoint = input.outpoint;
        let (parent, (page, offset)) = (outpoint.txid, outpoint.place(utxo_batch_size));
        let slot = SpendSlot::claiming(&outpoint, offset, index as u32, &previous, body.slice_ref(previous.script));
        // One input is by far the most common: the map is for the wide ones.
        let place = match groups.len() {
            0 => None,
            1..=8 => groups.iter().position(|group| group.parent == parent && group.page == page),
            _ => {
                if places.is_empty() {
                    places.extend(groups.iter().enumerate().map(|(place, group)| ((group.parent, group.page), place)));
                }
                places.get(&(parent, page)).copied()
            }
        };
        match place {
            Some(place) => Arc::make_mut(&mut groups[place].slots).push(slot),
            None => {
                if !places.is_empty() {
                    places.insert((parent, page), groups.len());
                }
                groups.push(SpendGroup { parent, page, slots: Arc::new(vec![slot]) });
            }
        }
    }
    groups
}

fn prepare_seeded(
    settings: &PrepareSettings,
    message: &Message,
    seeded: &Seeded<'_>,
) -> Result<Arc<PreparedSeed>, Poison> {
    check_key(message, &seeded.txid)?;
    let outputs = seeded.outputs.iter().map(|output| build::SeededOutput {
        vout: output.vout,
        output: StoredOutput { satoshis: output.satoshis, script: message.payload.slice_ref(output.script) },
    });
    let seed = build::Seed { txid: seeded.txid, coinbase: seeded.coinbase, outputs: outputs.collect() };
    let setting = setting(settings, seeded.height, message);
    let pages = build::seeded_pages(&seed, &setting).map_err(|error| Poison::new(DeadLetterClass::Invalid, error))?;
    let Pages { master, others } = pages.keeping(settings.inline, &setting);
    let (page, others) = (Arc::new(master), others.map(Arc::new));
    Ok(Arc::new(PreparedSeed { txid: seeded.txid, page, others, source: message.clone() }))
}

/// `createdAt` is the time of the event, so that a rebuild writes the same.
fn setting(settings: &PrepareSettings, height: u32, message: &Message) -> build::Setting {
    build::Setting {
        network: settings.network,
        height,
        batch_size: settings.utxo_batch_size,
        created_at: u64::try_from(message.timestamp_ms).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_no_id_is_shown_but_never_longer_than_one() {
        assert_eq!(shown_key(&[]), "");
        assert_eq!(shown_key(&[0xAB; 32]), "ab".repeat(32));
        assert_eq!(shown_key(&[0xAB; 1 << 20]), format!("{}… of 1048576 bytes", "ab".repeat(32)));
    }
}
