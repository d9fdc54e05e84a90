use super::*;
use crate::{
    record::{Reason, Sequenced, Verdict, build::Start},
    store::{read::Fields, testing},
};

/// A transaction of five outputs, two a page: its master and others as they are after this many have been cleared.
async fn half_created(store: &Store, cleared: u32) -> Txid {
    let bytes = testing::transaction(&[(testing::outpoint(Txid([9; 32]), 0), 1_000)], &[100; 5]);
    for mut page in testing::pages(&bytes, &Start::default(), 2).into_iter().rev() {
        page.creating_at = (page.number == 0 || page.number > cleared).then_some(77);
        store.plant(page).await;
    }
    testing::txid(&bytes)
}

async fn are_live(store: &Store, txid: Txid) -> bool {
    let pages = store.pages(txid, 0, 3).await.unwrap();
    pages.iter().all(|page| page.as_ref().is_some_and(|page| page.state() == TxState::Live))
}

#[tokio::test(start_paused = true)]
async fn what_is_half_created_is_completed_from_wherever_it_stands() {
    for cleared in 0..3 {
        let store = testing::store(2);
        let txid = half_created(&store, cleared).await;
        assert!(!are_live(&store, txid).await);
        for _ in 0..2 {
            let master = store.complete(txid).await.unwrap().unwrap();
            assert_eq!(master.state(), TxState::Live);
            assert!(are_live(&store, txid).await);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_page_that_a_node_forgot_is_made_again() {
    let store = testing::store(2);
    let txid = half_created(&store, 0).await;
    let whole = store.get(txid, Fields::ALL).await.unwrap().unwrap().slots;
    let other = testing::store(2);
    for page in store.pages(txid, 0, 3).await.unwrap().into_iter().flatten().filter(|page| page.number != 2) {
        other.plant(Page::clone(&page)).await;
    }
    other.complete(txid).await.unwrap();
    assert!(are_live(&other, txid).await);
    assert_eq!(other.get(txid, Fields::ALL).await.unwrap().unwrap().slots, whole);
}

#[tokio::test(start_paused = true)]
async fn a_page_that_cannot_be_had_is_named_and_nothing_is_live() {
    let store = testing::store(2);
    let bytes = testing::transaction(&[(testing::outpoint(Txid([9; 32]), 0), 1_000)], &[100; 5]);
    let mut pages = testing::pages(&bytes, &Start::default(), 2);
    testing::master(&mut pages[0]).body = Some(crate::record::Body::External);
    pages[0].creating_at = Some(7);
    store.plant(pages.remove(0)).await;
    let told = store.complete(testing::txid(&bytes)).await.unwrap_err();
    assert!(matches!(told, CompleteError::MissingPage { page: 1, .. }), "{told}");
    let master = store.master(testing::txid(&bytes)).await.unwrap().unwrap();
    assert_eq!(master.state(), TxState::Creating);
}

#[tokio::test(start_paused = true)]
async fn what_is_contested_is_left_to_the_sequencer() {
    let store = testing::store(2);
    let txid = half_created(&store, 0).await;
    let reason = Reason::Command;
    store.sequenced(Key::master(txid), Sequenced::MarkConflicting { reason, height: 5 }).await;
    let master = store.complete(txid).await.unwrap().unwrap();
    assert_eq!(master.state(), TxState::Conflicting(Verdict::Conflicting(reason)));
    assert_eq!(store.pages(txid, 1, 2).await.unwrap()[0].as_ref().unwrap().state(), TxState::Creating);
    assert!(store.complete(Txid([1; 32])).await.unwrap().is_none());
}
