//! Raw client: the best possible result, and the floor under it.
//!
//! *Best* is a packed filter with patched offset and hash, native operations and a derived bin. It reads no record back
//! and keeps only the record layout of the engine, or one feature more ([`EngineFeature`]), so that the cost of each is
//! visible.

use std::sync::Arc;

use aerospike::{
    AdminPolicy, BatchOperation, BatchPolicy, BatchReadPolicy, BatchWritePolicy, Bin, Bins, Client, ClientPolicy,
    Expiration, Key, ListPolicy, ListReturnType, RecordExistsAction, Value,
    expressions::{
        ExpType, Expression, and, bin_type, bitwise::get_int, blob_val, cond, eq, from_packed_bytes, int_bin, int_val,
        le, list_bin, lists::get_by_index, lists::get_by_rank, lists::get_by_value, num_add, or, unknown,
    },
    operations::{self, Operation, exp, lists},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use utxo_store::{
    engine::aerospike::{AerospikeSettings, Layout},
    record::Page,
    tx::Txid,
};

/// Placeholder that each row replaces by its offset; packed as wide as the widest offset.
const OFFSET: u32 = 0x7EED_7EED;
const HASH: [u8; 32] = [0xEE; 32];
/// The stored first output of every transaction of the bench: 1,000 satoshis, a script of 25 bytes.
const FIRST_OUTPUT: [u8; 34] = {
    let mut output = [0x51; 34];
    (output[0], output[1], output[8]) = (0xE8, 3, 25);
    let mut at = 2;
    while at < 8 {
        output[at] = 0;
        at += 1;
    }
    output
};
const STAMP: i64 = 21;
/// Bytes of the amount of every output of the bench in the hash of its slot.
const AMOUNT_SIZE: u8 = 3;
/// Bytes of `tx` besides the transaction id.
const CONSTANTS: usize = 40;

/// One additional feature of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineFeature {
    /// No additional feature.
    None,
    /// Spends refuse marked slots.
    History,
    /// Spends are compared with the stored output.
    StoredOutput,
    /// Spends return whether every slot is spent, and when the record is due.
    Signals,
    /// A later stamp of the sequencer refuses the operation, and the operation writes its stamp.
    Stamp,
    /// Set mined returns all blocks that list the transaction, and its number of pages.
    Blocks,
}

pub struct RawClient {
    layout: Layout,
    feature: EngineFeature,
    client: Client,
    namespace: String,
    set: String,
    policy: BatchPolicy,
    filter: PatchedExpression,
    due: Operation,
    unlisted: Expression,
}

/// A packed expression with the positions of its offset and its hash.
struct PatchedExpression {
    bytes: Vec<u8>,
    offsets: Vec<usize>,
    hash: usize,
}

impl PatchedExpression {
    fn new(expression: &Expression) -> Self {
        let bytes = packed(expression);
        let find = |what: &[u8]| -> Vec<usize> {
            let windows = bytes.windows(what.len()).enumerate();
            windows.filter(|(_, window)| *window == what).map(|(at, _)| at).collect()
        };
        let (offsets, hash) = (find(&OFFSET.to_be_bytes()), find(&HASH)[0]);
        PatchedExpression { bytes, offsets, hash }
    }

    fn with(&self, offset: u32, hash: &[u8; 32]) -> Expression {
        let mut bytes = self.bytes.clone();
        for at in &self.offsets {
            bytes[*at..at + 4].copy_from_slice(&offset.to_be_bytes());
        }
        bytes[self.hash..self.hash + 32].copy_from_slice(hash);
        from_packed_bytes(bytes)
    }
}

fn packed(expression: &Expression) -> Vec<u8> {
    let text = expression.base64().expect("an expression of this bench packs");
    STANDARD.decode(text).expect("the client writes base64")
}

fn absent(bin: &str) -> Expression {
    eq(bin_type(bin), int_val(0))
}

