use super::*;
use crate::record::{Blob, Reassignment, Sequenced, build::NewTxState};
use crate::store::testing::*;
use crate::tx::UtxoHash;

pub(crate) const PARENT: Txid = Txid([1; 32]);

pub(crate) fn holder(id: u8, input: u32) -> SpendingData {
    SpendingData { txid: Txid([id; 32]), input }
}

/// Seven outputs on pages of two: 3 spent, 4 frozen, 5 reassigned.
pub(crate) async fn paged_store() -> (StateStore, Bytes) {
    let bytes = transaction(&[(outpoint(PARENT, 0), 900)], &[10, 11, 12, 13, 14, 15, 16]);
    let store = store(2);
    let mut pages = pages(&bytes, &NewTxState::default(), 2);
    let slot = |page: &mut Page, at: usize, new: fn(UtxoHash) -> Slot| {
        let slot = &mut page.utxos.as_mut().unwrap()[at];
        *slot = new(slot.hash().unwrap());
    };
    slot(&mut pages[1], 1, |hash| Slot::Spent(hash, holder(8, 6)));
    pages[1].spent_utxos = 1;
    slot(&mut pages[2], 0, Slot::Frozen);
    let output = StoredOutput { satoshis: 99, script: Bytes::from_static(&[0x52]) };
    let (utxo_hash, new_utxo_hash) = (UtxoHash([3; 32]), UtxoHash([4; 32]));
    pages[2].reassignments.push(Reassignment { offset: 1, utxo_hash, new_utxo_hash, block_height: 9, output });
    pages[2].record_utxos += 1;
    for page in pages {
        store.plant(page).await;
    }
    (store, bytes)
}

#[tokio::test]
async fn slots_are_read_from_all_pages() {
    let (store, bytes) = paged_store().await;
    let id = txid(&bytes);
    let stored = TxReader::of(&store).get(id, ReadFields::ALL).await.unwrap().unwrap();
    assert_eq!(stored.slots.len(), 7);
    assert_eq!(stored.body, Some(Body::Transaction(bytes.clone())));
    let meta = TxReader::of(&store).get_meta(id).await.unwrap().unwrap();
    assert_eq!(meta.spending_data, [None, None, None, Some(holder(8, 6)), Some(FROZEN_SPENDER), None, None]);
    assert_eq!(meta.tx, Some(bytes));
    let only_master = TxReader::of(&store).get(id, ReadFields::default()).await.unwrap().unwrap();
    assert_eq!((only_master.slots.len(), only_master.body), (0, None));
    assert_eq!(TxReader::of(&store).get(Txid([2; 32]), ReadFields::ALL).await.unwrap(), None);
}

#[tokio::test]
async fn a_missing_page_is_an_error_with_its_number() {
    let bytes = transaction(&[(outpoint(PARENT, 0), 900)], &[1, 2, 3, 4]);
    let store = store(2);
    store.plant(pages(&bytes, &NewTxState::default(), 2).remove(0)).await;
    let id = txid(&bytes);
    let error = TxReader::of(&store).get_meta(id).await.unwrap_err();
    assert!(matches!(error, ReadError::MissingPage { page: 1, .. }), "{error}");
}

#[tokio::test]
async fn tx_meta_has_all_stored_data() {
    let store = store(100);
    store.plant(seeded(1, 4)).await;
    store.plant(seeded(2, 1)).await;
    let second = outpoint(Txid([2; 32]), 0);
    let bytes =
        transaction(&[(outpoint(PARENT, 3), 1_000), (second, 1_000), (outpoint(PARENT, 0), 1_000)], &[2_000, 400]);
    store.accept(&bytes).await;
    let id = txid(&bytes);
    store.sequenced(Key::master(id), Sequenced::AddConflictingChild(Txid([5; 32]))).await;
    let before = TxReader::of(&store).get_meta(id).await.unwrap().unwrap();
    assert_eq!((before.unmined_since, before.block_ids.len()), (Some(HEIGHT), 0));
    store.mine(id, 3).await;
    let meta = TxReader::of(&store).get_meta(id).await.unwrap().unwrap();
    let expected = TxMeta {
        txid: id,
        state: "live",
        tx: Some(bytes.clone()),
        tx_inpoints: TxInpoints { parent_txids: vec![PARENT, Txid([2; 32])], indexes: vec![vec![3, 0], vec![0]] },
        fee: 600,
        size_in_bytes: bytes.len() as u64 - 6 - 3 * 11,
        extended_size: bytes.len() as u64,
        block_ids: vec![3],
        block_heights: vec![HEIGHT + 3],
        subtree_idxs: vec![0],
        lock_time: 0,
        is_coinbase: false,
        locked: false,
        conflicting: false,
        conflicting_children: vec![Txid([5; 32])],
        creating: false,
        frozen: false,
        unmined_since: None,
        created_at: 5,
        spending_data: vec![None, None],
    };
    assert_eq!(meta, expected);
    let json = serde_json::to_value(&meta).unwrap();
    assert_eq!(json["tx"], hex::encode(&bytes));
    let parent = serde_json::to_value(TxReader::of(&store).get_meta(PARENT).await.unwrap().unwrap()).unwrap();
    assert_eq!(parent["spendingData"], serde_json::json!([format!("{id}:2"), null, null, format!("{id}:0")]));
    assert_eq!((&parent["tx"], &parent["fee"]), (&serde_json::Value::Null, &serde_json::json!(0)));
}

