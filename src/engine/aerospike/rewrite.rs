//! Any operation, through the pure function: the record as it was read, the effect of [`crate::record::apply`], and a
//! write that takes effect only if the record still is as it was read.
//!
//! The write compares the record's generation, which every write raises; for an absent record the write is create-only.
//! A lock record can be deleted and created again with the same generation, so its owner and creation time are
//! compared, too.

use aerospike::{
    BatchDeletePolicy, BatchOperation, BatchReadPolicy, BatchWritePolicy, Bin, Expiration, GenerationPolicy,
    Key as ServerKey, Record as ServerRecord, RecordExistsAction, Value,
    expressions::{Expression, and, eq, int_bin, int_val},
    operations::{self, Operation as ServerOperation, lists},
};

use super::{
    bins::{self, AmountSizes, BadRecord, Bins, slot_bytes},
    layout::Layout,
    names,
};
use crate::record::{self, Key, LockRecord, Operation, Outcome, Page, Record, Rejection, Rules, Slot};

/// Changed slots that are written one by one, at most. More changed slots are written as a whole list.
const MAX_SLOT_WRITES: usize = 256;
/// Seconds by which the TTL of a lock record outlasts its expiry. A takeover goes by the expiry; the TTL only removes
/// lock records that no instance takes over. Clocks of machines differ by less.
const LOCK_RECORD_SLACK_S: u64 = 600;

/// A record as it was read, or the assumption that it is absent.
#[derive(Debug, Clone, Default)]
pub struct RecordVersion {
    pub record: Option<Record>,
    generation: u32,
    /// Blind: the record was not read and is taken to be absent.
    pub is_blind: bool,
}

/// Reads a record with the generation that [`rewrite`] compares.
pub fn read(key: ServerKey) -> BatchOperation {
    BatchOperation::read(&BatchReadPolicy::default(), key, aerospike::Bins::All)
}

impl RecordVersion {
    /// Returns a version for a record that was not read and is taken to be absent.
    pub fn blind() -> Self {
        RecordVersion { is_blind: true, ..RecordVersion::default() }
    }

    /// Decodes a record that the server returned.
    ///
    /// # Errors
    /// The record is damaged.
    pub fn from_server(layout: Layout, key: &Key, record: ServerRecord) -> Result<Self, BadRecord> {
        let generation = record.generation;
        Ok(RecordVersion { record: Some(bins::decode(layout, key, record.bins)?), generation, is_blind: false })
    }

    /// Returns a filter for records that the generation does not identify: lock records.
    fn lock_record_filter(&self) -> Option<Expression> {
        let Some(Record::LockRecord(lock_record)) = &self.record else { return None };
        let equals = |bin, value: u64| eq(int_bin(bin), int_val(value as i64));
        let owner = equals(names::lock::OWNER, lock_record.owner);
        Some(and(vec![owner, equals(names::lock::CREATED_AT, lock_record.created_at)]))
    }
}

/// The result of some operations on one record.
#[derive(Debug)]
pub struct Rewrite {
    /// Outcomes of the operations, in their order.
    pub outcomes: Vec<Outcome>,
    /// The write; `None` where the record does not change.
    pub write: Option<Box<BatchOperation>>,
    /// Copied from the version: the record was not read.
    pub is_blind: bool,
}

impl Rewrite {
    /// Adds a touch where an operation found its effect in place: the server sends the whole record to the other
    /// copies, and answers once these have the record. Another refused operation adds nothing: its event comes again.
    pub fn copy_again(&mut self, key: ServerKey, operations: &[&Operation]) {
        let is_in_place = |(operation, outcome): (&&Operation, &Outcome)| match outcome {
            Outcome::AlreadyApplied(_) | Outcome::Rejected(Rejection::Exists(_)) => true,
            // A refused sequenced operation has had its effect, or a later one has replaced the effect.
            _ => matches!(operation, Operation::Sequenced(..) | Operation::SequencedAll(_)),
        };
        if operations.iter().zip(&self.outcomes).any(is_in_place) {
            let policy = BatchWritePolicy {
                record_exists_action: RecordExistsAction::UpdateOnly,
                expiration: Expiration::DontUpdate,
                ..BatchWritePolicy::default()
            };
            self.write = Some(Box::new(BatchOperation::write(&policy, key, vec![operations::touch()])));
        }
    }
}

/// Applies the operations, one after the other, to a version of the record.
pub fn rewrite(
    (layout, rules): (Layout, &Rules),
    key: &Key,
    server_key: ServerKey,
    version: &RecordVersion,
    operations: &[&Operation],
) -> Rewrite {
    let mut record = version.record.clone();
    let mut changed = false;
    let mut outcomes = Vec::with_capacity(operations.len());
    let mut at = 0;
    while at < operations.len() {
        let spends: Vec<_> = operations[at..].iter().map_while(|operation| operation.spend()).cloned().collect();
        let effects = match spends.len() {
            0 | 1 => vec![record::apply(rules, key, &mut record, operations[at])],
            // For a parent with many children, `spend_all` walks the parent's body once.
            _ => record::spend_all(rules, &mut record, &spends),
        };
        at += effects.len();
        for effect in effects {
            changed |= effect.changed;
            outcomes.push(effect.outcome);
        }
    }
    let now_ms = acquisition_time_ms(operations);
    let write = changed.then(|| compile_write(layout, (key, server_key), version, record.as_ref(), now_ms)).flatten();
    Rewrite { outcomes, write, is_blind: version.is_blind }
}

