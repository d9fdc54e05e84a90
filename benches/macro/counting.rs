//! An engine that counts what it is given, and notes it where it is to be done again.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use async_trait::async_trait;
use utxo_store::{
    engine::{Cursor, EngineError, Index, RecordEngine, Row, ScanPage, Set},
    record::{Key, Operation, Outcome, Record, SpendingData},
    tx::Txid,
};

/// In front of an engine.
pub struct Counting {
    inner: Arc<dyn RecordEngine>,
    rows: AtomicU64,
    batches: AtomicU64,
    notes: Option<Mutex<Vec<Note>>>,
}

/// What a row did to a page: put it there, or not, with these slots taken. Holds no page alive.
#[derive(Debug, Clone)]
pub struct Note {
    pub txid: Txid,
    pub creates: bool,
    pub taken: Vec<(u32, SpendingData)>,
}

impl Note {
    fn of(row: &Row) -> Note {
        match (&row.key, &row.operation) {
            (Key::Page(txid, 0), Operation::Create(page)) => {
                let slots = page.utxos.iter().flatten().zip(0..);
                let taken = slots.filter_map(|(slot, offset)| Some((offset, slot.spender()?))).collect();
                Note { txid: *txid, creates: true, taken }
            }
            (Key::Page(txid, 0), Operation::Spend(spend)) => {
                let by = |input| SpendingData { txid: spend.spender, input };
                let taken = spend.slots.iter().map(|slot| (slot.offset, by(slot.input))).collect();
                Note { txid: *txid, creates: false, taken }
            }
            _ => panic!("the fast path creates and spends: {row:?}"),
        }
    }
}

impl Counting {
    /// So many rows are noted, for [`take_notes`](Self::take_notes), into memory that is there already.
    pub fn new(inner: Arc<dyn RecordEngine>, noted: usize) -> Self {
        let blank = Note { txid: Txid::default(), creates: false, taken: Vec::new() };
        let notes = (noted > 0).then(|| {
            let mut notes = vec![blank; noted];
            notes.clear();
            Mutex::new(notes)
        });
        Counting { inner, rows: AtomicU64::new(0), batches: AtomicU64::new(0), notes }
    }

    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    pub fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    /// The rows, in the order of the calls.
    pub fn take_notes(&self) -> Vec<Note> {
        self.notes
            .as_ref()
            .map_or_else(Vec::new, |notes| std::mem::take(&mut *notes.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

#[async_trait]
impl RecordEngine for Counting {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    async fn apply(&self, rows: &[Row]) -> Vec<Result<Outcome, EngineError>> {
        self.rows.fetch_add(rows.len() as u64, Ordering::Relaxed);
        self.batches.fetch_add(1, Ordering::Relaxed);
        if let Some(notes) = &self.notes {
            notes.lock().unwrap_or_else(PoisonError::into_inner).extend(rows.iter().map(Note::of));
        }
        self.inner.apply(rows).await
    }

    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>> {
        self.inner.read(keys).await
    }

    async fn query(&self, index: Index, from: u64, to: u64, limit: usize) -> Result<Vec<Key>, EngineError> {
        self.inner.query(index, from, to, limit).await
    }

    async fn scan(&self, set: Set, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
        self.inner.scan(set, cursor, limit).await
    }

    async fn close(&self) -> Result<(), EngineError> {
        self.inner.close().await
    }
}
