//! Reads: transactions, spends and previous outputs, however many pages they lie on (`semantics.md`, "Reads").

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use serde::{Serialize, Serializer};

use crate::{
    engine::{EngineError, Index},
    record::{Body, Key, Page, Slot, SpendingData, StoredOutput, TxState, Verdict},
    tx::{Outpoint, Output, Transaction, Txid, UtxoHash},
};

use super::{
    Store,
    body::{BodyError, ParsedBody},
    into_page,
};

/// What a frozen slot has in place of a spender: 36 × `0xFF`.
pub const FROZEN: SpendingData = SpendingData { txid: Txid([0xFF; 32]), input: u32::MAX };

/// Why something that should be there could not be read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The body could not be had.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// The store is damaged: a page that the master tells of is not there.
    #[error("page {page} of {txid} is missing")]
    MissingPage {
        /// Whose.
        txid: Txid,
        /// Which.
        page: u32,
    },
    /// No such transaction, or only a stub or a tombstone of it.
    #[error("the previous transaction of input {input} is not here: {outpoint}")]
    NoPreviousTransaction {
        /// The input that names it.
        input: u32,
        /// What it names.
        outpoint: Outpoint,
    },
    /// The transaction has no such output, or one that cannot be spent.
    #[error("the previous output of input {input} does not exist or has no slot: {outpoint}")]
    NoPreviousOutput {
        /// The input that names it.
        input: u32,
        /// What it names.
        outpoint: Outpoint,
    },
}

/// Which parts of a transaction to read besides its master.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fields {
    /// The slots of all pages.
    pub slots: bool,
    /// The body.
    pub body: bool,
}

impl Fields {
    /// Only what the master itself tells.
    pub const MASTER: Fields = Fields { slots: false, body: false };
    /// Everything.
    pub const ALL: Fields = Fields { slots: true, body: true };
}

/// A transaction as it was read; also a stub or a tombstone, which have neither slots nor body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTransaction {
    /// Its page 0.
    pub master: Arc<Page>,
    /// Where asked for: the slots of all pages; the place in the list is the `vout`.
    pub slots: Vec<Slot>,
    /// Where asked for.
    pub body: Option<Body>,
}

/// Everything about a transaction. Numbers whose bin is absent are 0, lists empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TxMeta {
    /// Its id.
    pub txid: Txid,
    /// How it stands: `live`, `creating`, `conflicting`, `stub` or `pruned`.
    pub state: &'static str,
    /// The transaction as it is stored; `None` for a partial one, a stub, a tombstone.
    #[serde(serialize_with = "as_hex")]
    pub tx: Option<Bytes>,
    /// What it spends.
    pub tx_inpoints: TxInpoints,
    /// Satoshis.
    pub fee: u64,
    /// Bytes, in standard format.
    pub size_in_bytes: u64,
    /// Bytes, in extended format.
    pub extended_size: u64,
    /// Blocks that list it, by local id; with `block_heights` and `subtree_idxs` in parallel.
    pub block_ids: Vec<u32>,
    /// Their heights.
    pub block_heights: Vec<u32>,
    /// The subtree of each block that lists it.
    pub subtree_idxs: Vec<u32>,
    /// Lock time.
    pub lock_time: u32,
    /// Whether it is a coinbase.
    pub is_coinbase: bool,
    /// Outputs not spendable yet.
    pub locked: bool,
    /// Conflicting, or contested and without a verdict.
    pub conflicting: bool,
    /// Children that are conflicting.
    pub conflicting_children: Vec<Txid>,
    /// Half created.
    pub creating: bool,
    /// Frozen as a whole.
    pub frozen: bool,
    /// Height since which no block of the longest chain lists it; `None` while one does. Height 0 is a height.
    pub unmined_since: Option<u32>,
    /// ms since the epoch.
    pub created_at: u64,
    /// Who spends each output, over all pages; a frozen one has [`FROZEN`].
    #[serde(serialize_with = "as_spenders")]
    pub spending_data: Vec<Option<SpendingData>>,
}

/// What a transaction spends: parents in the order in which it first names them, and in parallel the lists of their
/// output indexes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct TxInpoints {
    /// The parents.
    pub parent_txids: Vec<Txid>,
    /// Of each parent, the outputs that are spent.
    pub indexes: Vec<Vec<u32>>,
}

