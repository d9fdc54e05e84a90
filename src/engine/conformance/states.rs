//! Every operation on a record in every state, compared with the pure function.

use std::{collections::BTreeMap, sync::Arc};

use super::{EngineBench, RULES, fixtures::*};
use crate::{
    engine::{Row, Set},
    record::{self, *},
    tx::Txid,
};

/// Returns the id of spender number `n` of these checks.
pub(super) fn rival(n: u64) -> Txid {
    txid_of("rivals", n)
}

fn lost() -> Reason {
    Reason::DoubleSpend { input: 0, winner: rival(9) }
}

/// Lists the states of a master, each with the operations that reach it from an absent record.
fn state_histories(txid: Txid) -> Vec<(&'static str, Vec<Operation>)> {
    let create = |page: Page| Operation::Create(Arc::new(page));
    let contested = |verdict| Operation::CreateContested(Arc::new(contested_page(txid, 4, verdict)));
    let live = || create(page_of(txid, 4));
    let coinbase = Page { is_coinbase: true, spending_height: Some(210), ..page_of(txid, 2) };
    let nil_between = |mut page: Page| {
        page.utxos = page.utxos.map(|slots| slots.into_iter().chain([Slot::Nil]).collect());
        page
    };
    let set_mined = |longest_chain| sequenced_at(5, Sequenced::SetMined { mined_in: mined_in(150), longest_chain });
    let mark_conflicting = || sequenced_at(6, Sequenced::MarkConflicting { reason: lost(), height: 160 });
    let all_spent = || spend_operation(rival(1), &[0, 1, 2, 3]);
    vec![
        ("absent", vec![]),
        ("live", vec![live()]),
        ("live, whole body", vec![create(page_with_transaction(txid, 4))]),
        ("live, body elsewhere", vec![create(page_with_external_body(txid, 4))]),
        (
            "live, body elsewhere, of the reference",
            vec![create(Page { amount_sizes: Default::default(), ..page_with_external_body(txid, 4) })],
        ),
        ("live, no outputs left out", vec![create(nil_between(page_of(txid, 3)))]),
        ("immature coinbase", vec![create(coinbase)]),
        ("locked", vec![create(Page { locked: true, ..page_of(txid, 4) })]),
        ("creating", vec![create(creating_page(txid, 4, 5))]),
        ("spent in part", vec![live(), spend_operation(rival(1), &[0])]),
        ("all spent", vec![live(), all_spent()]),
        ("mined", vec![live(), set_mined(true)]),
        ("mined on a side chain", vec![live(), set_mined(false)]),
        ("mined, all spent", vec![live(), set_mined(true), all_spent()]),
        ("frozen transaction", vec![live(), sequenced_at(4, Sequenced::SetFrozen(true))]),
        ("frozen slot", vec![live(), sequenced_at(4, Sequenced::Freeze { offset: 1 })]),
        (
            "barred slot",
            vec![live(), sequenced_at(4, Sequenced::FreezeUntil { offset: 1, height: 400, decided: false })],
        ),
        (
            "settled slot",
            vec![
                live(),
                spend_operation(rival(1), &[0]),
                sequenced_at(4, Sequenced::Settle(vec![held_slot(0, rival(1))])),
            ],
        ),
        ("stub", vec![sequenced_at(4, Sequenced::MarkContested)]),
        ("stub of a loser", vec![mark_conflicting()]),
        ("contested", vec![contested(Verdict::Pending)]),
        ("accepted", vec![contested(Verdict::Pending), sequenced_at(7, Sequenced::Accept)]),
        ("conflicting", vec![live(), mark_conflicting()]),
        ("missing its parent", vec![contested(Verdict::Conflicting(Reason::MissingParent { parent: rival(8) }))]),
        ("preserved", vec![live(), sequenced_at(4, Sequenced::Preserve { until: 900 })]),
        (
            "spender pruned",
            vec![live(), all_spent(), sequenced_at(4, Sequenced::MarkSpenderPruned(vec![held_slot(0, rival(1))]))],
        ),
        (
            "tombstone",
            vec![
                live(),
                set_mined(true),
                all_spent(),
                sequenced_at(9, Sequenced::Prune { height: 500, keep_until: Some(600) }),
            ],
        ),
        (
            "tombstone of a loser",
            vec![live(), mark_conflicting(), sequenced_at(9, Sequenced::Prune { height: 500, keep_until: None })],
        ),
    ]
}

#[cfg(test)]
pub(super) fn check_histories() {
    let mut states = std::collections::BTreeMap::new();
    for (state, operations) in state_histories(txid(1)) {
        let mut record = None;
        for operation in operations {
            let outcome = record::apply(&RULES, &Key::master(txid(1)), &mut record, &operation).outcome;
            assert!(matches!(outcome, Outcome::Applied(_)), "{state}: {operation:?} was {outcome:?}");
        }
        if let Some(other) = states.insert(format!("{record:?}"), state) {
            panic!("{state} is the same as {other}");
        }
    }
}

