//! Layouts on a real Aerospike: which one a store has, and answers that do not depend on the layout.

use std::{sync::Arc, time::Duration};

use utxo_store::{
    engine::{
        ErrorKind, RecordEngine, Row, Set, StoreUrl,
        aerospike::{AerospikeEngine, AerospikeSettings, Layout},
        conformance::RULES,
    },
    record::{
        HeldSlot, Key, MetaRecord, MinedIn, Operation, Outcome, Phase, Reply, Rules, Sequenced, SpendingData, Stamp,
        apply,
    },
    store::{
        StateStore, StoreSettings,
        meta::{MetaError, StoreMeta},
    },
    tx::Network,
};

use crate::{
    aerospike::{create, on, open, refusal, spend, txid},
    aerospike_server::AerospikeServer,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_keeps_the_layout_in_which_it_was_made() {
    let Some(server) = AerospikeServer::start() else { return };
    for (made, other) in [(Layout::Compact, Layout::Teranode), (Layout::Teranode, Layout::Compact)] {
        let settings = AerospikeSettings { layout: Some(made), ..server.settings() };
        let engine = open(&settings).await;
        let late = open(&AerospikeSettings { layout: Some(other), ..settings.clone() }).await;
        let meta = MetaRecord { network: "main".into(), ..MetaRecord::default() };
        let row = Row { key: Key::Meta, operation: Operation::CreateMeta(Box::new(meta)) };
        let answers = engine.apply(&[row]).await;
        assert!(answers[0].as_ref().unwrap().is_done(), "{answers:?}");
        let error = refusal(&AerospikeSettings { layout: Some(other), ..settings.clone() }).await;
        assert!(
            error.contains(&format!("has the layout `{made}`, and the URL of the store says `{other}`")),
            "{error}"
        );
        let whichever = open(&AerospikeSettings { layout: None, ..settings.clone() }).await;
        assert!(whichever.read(&[Key::Meta]).await.remove(0).unwrap().is_some());
        // An instance that was started before the store was made finds out when it reads the meta record.
        let error = late.read(&[Key::Meta]).await.remove(0).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Fatal);
        let wanted = format!("the layout `{made}`, and this process took the store for one of the layout `{other}`");
        assert!(error.message.contains(&wanted), "{error}");
        // A page of the other layout is refused, and neither read as damaged nor written over.
        assert!(engine.apply(&[create(7, 2)]).await[0].as_ref().unwrap().is_done());
        for error in [
            late.read(&[Key::master(txid(7))]).await.remove(0).unwrap_err(),
            late.apply(&[create(7, 2)]).await.remove(0).unwrap_err(),
            late.apply(&[spend(7, 0, 8)]).await.remove(0).unwrap_err(),
        ] {
            assert!(error.message.contains(&format!("the record has the layout `{made}`")), "{error}");
        }
    }
    assert!(
        "aerospike://h/ns?layout=wide".parse::<StoreUrl>().unwrap_err().to_string().contains("compact or teranode")
    );
}

/// A set with records of the other layout and without a meta record is not taken for an empty one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_set_of_the_other_layout_without_a_meta_record_is_foreign() {
    let Some(server) = AerospikeServer::start() else { return };
    let settings = AerospikeSettings { layout: Some(Layout::Teranode), ..server.settings() };
    assert!(open(&settings).await.is_empty(Set::Transactions).await.unwrap());
    assert!(open(&settings).await.apply(&[create(1, 2)]).await[0].as_ref().unwrap().is_done());
    let other = AerospikeSettings { layout: Some(Layout::Compact), ..settings };
    let store_settings = StoreSettings {
        network: Network::Regtest,
        rules: RULES,
        utxo_batch_size: 20_000,
        batch_size: 16,
        concurrency: 4,
        retry_pause: (Duration::from_millis(1), Duration::from_millis(10)),
        inline_limit: u64::MAX,
    };
    let store = StateStore::new(Arc::new(open(&other).await), store_settings);
    let error = StoreMeta::of(&store).open(false, [1; 16]).await.unwrap_err();
    assert!(matches!(error, MetaError::ForeignRecords), "{error}");
}