/// Whether an output can be spent: the first thing that bars it, in the order in which a spend is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpendStatus {
    /// No such transaction.
    NotFound,
    /// It was pruned, at this height.
    Pruned(u32),
    /// It is half created.
    Creating,
    /// It is conflicting or contested.
    Conflicting(Verdict),
    /// Its outputs are not spendable yet.
    Locked,
    /// A coinbase, spendable from this height on.
    Immature(u32),
    /// No such output, or one without a slot.
    NoSuchOutput,
    /// The slot commits to this.
    HashMismatch(UtxoHash),
    /// The slot or the transaction is frozen.
    Frozen,
    /// The slot has a history, so that only the sequencer gives it away; who holds it now.
    Contested(Option<SpendingData>),
    /// Spent.
    Spent(SpendingData),
    /// Barred until this height.
    NotYetSpendable(u32),
    /// Free.
    Unspent,
}

impl Store {
    /// Reads a transaction; `None`: there is no record of it.
    pub async fn get(&self, txid: Txid, fields: Fields) -> Result<Option<StoredTransaction>, ReadError> {
        match self.master(txid).await? {
            Some(master) => self.with_fields(master, fields).await.map(Some),
            None => Ok(None),
        }
    }

    /// Reads transactions, the masters in batches; `result[i]` belongs to `txids[i]`, and what is wrong with one does
    /// not concern the others.
    ///
    /// # Errors
    /// The engine failed for good.
    pub async fn batch_get(
        &self,
        txids: &[Txid],
        fields: Fields,
    ) -> Result<Vec<Result<Option<StoredTransaction>, ReadError>>, EngineError> {
        let mut found = Vec::with_capacity(txids.len());
        for master in self.masters(txids).await? {
            found.push(match master {
                Some(master) => self.with_fields(master, fields).await.map(Some),
                None => Ok(None),
            });
        }
        Ok(found)
    }

    /// Reads everything about a transaction; `None`: there is no record of it.
    pub async fn get_meta(&self, txid: Txid) -> Result<Option<TxMeta>, ReadError> {
        match self.get(txid, Fields::ALL).await? {
            Some(stored) => Ok(Some(meta_of(&stored)?)),
            None => Ok(None),
        }
    }

    /// Whether an output can be spent, by a transaction that names it by `hash` (`None`: not compared) and can first be
    /// in the block of `height` (`None`: maturity and bars until a height are not looked at).
    pub async fn get_spend(
        &self,
        outpoint: Outpoint,
        hash: Option<UtxoHash>,
        height: Option<u32>,
    ) -> Result<SpendStatus, ReadError> {
        let Outpoint { txid, .. } = outpoint;
        let (number, offset) = self.place(outpoint);
        let mut records = self.read(vec![Key::master(txid), Key::Page(txid, number)]).await?.into_iter().map(into_page);
        let (Some(master), page) = (records.next().flatten(), records.next().flatten()) else {
            return Ok(SpendStatus::NotFound);
        };
        if let Some(page) = page {
            let verdict = master.verdict().unwrap_or(Verdict::Pending);
            let barred = match by_record(&page, verdict, height) {
                // A page alone does not know why.
                Some(SpendStatus::Creating) if number > 0 => {
                    by_record(&master, verdict, height).or(Some(SpendStatus::Creating))
                }
                barred => barred,
            };
            return Ok(barred.unwrap_or_else(|| by_slot(&page, offset, hash, height)));
        }
        let has_page = master.master.as_ref().is_some_and(|bins| number <= bins.total_extra_recs);
        match by_record(&master, master.verdict().unwrap_or(Verdict::Pending), height) {
            Some(status) => Ok(status),
            None if has_page => Err(ReadError::MissingPage { txid, page: number }),
            None => Ok(SpendStatus::NoSuchOutput),
        }
    }

    /// The slot of an output, whatever bars it; `None` where there is none.
    pub async fn slot(&self, outpoint: Outpoint) -> Result<Option<Slot>, EngineError> {
        let (number, offset) = self.place(outpoint);
        let page = self.read(vec![Key::Page(outpoint.txid, number)]).await?.pop().and_then(into_page);
        let slot = page.and_then(|page| page.utxos.as_ref()?.get(offset as usize).copied());
        Ok(slot.filter(|slot| *slot != Slot::Nil))
    }