impl RawClient {
    /// Opens the client. `feature` is one of the layout `teranode`; in `compact` the client has none.
    pub async fn open(settings: &AerospikeSettings, feature: EngineFeature) -> Self {
        let layout = settings.layout.unwrap_or_default();
        let client = Client::new(&ClientPolicy::default(), &settings.hosts).await.expect("the engine is connected too");
        let slot = get_by_index(ListReturnType::VALUES, ExpType::Blob, int_val(OFFSET.into()), list_bin("utxos"), &[]);
        let free = eq(slot.clone(), blob_val(HASH.to_vec()));
        let free_with_size = eq(slot, blob_val([&[AMOUNT_SIZE], &HASH[..]].concat()));
        let marks = ["creating", "locked", "conflicting", "frozen", "spendingHeight", "utxoSpendableIn"];
        let stored =
            get_by_index(ListReturnType::VALUES, ExpType::Blob, int_val(OFFSET.into()), list_bin("outputs"), &[]);
        let more = match feature {
            EngineFeature::History => vec![absent("contested")],
            EngineFeature::StoredOutput => vec![eq(stored, blob_val(FIRST_OUTPUT.to_vec()))],
            _ => vec![],
        };
        let filter = match layout {
            Layout::Teranode => and(marks.iter().map(|mark| absent(mark)).chain(more).chain([free]).collect()),
            Layout::Compact => and(vec![absent("flags"), free_with_size]),
        };
        let height = get_by_rank(ListReturnType::VALUES, ExpType::Int, int_val(-1), list_bin("blockHeights"), &[]);
        let (all_spent, height) = match layout {
            Layout::Teranode => (eq(int_bin("spentUtxos"), int_bin("recordUtxos")), height),
            Layout::Compact => {
                let first = get_by_rank(ListReturnType::VALUES, ExpType::Blob, int_val(0), list_bin("blocks"), &[]);
                (eq(int_bin("unspent"), int_val(0)), get_int(int_val(0), int_val(32), false, first))
            }
        };
        let spent = and(vec![all_spent, absent("unminedSince")]);
        let due = from_packed_bytes(packed(&cond(vec![spent, num_add(vec![height, int_val(288)]), unknown()])));
        let listed = get_by_value(ListReturnType::COUNT, int_val(7), list_bin("blockIDs"), &[]);
        let unlisted = eq(listed, int_val(0));
        let unlisted = match feature {
            EngineFeature::Stamp => {
                and(vec![or(vec![absent("chainPos"), le(int_bin("chainPos"), int_val(STAMP))]), unlisted])
            }
            _ if layout == Layout::Compact => and(vec![absent("flags"), absent("blocks")]),
            _ => unlisted,
        };
        RawClient {
            layout,
            feature,
            client,
            namespace: settings.namespace.clone(),
            set: settings.set.clone(),
            policy: BatchPolicy::write_default(),
            filter: PatchedExpression::new(&filter),
            due: exp::write_exp("deleteAtHeight", due, exp::ExpWriteFlags::EVAL_NO_FAIL),
            unlisted: from_packed_bytes(packed(&unlisted)),
        }
    }

    fn key(&self, txid: &Txid) -> Key {
        Key::new(self.namespace.as_str(), self.set.as_str(), Value::Blob(txid.0.to_vec())).expect("a blob is a key")
    }

    async fn send(&self, mut rows: Vec<BatchOperation>) -> usize {
        let policy = BatchPolicy {
            base_policy: aerospike::policy::BasePolicy { total_timeout: 60_000, ..self.policy.base_policy.clone() },
            ..self.policy.clone()
        };
        self.client.batch(&policy, &mut rows).await.expect("the server answers");
        for row in &rows {
            assert!(row.batch_record().error().is_none(), "{:?}", row.batch_record().error());
        }
        rows.len()
    }

