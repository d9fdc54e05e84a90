//! A Bloom filter over the transactions with records, so that an absent record need not be searched.
//!
//! Nearly every create is of a new transaction. A search of fjall's memory for its record finds nothing and costs as
//! much as writing the record. The filter answers from one cache line: a transaction that was never added is absent for
//! certain, and any other is searched. Transactions are never removed, so the filter cannot be wrong, only less useful.

use std::{
    fmt::Display,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use super::tables::{Tables, damaged_error, disk_error};
use crate::{
    engine::{
        EngineError,
        key::{self, first_bytes},
    },
    record::Key,
    tx::Txid,
};

/// Transactions with records. The filter can err only towards "present".
pub(super) struct TxidFilter {
    lines: Box<[CacheLine]>,
    /// True once every stored transaction has been added.
    is_complete: AtomicBool,
    is_cancelled: AtomicBool,
}

/// A line of the filter. A transaction sets one bit in each word of one line, so that a look-up touches memory once.
#[repr(align(64))]
#[derive(Default)]
struct CacheLine([AtomicU64; 8]);

impl TxidFilter {
    /// Makes a filter of about `bytes` bytes, for as many transactions: then one of forty absent transactions is
    /// searched all the same. `is_complete`: the store is empty.
    pub fn new(bytes: u64, is_complete: bool) -> Self {
        let lines = (bytes / size_of::<CacheLine>() as u64).max(1);
        TxidFilter {
            lines: (0..lines).map(|_| CacheLine::default()).collect(),
            is_complete: AtomicBool::new(is_complete),
            is_cancelled: AtomicBool::new(false),
        }
    }

    /// Returns the number of transactions up to which the filter is useful.
    fn capacity(&self) -> usize {
        self.lines.len() * size_of::<CacheLine>()
    }

    /// Adds the transaction of a key. Must be called before the record becomes visible.
    pub fn add(&self, key: &Key) {
        if let Some(txid) = txid_of_key(key) {
            for (word, bit) in self.words_of(key).zip(bits_of(txid)) {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    /// Returns whether the record is absent for certain.
    pub fn is_absent(&self, key: &Key) -> bool {
        let Some(txid) = txid_of_key(key) else { return false };
        self.is_complete.load(Ordering::Acquire)
            && self.words_of(key).zip(bits_of(txid)).any(|(word, bit)| word.load(Ordering::Relaxed) & bit == 0)
    }

    /// Returns the words of a key's line. Lines ascend as keys do, so look-ups in key order walk through memory once.
    fn words_of(&self, key: &Key) -> impl Iterator<Item = &AtomicU64> {
        let line = (u128::from(first_bytes(key)) * self.lines.len() as u128) >> 64;
        self.lines[line as usize].0.iter()
    }
}

fn txid_of_key(key: &Key) -> Option<&Txid> {
    match key {
        Key::Page(txid, _) | Key::LockRecord(txid) => Some(txid),
        Key::Block(_) | Key::Meta | Key::Command(_) | Key::Sentinel(_) => None,
    }
}

/// Returns a bit for each word. A txid is a hash already; its first 8 bytes choose the line, the next 8 the bits.
fn bits_of(txid: &Txid) -> impl Iterator<Item = u64> {
    txid.0[8..].iter().map(|byte| 1 << (byte % 64))
}

/// Adds the stored transactions to the filter, on a thread of its own. Until the thread has ended, no record is known
/// to be absent. Transactions written meanwhile are added by their writers. Dropping the loader cancels it.
pub(super) struct FilterLoader {
    tables: Arc<Tables>,
    thread: Option<JoinHandle<Result<(), EngineError>>>,
}

impl FilterLoader {
    pub fn start(tables: &Arc<Tables>) -> Self {
        let thread_tables = tables.clone();
        let builder = std::thread::Builder::new().name("fjall-learner".into());
        let thread = builder.spawn(move || load_filter(&thread_tables));
        let thread = thread.inspect_err(|error| warn_unused(error)).ok();
        FilterLoader { tables: tables.clone(), thread }
    }

    /// Waits for the thread to end.
    fn join(&mut self) {
        match self.thread.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => {}
            Some(Ok(Err(error))) => warn_unused(&error),
            Some(Err(_)) => warn_unused(&"the loader panicked"),
        }
    }
}

impl Drop for FilterLoader {
    fn drop(&mut self) {
        self.tables.txid_filter.is_cancelled.store(true, Ordering::Relaxed);
        self.join();
    }
}

/// Warns that the filter stays unused. Only speed is lost.
fn warn_unused(cause: &dyn Display) {
    tracing::warn!(%cause, "fjall: the filter of stored transactions was not loaded; absent records are searched, too");
}

fn load_filter(tables: &Tables) -> Result<(), EngineError> {
    let filter = &tables.txid_filter;
    if filter.is_complete.load(Ordering::Acquire) {
        return Ok(());
    }
    // The length counts overwritten versions, too.
    let stored = tables.records.approximate_len();
    if stored / 2 > filter.capacity() {
        tracing::info!(
            stored,
            "fjall: the cache is too small for a filter of stored transactions; absent records are searched, too"
        );
        return Ok(());
    }
    for entry in tables.records.iter() {
        if filter.is_cancelled.load(Ordering::Relaxed) {
            return Ok(());
        }
        let bytes = entry.key().map_err(|error| disk_error("read", "records", &error))?;
        filter.add(&key::decode(&bytes).ok_or_else(|| damaged_error("read", hex::encode(&bytes), "not a key"))?);
    }
    filter.is_complete.store(true, Ordering::Release);
    Ok(())
}

#[cfg(test)]
mod tests {
    use ::fjall::PersistMode;

    use super::*;
    use crate::engine::{
        conformance::fixtures::txid_of,
        fjall::{FjallOptions, open},
        key::KeyBytes,
    };

    fn key(number: u64) -> Key {
        Key::master(txid_of("known", number))
    }

    #[test]
    fn added_records_are_never_absent_and_most_others_are() {
        let filter = TxidFilter::new(20_000, true);
        (0..20_000).for_each(|number| filter.add(&key(number)));
        assert!((0..20_000).all(|number| !filter.is_absent(&key(number))));
        let looked_for = (20_000..40_000).filter(|number| !filter.is_absent(&key(*number))).count();
        assert!(looked_for < 20_000 / 30, "{looked_for}");
    }

    #[test]
    fn one_record_adds_all_records_of_its_transaction() {
        let filter = TxidFilter::new(1 << 10, true);
        filter.add(&Key::Page(txid_of("known", 1), 3));
        assert!(!filter.is_absent(&key(1)) && !filter.is_absent(&Key::LockRecord(txid_of("known", 1))));
    }

    #[test]
    fn records_other_than_transactions_are_always_searched() {
        let filter = TxidFilter::new(1 << 10, true);
        assert!(!filter.is_absent(&Key::Meta) && !filter.is_absent(&Key::Block(7)));
    }

    #[test]
    fn no_record_is_absent_before_the_filter_is_complete() {
        assert!(!TxidFilter::new(1 << 10, false).is_absent(&key(1)));
    }

    #[test]
    fn the_loader_adds_records_stored_before_the_opening() {
        let directory = tempfile::tempdir().unwrap();
        let opened = || Arc::new(open::open(directory.path(), FjallOptions { cache_bytes: 1 << 20 }).unwrap());
        let tables = opened();
        assert!(tables.txid_filter.is_absent(&key(1)), "the store is new");
        (0..100).for_each(|n| tables.records.insert(KeyBytes::of(&key(n)).as_ref(), [0]).unwrap());
        tables.database.persist(PersistMode::SyncAll).unwrap();
        drop(tables);

        let tables = opened();
        assert!((0..200).all(|number| !tables.txid_filter.is_absent(&key(number))), "the filter is not loaded");
        FilterLoader::start(&tables).join();
        assert!((0..100).all(|number| !tables.txid_filter.is_absent(&key(number))));
        assert!((100..200).any(|number| tables.txid_filter.is_absent(&key(number))));
        drop(tables);

        let filter = TxidFilter::new(1, false);
        let tables = Tables { txid_filter: filter, ..Arc::into_inner(opened()).unwrap() };
        (0..200).for_each(|n| tables.records.insert(KeyBytes::of(&key(n)).as_ref(), [0]).unwrap());
        let tables = Arc::new(tables);
        FilterLoader::start(&tables).join();
        assert!((200..300).all(|number| !tables.txid_filter.is_absent(&key(number))), "the filter is too small");
    }
}
