//! Reads of transactions, spends and previous outputs, over any number of pages (`docs/semantics.md`, "Reads").

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use serde::{Serialize, Serializer};

use crate::{
    engine::EngineError,
    record::{Body, Key, Page, Selection, Slot, SpendingData, StoredOutput},
    tx::{Outpoint, Output, Transaction, Txid, UtxoHash},
};

use super::{
    StateStore,
    body::{BodyError, ParsedBody},
    external::BlobBodies,
    into_page,
};

/// Number of transactions whose pages and bodies one read loads at the same time.
const TRANSACTIONS_AT_A_TIME: usize = 8;

/// Value in place of a spender for a frozen slot: 36 × `0xFF`.
pub const FROZEN_SPENDER: SpendingData = SpendingData { txid: Txid([0xFF; 32]), input: u32::MAX };

/// Reason why a record or body that should exist could not be read.
#[derive(Debug, Clone, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum ReadError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Body(#[from] BodyError),
    /// The store is damaged: a page that the master counts is absent.
    #[error("page {page} of {txid} is missing")]
    MissingPage { txid: Txid, page: u32 },
    /// The previous transaction is absent, a stub or a tombstone.
    #[error("the previous transaction of input {input} is not in the store: {outpoint}")]
    NoPreviousTransaction { input: u32, outpoint: Outpoint },
    #[error("the previous output of input {input} does not exist or has no slot: {outpoint}")]
    NoPreviousOutput { input: u32, outpoint: Outpoint },
}

/// Parts of a transaction to read besides the master; by default none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadFields {
    /// Reads the slots of all pages if set.
    pub slots: bool,
    /// Reads the body if set.
    pub body: bool,
}

impl ReadFields {
    /// Master, slots of all pages, and body.
    pub const ALL: ReadFields = ReadFields { slots: true, body: true };
}

/// A transaction read from the store. A stub or a tombstone has neither slots nor body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTransaction {
    /// The master, page 0; with an empty list of slots and without an inline body where only the master was read.
    pub master: Arc<Page>,
    /// Slots of all pages, by `vout`, if [`ReadFields::slots`] was set.
    pub slots: Vec<Slot>,
    /// The body, if [`ReadFields::body`] was set.
    pub body: Option<Body>,
}

/// All stored data of a transaction. A number whose bin is absent is 0, a list is empty. In JSON each field has its
/// name in the reference document (`unminedSince`, `blockIDs`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TxMeta {
    /// Id of the transaction.
    pub txid: Txid,
    /// State of the transaction: `live`, `creating`, `conflicting`, `stub` or `pruned`.
    pub state: &'static str,
    /// The stored transaction; `None` for a partial transaction, a stub or a tombstone.
    #[serde(serialize_with = "as_hex")]
    pub tx: Option<Bytes>,
    /// Outpoints that the transaction spends.
    pub tx_inpoints: TxInpoints,
    /// Fee of the transaction in satoshis.
    pub fee: u64,
    /// Size in standard format, bytes.
    pub size_in_bytes: u64,
    /// Size in extended format, bytes.
    pub extended_size: u64,
    /// Local ids of the blocks that list the transaction, parallel to `block_heights` and `subtree_idxs`.
    #[serde(rename = "blockIDs")]
    pub block_ids: Vec<u32>,
    /// Heights of the blocks that list the transaction.
    pub block_heights: Vec<u32>,
    /// Index of the subtree in each block that lists the transaction.
    pub subtree_idxs: Vec<u32>,
    /// Lock time of the transaction.
    pub lock_time: u32,
    /// The transaction is a coinbase.
    pub is_coinbase: bool,
    /// The outputs are not spendable yet.
    pub locked: bool,
    /// The transaction is conflicting, or contested without a verdict.
    pub conflicting: bool,
    /// Txids of the children that are conflicting.
    pub conflicting_children: Vec<Txid>,
    /// The transaction is half created.
    pub creating: bool,
    /// The transaction is frozen as a whole.
    pub frozen: bool,
    /// Height since which the transaction is unmined; `None` while a block of the longest chain lists the transaction.
    /// Height 0 is a height.
    pub unmined_since: Option<u32>,
    /// Time of the creation, ms since the epoch.
    pub created_at: u64,
    /// Spender of each output, over all pages; a frozen output has [`FROZEN_SPENDER`].
    #[serde(serialize_with = "as_spenders")]
    pub spending_data: Vec<Option<SpendingData>>,
}

/// Outpoints that a transaction spends: the parents in the order of their first mention in the inputs, and in parallel
/// the list of output indexes of each parent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct TxInpoints {
    /// Txids of the parents.
    #[serde(rename = "parentTxHashes")]
    pub parent_txids: Vec<Txid>,
    /// Indexes of the spent outputs of each parent.
    #[serde(rename = "idxs")]
    pub indexes: Vec<Vec<u32>>,
}

/// Reader of transactions and outputs of a store.
#[derive(Clone, Copy)]
pub struct TxReader<'a> {
    pub(super) store: &'a StateStore,
}

