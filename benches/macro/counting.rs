//! Engine decorator that counts rows and batches, and records the rows for a repetition.

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

/// Decorator of an engine.
pub struct CountingEngine {
    inner: Arc<dyn RecordEngine>,
    rows: AtomicU64,
    batches: AtomicU64,
    notes: Option<Mutex<Vec<RowNote>>>,
}

/// The effect of a row on a page: created or not, and the slots taken. Keeps no page in memory.
#[derive(Debug, Clone)]
pub struct RowNote {
    pub txid: Txid,
    pub creates: bool,
    pub taken: Vec<(u32, SpendingData)>,
}

impl RowNote {
    fn of(row: &Row) -> RowNote {
        match (&row.key, &row.operation) {
            (Key::Page(txid, 0), Operation::Create(page)) => {
                let slots = page.utxos.iter().flatten().zip(0..);
                let taken = slots.filter_map(|(slot, offset)| Some((offset, slot.spender()?))).collect();
                RowNote { txid: *txid, creates: true, taken }
            }
            (Key::Page(txid, 0), Operation::Spend(spend)) => {
                let by = |input| SpendingData { txid: spend.spender, input };
                let taken = spend.slots.iter().map(|slot| (slot.offset, by(slot.input))).collect();
                RowNote { txid: *txid, creates: false, taken }
            }
            _ => panic!("the fast path creates and spends: {row:?}"),
        }
    }
}

impl CountingEngine {
    /// Creates a decorator that records up to `note_capacity` rows for [`take_notes`](Self::take_notes), in
    /// preallocated memory.
    pub fn new(inner: Arc<dyn RecordEngine>, note_capacity: usize) -> Self {
        let blank = RowNote { txid: Txid::default(), creates: false, taken: Vec::new() };
        let notes = (note_capacity > 0).then(|| {
            let mut notes = vec![blank; note_capacity];
            notes.clear();
            Mutex::new(notes)
        });
        CountingEngine { inner, rows: AtomicU64::new(0), batches: AtomicU64::new(0), notes }
    }

    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    pub fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    /// Returns the recorded rows in the order of the calls.
    pub fn take_notes(&self) -> Vec<RowNote> {
        self.notes
            .as_ref()
            .map_or_else(Vec::new, |notes| std::mem::take(&mut *notes.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

#[async_trait]
impl RecordEngine for CountingEngine {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    async fn apply(&self, rows: &[Row]) -> Vec<Result<Outcome, EngineError>> {
        self.rows.fetch_add(rows.len() as u64, Ordering::Relaxed);
        self.batches.fetch_add(1, Ordering::Relaxed);
        if let Some(notes) = &self.notes {
            notes.lock().unwrap_or_else(PoisonError::into_inner).extend(rows.iter().map(RowNote::of));
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
