//! Measured cases: operations on records of several widths.

use std::sync::Arc;

use utxo_store::{
    engine::{RecordEngine, Row, aerospike::AerospikeEngine},
    record::{
        Blob, Body, Key, Marks, MinedIn, Operation, Outcome, Page, Phase, Sequenced, Spend, SpendSlot, Stamp,
        build::{NewTxState, PageParams, Pages, build_pages},
    },
    tx::{Network, Outpoint, Output, Transaction, TransactionBuilder, Txid},
};

use super::{
    BATCH,
    raw::{EngineFeature, RawClient},
    timed::Batch,
};

/// Slots per record: the default of the setting.
pub const PAGE_SIZE: u32 = 20_000;
const SCRIPT: [u8; 25] = [0x51; 25];
/// Rows per batch of set mined: the default of the setting.
const MINED_BATCH: usize = 1_024;

/// A case of the table.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    kind: OperationKind,
    /// Outputs of each transaction.
    outputs: u32,
    records: u32,
    /// Slots spent of each transaction.
    spends: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OperationKind {
    Create,
    Spend,
    SetMined,
    Get,
}

/// Method that runs the operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Floor,
    /// Hand-packed operation with one more feature of the engine.
    Best(EngineFeature),
    Engine,
    /// Engine with the signals of a spend, which the pipeline requests only for pages other than masters.
    Signals,
}

impl Method {
    pub fn name(self) -> &'static str {
        match self {
            Method::Floor => "floor",
            Method::Best(EngineFeature::None) => "best",
            Method::Best(EngineFeature::History) => "best+history",
            Method::Best(EngineFeature::StoredOutput) => "best+stored-output",
            Method::Best(EngineFeature::Signals) => "best+signals",
            Method::Best(EngineFeature::Stamp) => "best+stamp",
            Method::Best(EngineFeature::Blocks) => "best+blocks",
            Method::Engine => "engine",
            Method::Signals => "engine+signals",
        }
    }

    /// Returns the additional feature of the raw client.
    pub fn feature(self) -> EngineFeature {
        match self {
            Method::Best(feature) => feature,
            _ => EngineFeature::None,
        }
    }
}

impl Case {
    pub fn all() -> Vec<Case> {
        let case = |kind, outputs, records, spends| Case { kind, outputs, records, spends };
        vec![
            case(OperationKind::Create, 2, 100_000, 0),
            case(OperationKind::Spend, 2, 100_000, 1),
            case(OperationKind::Spend, 128, 10_000, 8),
            case(OperationKind::Spend, 1_000, 2_000, 20),
            case(OperationKind::Spend, 20_000, 300, 20),
            case(OperationKind::SetMined, 2, 100_000, 0),
            case(OperationKind::Get, 2, 100_000, 0),
        ]
    }

    pub fn name(&self) -> String {
        let what = match self.kind {
            OperationKind::Create => "create",
            OperationKind::Spend => "spend",
            OperationKind::SetMined => "set-mined",
            OperationKind::Get => "get",
        };
        format!("{what}-{}-outputs", self.outputs)
    }

    pub fn methods(&self) -> Vec<Method> {
        let more = match self.kind {
            OperationKind::Spend if self.outputs == 2 => {
                vec![
                    Method::Best(EngineFeature::History),
                    Method::Best(EngineFeature::StoredOutput),
                    Method::Best(EngineFeature::Signals),
                    Method::Signals,
                ]
            }
            OperationKind::SetMined => vec![Method::Best(EngineFeature::Stamp), Method::Best(EngineFeature::Blocks)],
            _ => vec![],
        };
        [Method::Floor, Method::Best(EngineFeature::None), Method::Engine].into_iter().chain(more).collect()
    }

    /// Returns the batches of one method, after creating the records that they need.
    pub async fn prepare(&self, method: Method, engine: &Arc<AerospikeEngine>, raw: &Arc<RawClient>) -> Vec<Batch> {
        let method_index = self.methods().iter().position(|there| *there == method).unwrap_or_default();
        let pages: Vec<Arc<Page>> = (0..self.records).map(|number| Arc::new(self.page(method_index, number))).collect();
        if self.kind != OperationKind::Create || method == Method::Floor {
            for pages in pages.chunks(BATCH.min(2_000_000 / self.outputs as usize).max(1)) {
                apply(engine, pages.iter().map(create).collect()).await;
            }
        }
        let txids: Vec<Txid> = pages.iter().map(|page| page.txid).collect();
        match (method, self.kind) {
            (Method::Floor, _) => batches_of(&txids, BATCH, |txids| raw.clone().put_one(txids)),
            (Method::Best(_), OperationKind::Create) => batches_of(&pages, BATCH, |pages| raw.clone().create(pages)),
            (Method::Best(_), OperationKind::Spend) => batches_of(&self.slots(&pages), BATCH, |slots| {
                raw.clone().spend(slots.into_iter().map(|slot| (slot.0, slot.1.offset, slot.1.utxo_hash().0)).collect())
            }),
            (Method::Best(_), OperationKind::SetMined) => {
                batches_of(&txids, MINED_BATCH, |txids| raw.clone().set_mined(txids))
            }
            (Method::Best(_), OperationKind::Get) => batches_of(&txids, BATCH, |txids| raw.clone().get(txids)),
            (Method::Engine | Method::Signals, OperationKind::Create) => {
                self.rows(engine, pages.iter().map(create).collect(), BATCH)
            }
            (Method::Engine | Method::Signals, OperationKind::Spend) => {
                let signals = method == Method::Signals;
                let rows = self
                    .slots(&pages)
                    .into_iter()
                    .map(|(txid, slot)| spend(Key::master(txid), slot, signals))
                    .collect();
                self.rows(engine, rows, BATCH)
            }
            (Method::Engine | Method::Signals, OperationKind::SetMined) => {
                self.rows(engine, txids.iter().map(|txid| set_mined(*txid)).collect(), MINED_BATCH)
            }
            (Method::Engine | Method::Signals, OperationKind::Get) => batches_of(&txids, BATCH, |txids| {
                let engine = engine.clone();
                async move {
                    let keys: Vec<Key> = txids.into_iter().map(Key::master).collect();
                    let records = engine.read(&keys).await;
                    assert!(records.iter().all(|record| matches!(record, Ok(Some(_)))));
                    records.len()
                }
            }),
        }
    }

