//! The state that the digest covers, as readable objects: one object for each transaction.

use serde::Serialize;

use crate::{
    engine::{EngineError, Set},
    record::{Body, MinedIn, Page, Slot, SpendingData, StoredOutput, TxState, Verdict},
    tx::{Txid, UtxoHash},
};

use super::{
    StateStore,
    canonical::SideBlocks,
    digest::{SurveyError, read_side_blocks},
    pages::{ExtraPages, slots_of_page},
    scan::SetScan,
};

/// A transaction as the digest covers it; fields that are `false`, absent or empty are left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DumpedTx {
    /// Id of the transaction.
    pub txid: Txid,
    /// State: `live`, `creating` or `conflicting`.
    pub state: &'static str,
    /// Transaction as it is stored, in extended format; hex. Absent for a partial transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx: Option<String>,
    /// Outputs of a partial transaction; gaps are `null`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Vec<Option<StoredOutput>>>,
    /// Set for a coinbase transaction.
    #[serde(skip_serializing_if = "is_false")]
    pub coinbase: bool,
    /// Set while the transaction is locked: its outputs are not spendable yet.
    #[serde(skip_serializing_if = "is_false")]
    pub locked: bool,
    /// Set for a transaction that is frozen as a whole.
    #[serde(skip_serializing_if = "is_false")]
    pub frozen: bool,
    /// Set for a conflicting transaction.
    #[serde(skip_serializing_if = "is_false")]
    pub conflicting: bool,
    /// Height from which the outputs of a coinbase are spendable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spending_height: Option<u32>,
    /// Height since which no block of the longest chain lists the transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unmined_since: Option<u32>,
    /// Height until which the transaction is not pruned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preserve_until: Option<u32>,
    /// Verdict of a transaction that was contested: `pending`, `accepted` or `conflicting`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<&'static str>,
    /// Reason of the verdict `conflicting`, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Blocks of the longest chain that list the transaction.
    pub mined: Vec<MinedIn>,
    /// Slots of all pages; the index in the list is the `vout`.
    pub slots: Vec<DumpedSlot>,
}

/// A slot of one output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DumpedSlot {
    /// State of the slot: `nil`, `unspent`, `spent`, `frozen`, or `missing` where the page is missing.
    pub state: &'static str,
    /// UTXO hash to which the slot commits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<UtxoHash>,
    /// Input that spends the output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spender: Option<SpendingData>,
    /// Height from which the output is spendable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spendable_from: Option<u32>,
    /// Reassignments of the slot, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reassignments: Vec<DumpedReassignment>,
}

/// A reassignment of a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DumpedReassignment {
    /// UTXO hash before the reassignment.
    pub utxo_hash: UtxoHash,
    /// UTXO hash after the reassignment.
    pub new_utxo_hash: UtxoHash,
    /// Block height of the reassignment.
    pub block_height: u32,
    /// Output that the slot stands for afterwards.
    pub output: StoredOutput,
}

/// Calls `each` with every transaction that the digest covers, until `each` returns an error.
///
/// Transactions come in the order of the scan. The memory and fjall engines scan by the bytes of the txid (internal
/// order, not the order of the text); for other engines the caller sorts. One transaction at a time is in memory.
///
/// # Errors
/// The error of [`survey`](super::digest::survey), or the error that `each` returned.
pub async fn dump<E: From<SurveyError>>(
    store: &StateStore,
    mut each: impl FnMut(DumpedTx) -> Result<(), E>,
) -> Result<(), E> {
    let (side, _) = read_side_blocks(store).await.map_err(SurveyError::from)?;
    let mut scan = SetScan::new(store, Set::Transactions);
    while let Some(masters) = scan.next_masters().await.map_err(SurveyError::from)? {
        for master in masters {
            if let Some(dumped) = dump_transaction(store, &master, &side).await? {
                each(dumped)?;
            }
        }
    }
    Ok(())
}