/// A reorg takes one request a transaction where the transaction has one block, and one more for a second block.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reorg_needs_no_read() {
    let Some(server) = AerospikeServer::start() else { return };
    for layout in [Layout::Compact, Layout::Teranode] {
        let engine = open(&AerospikeSettings { layout: Some(layout), ..server.settings() }).await;
        let all = |row: &dyn Fn(u32) -> Row| (0..50).map(row).collect::<Vec<Row>>();
        let mined = |block_id, offset, longest_chain| {
            let mined_in = MinedIn { block_id, height: 300, subtree: 0 };
            move |number| on(number, at(offset, Sequenced::SetMined { mined_in, longest_chain }))
        };
        let unmined = |number| on(number, at(3, Sequenced::UnsetMined { block_id: 1, height: 300 }));
        let mut replies = Vec::new();
        for rows in [
            all(&|number| create(number, 2)),
            all(&mined(1, 1, true)),
            all(&unmined),
            all(&mined(2, 4, true)),
            all(&mined(3, 5, false)),
        ] {
            for answer in engine.apply(&rows).await {
                replies.push(answer.unwrap());
            }
        }
        let mined = |ids: &[u32]| Reply::Mined { block_ids: ids.to_vec(), extra_pages: 0, conflicting_children: false };
        for (step, ids) in [(1, &[1][..]), (2, &[]), (3, &[2]), (4, &[2, 3])] {
            assert_eq!(replies[step * 50], Outcome::Applied(mined(ids)), "{layout}, step {step}");
        }
        let counts = engine.group_counts();
        // A second block is refused as a first one.
        assert_eq!((counts.native, counts.refused, counts.reads), (200, 50, 0), "{layout}: {counts:?}");
    }
}

fn at(offset: u64, operation: Sequenced) -> Operation {
    Operation::Sequenced(Stamp { offset, phase: Phase::Apply }, operation)
}

/// With retention 0 a due height stays as it is, also where a slot becomes free. A later retention meets both.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn natives_answer_as_the_pure_function_after_a_change_of_the_retention() {
    let Some(server) = AerospikeServer::start() else { return };
    for layout in [Layout::Compact, Layout::Teranode] {
        let settings = AerospikeSettings { layout: Some(layout), ..server.settings() };
        let without_retention = Rules { retention: 0, ..RULES };
        let stopped = AerospikeEngine::open(&settings, without_retention).await.unwrap();
        let kept = open(&settings).await;
        let mined = |id: u32, offset| {
            let mined_in = MinedIn { block_id: id, height: 300 + id, subtree: 0 };
            on(1, at(offset, Sequenced::SetMined { mined_in, longest_chain: true }))
        };
        let unmined = |offset| on(1, at(offset, Sequenced::UnsetMined { block_id: 1, height: 302 }));
        let from = SpendingData { txid: txid(2), input: 0 };
        let freed = |offset| on(1, at(offset, Sequenced::Settle(vec![HeldSlot { offset: 0, holder: from }])));
        let steps = [
            (&kept, RULES, create(1, 1)),
            (&kept, RULES, spend(1, 0, 2)),
            (&kept, RULES, mined(1, 1)),
            (&stopped, without_retention, unmined(2)),
            (&stopped, without_retention, freed(3)),
            (&kept, RULES, mined(2, 4)),
            (&stopped, without_retention, freed(5)),
            (&kept, RULES, spend(1, 0, 4)),
        ];
        let mut record = None;
        for (step, (engine, rules, row)) in steps.into_iter().enumerate() {
            let expected = apply(&rules, &row.key, &mut record, &row.operation).outcome;
            let answer = engine.apply(std::slice::from_ref(&row)).await.remove(0).unwrap();
            assert_eq!(answer, expected, "{layout}, step {step}");
            let stored = engine.read(&[row.key]).await.remove(0).unwrap();
            assert_eq!(stored, record, "{layout}, step {step}");
        }
    }
}
