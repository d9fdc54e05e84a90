//! Engine decorators that hold or delay chosen rows, so that a scenario controls what happens meanwhile.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::oneshot;
use utxo_store::{
    engine::fault::FaultEngine,
    engine::{self, EngineError, RecordEngine, Row},
    record::{Key, Operation, Outcome, Sequenced},
    tx::Txid,
};

use crate::harness::World;

type RowFilter = Box<dyn Fn(&Row) -> bool + Send + Sync>;
type Answer = Result<Outcome, EngineError>;

/// Handling of the chosen rows.
enum RowHandling {
    /// The rows wait for [`HoldingEngine::release`].
    Hold(Mutex<Vec<(Row, oneshot::Sender<Answer>)>>, AtomicBool),
    /// Each call with such a row is applied after this time.
    Delay(Duration),
}

/// Engine that holds some of the rows; the others of a call are applied at once.
pub struct HoldingEngine {
    inner: Arc<dyn RecordEngine>,
    is_wanted: RowFilter,
    handling: RowHandling,
}

impl HoldingEngine {
    /// Holds the first of these rows until the release, whatever becomes of its sender.
    pub fn hold_first(world: &World, is_wanted: impl Fn(&Row) -> bool + Send + Sync + 'static) -> Arc<Self> {
        let has_held = AtomicBool::new(false);
        Self::hold_all(world, move |row| is_wanted(row) && !has_held.swap(true, Ordering::SeqCst))
    }

    /// Holds all of these rows until the release, whatever becomes of their senders.
    pub fn hold_all(world: &World, is_wanted: impl Fn(&Row) -> bool + Send + Sync + 'static) -> Arc<Self> {
        let handling = RowHandling::Hold(Mutex::default(), AtomicBool::new(false));
        Arc::new(HoldingEngine { inner: world.store.engine.clone(), is_wanted: Box::new(is_wanted), handling })
    }

    /// Delays every call with such a row.
    pub fn delay(world: &World, by: Duration, is_wanted: impl Fn(&Row) -> bool + Send + Sync + 'static) -> Arc<Self> {
        let handling = RowHandling::Delay(by);
        Arc::new(HoldingEngine { inner: world.store.engine.clone(), is_wanted: Box::new(is_wanted), handling })
    }

    /// Delays every call with such a row in rebuilds.
    pub fn delay_in_rebuilds(world: World, by: Duration, is_wanted: fn(&Row, Txid) -> bool, of: Txid) -> World {
        let wrap = move |inner: Arc<dyn RecordEngine>| -> Arc<dyn RecordEngine> {
            let is_wanted = Box::new(move |row: &Row| is_wanted(row, of));
            Arc::new(HoldingEngine { inner, is_wanted, handling: RowHandling::Delay(by) })
        };
        World { rebuild_engine: Some(Arc::new(wrap)), ..world }
    }

    /// Returns the same world for instances that work through this engine.
    pub fn in_front_of(self: &Arc<Self>, world: &World) -> World {
        World { nodes: Arc::new(FaultEngine::new(self.clone(), 0)), ..world.clone() }
    }

    /// Returns the number of held rows.
    pub fn held_count(&self) -> usize {
        match &self.handling {
            RowHandling::Hold(rows, _) => rows.lock().unwrap().len(),
            RowHandling::Delay(_) => 0,
        }
    }

    /// Waits until `count` rows are held.
    pub async fn wait_for_held(&self, count: usize) {
        for _ in 0..100_000 {
            if self.held_count() >= count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("{} rows are held, not {count}", self.held_count());
    }

    /// Applies the held rows in order, holds no more rows, and returns their outcomes.
    pub async fn release(&self) -> Vec<Outcome> {
        let RowHandling::Hold(rows, is_released) = &self.handling else { return Vec::new() };
        is_released.store(true, Ordering::SeqCst);
        let mut outcomes = Vec::new();
        let rows = std::mem::take(&mut *rows.lock().unwrap());
        for (row, sender) in rows {
            let answer = self.inner.apply(&[row]).await.remove(0);
            outcomes.push(answer.clone().unwrap());
            // The sender may have been dropped.
            let _ = sender.send(answer);
        }
        outcomes
    }
}

impl engine::EngineDecorator for HoldingEngine {
    fn inner(&self) -> &dyn RecordEngine {
        &*self.inner
    }

    fn name(&self) -> &'static str {
        "holding"
    }

    async fn apply(&self, rows: &[Row]) -> Vec<Answer> {
        match &self.handling {
            RowHandling::Delay(by) => {
                if rows.iter().any(&self.is_wanted) {
                    tokio::time::sleep(*by).await;
                }
                self.inner.apply(rows).await
            }
            RowHandling::Hold(_, is_released) if is_released.load(Ordering::SeqCst) => self.inner.apply(rows).await,
            RowHandling::Hold(held_rows, _) => {
                let mut answers = Vec::new();
                for row in rows {
                    let (sender, answer) = oneshot::channel();
                    if (self.is_wanted)(row) {
                        held_rows.lock().unwrap().push((row.clone(), sender));
                    } else {
                        let _ = sender.send(self.inner.apply(std::slice::from_ref(row)).await.remove(0));
                    }
                    answers.push(answer);
                }
                let mut outcomes = Vec::new();
                for answer in answers {
                    outcomes.push(answer.await.expect("a release answers every held row"));
                }
                outcomes
            }
        }
    }
}

/// Whether the row is a spend of `parent`'s first page by `spender`.
pub fn is_spend(row: &Row, parent: Txid, spender: Txid) -> bool {
    row.key == Key::master(parent) && is_spend_by(row, spender)
}

/// Whether the row is a spend by `spender`.
pub fn is_spend_by(row: &Row, spender: Txid) -> bool {
    matches!(&row.operation, Operation::Spend(spend) if spend.spender == spender)
}

/// Whether the row creates the master of the transaction, contested or not.
pub fn is_create_of(row: &Row, txid: Txid) -> bool {
    row.key == Key::master(txid) && matches!(&row.operation, Operation::Create(_) | Operation::CreateContested(_))
}

/// Whether the row is an operation of the fast path for `txid`.
pub fn is_work_of(row: &Row, txid: Txid) -> bool {
    is_create_of(row, txid) || is_spend_by(row, txid)
}

/// Whether the row is an operation of the sequencer on `txid` that `wanted` accepts.
pub fn is_sequenced(row: &Row, txid: Txid, is_wanted: fn(&Sequenced) -> bool) -> bool {
    row.key == Key::master(txid)
        && match &row.operation {
            Operation::Sequenced(_, operation) => is_wanted(operation),
            Operation::SequencedAll(operations) => operations.iter().any(|(_, operation)| is_wanted(operation)),
            _ => false,
        }
}