/// Lists every operation, most of them in several forms.
fn operations(txid: Txid) -> Vec<Operation> {
    let mut operations = fast_path(txid);
    operations.extend(sequenced(txid).into_iter().map(|operation| sequenced_at(20, operation)));
    // A sequencer that was replaced may still send operations with an earlier stamp.
    operations.extend([Sequenced::Accept, Sequenced::SetLocked(true)].map(|operation| sequenced_at(1, operation)));
    operations
}

fn fast_path(txid: Txid) -> Vec<Operation> {
    let wrong_hash = SpendSlot { utxo_hash: hash(99), ..claim(0) };
    // Only an amount of another size can have the same hash, with a shorter script: layouts may keep the sizes alone.
    let wrong_amount = SpendSlot { satoshis: 300, ..claim(0) };
    let vast_amount = SpendSlot { satoshis: 1 << 40, ..claim(0) };
    let spend = |slots: Vec<SpendSlot>, height, marks| {
        // The marks decide the signals, so that both values of `signals` occur.
        Operation::Spend(Spend {
            spender: rival(2),
            height,
            slots: slots.into(),
            marks,
            signals: marks == Marks::Respect,
        })
    };
    vec![
        Operation::Create(Arc::new(page_of(txid, 4))),
        Operation::CreateContested(Arc::new(contested_page(txid, 4, Verdict::Pending))),
        Operation::ClearCreating,
        Operation::SetPageSpent { page: 1, spent: true },
        Operation::SetPageSpent { page: 1, spent: false },
        Operation::ReleaseLockRecord { owner: 1 },
        spend_operation(rival(1), &[0]),
        spend_operation(rival(2), &[0]),
        spend_operation(rival(2), &[1, 2]),
        spend_operation(rival(1), &[0, 1, 2, 3]),
        spend_operation(rival(2), &[4]),
        spend(vec![wrong_hash], 200, Marks::Respect),
        spend(vec![wrong_amount], 200, Marks::Respect),
        spend(vec![vast_amount], 200, Marks::Respect),
        spend(vec![claim(0), claim(1)], 500, Marks::Respect),
        spend(vec![claim(0), claim(1)], 500, Marks::Ignore),
    ]
}

fn sequenced(txid: Txid) -> Vec<Sequenced> {
    let coinbase = Page { is_coinbase: true, spending_height: Some(310), ..page_with_transaction(txid, 4) };
    let respend = |from, checks| {
        let slots = vec![RespendSlot { slot: claim(0), from }];
        Sequenced::Respend(Respend { to: rival(2), slots, checks })
    };
    let holder = Some(held_slot(0, rival(1)).holder);
    let reassign = |decided| Sequenced::Reassign {
        offset: 1,
        utxo_hash: hash(1),
        new_utxo_hash: hash(77),
        output: output(77),
        block_height: 300,
        spendable_at: 1_300,
        decided,
    };
    vec![
        Sequenced::MarkContested,
        Sequenced::Settle(vec![held_slot(0, rival(1))]),
        Sequenced::Settle(vec![held_slot(0, rival(3)), held_slot(1, rival(1))]),
        respend(None, RespendChecks::Decided),
        respend(holder, RespendChecks::Decided),
        respend(None, RespendChecks::Spend { height: 200 }),
        respend(None, RespendChecks::Listed { height: 200 }),
        respend(None, RespendChecks::Live { height: 200 }),
        Sequenced::Accept,
        Sequenced::MarkConflicting { reason: lost(), height: 300 },
        Sequenced::AddConflictingChild(rival(3)),
        Sequenced::RemoveConflictingChild(rival(3)),
        Sequenced::SetMined { mined_in: mined_in(160), longest_chain: true },
        Sequenced::SetMined { mined_in: mined_in(150), longest_chain: true },
        Sequenced::SetMined { mined_in: mined_in(160), longest_chain: false },
        Sequenced::SetMined { mined_in: mined_in(700_000), longest_chain: true },
        Sequenced::SetSpendingHeight(260),
        Sequenced::AddSlots { slots: vec![(3, claim(3).utxo_hash)], height: 700_000 },
        Sequenced::WasMined(mined_in(160)),
        Sequenced::UnsetMined { block_id: 150, height: 150 },
        Sequenced::SetPageSpent { page: 1, spent: true },
        Sequenced::SetLocked(true),
        Sequenced::SetLocked(false),
        Sequenced::SetFrozen(true),
        Sequenced::SetFrozen(false),
        Sequenced::Freeze { offset: 1 },
        Sequenced::Unfreeze { offset: 1 },
        Sequenced::FreezeUntil { offset: 1, height: 999, decided: false },
        Sequenced::FreezeUntil { offset: 1, height: 999, decided: true },
        reassign(false),
        reassign(true),
        Sequenced::LiftBars { offset: 1, owner: Some((hash(1), output(1))), block_height: 300 },
        Sequenced::LiftBars { offset: 1, owner: None, block_height: 300 },
        Sequenced::Preserve { until: 950 },
        Sequenced::MarkSpenderPruned(vec![held_slot(0, rival(1))]),
        Sequenced::Prune { height: 600, keep_until: Some(700) },
        Sequenced::PostponePruning { until: 800 },
        Sequenced::ForgetTombstone { height: 400 },
        Sequenced::Revive,
        Sequenced::CreateCoinbase(coinbase.into()),
        Sequenced::CreateCoinbase(creating_page(txid, 4, 5).into()),
        Sequenced::ReplaceBody(claimed_body(4)),
        Sequenced::ReplaceBody(ClaimedBody { body: Body::External(Blob::Other([7; 32])), ..claimed_body(4) }),
    ]
}

