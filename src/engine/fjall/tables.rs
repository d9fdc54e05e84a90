//! The keyspaces of a store and their contents.
//!
//! | keyspace | key | value |
//! |---|---|---|
//! | `records` | see [`crate::engine::key`] | see [`crate::record::codec`] |
//! | `blocks` | block id, big-endian | the same |
//! | `meta` | `m` | the same |
//! | `meta` | command id; `s` ‖ number of a sentinel | the same |
//! | `meta` | `layout` | see [`super::open`] |
//! | `index_*` | value, 8 bytes big-endian ‖ key | empty |

use std::{ops::Bound, sync::atomic::AtomicU64};

use ::fjall::{Database, Keyspace, OwnedWriteBatch as WriteBatch, Slice};
use bytes::Bytes;

use super::txid_filter::TxidFilter;
use crate::{
    engine::{
        Cursor, EngineError, ErrorKind, Index, KeyPage, Set,
        key::{self, KeyBytes},
        local::{IndexValues, index_values},
    },
    record::{Key, Record, codec},
};

/// Records that [`Tables::fill_index`] reads at a time.
const FILL_BATCH: usize = 256;

pub(super) struct Tables {
    pub database: Database,
    pub records: Keyspace,
    pub blocks: Keyspace,
    pub meta: Keyspace,
    /// The indexes, in the order of [`Index::ALL`].
    pub indexes: [Keyspace; Index::ALL.len()],
    pub txid_filter: TxidFilter,
    /// Write groups that were written whole since the store was opened.
    pub groups_written: AtomicU64,
}

impl Tables {
    fn keyspace_of(&self, key: &Key) -> &Keyspace {
        match key {
            Key::Page(..) | Key::LockRecord(_) => &self.records,
            Key::Block(_) => &self.blocks,
            Key::Meta | Key::Command(_) | Key::Sentinel(_) => &self.meta,
        }
    }

    pub fn get(&self, key: &Key) -> Result<Option<Record>, EngineError> {
        if self.txid_filter.is_absent(key) {
            return Ok(None);
        }
        let value = self.keyspace_of(key).get(KeyBytes::of(key)).map_err(|error| disk_error("read", key, &error))?;
        value.map(|value| decode_record("read", key, value)).transpose()
    }

    /// Adds an encoded record, or its removal, to a batch.
    pub fn put(&self, batch: &mut WriteBatch, key: &Key, value: Option<Slice>) {
        let (keyspace, bytes) = (self.keyspace_of(key), KeyBytes::of(key));
        match value {
            Some(value) => {
                self.txid_filter.add(key);
                batch.insert(keyspace, bytes.as_ref(), value);
            }
            None => batch.remove(keyspace, bytes.as_ref()),
        }
    }

    /// Adds the changed index entries to the same batch.
    pub fn reindex(&self, batch: &mut WriteBatch, key: &Key, before: IndexValues, after: IndexValues) {
        for ((index, before), after) in self.indexes.iter().zip(before).zip(after) {
            if before == after {
                continue;
            }
            if let Some(value) = before {
                batch.remove(index, index_entry(value, key));
            }
            if let Some(value) = after {
                batch.insert(index, index_entry(value, key), &[][..]);
            }
        }
    }

    pub fn query(&self, index: Index, from: u64, to: u64, limit: usize) -> Result<Vec<Key>, EngineError> {
        let after_last = to.checked_add(1).map_or(Bound::Unbounded, |end| Bound::Excluded(end.to_be_bytes()));
        if from > to {
            return Ok(Vec::new());
        }
        let entries = self.indexes[index as usize].range((Bound::Included(from.to_be_bytes()), after_last));
        let key_of = |entry: ::fjall::Guard| {
            let entry = entry.key().map_err(|error| disk_error("query", "index", &error))?;
            entry.get(8..).and_then(key::decode).ok_or_else(|| damaged_error("query", "index", "an entry is not a key"))
        };
        entries.take(limit).map(key_of).collect()
    }

