//! Engines that keep an operation back, so that a scenario can say what happens meanwhile.

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
    engine::{Cursor, EngineError, Incarnation, Index, RecordEngine, Row, ScanPage, Set},
    record::{Key, Operation, Outcome, Record, Sequenced},
    tx::Txid,
};

use crate::world::World;

type Wanted = Box<dyn Fn(&Row) -> bool + Send + Sync>;
type Answer = Result<Outcome, EngineError>;

/// What becomes of the rows that are wanted.
enum Fate {
    /// They wait until they are let go.
    Kept(Mutex<Vec<(Row, oneshot::Sender<Answer>)>>, AtomicBool),
    /// Each is done so much later.
    Late(Duration),
}

/// An engine that keeps back some of the rows; the others of a call are done at once.
pub struct Held {
    inner: Arc<dyn RecordEngine>,
    wanted: Wanted,
    fate: Fate,
}

impl Held {
    /// Keeps the first of such rows until it is let go, whatever becomes of whoever sent it.
    pub fn the_first(world: &World, wanted: impl Fn(&Row) -> bool + Send + Sync + 'static) -> Arc<Self> {
        let met = AtomicBool::new(false);
        Self::until_let_go(world, move |row| wanted(row) && !met.swap(true, Ordering::SeqCst))
    }

    /// Keeps rows until they are let go, whatever becomes of whoever sent them.
    pub fn until_let_go(world: &World, wanted: impl Fn(&Row) -> bool + Send + Sync + 'static) -> Arc<Self> {
        let fate = Fate::Kept(Mutex::default(), AtomicBool::new(false));
        Arc::new(Held { inner: world.store.engine.clone(), wanted: Box::new(wanted), fate })
    }

    /// Calls with such a row are done so much later.
    pub fn late(world: &World, by: Duration, wanted: impl Fn(&Row) -> bool + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Held { inner: world.store.engine.clone(), wanted: Box::new(wanted), fate: Fate::Late(by) })
    }

    /// In rebuilds, rows are done so much later than they would have been.
    pub fn late_in_rebuilds(world: World, by: Duration, wanted: fn(&Row, Txid) -> bool, of: Txid) -> World {
        let wrap = move |inner: Arc<dyn RecordEngine>| -> Arc<dyn RecordEngine> {
            let wanted = Box::new(move |row: &Row| wanted(row, of));
            Arc::new(Held { inner, wanted, fate: Fate::Late(by) })
        };
        World { rebuild_engine: Some(Arc::new(wrap)), ..world }
    }

    /// The same world, as seen by instances that have this engine in front of them.
    pub fn before(self: &Arc<Self>, world: &World) -> World {
        World { nodes: Arc::new(FaultEngine::new(self.clone(), 0)), ..world.clone() }
    }

    /// How many rows are kept.
    pub fn kept(&self) -> usize {
        match &self.fate {
            Fate::Kept(rows, _) => rows.lock().unwrap().len(),
            Fate::Late(_) => 0,
        }
    }

    /// Waits until so many rows are kept.
    pub async fn until_kept(&self, count: usize) {
        for _ in 0..100_000 {
            if self.kept() >= count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("{} rows are kept, not {count}", self.kept());
    }

    /// Does what was kept, in its order, and keeps nothing any more; what became of it.
    pub async fn let_go(&self) -> Vec<Outcome> {
        let Fate::Kept(rows, open) = &self.fate else { return Vec::new() };
        open.store(true, Ordering::SeqCst);
        let mut outcomes = Vec::new();
        let kept = std::mem::take(&mut *rows.lock().unwrap());
        for (row, sender) in kept {
            let answer = self.inner.apply(&[row]).await.remove(0);
            outcomes.push(answer.clone().unwrap());
            // Who sent it may be gone.
            let _ = sender.send(answer);
        }
        outcomes
    }
}

#[async_trait::async_trait]
impl RecordEngine for Held {
    fn name(&self) -> &'static str {
        "held"
    }

    async fn apply(&self, rows: &[Row]) -> Vec<Answer> {
        match &self.fate {
            Fate::Late(by) => {
                if rows.iter().any(&self.wanted) {
                    tokio::time::sleep(*by).await;
                }
                self.inner.apply(rows).await
            }
            Fate::Kept(_, open) if open.load(Ordering::SeqCst) => self.inner.apply(rows).await,
            Fate::Kept(kept, _) => {
                let mut answers = Vec::new();
                for row in rows {
                    let (sender, answer) = oneshot::channel();
                    if (self.wanted)(row) {
                        kept.lock().unwrap().push((row.clone(), sender));
                    } else {
                        let _ = sender.send(self.inner.apply(std::slice::from_ref(row)).await.remove(0));
                    }
                    answers.push(answer);
                }
                let mut outcomes = Vec::new();
                for answer in answers {
                    outcomes.push(answer.await.expect("whoever lets go answers"));
                }
                outcomes
            }
        }
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

    fn may_forget(&self) -> Duration {
        self.inner.may_forget()
    }

    async fn incarnation(&self) -> Result<Incarnation, EngineError> {
        self.inner.incarnation().await
    }
}

/// A spend of an output of `parent` by `spender`.
pub fn is_spend(row: &Row, parent: Txid, spender: Txid) -> bool {
    row.key == Key::master(parent) && is_spend_by(row, spender)
}

/// A spend by `spender`.
pub fn is_spend_by(row: &Row, spender: Txid) -> bool {
    matches!(&row.operation, Operation::Spend(spend) if spend.spender == spender)
}

/// A write of the whole transaction, contested or not.
pub fn is_create_of(row: &Row, txid: Txid) -> bool {
    row.key == Key::master(txid) && matches!(&row.operation, Operation::Create(_) | Operation::CreateContested(_))
}

/// Whether the fast path does anything for `txid`.
pub fn is_work_of(row: &Row, txid: Txid) -> bool {
    is_create_of(row, txid) || is_spend_by(row, txid)
}

/// An operation of the sequencer on `txid` that `wanted` picks.
pub fn is_sequenced(row: &Row, txid: Txid, wanted: fn(&Sequenced) -> bool) -> bool {
    row.key == Key::master(txid) && matches!(&row.operation, Operation::Sequenced(_, operation) if wanted(operation))
}
