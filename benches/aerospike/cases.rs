//! What is measured: operations on records of several widths.

use std::sync::Arc;

use utxo_store::{
    engine::{RecordEngine, Row, aerospike::AerospikeEngine},
    record::{
        Blob, Body, Key, Marks, MinedIn, Operation, Outcome, Page, Phase, Sequenced, Spend, SpendSlot, Stamp,
        build::{Pages, Setting, Start, pages_of},
    },
    tx::{Network, Outpoint, Output, Transaction, TransactionBuilder, Txid, UtxoHash},
};

use super::{
    BATCH,
    raw::{Care, Raw},
    timed::Batch,
};

/// Slots a record: its setting's default.
pub const PAGE_SIZE: u32 = 20_000;
const SCRIPT: [u8; 25] = [0x51; 25];
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
    /// With one thing more that the engine does.
    Best(Care),
    Engine,
    /// With the signals of a spend, which the pipeline asks of other pages than masters only.
    Signals,
}

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Way::Floor => "floor",
            Way::Best(Care::None) => "best",
            Way::Best(Care::History) => "best+history",
            Way::Best(Care::StoredOutput) => "best+stored-output",
            Way::Best(Care::Signals) => "best+signals",
            Way::Best(Care::Stamp) => "best+stamp",
            Way::Best(Care::Blocks) => "best+blocks",
            Way::Engine => "engine",
            Way::Signals => "engine+signals",
        }
    }

    /// What the raw client does besides.
    pub fn care(self) -> Care {
        match self {
            Way::Best(care) => care,
            _ => Care::None,
        }
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

    pub fn ways(&self) -> Vec<Way> {
        let more = match self.what {
            What::Spend if self.outputs == 2 => {
                vec![Way::Best(Care::History), Way::Best(Care::StoredOutput), Way::Best(Care::Signals), Way::Signals]
            }
            What::SetMined => vec![Way::Best(Care::Stamp), Way::Best(Care::Blocks)],
            _ => vec![],
        };
        [Way::Floor, Way::Best(Care::None), Way::Engine].into_iter().chain(more).collect()
    }

    /// The batches of one way, with the records that they need in the store.
    pub async fn prepare(&self, way: Way, engine: &Arc<AerospikeEngine>, raw: &Arc<Raw>) -> Vec<Batch> {
        let nth_way = self.ways().iter().position(|there| *there == way).unwrap_or_default();
        let pages: Vec<Arc<Page>> = (0..self.records).map(|number| Arc::new(self.page(nth_way, number))).collect();
        if self.what != What::Create || way == Way::Floor {
            for pages in pages.chunks(BATCH.min(2_000_000 / self.outputs as usize).max(1)) {
                apply(engine, pages.iter().map(create).collect()).await;
            }
        }
        let txids: Vec<Txid> = pages.iter().map(|page| page.txid).collect();
        match (way, self.what) {
            (Way::Floor, _) => each(&txids, BATCH, |txids| raw.clone().put_one(txids)),
            (Way::Best(_), What::Create) => each(&pages, BATCH, |pages| raw.clone().create(pages)),
            (Way::Best(_), What::Spend) => each(&self.slots(&pages), BATCH, |slots| {
                raw.clone().spend(slots.into_iter().map(|slot| (slot.0, slot.1.offset, slot.1.utxo_hash.0)).collect())
            }),
            (Way::Best(_), What::SetMined) => each(&txids, MINED_BATCH, |txids| raw.clone().set_mined(txids)),
            (Way::Best(_), What::Get) => each(&txids, BATCH, |txids| raw.clone().get(txids)),
            (Way::Engine | Way::Signals, What::Create) => self.rows(engine, pages.iter().map(create).collect(), BATCH),
            (Way::Engine | Way::Signals, What::Spend) => {
                let signals = way == Way::Signals;
                let rows = self
                    .slots(&pages)
                    .into_iter()
                    .map(|(txid, slot)| spend(Key::master(txid), slot, signals))
                    .collect();
                self.rows(engine, rows, BATCH)
            }
            (Way::Engine | Way::Signals, What::SetMined) => {
                self.rows(engine, txids.iter().map(|txid| set_mined(*txid)).collect(), MINED_BATCH)
            }
            (Way::Engine | Way::Signals, What::Get) => each(&txids, BATCH, |txids| {
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

    /// The master of a transaction of one input and as many outputs as asked for; another for each way and number.
    fn page(&self, nth_way: usize, number: u32) -> Page {
        let mut page = pages(nth_way, number, self.outputs).master;
        // Wide ones lie in the blob store, as the documents advise.
        let bins = page.master.as_mut().filter(|_| self.outputs > 128);
        if let Some(body) = bins.and_then(|bins| bins.body.replace(Body::External(Blob::First))) {
            page.amount_sizes = body.amount_sizes(self.outputs as usize);
        }
        page
    }

    /// The slots to spend, all first ones before any second one, so that a batch has each record once.
    fn slots(&self, pages: &[Arc<Page>]) -> Vec<(Txid, SpendSlot)> {
        let slot = |page: &Arc<Page>, offset: u32| {
            let slots = page.utxos.as_deref().unwrap_or_default();
            let utxo_hash = slots[offset as usize].hash().expect("every output has a slot");
            (page.txid, claim(offset, offset, utxo_hash))
        };
        (0..self.spends).flat_map(|offset| pages.iter().map(move |page| slot(page, offset))).collect()
    }
}

/// The pages of a transaction of one input, another for each way and number.
pub fn pages(nth_way: usize, number: u32, outputs: u32) -> Pages {
    let mut parent = [0x33; 32];
    parent[..8].copy_from_slice(&(u64::from(number) << 8 | nth_way as u64).to_le_bytes());
    let outpoint = Outpoint { txid: Txid(parent), vout: 0 };
    let previous = Some(Output { satoshis: 1 << 50, script: &SCRIPT });
    // As long as a signature and a key.
    let mut builder = TransactionBuilder::default().input(outpoint, &[0x47; 107], u32::MAX, previous);
    for vout in 0..outputs {
        builder = builder.output(1_000 + u64::from(vout), &SCRIPT);
    }
    let bytes = bytes::Bytes::from(builder.extended());
    let transaction = Transaction::parse(&bytes).expect("the builder writes transactions");
    let setting =
        Setting { network: Network::Regtest, height: 100, batch_size: PAGE_SIZE, created_at: 1_700_000_000_000 };
    let pages = pages_of(&transaction, bytes.clone(), transaction.txid(), &setting, &Start::default());
    pages.expect("inputs exceed outputs")
}

/// What a spender truthfully claims of output `vout` of such a transaction.
pub fn claim(vout: u32, offset: u32, utxo_hash: UtxoHash) -> SpendSlot {
    let script = bytes::Bytes::from_static(&SCRIPT);
    SpendSlot { offset, input: 0, utxo_hash, satoshis: 1_000 + u64::from(vout), script }
}

fn each<T: Clone, F: Future<Output = usize> + Send + 'static>(
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
