//! Preparation of a message: decode, check, hash. Pure apart from the loading of a body that is an object. Messages are
//! prepared in any order, and handled in log order.

mod detach;
mod load;

use std::sync::Arc;

use bytes::Bytes;

pub use load::{BodyLoadError, load_body};

use crate::{
    broker::{Message, partitioner::partition_of},
    event::{DeadLetterClass, Event, PartialTxEvent, Validated},
    record::{
        CreatingEvent, Key, Marks, Page, Spend, SpendSlot, StoredOutput,
        build::{self, HEIGHT_LIMIT, InlineBodies, OtherPages, Pages},
    },
    store::{StateStore, StoreSettings},
    tx::{Network, Transaction, Txid},
};

/// Settings of the store that the preparation of every event needs.
#[derive(Debug, Clone, Copy)]
pub struct PrepareSettings {
    /// Network whose rules decide which outputs get a slot.
    pub network: Network,
    /// Slots of a page.
    pub utxo_batch_size: u32,
    /// Rule by which bodies stay inline in their masters.
    pub inline: InlineBodies,
}

impl PrepareSettings {
    /// Returns the settings for events whose transactions go into this store.
    pub fn of(store: &StateStore) -> Self {
        let StoreSettings { network, utxo_batch_size, .. } = store.settings;
        PrepareSettings { network, utxo_batch_size, inline: store.inline() }
    }
}

/// A whole transaction, ready for the planner.
#[derive(Debug)]
pub struct PreparedTx {
    /// Id of the transaction.
    pub txid: Txid,
    /// Lowest height of a block that can list the transaction.
    pub height: u32,
    /// Inputs grouped by the page whose slots they take, in the order of the first input of each group.
    pub groups: Vec<InputGroup>,
    /// Master of the live transaction with its body; `creating` where other pages exist.
    pub page: Arc<Page>,
    /// Further pages of a transaction that takes more than one write, possibly none; `None`: one write.
    pub others: Option<Arc<OtherPages>>,
    /// Message of the event, for a dead letter.
    pub source: Message,
    /// The body was loaded from an object: its parts share no memory with `source`.
    pub is_by_reference: bool,
}

/// The inputs that take slots of one page.
#[derive(Debug, Clone)]
pub struct InputGroup {
    /// Transaction whose outputs are spent.
    pub parent: Txid,
    /// Number of the page in the parent.
    pub page: u32,
    /// Slots to spend, in the order of the inputs.
    pub slots: Arc<Vec<SpendSlot>>,
}

impl InputGroup {
    /// Returns the key of the record whose slots are taken.
    pub fn key(&self) -> Key {
        Key::Page(self.parent, self.page)
    }
}

impl PreparedTx {
    /// Returns the operation that takes the slots of a group.
    pub fn spend(&self, group: &InputGroup, marks: Marks) -> Spend {
        let signals = group.page > 0;
        Spend { spender: self.txid, height: self.height, slots: group.slots.clone(), marks, signals }
    }
}

/// A partial transaction, ready to be stored.
#[derive(Debug)]
pub struct PreparedPartialTx {
    /// Id of the transaction.
    pub txid: Txid,
    /// Master of the transaction, live and mined in block 0, with its body; `creating` where other pages exist.
    pub page: Arc<Page>,
    /// Further pages of a transaction that takes more than one write, possibly none; `None`: one write.
    pub others: Option<Arc<OtherPages>>,
    /// Message of the event, for a dead letter.
    pub source: Message,
    /// The outputs were loaded from an object: their scripts share no memory with `source`.
    pub is_by_reference: bool,
}

/// A message that was decoded and checked.
#[derive(Debug)]
pub enum PreparedEvent {
    /// A whole transaction, from the event `Validated`.
    Validated(Arc<PreparedTx>),
    /// A partial transaction, from the event `Seeded`.
    Seeded(Arc<PreparedPartialTx>),
}

impl PreparedEvent {
    /// Returns the id of the transaction.
    pub fn txid(&self) -> Txid {
        match self {
            PreparedEvent::Validated(tx) => tx.txid,
            PreparedEvent::Seeded(partial) => partial.txid,
        }
    }
}

/// A message that can never be handled; it becomes a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Poison {
    /// Stage of the pipeline that found the fault.
    pub stage: &'static str,
    /// Class of the dead letter.
    pub class: DeadLetterClass,
    /// Fault, with the name of the field.
    pub message: String,
    /// Transaction of the message: by its body, or else by its key; `None`: neither has a txid.
    pub txid: Option<Txid>,
}

impl Poison {
    fn new(class: DeadLetterClass, message: impl ToString) -> Self {
        Poison { stage: "prepare", class, message: message.to_string(), txid: None }
    }