    /// Writes one bin of each record.
    pub async fn put_one(self: Arc<Self>, txids: Vec<Txid>) -> usize {
        let policy = BatchWritePolicy::default();
        let row = |txid| {
            let put = operations::put(&Bin::new("floor", Value::Int(7)));
            BatchOperation::write(&policy, self.key(txid), vec![put])
        };
        self.send(txids.iter().map(row).collect()).await
    }

    /// Writes all bins of each record, lists packed by hand.
    pub async fn create(self: Arc<Self>, pages: Vec<Arc<Page>>) -> usize {
        let policy = BatchWritePolicy {
            record_exists_action: RecordExistsAction::CreateOnly,
            expiration: Expiration::Never,
            ..BatchWritePolicy::default()
        };
        let bins = match self.layout {
            Layout::Teranode => all_bins,
            Layout::Compact => compact_bins,
        };
        let rows = pages.iter().map(|page| BatchOperation::write(&policy, self.key(&page.txid), bins(page)));
        self.send(rows.collect()).await
    }

    /// Spends one slot (offset, hash) of each record.
    pub async fn spend(self: Arc<Self>, slots: Vec<(Txid, u32, [u8; 32])>) -> usize {
        let all_spent = from_packed_bytes(packed(&eq(int_bin("spentUtxos"), int_bin("recordUtxos"))));
        let all_spent_signal = exp::read_exp("told", all_spent, exp::ExpReadFlags::DEFAULT);
        let row = |(txid, offset, hash): &(Txid, u32, [u8; 32])| {
            let policy = BatchWritePolicy {
                record_exists_action: RecordExistsAction::UpdateOnly,
                expiration: Expiration::DontUpdate,
                filter_expression: Some(self.filter.with(*offset, hash)),
                ..BatchWritePolicy::default()
            };
            let (size, count) = match self.layout {
                Layout::Teranode => (&[][..], operations::add(&Bin::new("spentUtxos", Value::Int(1)))),
                Layout::Compact => (&[AMOUNT_SIZE][..], operations::add(&Bin::new("unspent", Value::Int(-1)))),
            };
            let spent = [size, &hash[..], &[0xAB; 36]].concat();
            let mut operations =
                vec![lists::set("utxos", (*offset).into(), Value::Blob(spent)), count, self.due.clone()];
            if self.feature == EngineFeature::Signals {
                operations.push(all_spent_signal.clone());
            }
            BatchOperation::write(&policy, self.key(txid), operations)
        };
        self.send(slots.iter().map(row).collect()).await
    }

    /// Sets each record mined in block 7.
    pub async fn set_mined(self: Arc<Self>, txids: Vec<Txid>) -> usize {
        let policy = BatchWritePolicy {
            record_exists_action: RecordExistsAction::UpdateOnly,
            expiration: Expiration::DontUpdate,
            filter_expression: Some(self.unlisted.clone()),
            ..BatchWritePolicy::default()
        };
        let append = |bin, number| lists::append(&ListPolicy::default(), bin, Value::Int(number));
        let remove = |bin| operations::put(&Bin::new(bin, Value::Nil));
        let mut operations = match self.layout {
            Layout::Teranode => vec![
                append("blockIDs", 7),
                append("blockHeights", 150),
                append("subtreeIdxs", 3),
                remove("unminedSince"),
                remove("locked"),
                self.due.clone(),
            ],
            Layout::Compact => {
                let block = [150_u32, 7, 3].map(u32::to_be_bytes).concat();
                let put = |bin, value| operations::put(&Bin::new(bin, value));
                let (blocks, stamp) = (put("blocks", list([block].into_iter())), put("chainPos", Value::Int(STAMP)));
                vec![blocks, stamp, remove("unminedSince"), self.due.clone()]
            }
        };
        match self.feature {
            EngineFeature::Stamp => operations.push(operations::put(&Bin::new("chainPos", Value::Int(STAMP)))),
            EngineFeature::Blocks => operations.extend(["blockIDs", "totalExtraRecs"].map(operations::get_bin)),
            _ => {}
        }
        let row = |txid| BatchOperation::write(&policy, self.key(txid), operations.clone());
        self.send(txids.iter().map(row).collect()).await
    }