/// Reads one transaction as the digest covers it; `None` for a stub and for a pruned transaction.
///
/// # Errors
/// The error of [`survey`](super::digest::survey).
pub(super) async fn dump_transaction(
    store: &StateStore,
    master: &Page,
    side: &SideBlocks,
) -> Result<Option<DumpedTx>, SurveyError> {
    if matches!(master.state(), TxState::Stub(_) | TxState::Pruned(_)) {
        return Ok(None);
    }
    let Some(slots) = dump_slots(store, master).await? else { return Ok(None) };
    let Some(bins) = master.master.as_deref() else { return Ok(None) };
    let (tx, outputs) = match store.read_intact_body(master).await?.as_deref() {
        Some(Body::Transaction(bytes)) => (Some(hex::encode(bytes)), None),
        Some(Body::Outputs(outputs)) => (None, Some(outputs.iter().map(Option::<&StoredOutput>::cloned).collect())),
        Some(Body::External(_)) | None => (None, None),
    };
    let (verdict, reason) = verdict_texts(bins.verdict);
    Ok(Some(DumpedTx {
        txid: master.txid,
        state: master.state().into(),
        tx,
        outputs,
        coinbase: master.is_coinbase,
        locked: master.locked,
        frozen: master.frozen,
        conflicting: master.conflicting,
        spending_height: master.spending_height,
        unmined_since: bins.unmined_since,
        preserve_until: bins.preserve_until,
        verdict,
        reason,
        mined: side.on_longest_chain(&bins.mined).into_iter().collect(),
        slots,
    }))
}

/// Reads the slots of all pages; `None` once the pruner has begun with the transaction.
async fn dump_slots(store: &StateStore, master: &Page) -> Result<Option<Vec<DumpedSlot>>, EngineError> {
    let mut slots = dump_page_slots(master);
    let mut pages = ExtraPages::of(store, master);
    while let Some((number, page)) = pages.next().await? {
        match page {
            Some(page) if page.pruned.is_some() => return Ok(None),
            Some(page) => slots.extend(dump_page_slots(&page)),
            None => {
                let missing = slots_of_page(master, number, store.settings.utxo_batch_size);
                slots.extend((0..missing).map(|_| dump_slot("missing", &Slot::Nil)));
            }
        }
    }
    Ok(Some(slots))
}

fn dump_page_slots(page: &Page) -> Vec<DumpedSlot> {
    let slots = page.utxos.iter().flatten().zip(0..);
    slots
        .map(|(stored, offset)| {
            let reassigned = page.reassignments.iter().filter(|entry| entry.offset == offset);
            DumpedSlot {
                spendable_from: page.utxo_spendable_in.get(&offset).copied(),
                reassignments: reassigned.map(dump_reassignment).collect(),
                ..dump_slot(stored.into(), stored)
            }
        })
        .collect()
}

fn dump_slot(state: &'static str, slot: &Slot) -> DumpedSlot {
    DumpedSlot { state, hash: slot.hash(), spender: slot.spender(), spendable_from: None, reassignments: Vec::new() }
}

fn dump_reassignment(entry: &crate::record::Reassignment) -> DumpedReassignment {
    DumpedReassignment {
        utxo_hash: entry.utxo_hash,
        new_utxo_hash: entry.new_utxo_hash,
        block_height: entry.block_height,
        output: entry.output.clone(),
    }
}