/// Records as the pure function leaves them after the same rows.
#[derive(Default)]
pub(super) struct Model {
    pub records: BTreeMap<Key, Option<Record>>,
}

impl Model {
    pub fn apply(&mut self, row: &Row) -> Outcome {
        let record = self.records.entry(row.key).or_default();
        record::apply(&RULES, &row.key, record, &row.operation).outcome
    }

    /// Compares every record that a row of the model named with the record of the engine.
    pub async fn check_records(&self, bench: &EngineBench) {
        let keys: Vec<Key> = self.records.keys().copied().collect();
        for (key, found) in keys.iter().zip(bench.read(&keys).await) {
            assert_eq!(found, self.records[key], "{}: the record at {key}", bench.check);
        }
    }
}

impl EngineBench {
    /// Applies rows on different keys to the engine and to the model, and compares the outcomes.
    pub(super) async fn apply_as(&self, model: &mut Model, rows: &[Row]) {
        for (row, answer) in rows.iter().zip(self.apply(rows).await) {
            let before = model.records.get(&row.key).cloned().flatten();
            let expected = model.apply(row);
            let of_repeat = model.apply(row);
            assert!(
                answer.matches(&expected, &of_repeat),
                "{}: {row:?} on {before:?}: {answer:?}, not {expected:?}",
                self.check
            );
        }
    }
}

/// Checks each operation in each state. Each pair has a transaction of its own, so that one step of all pairs is one
/// batch.
pub(super) async fn every_operation_in_every_state(bench: EngineBench) {
    let mut steps: Vec<Vec<Row>> = Vec::new();
    let mut last = Vec::new();
    let mut number = 0;
    for state in 0..state_histories(bench.txid(0)).len() {
        for operation in 0..operations(bench.txid(0)).len() {
            let txid = bench.txid(number);
            number += 1;
            let row = |operation| Row { key: Key::master(txid), operation };
            for (step, operation) in state_histories(txid).swap_remove(state).1.into_iter().enumerate() {
                steps.resize_with(steps.len().max(step + 1), Vec::new);
                steps[step].push(row(operation));
            }
            last.push(row(operations(txid).swap_remove(operation)));
        }
    }
    let mut model = Model::default();
    for rows in steps.iter().chain([&last, &last]) {
        bench.apply_as(&mut model, rows).await;
    }
    model.check_records(&bench).await;
    model.check_indexes(&bench).await;
}

/// Checks that a read of parts returns the parts of the record, in each state and for each selection.
pub(super) async fn selected_parts_of_every_state(bench: EngineBench) {
    let mut pages = Vec::new();
    let histories = (0..).map(|number| state_histories(bench.txid(number))).zip(0..);
    for (mut states, number) in histories.take(state_histories(bench.txid(0)).len()) {
        let key = Key::master(bench.txid(number));
        for operation in states.swap_remove(number as usize).1 {
            bench.apply_one(Row { key, operation }).await;
        }
        for slots in [None, Some((0, 1)), Some((1, 2)), Some((3, 9)), Some((9, 1))] {
            let slots = slots.map(|(first, count)| SlotRange { first, count });
            for (meta, output) in [(false, false), (false, true), (true, false), (true, true)] {
                pages.push((key, Selection { meta, slots, output }));
            }
        }
    }
    let keys: Vec<Key> = pages.iter().map(|(key, _)| *key).collect();
    let whole = bench.read(&keys).await;
    for ((selected, record), (key, selection)) in bench.read_selected(&pages).await.into_iter().zip(whole).zip(&pages) {
        let expected = match record {
            Some(Record::Page(page)) => Some(SelectedPage::of(&page, *selection)),
            _ => None,
        };
        assert_eq!(selected, expected, "{}: {selection:?} of {key}", bench.check);
    }
}