#[tokio::test]
async fn a_stub_and_a_coinbase_are_read_with_their_states() {
    let store = store(100);
    store.sequenced(Key::master(PARENT), Sequenced::MarkContested).await;
    let stub = TxReader::of(&store).get_meta(PARENT).await.unwrap().unwrap();
    assert_eq!((stub.state, stub.tx, stub.spending_data.len()), ("stub", None, 0));
    let bytes = coinbase(50);
    store.plant(page(&bytes)).await;
    let meta = TxReader::of(&store).get_meta(txid(&bytes)).await.unwrap().unwrap();
    assert_eq!((meta.is_coinbase, meta.tx_inpoints), (true, TxInpoints::default()));
}

#[tokio::test]
async fn a_body_in_a_missing_blob_store_is_an_error() {
    let mut external = page(&coinbase(50));
    master(&mut external).body = Some(Body::External(Blob::First(None)));
    let (store, id) = (store(100), external.txid);
    store.plant(external).await;
    assert!(matches!(TxReader::of(&store).get_meta(id).await, Err(ReadError::Body(BodyError::NoBlobStore { .. }))));
    assert!(TxReader::of(&store).get(id, ReadFields { slots: true, body: false }).await.is_ok());
    assert!(matches!(TxReader::of(&store).get(id, ReadFields::ALL).await, Err(ReadError::Body(_))));
}

/// A transaction in standard format with these inputs.
fn standard(inputs: &[Outpoint]) -> Vec<u8> {
    let inputs: Vec<_> = inputs.iter().map(|outpoint| (*outpoint, 0)).collect();
    let bytes = transaction(&inputs, &[1]);
    let mut standard = Vec::new();
    Transaction::parse(&bytes).unwrap().write_standard(&mut standard);
    standard
}

async fn previous(store: &StateStore, inputs: &[Outpoint]) -> Result<Vec<StoredOutput>, ReadError> {
    TxReader::of(store).previous_outputs(&Transaction::parse(&standard(inputs)).unwrap()).await
}

#[tokio::test]
async fn previous_outputs_are_in_the_order_of_the_inputs() {
    let (store, bytes) = paged_store().await;
    store.plant(seeded(1, 2)).await;
    let at = |vout| outpoint(txid(&bytes), vout);
    let found = previous(&store, &[at(6), outpoint(PARENT, 1), at(0), at(5)]).await.unwrap();
    let satoshis: Vec<u64> = found.iter().map(|output| output.satoshis).collect();
    assert_eq!(satoshis, [16, 1_000, 10, 99], "the last one was reassigned");
    assert_eq!((found[0].script.clone(), found[1].script.clone()), (script(6), script(1)));
    let coinbase = coinbase(50);
    assert_eq!(TxReader::of(&store).previous_outputs(&Transaction::parse(&coinbase).unwrap()).await.unwrap(), []);
}

#[tokio::test]
async fn a_missing_previous_output_is_an_error_with_its_input() {
    let store = store(2);
    let mut partial = seeded(1, 2);
    partial.utxos.as_mut().unwrap()[1] = Slot::Nil;
    partial.record_utxos = 1;
    store.plant(partial).await;
    for vout in [1, 2, u32::MAX] {
        let error = previous(&store, &[outpoint(PARENT, 0), outpoint(PARENT, vout)]).await.unwrap_err();
        assert!(matches!(error, ReadError::NoPreviousOutput { input: 1, .. }), "{error}");
    }
    let error = previous(&store, &[outpoint(Txid([9; 32]), 0)]).await.unwrap_err();
    assert!(matches!(error, ReadError::NoPreviousTransaction { input: 0, .. }), "{error}");
}

#[tokio::test]
async fn a_body_of_another_transaction_is_refused() {
    let mut other = page(&transaction(&[(outpoint(PARENT, 0), 5)], &[1]));
    other.txid = Txid([9; 32]);
    let store = store(2);
    store.plant(other).await;
    let error = previous(&store, &[outpoint(Txid([9; 32]), 0)]).await.unwrap_err();
    assert!(matches!(error, ReadError::Body(BodyError::OtherTransaction { .. })), "{error}");
}

#[tokio::test]
async fn a_batch_has_one_answer_for_each_transaction() {
    let store = store(2);
    let (first, broken) = (seeded(1, 2), transaction(&[(outpoint(PARENT, 0), 900)], &[1, 2, 3]));
    let absent = Txid([9; 32]);
    store.plant(first).await;
    store.plant(pages(&broken, &NewTxState::default(), 2).remove(0)).await;
    let txids = [txid(&broken), absent, PARENT, PARENT];
    let metas = TxReader::of(&store).get_many(&txids, ReadFields::default()).await;
    let fees: Vec<_> = metas.into_iter().map(|meta| meta.unwrap().map(|stored| stored.master.fee)).collect();
    assert_eq!(fees, [Some(894), None, Some(0), Some(0)]);
    let whole = TxReader::of(&store).get_many(&txids, ReadFields::ALL).await;
    assert!(matches!(whole[0], Err(ReadError::MissingPage { page: 1, .. })), "{:?}", whole[0]);
    assert!(whole[1].as_ref().unwrap().is_none());
    assert_eq!(whole[2].as_ref().unwrap().as_ref().unwrap().slots.len(), 2);
}