    /// Returns the same fault of a message about this transaction.
    pub fn about(self, txid: Txid) -> Self {
        Poison { txid: Some(txid), ..self }
    }
}

/// Decodes and checks a message of the topic of validated transactions whose body is in the message.
///
/// # Errors
/// As [`prepare_loaded`].
pub fn prepare(settings: &PrepareSettings, message: &Message) -> Result<PreparedEvent, Poison> {
    prepare_loaded(settings, message, None)
}

/// Decodes and checks a message of the topic of validated transactions. `body`: the result of [`load_body`].
///
/// # Errors
/// [`Poison`] for a message that is malformed, has a wrong key, breaks a rule of its event, or refers to a body that
/// was not loaded.
pub fn prepare_loaded(
    settings: &PrepareSettings,
    message: &Message,
    body: Option<&Bytes>,
) -> Result<PreparedEvent, Poison> {
    decode_and_prepare(settings, message, body).map_err(|poison| match <[u8; 32]>::try_from(&message.key[..]) {
        Ok(key) if poison.txid.is_none() => poison.about(Txid(key)),
        _ => poison,
    })
}

fn decode_and_prepare(
    settings: &PrepareSettings,
    message: &Message,
    body: Option<&Bytes>,
) -> Result<PreparedEvent, Poison> {
    let decode_error = |error: &dyn ToString| Poison::new(DeadLetterClass::Decode, error.to_string());
    let event = Event::decode(&message.payload).map_err(|error| decode_error(&error))?;
    let buffer = body.unwrap_or(&message.payload);
    let source = PreparationInput { settings, message, buffer, is_by_reference: body.is_some() };
    match (event, body) {
        (Event::Validated(validated), None) => prepare_validated(&source, &validated).map(PreparedEvent::Validated),
        (Event::ValidatedReference(reference), Some(body)) => {
            let prepared = prepare_validated(&source, &reference.with_body(body))?;
            check_key(message, &reference.txid).map_err(|poison| poison.about(reference.txid))?;
            Ok(PreparedEvent::Validated(prepared))
        }
        (Event::Seeded(seeded), None) => prepare_seeded(&source, &seeded).map(PreparedEvent::Seeded),
        (Event::SeededReference(reference), Some(body)) => {
            let named = |poison: Poison| poison.about(reference.txid);
            let seeded = reference.with_body(body).map_err(|error| named(decode_error(&error)))?;
            prepare_seeded(&source, &seeded).map(PreparedEvent::Seeded)
        }
        (Event::ValidatedReference(_) | Event::SeededReference(_), None) => {
            Err(decode_error(&"the body to which the event refers was not loaded"))
        }
        (other, _) => Err(decode_error(&format!("a {} event does not belong in this topic", other.kind().name()))),
    }
}

/// A message with the buffer that holds the body of its event.
struct PreparationInput<'a> {
    settings: &'a PrepareSettings,
    message: &'a Message,
    buffer: &'a Bytes,
    is_by_reference: bool,
}

