//! Planted differences are found, and no others.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::{
    record::Page,
    store::{
        digest::{
            survey,
            tests::{changes, holding, sample},
        },
        testing::*,
    },
};

async fn compared(store: &StateStore, against: &StateStore, limit: usize) -> Comparison {
    compare(store, against, limit, |_| ()).await.unwrap()
}

/// Returns a partial transaction with this txid.
fn partial(txid: Txid) -> Page {
    Page { txid, ..seeded(0, 2) }
}

#[tokio::test]
async fn stores_with_the_same_state_do_not_differ() {
    let (one, other) = (holding([sample()]).await, holding([sample()]).await);
    let found = compared(&one, &other, 10).await;
    assert!(found.is_same() && found.first.is_empty() && found.at_least == 0, "{found:?}");
    assert_eq!((found.store, found.store.transactions), (found.against, 1));
    assert_eq!(found.store.digest, survey(&one, |_| ()).await.unwrap().digest);
}

/// Each change that the digest covers shows in a field of its own.
#[tokio::test]
async fn each_covered_field_is_named_with_both_values() {
    let (mut seen, same) = (BTreeSet::new(), holding([sample()]).await);
    for (what, change) in changes().into_iter().filter(|(what, _)| *what != "txid") {
        let mut page = sample();
        change(&mut page);
        let found = compared(&same, &holding([page]).await, 10).await;
        let [Difference { txid, kind: DifferenceKind::Fields(fields) }] = &found.first[..] else {
            panic!("{what}: {found:?}")
        };
        assert_eq!(*txid, sample().txid, "{what}");
        assert!(!fields.is_empty() && fields.iter().all(|field| field.store != field.against), "{what}: {fields:?}");
        let lines: Vec<String> = fields.iter().map(|field| format!("{}: {}", field.field, field.against)).collect();
        assert!(seen.insert(lines.clone()), "{what}: {lines:?} was named for another change");
    }
    let lines = seen.into_iter().flatten().collect::<Vec<_>>();
    for field in ["spendingHeight: 201", "locked: true", "unminedSince: 0", "output 2: gap", "verdict: pending"] {
        assert!(lines.iter().any(|line| line == field), "{field}: {lines:#?}");
    }
    assert!(lines.iter().any(|line| line.starts_with("slot 1: spent, hash ") && line.contains("by input 1 of 0909")));
}

#[tokio::test]
async fn only_the_first_fields_of_a_wide_transaction_are_named() {
    let wide = |script: u32| {
        let mut page = partial(Txid([3; 32]));
        let slots = (0..50).map(|slot| crate::record::Slot::Unspent(crate::tx::UtxoHash([(slot + script) as u8; 32])));
        page.utxos = Some(slots.collect());
        page
    };
    let found = compared(&holding([wide(0)]).await, &holding([wide(1)]).await, 1).await;
    let [Difference { kind: DifferenceKind::Fields(fields), .. }] = &found.first[..] else { panic!("{found:?}") };
    assert_eq!((fields.len(), fields[0].field.as_str()), (super::fields::MAX_FIELDS, "slot 0"));
}

#[tokio::test]
async fn an_error_names_the_store_that_cannot_be_read() {
    let mut page = page(&coinbase(50));
    master(&mut page).body = Some(crate::record::Body::External(crate::record::Blob::First(None)));
    let (good, bad) = (holding([sample()]).await, holding([page]).await);
    let error = compare(&good, &bad, 10, |_| ()).await.unwrap_err();
    assert_eq!(error.side, Side::Against);
    assert!(error.to_string().starts_with("--against: ") && error.to_string().contains("blob store"), "{error}");
}

/// Difference that is planted in one transaction.
#[derive(Debug, Clone, Copy)]
enum Planted {
    Equal,
    Absent(Side),
    Locked,
}

fn planted() -> impl Strategy<Value = (Txid, Planted)> {
    // Some txids share a prefix, or all bytes but a few.
    let txid = (prop_oneof![Just([0, 0]), Just([0, 1]), Just([255, 255]), any::<[u8; 2]>()], any::<u8>(), 0..3u8);
    let txid = txid.prop_map(|([high, low], middle, last)| {
        let mut txid = [7; 32];
        (txid[0], txid[1], txid[2], txid[31]) = (high, low, middle, last);
        Txid(txid)
    });
    let planted = prop_oneof![
        3 => Just(Planted::Equal),
        1 => Just(Planted::Absent(Side::Store)),
        1 => Just(Planted::Absent(Side::Against)),
        1 => Just(Planted::Locked),
    ];
    (txid, planted)
}

proptest! {
    /// The capacity for digests is mostly far smaller than the number of differences.
    #[test]
    fn exactly_the_first_differing_transactions_are_named(
        transactions in prop::collection::btree_map(
            planted().prop_map(|(txid, _)| txid),
            planted().prop_map(|(_, planted)| planted),
            0..40,
        ),
        limit in 0..12usize,
        max_digests in 1..6usize,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (here, there) = (store(100), store(100));
            let mut expected = Vec::new();
            for (txid, planted) in transactions {
                let page = partial(txid);
                match planted {
                    Planted::Absent(Side::Store) => there.plant(page).await,
                    Planted::Absent(Side::Against) => here.plant(page).await,
                    Planted::Equal => {
                        here.plant(page.clone()).await;
                        there.plant(page).await;
                    }
                    Planted::Locked => {
                        there.plant(Page { locked: true, ..page.clone() }).await;
                        here.plant(page).await;
                    }
                }
                let locked = || {
                    let (store, against) = ("false".into(), "true".into());
                    FieldDifference { field: "locked".into(), store, against }
                };
                expected.extend(match planted {
                    Planted::Equal => None,
                    Planted::Absent(Side::Store) => Some((txid, DifferenceKind::OnlyIn(Side::Against))),
                    Planted::Absent(Side::Against) => Some((txid, DifferenceKind::OnlyIn(Side::Store))),
                    Planted::Locked => Some((txid, DifferenceKind::Fields(vec![locked()]))),
                });
            }
            let (scanned, progress) = (Cell::new(0), |_| ());
            let comparer = Comparer { store: &here, against: &there, max_digests, scanned, progress };
            let found = comparer.compare(limit).await.unwrap();
            let named: Vec<_> = found.first.iter().map(|one| (one.txid, one.kind.clone())).collect();
            assert_eq!(named, expected[..limit.min(expected.len())]);
            assert_eq!(found.is_same(), expected.is_empty());
            assert!((named.len()..=expected.len()).contains(&(found.at_least as usize)));
            for (total, store) in [(found.store, &here), (found.against, &there)] {
                assert_eq!(total.digest, survey(store, |_| ()).await.unwrap().digest);
            }
        });
    }
}