    /// The outputs that a transaction spends, in the order of its inputs: what turns standard format into extended. Each
    /// parent's body is hashed again, and a reassigned output is the new owner's. A coinbase spends none.
    ///
    /// # Errors
    /// The first input whose previous output cannot be had, and why.
    pub async fn previous_outputs(&self, transaction: &Transaction<'_>) -> Result<Vec<StoredOutput>, ReadError> {
        if transaction.is_coinbase() {
            return Ok(Vec::new());
        }
        let named: Vec<Outpoint> = transaction.inputs().map(|input| input.outpoint).collect();
        let mut parents: BTreeMap<Txid, Vec<(u32, Outpoint)>> = BTreeMap::new();
        for (outpoint, input) in named.iter().zip(0..) {
            parents.entry(outpoint.txid).or_default().push((input, *outpoint));
        }
        let mut keys: BTreeSet<Key> = parents.keys().map(|txid| Key::master(*txid)).collect();
        keys.extend(named.iter().map(|outpoint| Key::Page(outpoint.txid, self.place(*outpoint).0)));
        let keys: Vec<Key> = keys.into_iter().collect();
        let pages: BTreeMap<Key, Arc<Page>> = self
            .read(keys.clone())
            .await?
            .into_iter()
            .zip(keys)
            .filter_map(|(record, key)| Some((key, into_page(record)?)))
            .collect();
        let mut outputs = vec![None; named.len()];
        for (parent, inputs) in parents {
            self.outputs_of(parent, &inputs, &pages, &mut outputs).await?;
        }
        Ok(outputs.into_iter().flatten().collect())
    }

    /// The page that an output's slot lies on, and its place there.
    pub(crate) fn place(&self, outpoint: Outpoint) -> (u32, u32) {
        outpoint.place(self.settings.utxo_batch_size.max(1))
    }

    async fn with_fields(&self, master: Arc<Page>, fields: Fields) -> Result<StoredTransaction, ReadError> {
        let mut stored = StoredTransaction { slots: Vec::new(), body: None, master };
        let Some(bins) = stored.master.master.as_deref().filter(|_| stored.master.utxos.is_some()) else {
            return Ok(stored);
        };
        if fields.body {
            stored.body = Some(self.body(&stored.master).await?.into_owned());
        }
        if fields.slots {
            let txid = stored.master.txid;
            let pages = self.pages(txid, 1, bins.total_extra_recs.saturating_add(1)).await?;
            stored.slots.extend(stored.master.utxos.iter().flatten());
            for (page, number) in pages.into_iter().zip(1..) {
                let page = page.ok_or(ReadError::MissingPage { txid, page: number })?;
                stored.slots.extend(page.utxos.iter().flatten());
            }
        }
        Ok(stored)
    }

    async fn outputs_of(
        &self,
        parent: Txid,
        inputs: &[(u32, Outpoint)],
        pages: &BTreeMap<Key, Arc<Page>>,
        outputs: &mut [Option<StoredOutput>],
    ) -> Result<(), ReadError> {
        let master = pages.get(&Key::master(parent)).filter(|master| master.utxos.is_some());
        let stored = match master {
            Some(master) => {
                Some(self.outputs_at(master, inputs.iter().map(|(_, outpoint)| outpoint.vout).collect()).await?)
            }
            None => None,
        };
        for &(input, outpoint) in inputs {
            let stored = stored.as_ref().ok_or(ReadError::NoPreviousTransaction { input, outpoint })?;
            let (number, offset) = self.place(outpoint);
            let page = pages.get(&Key::Page(parent, number));
            let output = page.and_then(|page| output_of(page, offset, stored.get(&outpoint.vout)));
            outputs[input as usize] = Some(output.ok_or(ReadError::NoPreviousOutput { input, outpoint })?);
        }
        Ok(())
    }

    /// These outputs of a stored transaction, those that it has; its body is hashed again. Of a large one only they are held.
    async fn outputs_at(&self, master: &Page, vouts: Vec<u32>) -> Result<BTreeMap<u32, StoredOutput>, BodyError> {
        let txid = master.txid;
        if let (Some(Body::External(blob)), false) = (master.body(), master.is_partial()) {
            return Box::pin(self.external_outputs(txid, *blob, &vouts)).await;
        }
        let body = self.body(master).await?;
        let body = ParsedBody::parse(txid, &body)?;
        body.belongs_to(txid)?;
        let at = |vout| {
            let Output { satoshis, script } = body.output(vout)?;
            Some((vout, StoredOutput { satoshis, script: Bytes::copy_from_slice(script) }))
        };
        Ok(vouts.into_iter().filter_map(at).collect())
    }