    fn rows(&self, engine: &Arc<AerospikeEngine>, rows: Vec<Row>, size: usize) -> Vec<Batch> {
        batches_of(&rows, size, |rows| {
            let engine = engine.clone();
            async move {
                let count = rows.len();
                apply(&engine, rows).await;
                count
            }
        })
    }

    /// Returns the master of a transaction with one input and the outputs of this case; each method and number has
    /// another one.
    fn page(&self, method_index: usize, number: u32) -> Page {
        let mut page = pages(method_index, number, self.outputs).master;
        // The body of a wide transaction is in the blob store, as the documents advise.
        let bins = page.master.as_mut().filter(|_| self.outputs > 128);
        if let Some(body) = bins.and_then(|bins| bins.body.replace(Body::External(Blob::First(None)))) {
            page.amount_sizes = body.amount_sizes(self.outputs as usize);
        }
        page
    }

    /// Returns the slots to spend, every first one before any second one, so that a batch has each record once.
    fn slots(&self, pages: &[Arc<Page>]) -> Vec<(Txid, SpendSlot)> {
        let slot = |page: &Arc<Page>, offset: u32| (page.txid, claim(page.txid, offset, offset));
        (0..self.spends).flat_map(|offset| pages.iter().map(move |page| slot(page, offset))).collect()
    }
}

/// Returns the pages of a transaction with one input; each method and number has another one.
pub fn pages(method_index: usize, number: u32, outputs: u32) -> Pages {
    let mut parent = [0x33; 32];
    parent[..8].copy_from_slice(&(u64::from(number) << 8 | method_index as u64).to_le_bytes());
    let outpoint = Outpoint { txid: Txid(parent), vout: 0 };
    let previous = Some(Output { satoshis: 1 << 50, script: &SCRIPT });
    // The unlocking script is as long as a signature and a key.
    let mut builder = TransactionBuilder::default().input(outpoint, &[0x47; 107], u32::MAX, previous);
    for vout in 0..outputs {
        builder = builder.output(1_000 + u64::from(vout), &SCRIPT);
    }
    let bytes = bytes::Bytes::from(builder.extended());
    let transaction = Transaction::parse(&bytes).expect("the builder writes transactions");
    let setting = PageParams {
        network: Network::Regtest,
        height: 100,
        batch_size: PAGE_SIZE,
        created_at: 1_700_000_000_000,
        event: None,
    };
    let pages = build_pages(&transaction, bytes.clone(), transaction.txid(), &setting, &NewTxState::default());
    pages.expect("inputs exceed outputs")
}

/// Returns the correct claim of a spender about output `vout` of such a transaction.
pub fn claim(txid: Txid, vout: u32, offset: u32) -> SpendSlot {
    let output = Output { satoshis: 1_000 + u64::from(vout), script: &SCRIPT };
    SpendSlot::claiming(&Outpoint { txid, vout }, offset, 0, &output, bytes::Bytes::from_static(&SCRIPT))
}

fn batches_of<T: Clone, F: Future<Output = usize> + Send + 'static>(
    items: &[T],
    size: usize,
    batch: impl Fn(Vec<T>) -> F,
) -> Vec<Batch> {
    items.chunks(size).map(|items| Box::pin(batch(items.to_vec())) as Batch).collect()
}

pub async fn apply(engine: &AerospikeEngine, rows: Vec<Row>) {
    for answer in engine.apply(&rows).await {
        assert!(matches!(answer, Ok(Outcome::Applied(_))), "{answer:?}");
    }
}

fn create(page: &Arc<Page>) -> Row {
    Row { key: Key::master(page.txid), operation: Operation::Create(page.clone()) }
}

pub fn spend(key: Key, slot: SpendSlot, signals: bool) -> Row {
    let slots = vec![slot].into();
    let spend = Spend { spender: Txid([0xAB; 32]), height: 200, slots, marks: Marks::Respect, signals };
    Row { key, operation: Operation::Spend(spend) }
}

fn set_mined(txid: Txid) -> Row {
    let stamp = Stamp { offset: 5, phase: Phase::Apply };
    let mined_in = MinedIn { block_id: 7, height: 150, subtree: 3 };
    let operation = Operation::Sequenced(stamp, Sequenced::SetMined { mined_in, longest_chain: true });
    Row { key: Key::master(txid), operation }
}
