use crate::{
    record::{Key, Page, Sequenced, Verdict, build::NewTxState},
    store::testing::*,
};

use super::*;

#[tokio::test]
async fn unmined_transactions_are_listed_oldest_first() {
    let store = store(100);
    let mut planted = Vec::new();
    for (id, created_at, since) in [(1, 30, 0), (2, 10, 200), (3, 20, 100), (4, 20, 100)] {
        let mut page = seeded(id, 1);
        let bins = master(&mut page);
        (bins.created_at, bins.unmined_since) = (created_at, Some(since));
        page.conflicting = id == 4;
        bins_verdict(&mut page);
        page.creating_at = (id == 3).then_some(20);
        planted.push(page);
    }
    planted.push(seeded(5, 1));
    for page in planted {
        store.plant(page).await;
    }
    let listed = StoreQueries::of(&store).old_unmined(u32::MAX).await.unwrap();
    let ids: Vec<_> =
        listed.iter().map(|unmined| (unmined.txid.0[0], unmined.unmined_since, unmined.creating)).collect();
    assert_eq!(ids, [(2, 200, false), (3, 100, true), (1, 0, false)]);
}

fn bins_verdict(page: &mut Page) {
    if page.conflicting {
        master(page).verdict = Some(Verdict::Pending);
    }
}

const PARENT: Txid = Txid([1; 32]);

/// A parent; `a` spends the parent, `b` spends `a`, and `rival` spends the outpoint of `a` and an output of `b`.
async fn family() -> (StateStore, [Txid; 3]) {
    let store = store(1);
    let a = transaction(&[(outpoint(PARENT, 0), 1_000)], &[900, 50]);
    let b = transaction(&[(outpoint(txid(&a), 1), 50)], &[40]);
    let rival = transaction(&[(outpoint(PARENT, 0), 1_000), (outpoint(txid(&b), 0), 40)], &[800]);
    store.plant(seeded(1, 1)).await;
    for page in pages(&a, &NewTxState::default(), 1) {
        store.plant(page).await;
    }
    store.spend_inputs(&a).await;
    store.accept(&b).await;
    let mut page = page(&rival).contested();
    page.conflicting = true;
    store.plant(page).await;
    (store, [&a, &b, &rival].map(txid))
}

#[tokio::test]
async fn holders_of_the_slots_and_their_descendants_are_counter_conflicting() {
    let (store, [a, b, rival]) = family().await;
    let against = StoreQueries::of(&store).counter_conflicting(rival, 10).await.unwrap().unwrap();
    assert_eq!(against, RelatedTxs { txids: vec![a, b], more: false });
    let against = StoreQueries::of(&store).counter_conflicting(rival, 1).await.unwrap().unwrap();
    assert_eq!(against, RelatedTxs { txids: vec![a], more: true });
    let against = StoreQueries::of(&store).counter_conflicting(a, 10).await.unwrap();
    assert_eq!(against, Some(RelatedTxs::default()), "the transaction holds its own slots");
    assert_eq!(StoreQueries::of(&store).counter_conflicting(Txid([9; 32]), 10).await.unwrap(), None);
}

#[tokio::test]
async fn conflicting_descendants_are_listed_nearest_first_and_once() {
    let store = store(10);
    for (id, children) in [(1, vec![2, 3]), (2, vec![4]), (3, vec![4, 1]), (4, vec![])] {
        let mut page = seeded(id, 1);
        master(&mut page).conflicting_children = children.into_iter().map(|child| Txid([child; 32])).collect();
        store.plant(page).await;
    }
    let found = StoreQueries::of(&store).conflicting_descendants(Txid([1; 32]), 10).await.unwrap();
    assert_eq!((found.txids, found.more), ([2, 3, 4].map(|id| Txid([id; 32])).to_vec(), false));
    let found = StoreQueries::of(&store).conflicting_descendants(Txid([1; 32]), 2).await.unwrap();
    assert_eq!((found.txids.len(), found.more), (2, true));
}

#[tokio::test]
async fn parents_of_old_unmined_transactions_are_listed() {
    let (store, [a, b, _]) = family().await;
    store.sequenced(Key::master(a), Sequenced::Preserve { until: 700 }).await;
    let old = StoreQueries::of(&store).old_unmined(HEIGHT).await.unwrap();
    assert_eq!(old.iter().map(|unmined| unmined.txid).collect::<BTreeSet<_>>(), BTreeSet::from([a, b]));
    assert_eq!(StoreQueries::of(&store).old_unmined(HEIGHT - 1).await.unwrap(), []);
    let mut expected = vec![
        PreservedParent { txid: PARENT, preserve_until: None },
        PreservedParent { txid: a, preserve_until: Some(700) },
    ];
    expected.sort_unstable();
    assert_eq!(StoreQueries::of(&store).preserved_parents(HEIGHT).await.unwrap(), expected);
}