    /// Keys of pages whose `index` lies in `from..=to`, ascending by that value, at most `limit`; what failed and may be retried is.
    pub(super) async fn query(&self, index: Index, from: u64, to: u64, limit: usize) -> Result<Vec<Key>, EngineError> {
        let ask = || self.engine.query(index, from, to, limit);
        self.pauses(None).until_answered(EngineError::may_be_retried, ask).await
    }
}

/// The output in a slot: that of the body, unless it was reassigned.
fn output_of(page: &Page, offset: u32, stored: Option<&StoredOutput>) -> Option<StoredOutput> {
    let slot = page.utxos.as_ref()?.get(offset as usize)?;
    slot.hash()?;
    if let Some(entry) = page.reassignments.iter().rev().find(|entry| entry.offset == offset) {
        return Some(entry.output.clone());
    }
    stored.cloned()
}

fn by_record(page: &Page, verdict: Verdict, height: Option<u32>) -> Option<SpendStatus> {
    match page.state() {
        TxState::Pruned(height) => return Some(SpendStatus::Pruned(height)),
        _ if page.creating_at.is_some() => return Some(SpendStatus::Creating),
        TxState::Stub(_) | TxState::Conflicting(_) => return Some(SpendStatus::Conflicting(verdict)),
        TxState::Live | TxState::Creating => {}
    }
    if page.locked {
        return Some(SpendStatus::Locked);
    }
    page.spending_height.filter(|from| height.is_some_and(|height| *from > height)).map(SpendStatus::Immature)
}

fn by_slot(page: &Page, offset: u32, hash: Option<UtxoHash>, height: Option<u32>) -> SpendStatus {
    let slot = page.utxos.as_ref().and_then(|slots| slots.get(offset as usize)).copied().unwrap_or(Slot::Nil);
    let Some(found) = slot.hash() else { return SpendStatus::NoSuchOutput };
    if hash.is_some_and(|hash| hash != found) {
        return SpendStatus::HashMismatch(found);
    }
    if page.frozen || matches!(slot, Slot::Frozen(_)) {
        return SpendStatus::Frozen;
    }
    if page.contested.contains(&offset) {
        return SpendStatus::Contested(slot.spender());
    }
    if let Some(spender) = slot.spender() {
        return SpendStatus::Spent(spender);
    }
    match page.utxo_spendable_in.get(&offset) {
        Some(from) if height.is_some_and(|height| *from > height) => SpendStatus::NotYetSpendable(*from),
        _ => SpendStatus::Unspent,
    }
}

fn meta_of(stored: &StoredTransaction) -> Result<TxMeta, BodyError> {
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
        state: state_name(page.state()),
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

pub(super) fn inpoints_of(transaction: &Transaction<'_>) -> TxInpoints {
    let mut inpoints = TxInpoints::default();
    if transaction.is_coinbase() {
        return inpoints;
    }
    let mut places = BTreeMap::new();
    for Outpoint { txid, vout } in transaction.inputs().map(|input| input.outpoint) {
        let place = *places.entry(txid).or_insert_with(|| {
            inpoints.parent_txids.push(txid);
            inpoints.indexes.push(Vec::new());
            inpoints.indexes.len() - 1
        });
        inpoints.indexes[place].push(vout);
    }
    inpoints
}

fn spending_data(slot: &Slot) -> Option<SpendingData> {
    if matches!(slot, Slot::Frozen(_)) { Some(FROZEN) } else { slot.spender() }
}

/// The word for a state.
pub fn state_name(state: TxState) -> &'static str {
    match state {
        TxState::Live => "live",
        TxState::Creating => "creating",
        TxState::Stub(_) => "stub",
        TxState::Conflicting(_) => "conflicting",
        TxState::Pruned(_) => "pruned",
    }
}

fn as_hex<S: Serializer>(bytes: &Option<Bytes>, serializer: S) -> Result<S::Ok, S::Error> {
    bytes.as_ref().map(hex::encode).serialize(serializer)
}

/// A spender as `txid:input`.
fn as_spenders<S: Serializer>(spenders: &[Option<SpendingData>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(
        spenders.iter().map(|spender| spender.map(|spender| format!("{}:{}", spender.txid, spender.input))),
    )
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