impl<'a> TxReader<'a> {
    /// Creates the reader of this store.
    pub fn of(store: &'a StateStore) -> Self {
        TxReader { store }
    }

    /// Reads a transaction. `None`: the transaction has no record.
    pub async fn get(&self, txid: Txid, fields: ReadFields) -> Result<Option<StoredTransaction>, ReadError> {
        let mut stored = self.get_many(&[txid], fields).await;
        stored.pop().unwrap_or_else(|| unreachable!("one answer for one txid"))
    }

    /// Reads transactions, with one batch of reads for all masters. `answer[i]` belongs to `txids[i]`; `None`: the
    /// transaction has no record. A transaction whose records or body cannot be read has an error of its own.
    pub async fn get_many(
        &self,
        txids: &[Txid],
        fields: ReadFields,
    ) -> Vec<Result<Option<StoredTransaction>, ReadError>> {
        let masters = self.masters_for(txids, fields).await;
        let slots =
            if fields.slots { self.slots_of(&masters).await } else { masters.iter().map(|_| Ok(vec![])).collect() };
        let add_parts = |(master, slots): (Result<_, EngineError>, Result<Vec<Slot>, ReadError>)| async move {
            let Some(master): Option<Arc<Page>> = master? else { return Ok(None) };
            let has_body = fields.body && master.master.is_some() && master.utxos.is_some();
            let body = if has_body {
                let body = self.store.within_limit(master.txid, self.store.body(&master)).await??;
                Some(body.into_owned())
            } else {
                None
            };
            Ok(Some(StoredTransaction { slots: slots?, body, master }))
        };
        let with_slots = stream::iter(masters.into_iter().zip(slots));
        with_slots.map(add_parts).buffered(TRANSACTIONS_AT_A_TIME).collect().await
    }

    /// Reads masters, as much of each as the fields need.
    async fn masters_for(&self, txids: &[Txid], fields: ReadFields) -> Vec<Result<Option<Arc<Page>>, EngineError>> {
        let keys = txids.iter().map(|txid| Key::master(*txid));
        if fields == ReadFields::default() {
            let selected = self.store.read_selected(keys.map(|key| (key, Selection::META)).collect()).await.into_iter();
            selected.map(|master| Ok(master?.map(|master| Arc::new(master.page)))).collect()
        } else {
            self.store.read_records(keys.collect()).await.into_iter().map(|record| Ok(into_page(record?))).collect()
        }
    }

    /// Returns the slots of all pages of these transactions, with one batch of reads for the pages besides the masters.
    async fn slots_of(&self, masters: &[Result<Option<Arc<Page>>, EngineError>]) -> Vec<Result<Vec<Slot>, ReadError>> {
        let numbers = |master: &Page| {
            let extra = master.master.as_deref().filter(|_| master.utxos.is_some()).map(|bins| bins.total_extra_recs);
            1..extra.unwrap_or(0).saturating_add(1)
        };
        let found = masters.iter().flatten().flatten();
        let keys = found.flat_map(|master| numbers(master).map(|number| Key::Page(master.txid, number))).collect();
        let mut pages = self.store.read_records(keys).await.into_iter();
        let slots = |master: &Result<Option<Arc<Page>>, EngineError>| {
            let Ok(Some(master)) = master else { return Ok(Vec::new()) };
            let (txid, numbers) = (master.txid, numbers(master));
            let pages: Vec<_> = pages.by_ref().take(numbers.len()).collect();
            let mut slots: Vec<Slot> =
                if master.master.is_some() { master.utxos.iter().flatten().copied().collect() } else { Vec::new() };
            for (page, number) in pages.into_iter().zip(numbers) {
                let page = into_page(page?).ok_or(ReadError::MissingPage { txid, page: number })?;
                slots.extend(page.utxos.iter().flatten());
            }
            Ok(slots)
        };
        masters.iter().map(slots).collect()
    }

    /// Reads all stored data of a transaction. `None`: the transaction has no record.
    pub async fn get_meta(&self, txid: Txid) -> Result<Option<TxMeta>, ReadError> {
        match self.get(txid, ReadFields::ALL).await? {
            Some(stored) => Ok(Some(tx_meta(&stored)?)),
            None => Ok(None),
        }
    }

    /// Reads the slot of an output, also of one that cannot be spent. `None`: the output has no slot.
    pub async fn slot(&self, outpoint: Outpoint) -> Result<Option<Slot>, EngineError> {
        let (number, offset) = self.store.locate_slot(outpoint);
        let page = self.store.read(vec![Key::Page(outpoint.txid, number)]).await?.pop().and_then(into_page);
        Ok(page.and_then(|page| slot_at(&page, offset)))
    }