pub(super) async fn meta_record(bench: EngineBench) {
    let mut model = Model::default();
    model.records.insert(Key::Meta, bench.read_one(Key::Meta).await);
    let replace =
        |expected, new| Operation::ReplaceMeta(Box::new(ReplaceMeta { expected: meta(expected), new: meta(new) }));
    let operations = [
        Operation::CreateMeta(meta(0).into()),
        Operation::CreateMeta(meta(1).into()),
        replace(0, 2),
        replace(0, 3),
        replace(2, 2),
    ];
    for operation in operations {
        bench.apply_as(&mut model, &[Row { key: Key::Meta, operation }]).await;
        model.check_records(&bench).await;
    }
}

/// Checks that the first result of a command id stays.
pub(super) async fn command_records(bench: EngineBench) {
    let mut model = Model::default();
    let results = [CommandResult::Applied, CommandResult::AlreadyApplied, refused("FROZEN")];
    for (id, result) in (1..).zip(results) {
        for chain_offset in [3, 5, 5] {
            let row = command(id, chain_offset, result.clone());
            bench.apply_as(&mut model, &[row]).await;
            model.check_records(&bench).await;
        }
        bench.apply_as(&mut model, &[command(id, 4, refused("too late"))]).await;
    }
    model.check_records(&bench).await;
}

/// Checks that each sentinel is a record of its own and that no scan returns a sentinel.
pub(super) async fn sentinels(bench: EngineBench) {
    let mut model = Model::default();
    for number in 0..=u8::MAX {
        model.records.insert(Key::Sentinel(number), bench.read_one(Key::Sentinel(number)).await);
    }
    for store_id in [[1; 16], [1; 16], [2; 16]] {
        let put = |number| Row { key: Key::Sentinel(number), operation: Operation::PutSentinel(store_id) };
        bench.apply_as(&mut model, &(0..=u8::MAX).map(put).collect::<Vec<_>>()).await;
        model.check_records(&bench).await;
    }
    for set in [Set::Transactions, Set::Blocks] {
        let scanned = bench.scan(set, 1_000).await;
        assert!(!scanned.iter().any(|(key, _)| matches!(key, Key::Sentinel(_))), "{}: a sentinel", bench.check);
    }
}

fn refused(code: &str) -> CommandResult {
    CommandResult::Refused { code: code.to_owned(), message: "why".to_owned() }
}

fn command(id: u8, chain_offset: u64, result: CommandResult) -> Row {
    let record = CommandRecord { id: [id; 16], event_digest: [id; 32], chain_offset, result, chain_pos: None };
    Row { key: Key::Command(record.id), operation: sequenced_at(chain_offset, Sequenced::PutCommand(record)) }
}

/// Checks one batch of creates, spends, lock records and blocks on different keys.
pub(super) async fn a_batch_of_a_thousand_mixed_rows(bench: EngineBench) {
    let mut model = Model::default();
    let live: Vec<Row> = (0..500).map(|n| create(page_of(bench.txid(n), 2))).collect();
    bench.apply_as(&mut model, &live).await;
    let mixed: Vec<Row> = (0..1_000)
        .map(|n| {
            let txid = bench.txid(n);
            match n {
                0..400 => Row { key: Key::master(txid), operation: spend_operation(rival(n), &[1]) },
                400..500 => Row {
                    key: Key::master(txid),
                    operation: sequenced_at(3, Sequenced::SetMined { mined_in: mined_in(150), longest_chain: true }),
                },
                500..800 => create(page_with_transaction(txid, 3)),
                800..850 => create(second_page(txid, 3)),
                850..900 => Row {
                    key: Key::LockRecord(txid),
                    operation: Operation::AcquireLockRecord { lock_record: lock_record(n, 9_000), now_ms: 1_000 },
                },
                900..950 => {
                    let id = 1_000_000 + n as u32;
                    Row { key: Key::Block(id), operation: sequenced_at(3, Sequenced::PutBlock(block(id, n))) }
                }
                _ => Row { key: Key::master(txid), operation: spend_operation(rival(n), &[0]) },
            }
        })
        .collect();
    bench.apply_as(&mut model, &mixed).await;
    model.check_records(&bench).await;
    model.check_indexes(&bench).await;
}

pub(super) async fn empty_batch(bench: EngineBench) {
    assert!(bench.engine.apply(&[]).await.is_empty());
    assert!(bench.engine.read(&[]).await.is_empty());
}
