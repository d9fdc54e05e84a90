//! What is measured: operations on records of several widths.

use std::sync::Arc;

use utxo_store::{
    engine::{RecordEngine, Row, aerospike::AerospikeEngine},
    record::{
        Blob, Body, Key, Marks, MinedIn, Operation, Outcome, Page, Phase, Sequenced, Spend, SpendSlot, Stamp,
        build::{Setting, Start, pages_of},
    },
    tx::{Network, Outpoint, Output, Transaction, TransactionBuilder, Txid},
};

use super::{BATCH, raw::Raw, timed::Batch};

/// Rows of a batch of set mined: its setting's default.
const MINED_BATCH: usize = 1_024;

/// One line of the table.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    what: What,
    /// Outputs of each transaction.
    outputs: u32,
    records: u32,
    /// Slots that are spent of each.
    spends: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Create,
    Spend,
    SetMined,
    Get,
}

/// Who does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Floor,
    Best,
    Engine,
}

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Way::Floor => "floor",
            Way::Best => "best",
            Way::Engine => "engine",
        }
    }

    fn number(self) -> u64 {
        self as u64
    }
}

impl Case {
    pub fn all() -> Vec<Case> {
        let case = |what, outputs, records, spends| Case { what, outputs, records, spends };
        vec![
            case(What::Create, 2, 100_000, 0),
            case(What::Spend, 2, 100_000, 1),
            case(What::Spend, 128, 10_000, 8),
            case(What::Spend, 1_000, 2_000, 20),
            case(What::Spend, 20_000, 300, 20),
            case(What::SetMined, 2, 100_000, 0),
            case(What::Get, 2, 100_000, 0),
        ]
    }

    pub fn name(&self) -> String {
        let what = match self.what {
            What::Create => "create",
            What::Spend => "spend",
            What::SetMined => "set-mined",
            What::Get => "get",
        };
        format!("{what}-{}-outputs", self.outputs)
    }

    pub fn ways(&self) -> [Way; 3] {
        [Way::Floor, Way::Best, Way::Engine]
    }

    /// The batches of one way, with the records that they need in the store.
    pub async fn prepare(&self, way: Way, engine: &Arc<AerospikeEngine>, raw: &Arc<Raw>) -> Vec<Batch> {
        let pages: Vec<Arc<Page>> = (0..self.records).map(|number| self.page(way, number)).collect();
        if self.what != What::Create || way == Way::Floor {
            for pages in pages.chunks(BATCH.min(2_000_000 / self.outputs as usize).max(1)) {
                apply(engine, pages.iter().map(create).collect()).await;
            }
        }
        let txids: Vec<Txid> = pages.iter().map(|page| page.txid).collect();
        match (way, self.what) {
            (Way::Floor, _) => each(&txids, BATCH, |txids| raw.clone().put_one(txids)),
            (Way::Best, What::Create) => each(&pages, BATCH, |pages| raw.clone().create(pages)),
            (Way::Best, What::Spend) => each(&self.slots(&pages), BATCH, |slots| {
                raw.clone().spend(slots.into_iter().map(|slot| (slot.0, slot.1.offset, slot.1.utxo_hash.0)).collect())
            }),
            (Way::Best, What::SetMined) => each(&txids, MINED_BATCH, |txids| raw.clone().set_mined(txids)),
            (Way::Best, What::Get) => each(&txids, BATCH, |txids| raw.clone().get(txids)),
            (Way::Engine, What::Create) => self.rows(engine, pages.iter().map(create).collect(), BATCH),
            (Way::Engine, What::Spend) => {
                let rows = self.slots(&pages).into_iter().map(|(txid, slot)| spend(txid, slot)).collect();
                self.rows(engine, rows, BATCH)
            }
            (Way::Engine, What::SetMined) => {
                self.rows(engine, txids.iter().map(|txid| set_mined(*txid)).collect(), MINED_BATCH)
            }
            (Way::Engine, What::Get) => each(&txids, BATCH, |txids| {
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
        each(&rows, size, |rows| {
            let engine = engine.clone();
            async move {
                let count = rows.len();
                apply(&engine, rows).await;
                count
            }
        })
    }

    /// A transaction of one input and as many outputs as asked for; another for each way and number.
    fn page(&self, way: Way, number: u32) -> Arc<Page> {
        let mut parent = [0x33; 32];
        parent[..8].copy_from_slice(&(u64::from(number) << 8 | way.number()).to_le_bytes());
        let script = [0x51; 25];
        let outpoint = Outpoint { txid: Txid(parent), vout: 0 };
        let previous = Some(Output { satoshis: 1 << 40, script: &script });
        // As long as a signature and a key.
        let mut builder = TransactionBuilder::default().input(outpoint, &[0x47; 107], u32::MAX, previous);
        for vout in 0..self.outputs {
            builder = builder.output(1_000 + u64::from(vout), &script);
        }
        let bytes = bytes::Bytes::from(builder.extended());
        let transaction = Transaction::parse(&bytes).expect("the builder writes transactions");
        let setting =
            Setting { network: Network::Regtest, height: 100, batch_size: 20_000, created_at: 1_700_000_000_000 };
        let pages = pages_of(&transaction, bytes.clone(), transaction.txid(), &setting, &Start::default());
        let mut page = pages.expect("inputs exceed outputs").master;
        // Wide ones lie in the blob store, as the documents advise.
        if let Some(master) = page.master.as_mut().filter(|_| self.outputs > 128) {
            master.body = Some(Body::External(Blob::First));
        }
        Arc::new(page)
    }

    /// The slots to spend, all first ones before any second one, so that a batch has each record once.
    fn slots(&self, pages: &[Arc<Page>]) -> Vec<(Txid, SpendSlot)> {
        let slot = |page: &Arc<Page>, offset: u32| {
            let slots = page.utxos.as_deref().unwrap_or_default();
            let utxo_hash = slots[offset as usize].hash().expect("every output has a slot");
            let script = bytes::Bytes::from_static(&[0x51; 25]);
            (page.txid, SpendSlot { offset, input: 0, utxo_hash, satoshis: 1_000 + u64::from(offset), script })
        };
        (0..self.spends).flat_map(|offset| pages.iter().map(move |page| slot(page, offset))).collect()
    }
}

fn each<T: Clone, F: Future<Output = usize> + Send + 'static>(
    items: &[T],
    size: usize,
    batch: impl Fn(Vec<T>) -> F,
) -> Vec<Batch> {
    items.chunks(size).map(|items| Box::pin(batch(items.to_vec())) as Batch).collect()
}

async fn apply(engine: &AerospikeEngine, rows: Vec<Row>) {
    for answer in engine.apply(&rows).await {
        assert!(matches!(answer, Ok(Outcome::Applied(_))), "{answer:?}");
    }
}

fn create(page: &Arc<Page>) -> Row {
    Row { key: Key::master(page.txid), operation: Operation::Create(page.clone()) }
}

fn spend(txid: Txid, slot: SpendSlot) -> Row {
    let spend = Spend { spender: Txid([0xAB; 32]), height: 200, slots: vec![slot].into(), marks: Marks::Respect };
    Row { key: Key::master(txid), operation: Operation::Spend(spend) }
}

fn set_mined(txid: Txid) -> Row {
    let stamp = Stamp { offset: 5, phase: Phase::Apply };
    let mined_in = MinedIn { block_id: 7, height: 150, subtree: 3 };
    let operation = Operation::Sequenced(stamp, Sequenced::SetMined { mined_in, longest_chain: true });
    Row { key: Key::master(txid), operation }
}