    /// Returns at most `limit` keys of an index after the entry `after`, with the entry at which the next part begins.
    pub fn query_part(
        &self,
        index: Index,
        (from, to): (u64, u64),
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<KeyPage, EngineError> {
        if from > to {
            return Ok(KeyPage::default());
        }
        let first = from.to_be_bytes();
        let after_last = to.checked_add(1).map(u64::to_be_bytes);
        // A cursor of another query can lie outside of the range.
        if after.is_some_and(|after| after_last.is_some_and(|end| after >= &end[..])) {
            return Ok(KeyPage::default());
        }
        let start = after.filter(|after| *after >= &first[..]).map_or(Bound::Included(&first[..]), Bound::Excluded);
        let end = after_last.as_ref().map_or(Bound::Unbounded, |end| Bound::Excluded(&end[..]));
        let (mut keys, mut after) = (Vec::new(), Vec::new());
        for entry in self.indexes[index as usize].range::<&[u8], _>((start, end)).take(limit) {
            let entry = entry.key().map_err(|error| disk_error("query", "index", &error))?;
            let key = entry.get(8..).and_then(key::decode);
            keys.push(key.ok_or_else(|| damaged_error("query", "index", "an entry is not a key"))?);
            after.push(Cursor(entry.to_vec()));
        }
        let next = after.last().filter(|_| keys.len() == limit).cloned();
        Ok(KeyPage { keys, after, next })
    }

    pub fn scan(&self, set: Set, after: Option<Key>, limit: usize) -> Result<Vec<(Key, Record)>, EngineError> {
        let keyspace = match set {
            Set::Transactions => &self.records,
            Set::Blocks => &self.blocks,
            Set::Commands => &self.meta,
        };
        let from = after.as_ref().map_or(Bound::Unbounded, |key| Bound::Excluded(KeyBytes::of(key)));
        let record_of = |entry: ::fjall::Guard| {
            let (bytes, value) = entry.into_inner().map_err(|error| disk_error("scan", "records", &error))?;
            let key = key::decode(&bytes).ok_or_else(|| damaged_error("scan", hex::encode(&bytes), "not a key"))?;
            decode_record("scan", &key, value).map(|record| (key, record))
        };
        keyspace.range::<KeyBytes, _>((from, Bound::Unbounded)).take(limit).map(record_of).collect()
    }

    /// Returns at most `limit` command records after `after`. Their keyspace has other records, too.
    pub fn scan_commands(&self, after: Option<[u8; 16]>, limit: usize) -> Result<Vec<(Key, Record)>, EngineError> {
        let from = after.as_ref().map_or(Bound::Unbounded, |id| Bound::Excluded(&id[..]));
        let mut found = Vec::new();
        for entry in self.meta.range::<&[u8], _>((from, Bound::Unbounded)) {
            let (bytes, value) = entry.into_inner().map_err(|error| disk_error("scan", "commands", &error))?;
            let Some(key @ Key::Command(_)) = key::decode(&bytes) else { continue };
            found.push((key, decode_record("scan", &key, value)?));
            if found.len() == limit {
                break;
            }
        }
        Ok(found)
    }

    /// Adds the entries of all records to an index. A repeat changes nothing.
    pub fn fill_index(&self, index: Index) -> Result<(), EngineError> {
        let mut after = None;
        loop {
            let records = self.scan(Set::Transactions, after, FILL_BATCH)?;
            let mut batch = WriteBatch::with_capacity(self.database.clone(), records.len());
            for (key, record) in &records {
                if let Some(value) = index_values(Some(record))[index as usize] {
                    batch.insert(&self.indexes[index as usize], index_entry(value, key), &[][..]);
                }
            }
            batch.commit().map_err(|error| disk_error("fill", "index", &error))?;
            match records.last() {
                Some((key, _)) => after = Some(*key),
                None => return Ok(()),
            }
        }
    }
}

fn index_entry(value: u64, key: &Key) -> Slice {
    let key = KeyBytes::of(key);
    let key = key.as_ref();
    let mut bytes = [0; 8 + KeyBytes::MAX];
    bytes[..8].copy_from_slice(&value.to_be_bytes());
    bytes[8..8 + key.len()].copy_from_slice(key);
    Slice::from(&bytes[..8 + key.len()])
}

/// Decodes a value without copying it: the record shares the memory of the value.
fn decode_record(operation: &'static str, key: &Key, value: Slice) -> Result<Record, EngineError> {
    codec::decode(key, Bytes::from_owner(value)).map_err(|error| damaged_error(operation, key, &error.to_string()))
}

/// Makes the error of a failed disk access. The request itself may be right.
pub(super) fn disk_error(operation: &'static str, key: impl ToString, error: &::fjall::Error) -> EngineError {
    EngineError { kind: ErrorKind::Fatal, operation, key: key.to_string(), message: super::open::describe_error(error) }
}

/// Makes the error of stored bytes that differ from what was written.
pub(super) fn damaged_error(operation: &'static str, key: impl ToString, problem: &str) -> EngineError {
    let message = format!("the store is damaged: {problem}");
    EngineError { kind: ErrorKind::Fatal, operation, key: key.to_string(), message }
}