/// Returns the time of an acquisition of a lock record, in milliseconds; 0 without one.
fn acquisition_time_ms(operations: &[&Operation]) -> u64 {
    let times = operations.iter().filter_map(|operation| match operation {
        Operation::AcquireLockRecord { now_ms, .. } => Some(*now_ms),
        _ => None,
    });
    times.max().unwrap_or_default()
}

/// Compiles the write that replaces `base` by `new`; `None` where the two have equal bins.
fn compile_write(
    layout: Layout,
    (key, server_key): (&Key, ServerKey),
    base: &RecordVersion,
    new: Option<&Record>,
    now_ms: u64,
) -> Option<Box<BatchOperation>> {
    let Some(new) = new else {
        base.record.as_ref()?;
        let policy = BatchDeletePolicy {
            generation_policy: GenerationPolicy::ExpectGenEqual,
            generation: base.generation,
            filter_expression: base.lock_record_filter(),
            ..BatchDeletePolicy::default()
        };
        return Some(Box::new(BatchOperation::delete(&policy, server_key)));
    };
    let bins = bins::encode(layout, key, new);
    let mut policy = BatchWritePolicy { expiration: Expiration::Never, ..BatchWritePolicy::default() };
    if let Record::LockRecord(lock_record) = new {
        policy.expiration = Expiration::Seconds(lock_record_ttl_s(lock_record, now_ms));
    }
    let operations = match &base.record {
        None => {
            policy.record_exists_action = RecordExistsAction::CreateOnly;
            put_all(bins)
        }
        Some(old) => {
            policy.record_exists_action = RecordExistsAction::UpdateOnly;
            policy.generation_policy = GenerationPolicy::ExpectGenEqual;
            policy.generation = base.generation;
            policy.filter_expression = base.lock_record_filter();
            if policy.expiration == Expiration::Never {
                policy.expiration = Expiration::DontUpdate;
            }
            put_difference(layout, key, (old, new), bins)
        }
    };
    (!operations.is_empty()).then(|| Box::new(BatchOperation::write(&policy, server_key, operations)))
}

fn lock_record_ttl_s(lock_record: &LockRecord, now_ms: u64) -> u32 {
    let remaining_s = lock_record.expires_at.saturating_sub(now_ms) / 1_000;
    u32::try_from(remaining_s + LOCK_RECORD_SLACK_S).unwrap_or(u32::MAX / 2)
}

/// Writes every bin. The client copies name and value out of the bin, so one `Bin` serves for all.
fn put_all(bins: Bins) -> Vec<ServerOperation> {
    let mut bin = Bin::new(String::new(), Value::Nil);
    let put = |(name, value): (&str, Value)| {
        bin.name.clear();
        bin.name.push_str(name);
        bin.value = value;
        operations::put(&bin)
    };
    bins.into_iter().map(put).collect()
}

fn put((name, value): (&'static str, Value)) -> ServerOperation {
    operations::put(&Bin::new(name, value))
}

/// Writes the bins that differ, and removes the bins that `new` does not have.
fn put_difference(layout: Layout, key: &Key, (old, new): (&Record, &Record), bins: Bins) -> Vec<ServerOperation> {
    let before = bins::encode(layout, key, old);
    let removed = before.iter().filter(|(name, _)| !bins.iter().any(|(new, _)| new == name));
    let mut operations: Vec<_> = removed.map(|(name, _)| put((name, Value::Nil))).collect();
    let slots = changed_slots(layout, old, new);
    for (name, value) in bins {
        match &slots {
            Some(slots) if name == names::UTXOS => operations.extend(slots.iter().cloned()),
            _ if before.iter().any(|(old, was)| *old == name && *was == value) => {}
            _ => operations.push(put((name, value))),
        }
    }
    operations
}

/// Returns one write for each changed slot; `None` where the list is better written whole.
fn changed_slots(layout: Layout, old: &Record, new: &Record) -> Option<Vec<ServerOperation>> {
    let pages = [old.page()?, new.page()?];
    let (old, new) = (slots_of(old)?, slots_of(new)?);
    if old.len() != new.len() {
        return None;
    }
    // In `compact` a slot has the size of its output's amount, which a reassignment changes.
    let sizes = (layout == Layout::Compact).then(|| pages.map(AmountSizes::of));
    let size_of = |page: usize, offset| sizes.as_ref().map_or(0, |sizes| sizes[page].at(offset));
    let is_changed = |offset: usize, slot: &Slot| old[offset] != *slot || size_of(0, offset) != size_of(1, offset);
    let changed = new.iter().enumerate().filter(|(offset, slot)| is_changed(*offset, slot));
    let changed: Vec<(usize, &Slot)> = changed.take(MAX_SLOT_WRITES + 1).collect();
    if changed.len() > MAX_SLOT_WRITES || changed.iter().any(|(_, slot)| **slot == Slot::Nil) {
        return None;
    }
    let set = |(offset, slot): (usize, &Slot)| {
        let (hash, spender) = slot_bytes(slot)?;
        let bytes = layout.slot(size_of(1, offset), &hash, spender.as_ref().map_or(&[], |spender| &spender[..]));
        Some(lists::set(names::UTXOS, offset as i64, Value::Blob(bytes)))
    };
    Some(changed.into_iter().filter_map(set).collect())
}

fn slots_of(record: &Record) -> Option<&[Slot]> {
    record.page().and_then(|page: &Page| page.utxos.as_deref())
}
