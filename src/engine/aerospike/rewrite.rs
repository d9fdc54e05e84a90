//! Any operation, through the pure function: the record as it was read, what [`crate::record::apply`] makes of it, and
//! the write that lands only if the record still is what was read.
//!
//! The comparison is the record's generation, which every write raises; for a record that was absent, that it still is.
//! A lock record can be deleted and made again with the same generation, so its owner is compared as well.

use aerospike::{
    BatchDeletePolicy, BatchOperation, BatchReadPolicy, BatchWritePolicy, Bin, Expiration, GenerationPolicy,
    Key as ServerKey, Record as ServerRecord, RecordExistsAction, Value,
    expressions::{Expression, and, eq, int_bin, int_val},
    operations::{self, Operation as ServerOperation, lists},
};

use super::{
    bins::{self, BadRecord, Bins, slot_bytes},
    names,
};
use crate::record::{self, Key, LockRecord, Operation, Outcome, Page, Record, Rules, Slot};

/// More slots than this that changed are written as a whole list.
const MOST_SLOT_WRITES: usize = 256;
/// How much longer than its own expiry the server keeps a lock record: whoever takes it over goes by the expiry, the TTL
/// only clears away what nobody came for. Clocks of machines differ by less.
const LOCK_RECORD_SLACK_S: u64 = 600;

/// A record as it was read.
#[derive(Debug, Clone, Default)]
pub struct Found {
    pub record: Option<Record>,
    generation: u32,
    /// Nobody has looked: it is taken to be absent.
    pub unread: bool,
}

/// Reads a record with what [`rewrite`] compares.
pub fn read(key: ServerKey) -> BatchOperation {
    BatchOperation::read(&BatchReadPolicy::default(), key, aerospike::Bins::All)
}

impl Found {
    /// Taken to be absent.
    pub fn unread() -> Self {
        Found { unread: true, ..Found::default() }
    }

    /// # Errors
    /// The record is damaged.
    pub fn from_server(key: &Key, record: ServerRecord) -> Result<Self, BadRecord> {
        let generation = record.generation;
        Ok(Found { record: Some(bins::decode(key, record.bins)?), generation, unread: false })
    }

    /// The record is still the one that was found, as far as its generation does not tell.
    fn unchanged(&self) -> Option<Expression> {
        let Some(Record::LockRecord(there)) = &self.record else { return None };
        let is = |bin, value: u64| eq(int_bin(bin), int_val(value as i64));
        Some(and(vec![is(names::lock::OWNER, there.owner), is(names::lock::CREATED_AT, there.created_at)]))
    }
}

/// What some operations on one record come to.
#[derive(Debug)]
pub struct Rewritten {
    /// One for each operation, in their order.
    pub outcomes: Vec<Outcome>,
    /// What to write; `None`: nothing changed.
    pub write: Option<Box<BatchOperation>>,
    /// See [`Found::unread`].
    pub unread: bool,
}

/// Does the operations one after the other to what was found.
pub fn rewrite(rules: &Rules, key: &Key, server_key: ServerKey, found: &Found, operations: &[&Operation]) -> Rewritten {
    let mut record = found.record.clone();
    let mut changed = false;
    let mut outcomes = Vec::with_capacity(operations.len());
    let mut at = 0;
    while at < operations.len() {
        let spends: Vec<_> = operations[at..].iter().map_while(|operation| as_spend(operation)).cloned().collect();
        let effects = match spends.len() {
            0 | 1 => vec![record::apply(rules, key, &mut record, operations[at])],
            // A parent with many children at once: its body is walked once.
            _ => record::spend_all(rules, &mut record, &spends),
        };
        at += effects.len();
        for effect in effects {
            changed |= effect.changed;
            outcomes.push(effect.outcome);
        }
    }
    let write = changed.then(|| compile(key, server_key, found, record.as_ref(), now_ms(operations))).flatten();
    Rewritten { outcomes, write, unread: found.unread }
}

fn as_spend<'a>(operation: &&'a Operation) -> Option<&'a record::Spend> {
    match operation {
        Operation::Spend(spend) => Some(spend),
        _ => None,
    }
}

/// The time that an acquisition goes by.
fn now_ms(operations: &[&Operation]) -> u64 {
    let times = operations.iter().filter_map(|operation| match operation {
        Operation::AcquireLockRecord { now_ms, .. } => Some(*now_ms),
        _ => None,
    });
    times.max().unwrap_or_default()
}