    /// Reads outputs of the body of a transaction by the hashes of their slots, as far as they exist; none if the
    /// transaction has no record or no body.
    pub(crate) async fn outputs_by_hash(
        &self,
        txid: Txid,
        hashes: &BTreeMap<u32, UtxoHash>,
    ) -> Result<BTreeMap<u32, StoredOutput>, ReadError> {
        let master = self.get(txid, ReadFields::default()).await?.map(|stored| stored.master);
        if let Some(master) = master.filter(|master| !master.is_partial())
            && let Some(Body::External(blob)) = master.body()
        {
            let bodies = BlobBodies::of_reader(self.store, txid)?;
            return Ok(Box::pin(bodies.find_outputs(txid, *blob, hashes)).await?);
        }
        match self.store.master(txid).await?.filter(|master| master.body().is_some()) {
            Some(master) => Ok(self.outputs_at(&master, hashes.keys().copied().collect()).await?),
            None => Ok(BTreeMap::new()),
        }
    }

    /// Reads these outputs of a stored transaction, as far as they exist. The body is hashed again; only these outputs
    /// of a blob are kept in memory.
    pub(super) async fn outputs_at(
        &self,
        master: &Page,
        vouts: Vec<u32>,
    ) -> Result<BTreeMap<u32, StoredOutput>, BodyError> {
        let txid = master.txid;
        if let (Some(Body::External(blob)), false) = (master.body(), master.is_partial()) {
            return Box::pin(BlobBodies::of_reader(self.store, txid)?.load_outputs(txid, *blob, &vouts)).await;
        }
        let body = self.store.body(master).await?;
        let body = ParsedBody::parse(txid, &body)?;
        body.belongs_to(txid)?;
        let at = |vout| {
            let Output { satoshis, script } = body.output(vout)?;
            Some((vout, StoredOutput { satoshis, script: Bytes::copy_from_slice(script) }))
        };
        Ok(vouts.into_iter().filter_map(at).collect())
    }
}

/// Returns the slot of an output in its page; `None`: the output has no slot.
fn slot_at(page: &Page, offset: u32) -> Option<Slot> {
    page.utxos.as_ref()?.get(offset as usize).copied().filter(|slot| *slot != Slot::Nil)
}

fn tx_meta(stored: &StoredTransaction) -> Result<TxMeta, BodyError> {
    let page = &*stored.master;
    let bins = page.master.as_deref();
    let mined = bins.map(|bins| &*bins.mined).unwrap_or_default();
    let tx = match &stored.body {
        Some(Body::Transaction(bytes)) => Some(bytes.clone()),
        _ => None,
    };
    let tx_inpoints = match &stored.body {
        Some(body) => ParsedBody::parse(page.txid, body)?.transaction().map(inpoints_of).unwrap_or_default(),
        None => TxInpoints::default(),
    };
    Ok(TxMeta {
        txid: page.txid,
        state: page.state().into(),
        tx,
        tx_inpoints,
        fee: page.fee,
        size_in_bytes: page.size_in_bytes,
        extended_size: page.extended_size,
        block_ids: mined.iter().map(|mined| mined.block_id).collect(),
        block_heights: mined.iter().map(|mined| mined.height).collect(),
        subtree_idxs: mined.iter().map(|mined| mined.subtree).collect(),
        lock_time: page.lock_time,
        is_coinbase: page.is_coinbase,
        locked: page.locked,
        conflicting: page.conflicting,
        conflicting_children: bins.iter().flat_map(|bins| &bins.conflicting_children).copied().collect(),
        creating: page.creating_at.is_some(),
        frozen: page.frozen,
        unmined_since: bins.and_then(|bins| bins.unmined_since),
        created_at: bins.map_or(0, |bins| bins.created_at),
        spending_data: stored.slots.iter().map(spending_data).collect(),
    })
}

/// Returns the outpoints that a transaction spends; none for a coinbase.
pub fn inpoints_of(transaction: &Transaction<'_>) -> TxInpoints {
    let mut inpoints = TxInpoints::default();
    if transaction.is_coinbase() {
        return inpoints;
    }
    let mut places = BTreeMap::new();
    for Outpoint { txid, vout } in transaction.inputs().map(|input| input.outpoint) {
        let index = *places.entry(txid).or_insert_with(|| {
            inpoints.parent_txids.push(txid);
            inpoints.indexes.push(Vec::new());
            inpoints.indexes.len() - 1
        });
        inpoints.indexes[index].push(vout);
    }
    inpoints
}

fn spending_data(slot: &Slot) -> Option<SpendingData> {
    if matches!(slot, Slot::Frozen(_)) { Some(FROZEN_SPENDER) } else { slot.spender() }
}

fn as_hex<S: Serializer>(bytes: &Option<Bytes>, serializer: S) -> Result<S::Ok, S::Error> {
    bytes.as_ref().map(hex::encode).serialize(serializer)
}

/// Serializes each spender as `txid:input`.
fn as_spenders<S: Serializer>(spenders: &[Option<SpendingData>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(
        spenders.iter().map(|spender| spender.map(|spender| format!("{}:{}", spender.txid, spender.input))),
    )
}

#[cfg(test)]
#[path = "read_tests.rs"]
pub(super) mod tests;
