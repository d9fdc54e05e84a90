//! What is planted is what is named.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::{
    record::Page,
    store::{
        digest::tests::{changes, holding, sample},
        testing::*,
    },
};

async fn compared(store: &Store, against: &Store, limit: usize) -> Comparison {
    compare(store, against, limit, |_| ()).await.unwrap()
}

/// A partial transaction under this txid.
fn under(txid: Txid) -> Page {
    Page { txid, ..seeded(0, 2) }
}

#[tokio::test]
async fn stores_that_hold_the_same_do_not_differ() {
    let (one, other) = (holding([sample()]).await, holding([sample()]).await);
    let found = compared(&one, &other, 10).await;
    assert!(found.is_same() && found.first.is_empty() && found.at_least == 0, "{found:?}");
    assert_eq!((found.store, found.store.transactions), (found.against, 1));
    assert_eq!(found.store.digest, one.survey(|_| ()).await.unwrap().digest);
}

/// Each thing that the digest covers has a field of its own, with both values.
#[tokio::test]
async fn whatever_differs_is_told() {
    let (mut seen, same) = (BTreeSet::new(), holding([sample()]).await);
    for (what, change) in changes().into_iter().filter(|(what, _)| *what != "txid") {
        let mut page = sample();
        change(&mut page);
        let found = compared(&same, &holding([page]).await, 10).await;
        let [Difference { txid, how: How::Fields(fields) }] = &found.first[..] else { panic!("{what}: {found:?}") };
        assert_eq!(*txid, sample().txid, "{what}");
        assert!(!fields.is_empty() && fields.iter().all(|field| field.store != field.against), "{what}: {fields:?}");
        let told: Vec<String> = fields.iter().map(|field| format!("{}: {}", field.field, field.against)).collect();
        assert!(seen.insert(told.clone()), "{what}: {told:?} was told of another change");
    }
    let told = seen.into_iter().flatten().collect::<Vec<_>>();
    for field in ["spendingHeight: 201", "locked: true", "unminedSince: 0", "output 2: gap", "verdict: pending"] {
        assert!(told.iter().any(|line| line == field), "{field}: {told:#?}");
    }
    assert!(told.iter().any(|line| line.starts_with("slot 1: spent, hash ") && line.contains("by input 1 of 0909")));
}

#[tokio::test]
async fn of_a_wide_transaction_the_first_fields_are_told() {
    let wide = |script: u32| {
        let mut page = under(Txid([3; 32]));
        let slots = (0..50).map(|slot| crate::record::Slot::Unspent(crate::tx::UtxoHash([(slot + script) as u8; 32])));
        page.utxos = Some(slots.collect());
        page
    };
    let found = compared(&holding([wide(0)]).await, &holding([wide(1)]).await, 1).await;
    let [Difference { how: How::Fields(fields), .. }] = &found.first[..] else { panic!("{found:?}") };
    assert_eq!((fields.len(), fields[0].field.as_str()), (MOST_FIELDS, "slot 0"));
}

#[tokio::test]
async fn who_cannot_be_read_is_named() {
    let mut page = page(&coinbase(50));
    master(&mut page).body = Some(crate::record::Body::External(crate::record::Blob::First));
    let (good, bad) = (holding([sample()]).await, holding([page]).await);
    let error = compare(&good, &bad, 10, |_| ()).await.unwrap_err();
    assert_eq!(error.side, Side::Against);
    assert!(error.to_string().starts_with("--against: ") && error.to_string().contains("blob store"), "{error}");
}

/// What is done to a transaction that both stores hold.
#[derive(Debug, Clone, Copy)]
enum Planted {
    Nothing,
    Gone(Side),
    Other,
}

fn planted() -> impl Strategy<Value = (Txid, Planted)> {
    // Some share a prefix, or nearly all of the txid.
    let txid = (prop_oneof![Just([0, 0]), Just([0, 1]), Just([255, 255]), any::<[u8; 2]>()], any::<u8>(), 0..3u8);
    let txid = txid.prop_map(|([high, low], middle, last)| {
        let mut txid = [7; 32];
        (txid[0], txid[1], txid[2], txid[31]) = (high, low, middle, last);
        Txid(txid)
    });
    let planted = prop_oneof![
        3 => Just(Planted::Nothing),
        1 => Just(Planted::Gone(Side::Store)),
        1 => Just(Planted::Gone(Side::Against)),
        1 => Just(Planted::Other),
    ];
    (txid, planted)
}

proptest! {
    /// Also where far fewer are held at a time than differ.
    #[test]
    fn exactly_the_first_that_differ_are_named(
        transactions in prop::collection::btree_map(planted().prop_map(|(txid, _)| txid), planted().prop_map(|(_, planted)| planted), 0..40),
        limit in 0..12usize,
        held in 1..6usize,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (here, there) = (store(100), store(100));
            let mut expected = Vec::new();
            for (txid, planted) in transactions {
                let page = under(txid);
                match planted {
                    Planted::Gone(Side::Store) => there.plant(page).await,
                    Planted::Gone(Side::Against) => here.plant(page).await,
                    Planted::Nothing => {
                        here.plant(page.clone()).await;
                        there.plant(page).await;
                    }
                    Planted::Other => {
                        there.plant(Page { locked: true, ..page.clone() }).await;
                        here.plant(page).await;
                    }
                }
                let locked = || Field { field: "locked".into(), store: "false".into(), against: "true".into() };
                expected.extend(match planted {
                    Planted::Nothing => None,
                    Planted::Gone(Side::Store) => Some((txid, How::OnlyIn(Side::Against))),
                    Planted::Gone(Side::Against) => Some((txid, How::OnlyIn(Side::Store))),
                    Planted::Other => Some((txid, How::Fields(vec![locked()]))),
                });
            }
            let comparer = Comparer { store: &here, against: &there, held, seen: Cell::new(0), progress: |_| () };
            let found = comparer.compare(limit).await.unwrap();
            let named: Vec<_> = found.first.iter().map(|one| (one.txid, one.how.clone())).collect();
            assert_eq!(named, expected[..limit.min(expected.len())]);
            assert_eq!(found.is_same(), expected.is_empty());
            assert!((named.len()..=expected.len()).contains(&(found.at_least as usize)));
            for (total, store) in [(found.store, &here), (found.against, &there)] {
                assert_eq!(total.digest, store.survey(|_| ()).await.unwrap().digest);
            }
        });
    }
}