/// Verifies that a message is in the partition of its key. Events of one transaction thus share a partition, so that
/// the log orders them.
///
/// # Errors
/// [`Poison`] for a message in another partition.
pub fn check_partition(partition: i32, partitions: i32, message: &Message) -> Result<(), Poison> {
    match partition_of(&message.key, partitions) {
        Some(own) if own != partition => {
            let why = format!(
                "the event is in partition {partition}, but its key belongs to partition {own} of {partitions}: \
                 producers must place keys by murmur2, as the Java client does (librdkafka: partitioner=murmur2_random)"
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
    let key = abbreviate_key(&message.key);
    Err(Poison::new(
        DeadLetterClass::Decode,
        format!("the key {key} is not the transaction's id {txid} (internal order)"),
    ))
}

/// Returns the key in hex, cut to the length of a txid. A key can be nearly as large as a message: a dead letter with
/// the whole key in a header would be too large to publish.
fn abbreviate_key(key: &[u8]) -> String {
    match key.get(..size_of::<Txid>()) {
        Some(start) if key.len() > start.len() => format!("{}… of {} bytes", hex::encode(start), key.len()),
        _ => hex::encode(key),
    }
}

fn prepare_validated(source: &PreparationInput<'_>, validated: &Validated<'_>) -> Result<Arc<PreparedTx>, Poison> {
    let tx = Transaction::parse(validated.tx).map_err(|error| Poison::new(DeadLetterClass::Decode, error))?;
    let txid = tx.txid();
    build_validated(source, validated, &tx, txid).map_err(|poison| poison.about(txid))
}

fn build_validated(
    source: &PreparationInput<'_>,
    validated: &Validated<'_>,
    tx: &Transaction<'_>,
    txid: Txid,
) -> Result<Arc<PreparedTx>, Poison> {
    let PreparationInput { settings, message, buffer, is_by_reference } = *source;
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
    let body = buffer.slice_ref(validated.tx);
    let groups = group_inputs(tx, &body, settings.utxo_batch_size);
    let setting = build_setting(settings, validated.height, message);
    let start = build::NewTxState { locked: validated.locked, ..build::NewTxState::default() };
    let pages = build::build_pages(tx, body, txid, &setting, &start)
        .map_err(|error| Poison::new(DeadLetterClass::Invalid, error))?;
    let Pages { master, others } = pages.place_body(settings.inline, &setting);
    let (page, others) = (Arc::new(master), others.map(Arc::new));
    let source = message.clone();
    Ok(Arc::new(PreparedTx { txid, height: validated.height, groups, page, others, source, is_by_reference }))
}

/// Groups the inputs by the page whose slots they take, in the order of the first input of each group.
fn group_inputs(tx: &Transaction<'_>, body: &Bytes, utxo_batch_size: u32) -> Vec<InputGroup> {
    let mut groups: Vec<InputGroup> = Vec::new();
    let mut index_of = std::collections::HashMap::with_hasher(foldhash::fast::FixedState::default());
    for (index, input) in tx.inputs().enumerate() {
        let Some(previous) = input.previous else { continue };
        let outpoint = input.outpoint;
        let (parent, (page, offset)) = (outpoint.txid, outpoint.place(utxo_batch_size));
        let slot = SpendSlot::claiming(&outpoint, offset, index as u32, &previous, body.slice_ref(previous.script));
        // Most transactions have few inputs, for which a scan is faster than a map.
        let found = match groups.len() {
            0 => None,
            1..=8 => groups.iter().position(|group| group.parent == parent && group.page == page),
            _ => {
                if index_of.is_empty() {
                    index_of
                        .extend(groups.iter().enumerate().map(|(number, group)| ((group.parent, group.page), number)));
                }
                index_of.get(&(parent, page)).copied()
            }
        };
        match found {
            Some(group) => Arc::make_mut(&mut groups[group].slots).push(slot),
            None => {
                if !index_of.is_empty() {
                    index_of.insert((parent, page), groups.len());
                }
                groups.push(InputGroup { parent, page, slots: Arc::new(vec![slot]) });
            }
        }
    }
    groups
}

fn prepare_seeded(
    source: &PreparationInput<'_>,
    seeded: &PartialTxEvent<'_>,
) -> Result<Arc<PreparedPartialTx>, Poison> {
    build_seeded(source, seeded).map_err(|poison| poison.about(seeded.txid))
}

fn build_seeded(source: &PreparationInput<'_>, seeded: &PartialTxEvent<'_>) -> Result<Arc<PreparedPartialTx>, Poison> {
    let PreparationInput { settings, message, buffer, is_by_reference } = *source;
    check_key(message, &seeded.txid)?;
    let outputs = seeded.outputs.iter().map(|output| build::KnownOutput {
        vout: output.vout,
        output: StoredOutput { satoshis: output.satoshis, script: buffer.slice_ref(output.script) },
    });
    let partial = build::KnownOutputs { txid: seeded.txid, coinbase: seeded.coinbase, outputs: outputs.collect() };
    let setting = build_setting(settings, seeded.height, message);
    let pages =
        build::build_partial_pages(&partial, &setting).map_err(|error| Poison::new(DeadLetterClass::Invalid, error))?;
    let Pages { master, others } = pages.place_body(settings.inline, &setting);
    let (page, others) = (Arc::new(master), others.map(Arc::new));
    let source = message.clone();
    Ok(Arc::new(PreparedPartialTx { txid: seeded.txid, page, others, source, is_by_reference }))
}

/// Builds the setting of the pages. `createdAt` is the time of the event, so that a rebuild writes the same records.
fn build_setting(settings: &PrepareSettings, height: u32, message: &Message) -> build::PageParams {
    build::PageParams {
        network: settings.network,
        height,
        batch_size: settings.utxo_batch_size,
        created_at: u64::try_from(message.timestamp_ms).unwrap_or(0),
        event: Some(CreatingEvent::Validated(message.offset)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_key_is_shown_at_most_as_long_as_a_txid() {
        assert_eq!(abbreviate_key(&[]), "");
        assert_eq!(abbreviate_key(&[0xAB; 32]), "ab".repeat(32));
        assert_eq!(abbreviate_key(&[0xAB; 1 << 20]), format!("{}… of 1048576 bytes", "ab".repeat(32)));
    }
}