fn verdict_texts(verdict: Option<Verdict>) -> (Option<&'static str>, Option<String>) {
    match verdict {
        None => (None, None),
        Some(Verdict::Pending) => (Some("pending"), None),
        Some(Verdict::Accepted) => (Some("accepted"), None),
        Some(Verdict::Conflicting(reason)) => (Some("conflicting"), Some(reason.to_string())),
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        record::{Key, Reason, Reassignment, Sequenced, build::NewTxState},
        store::testing::*,
    };

    async fn lines(store: &StateStore) -> Vec<serde_json::Value> {
        let mut lines = Vec::new();
        let each = |dumped| {
            lines.push(serde_json::to_value(dumped).unwrap());
            Ok::<_, SurveyError>(())
        };
        dump(store, each).await.unwrap();
        lines
    }

    #[tokio::test]
    async fn transactions_come_by_txid_with_every_covered_field() {
        let store = store(2);
        let bytes = transaction(&[(outpoint(Txid([1; 32]), 0), 1_000)], &[10, 20, 30]);
        let id = txid(&bytes);
        let mut pages = pages(&bytes, &NewTxState::default(), 2);
        pages[1].utxo_spendable_in.insert(0, 700);
        let output = StoredOutput { satoshis: 5, script: script(9) };
        let (utxo_hash, new_utxo_hash) = (UtxoHash([3; 32]), UtxoHash([4; 32]));
        pages[1].reassignments.push(Reassignment { offset: 0, utxo_hash, new_utxo_hash, block_height: 9, output });
        let hash = |page: usize, at: usize| pages[page].utxos.as_ref().unwrap()[at].hash().unwrap().to_string();
        let hashes = [hash(0, 0), hash(0, 1), hash(1, 0)];
        let slots = pages[0].utxos.as_mut().unwrap();
        slots[1] = Slot::Spent(slots[1].hash().unwrap(), SpendingData { txid: Txid([9; 32]), input: 2 });
        for page in pages {
            store.plant(page).await;
        }
        store.plant(seeded(0, 1)).await;
        store.plant(seeded(0xff, 1)).await;
        store.sequenced(Key::master(Txid([5; 32])), Sequenced::MarkContested).await;

        let lines = lines(&store).await;
        let ids: Vec<_> = lines.iter().map(|line| line["txid"].as_str().unwrap().to_owned()).collect();
        assert_eq!(ids, [Txid([0; 32]), id, Txid([0xff; 32])].map(|txid| txid.to_string()));
        let expected = json!({
            "txid": id.to_string(),
            "state": "live",
            "tx": hex::encode(&bytes),
            "unmined_since": 100,
            "mined": [],
            "slots": [
                {"state": "unspent", "hash": hashes[0]},
                {"state": "spent", "hash": hashes[1], "spender": {"txid": Txid([9; 32]).to_string(), "input": 2}},
                {"state": "unspent", "hash": hashes[2], "spendable_from": 700, "reassignments": [{
                    "utxo_hash": "03".repeat(32),
                    "new_utxo_hash": "04".repeat(32),
                    "block_height": 9,
                    "output": {"satoshis": 5, "script": "5109"},
                }]},
            ],
        });
        assert_eq!(lines[1], expected);
        assert_eq!(lines[0]["outputs"], json!([{"satoshis": 1_000, "script": "5100"}]));
        assert_eq!(lines[0]["mined"], json!([{"block_id": 0, "height": 100, "subtree": 0}]));
    }

    #[tokio::test]
    async fn a_conflicting_transaction_has_a_reason_and_a_missing_page_shows() {
        let store = store(2);
        let reason = Reason::DoubleSpend { input: 0, winner: Txid([6; 32]) };
        let start = NewTxState { verdict: Some(Verdict::Conflicting(reason)), ..NewTxState::default() };
        let bytes = transaction(&[(outpoint(Txid([1; 32]), 0), 1_000)], &[10, 20, 30]);
        store.plant(pages(&bytes, &start, 2).remove(0)).await;
        let line = &lines(&store).await[0];
        assert_eq!((&line["conflicting"], &line["verdict"]), (&json!(true), &json!("conflicting")));
        assert!(line["reason"].as_str().unwrap().contains(&Txid([6; 32]).to_string()));
        assert_eq!(line["slots"][2], json!({"state": "missing"}));
    }

    #[tokio::test]
    async fn an_error_of_the_reader_stops_the_dump() {
        let store = store(2);
        for id in 1..4 {
            store.plant(seeded(id, 1)).await;
        }
        let mut seen = 0;
        let stopped = dump(&store, |_| {
            seen += 1;
            Err(SurveyError::Engine(EngineError {
                kind: crate::engine::ErrorKind::Fatal,
                operation: "print",
                key: "line".into(),
                message: "enough".into(),
            }))
        });
        assert!(stopped.await.is_err());
        assert_eq!(seen, 1);
    }
}