    /// Reads each record with all bins.
    pub async fn get(self: Arc<Self>, txids: Vec<Txid>) -> usize {
        let policy = BatchReadPolicy::default();
        self.send(txids.iter().map(|txid| BatchOperation::read(&policy, self.key(txid), Bins::All)).collect()).await
    }

    /// Removes all records before the next case.
    pub async fn truncate(&self) {
        let ended = self.client.truncate(&AdminPolicy::default(), &self.namespace, &self.set, 0).await;
        ended.expect("a set of the bench's own");
    }
}

/// Returns the bins of a one-page transaction with an inline body.
fn all_bins(page: &Page) -> Vec<Operation> {
    let int = |number: u64| Value::Int(number as i64);
    let master = page.master.as_ref().expect("a bench has masters only");
    let Some(utxo_store::record::Body::Transaction(body)) = &master.body else { panic!("with a body") };
    let body = utxo_store::tx::Transaction::parse(body).expect("that parses");
    let empty = || Value::Unknown(20, vec![0x90]);
    let hashes = page.utxos.iter().flatten().filter_map(|slot| slot.hash()).map(|hash| hash.0.to_vec());
    let bins = [
        ("txID", Value::Blob(page.txid.0.to_vec())),
        ("version", int(page.version.into())),
        ("locktime", int(page.lock_time.into())),
        ("fee", int(page.fee)),
        ("sizeInBytes", int(page.size_in_bytes)),
        ("extendedSize", int(page.extended_size)),
        ("spentUtxos", int(0)),
        ("recordUtxos", int(page.record_utxos.into())),
        ("utxos", list(hashes)),
        ("totalUtxos", int(master.total_utxos.into())),
        ("totalExtraRecs", int(0)),
        ("createdAt", int(master.created_at)),
        ("blockIDs", empty()),
        ("blockHeights", empty()),
        ("subtreeIdxs", empty()),
        ("unminedSince", int(100)),
        ("inputs", list(body.inputs().map(|input| input.raw_extended().into_owned()))),
        ("outputs", list(body.raw_outputs().map(<[u8]>::to_vec))),
    ];
    bins.into_iter().map(|(name, value)| operations::put(&Bin::new(name, value))).collect()
}

/// Returns the bins of the same transaction in the layout `compact`.
fn compact_bins(page: &Page) -> Vec<Operation> {
    let master = page.master.as_ref().expect("a bench has masters only");
    let Some(utxo_store::record::Body::Transaction(body)) = &master.body else { panic!("with a body") };
    let slot = |hash: utxo_store::tx::UtxoHash| [&[AMOUNT_SIZE], &hash.0[..]].concat();
    let slots = page.utxos.iter().flatten().filter_map(|slot| slot.hash()).map(slot);
    let bins = [
        ("tx", Value::Blob([&page.txid.0[..], &[0; CONSTANTS]].concat())),
        ("utxos", list(slots)),
        ("unspent", Value::Int(page.record_utxos.into())),
        ("body", Value::Blob(body.to_vec())),
        ("unminedSince", Value::Int(100)),
    ];
    bins.into_iter().map(|(name, value)| operations::put(&Bin::new(name, value))).collect()
}

/// Packs a list of blobs.
fn list(blobs: impl Iterator<Item = Vec<u8>>) -> Value {
    let blobs: Vec<Vec<u8>> = blobs.collect();
    let mut packed = vec![0xdd];
    packed.extend((blobs.len() as u32).to_be_bytes());
    for blob in blobs {
        packed.push(0xda);
        packed.extend((blob.len() as u16 + 1).to_be_bytes());
        packed.push(4);
        packed.extend(blob);
    }
    Value::Unknown(20, packed)
}