/// The write that makes the record found the new one; `None` where the two are the same after all.
fn compile(
    key: &Key,
    server_key: ServerKey,
    found: &Found,
    new: Option<&Record>,
    now_ms: u64,
) -> Option<Box<BatchOperation>> {
    let Some(new) = new else {
        found.record.as_ref()?;
        let policy = BatchDeletePolicy {
            generation_policy: GenerationPolicy::ExpectGenEqual,
            generation: found.generation,
            filter_expression: found.unchanged(),
            ..BatchDeletePolicy::default()
        };
        return Some(Box::new(BatchOperation::delete(&policy, server_key)));
    };
    let bins = bins::encode(key, new);
    let mut policy = BatchWritePolicy { expiration: Expiration::Never, ..BatchWritePolicy::default() };
    if let Record::LockRecord(lock_record) = new {
        policy.expiration = Expiration::Seconds(time_to_live(lock_record, now_ms));
    }
    let operations = match &found.record {
        None => {
            policy.record_exists_action = RecordExistsAction::CreateOnly;
            put_all(bins)
        }
        Some(old) => {
            policy.record_exists_action = RecordExistsAction::UpdateOnly;
            policy.generation_policy = GenerationPolicy::ExpectGenEqual;
            policy.generation = found.generation;
            policy.filter_expression = found.unchanged();
            if policy.expiration == Expiration::Never {
                policy.expiration = Expiration::DontUpdate;
            }
            put_difference(key, old, new, bins)
        }
    };
    (!operations.is_empty()).then(|| Box::new(BatchOperation::write(&policy, server_key, operations)))
}

fn time_to_live(lock_record: &LockRecord, now_ms: u64) -> u32 {
    let left = lock_record.expires_at.saturating_sub(now_ms) / 1_000;
    u32::try_from(left + LOCK_RECORD_SLACK_S).unwrap_or(u32::MAX / 2)
}

/// Writes every bin. The client copies name and value out of the bin that it is shown, so one serves for all.
pub fn put_all(bins: Bins) -> Vec<ServerOperation> {
    let mut shown = Bin::new(String::new(), Value::Nil);
    let put = |(name, value): (&str, Value)| {
        shown.name.clear();
        shown.name.push_str(name);
        shown.value = value;
        operations::put(&shown)
    };
    bins.into_iter().map(put).collect()
}

fn put((name, value): (&'static str, Value)) -> ServerOperation {
    operations::put(&Bin::new(name, value))
}

/// Writes the bins that differ, and removes those that are gone.
fn put_difference(key: &Key, old: &Record, new: &Record, bins: Bins) -> Vec<ServerOperation> {
    let before = bins::encode(key, old);
    let gone = before.iter().filter(|(name, _)| !bins.iter().any(|(kept, _)| kept == name));
    let mut operations: Vec<_> = gone.map(|(name, _)| put((name, Value::Nil))).collect();
    let slots = changed_slots(old, new);
    for (name, value) in bins {
        match &slots {
            Some(slots) if name == names::UTXOS => operations.extend(slots.iter().cloned()),
            _ if before.iter().any(|(kept, was)| *kept == name && *was == value) => {}
            _ => operations.push(put((name, value))),
        }
    }
    operations
}

/// The slots that changed, one write each; `None` where the list is better written whole.
fn changed_slots(old: &Record, new: &Record) -> Option<Vec<ServerOperation>> {
    let (old, new) = (slots_of(old)?, slots_of(new)?);
    if old.len() != new.len() {
        return None;
    }
    let changed: Vec<(usize, &Slot)> =
        new.iter().enumerate().filter(|(offset, slot)| old[*offset] != **slot).take(MOST_SLOT_WRITES + 1).collect();
    if changed.len() > MOST_SLOT_WRITES || changed.iter().any(|(_, slot)| **slot == Slot::Nil) {
        return None;
    }
    Some(changed.into_iter().filter_map(|(offset, slot)| set_slot(offset as u32, slot)).collect())
}

fn slots_of(record: &Record) -> Option<&[Slot]> {
    record.page().and_then(|page: &Page| page.utxos.as_deref())
}

/// Writes one slot that is not nil.
fn set_slot(offset: u32, slot: &Slot) -> Option<ServerOperation> {
    let (hash, spender) = slot_bytes(slot)?;
    let bytes = match spender {
        Some(spender) => [&hash[..], &spender].concat(),
        None => hash.to_vec(),
    };
    Some(lists::set(names::UTXOS, offset.into(), Value::Blob(bytes)))
}
