//! Which transactions have records, roughly: so that a record which is not there need not be looked for.
//!
//! Nearly every create is of a transaction that nobody has seen. To learn that from fjall takes a search through its
//! memory, which finds nothing and costs as much as writing the record. A Bloom filter tells it at once: what was never
//! added is absent for certain; what seems to be there is looked for. Nothing is ever taken out, so it cannot be stale,
//! only less useful.

use std::{
    fmt::Display,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use super::tables::{Tables, damaged, disk};
use crate::{
    engine::{
        EngineError,
        key::{self, first_bytes},
    },
    record::Key,
    tx::Txid,
};

/// Transactions of which something is stored.
pub(super) struct Known {
    lines: Box<[Line]>,
    /// Whether all that is stored has been added.
    complete: AtomicBool,
    given_up: AtomicBool,
}

/// A transaction has one bit in each word of one line: a question touches memory once.
#[repr(align(64))]
#[derive(Default)]
struct Line([AtomicU64; 8]);

impl Known {
    /// About `bytes` large, which is good for as many transactions: then one of forty that are absent is looked for all the
    /// same. `complete` where nothing is stored yet.
    pub fn new(bytes: u64, complete: bool) -> Self {
        let lines = (bytes / size_of::<Line>() as u64).max(1);
        Known {
            lines: (0..lines).map(|_| Line::default()).collect(),
            complete: AtomicBool::new(complete),
            given_up: AtomicBool::new(false),
        }
    }

    /// For how many transactions it is good.
    fn good_for(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }

    /// Before what is written becomes visible.
    pub fn add(&self, key: &Key) {
        if let Some(txid) = transaction(key) {
            for (word, bit) in self.line(key).zip(bits(txid)) {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    /// `true`: there is no such record. `false`: there may be one.
    pub fn is_absent(&self, key: &Key) -> bool {
        let Some(txid) = transaction(key) else { return false };
        self.complete.load(Ordering::Acquire)
            && self.line(key).zip(bits(txid)).any(|(word, bit)| word.load(Ordering::Relaxed) & bit == 0)
    }

    /// Lines ascend as keys do, so who asks for many in order walks through memory once.
    fn line(&self, key: &Key) -> impl Iterator<Item = &AtomicU64> {
        let place = (u128::from(first_bytes(key)) * self.lines.len() as u128) >> 64;
        self.lines[place as usize].0.iter()
    }
}

fn transaction(key: &Key) -> Option<&Txid> {
    match key {
        Key::Page(txid, _) | Key::LockRecord(txid) => Some(txid),
        Key::Block(_) | Key::Meta | Key::Command(_) | Key::Sentinel(_) => None,
    }
}

/// A bit for each word. An id is a hash already; these of its bytes have not chosen the line.
fn bits(txid: &Txid) -> impl Iterator<Item = u64> {
    txid.0[8..].iter().map(|byte| 1 << (byte % 64))
}

/// Adds what was stored before the store was opened, on a thread of its own; whatever is written from now on is added by
/// who writes it. Until it has come to its end nothing is known to be absent. Dropped, it gives up.
pub(super) struct Learner {
    tables: Arc<Tables>,
    thread: Option<JoinHandle<Result<(), EngineError>>>,
}

impl Learner {
    pub fn start(tables: &Arc<Tables>) -> Self {
        let learned = tables.clone();
        let thread = std::thread::Builder::new().name("fjall-learner".into()).spawn(move || add_all(&learned));
        let thread = thread.inspect_err(|error| without(error)).ok();
        Learner { tables: tables.clone(), thread }
    }

    /// Waits until it has come to its end.
    fn join(&mut self) {
        match self.thread.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => {}
            Some(Ok(Err(error))) => without(&error),
            Some(Err(_)) => without(&"the learner panicked"),
        }
    }
}

impl Drop for Learner {
    fn drop(&mut self) {
        self.tables.known.given_up.store(true, Ordering::Relaxed);
        self.join();
    }
}

/// Nothing is wrong, but for the time that it takes.
fn without(why: &dyn Display) {
    tracing::warn!(%why, "could not learn what is stored: every record was looked for, there or not");
}

fn add_all(tables: &Tables) -> Result<(), EngineError> {
    let known = &tables.known;
    if known.complete.load(Ordering::Acquire) {
        return Ok(());
    }
    // Counts what was overwritten, too.
    let stored = tables.records.approximate_len();
    if stored / 2 > known.good_for() {
        tracing::info!(
            stored,
            "the cache is too small to know what is stored: every record is looked for, there or not"
        );
        return Ok(());
    }
    for entry in tables.records.iter() {
        if known.given_up.load(Ordering::Relaxed) {
            return Ok(());
        }
        let bytes = entry.key().map_err(|error| disk("read", "records", &error))?;
        known.add(&key::decode(&bytes).ok_or_else(|| damaged("read", hex::encode(&bytes), "not a key"))?);
    }
    known.complete.store(true, Ordering::Release);
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
    fn what_was_added_is_never_absent_and_most_of_the_rest_is() {
        let known = Known::new(20_000, true);
        (0..20_000).for_each(|number| known.add(&key(number)));
        assert!((0..20_000).all(|number| !known.is_absent(&key(number))));
        let looked_for = (20_000..40_000).filter(|number| !known.is_absent(&key(*number))).count();
        assert!(looked_for < 20_000 / 30, "{looked_for}");
    }

    #[test]
    fn all_records_of_a_transaction_are_known_by_one() {
        let known = Known::new(1 << 10, true);
        known.add(&Key::Page(txid_of("known", 1), 3));
        assert!(!known.is_absent(&key(1)) && !known.is_absent(&Key::LockRecord(txid_of("known", 1))));
    }

    #[test]
    fn what_is_no_transaction_is_always_looked_for() {
        let known = Known::new(1 << 10, true);
        assert!(!known.is_absent(&Key::Meta) && !known.is_absent(&Key::Block(7)));
    }

    #[test]
    fn nothing_is_absent_before_all_is_known() {
        assert!(!Known::new(1 << 10, false).is_absent(&key(1)));
    }

    #[test]
    fn what_was_stored_before_the_opening_is_learnt() {
        let directory = tempfile::tempdir().unwrap();
        let opened = || Arc::new(open::open(directory.path(), FjallOptions { cache_bytes: 1 << 20 }).unwrap());
        let tables = opened();
        assert!(tables.known.is_absent(&key(1)), "the store is new");
        (0..100).for_each(|n| tables.records.insert(KeyBytes::of(&key(n)).as_ref(), [0]).unwrap());
        tables.database.persist(PersistMode::SyncAll).unwrap();
        drop(tables);

        let tables = opened();
        assert!((0..200).all(|number| !tables.known.is_absent(&key(number))), "who knows");
        Learner::start(&tables).join();
        assert!((0..100).all(|number| !tables.known.is_absent(&key(number))));
        assert!((100..200).any(|number| tables.known.is_absent(&key(number))));
        drop(tables);

        let known = Known::new(1, false);
        let tables = Tables { known, ..Arc::into_inner(opened()).unwrap() };
        (0..200).for_each(|n| tables.records.insert(KeyBytes::of(&key(n)).as_ref(), [0]).unwrap());
        let tables = Arc::new(tables);
        Learner::start(&tables).join();
        assert!((200..300).all(|number| !tables.known.is_absent(&key(number))), "it would be full");
    }
}
