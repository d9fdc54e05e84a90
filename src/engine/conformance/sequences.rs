//! Random sequences of operations, equal for every engine, compared with the pure function.

use std::sync::Arc;

use super::{
    EngineBench,
    fixtures::*,
    states::{Model, rival},
};
use crate::{engine::Row, record::*, rng::SplitMix64, tx::Txid};

/// Number of transactions, each with a sequence of its own; one step of all sequences is one batch.
const TRANSACTIONS: u64 = 48;
const STEPS: u64 = 60;

pub(super) async fn random_sequences(bench: EngineBench) {
    let mut model = Model::default();
    let mut rng = SplitMix64::new(0x5EED);
    for step in 0..STEPS {
        let rows: Vec<Row> = (0..TRANSACTIONS).map(|n| row(&mut rng, bench.txid(n), n, step)).collect();
        bench.apply_as(&mut model, &rows).await;
        model.check_records(&bench).await;
        if step % 10 == 9 {
            model.check_indexes(&bench).await;
        }
    }
}

/// Draws a row; `number` picks one of six kinds of keys, mostly a master.
pub(super) fn row(rng: &mut SplitMix64, txid: Txid, number: u64, step: u64) -> Row {
    match number % 8 {
        0 => Row { key: Key::LockRecord(txid), operation: on_lock_record(rng, step) },
        1 => {
            let id = 2_000_000 + number as u32;
            let block = block(id, rng.below(5));
            Row { key: Key::Block(id), operation: Operation::Sequenced(stamp(rng, step), Sequenced::PutBlock(block)) }
        }
        2 => Row { key: Key::Page(txid, 1), operation: on_page(rng, second_page(txid, 3), step) },
        3 => {
            let page = creating_page(txid, 4, 1 + number);
            Row { key: Key::master(txid), operation: on_page(rng, page, step) }
        }
        4 => Row { key: Key::master(txid), operation: on_page(rng, page_with_transaction(txid, 4), step) },
        _ => Row { key: Key::master(txid), operation: on_page(rng, page_of(txid, 4), step) },
    }
}

fn on_lock_record(rng: &mut SplitMix64, step: u64) -> Operation {
    let owner = rng.below(3);
    if rng.chance(0.3) {
        return Operation::ReleaseLockRecord { owner };
    }
    let now_ms = 1_000 * step;
    Operation::AcquireLockRecord { lock_record: lock_record(owner, now_ms + 5_000), now_ms }
}

/// Draws a stamp, mostly in the order of the log and sometimes an earlier one, as of a sequencer that was replaced.
fn stamp(rng: &mut SplitMix64, step: u64) -> Stamp {
    let phase = *rng.pick(&[Phase::Evaluate, Phase::Apply, Phase::Prune]);
    Stamp { offset: step.saturating_sub(rng.below(4)), phase }
}

fn on_page(rng: &mut SplitMix64, page: Page, step: u64) -> Operation {
    match rng.below(24) {
        0..5 => Operation::Create(Arc::new(page)),
        5 => {
            let contested = contested_page(page.txid, 4, Verdict::Pending);
            Operation::CreateContested(Arc::new(contested))
        }
        6..12 => {
            let marks = if rng.chance(0.9) { Marks::Respect } else { Marks::Ignore };
            let slots: Vec<_> = (0..1 + rng.below(2)).map(|_| claim(rng.below(5) as u32)).collect();
            let height = 100 + 50 * rng.below(8) as u32;
            Operation::Spend(Spend {
                spender: rival(rng.below(3)),
                height,
                slots: slots.into(),
                marks,
                signals: rng.below(2) == 0,
            })
        }
        12 | 14 => Operation::ClearCreating,
        13 => Operation::SetPageSpent { page: 1, spent: rng.chance(0.7) },
        _ => {
            let stamp = stamp(rng, step);
            if rng.chance(0.3) {
                let next = Stamp { offset: stamp.offset + 1, ..stamp };
                return Operation::SequencedAll(vec![(stamp, sequenced(rng)), (next, sequenced(rng))]);
            }
            Operation::Sequenced(stamp, sequenced(rng))
        }
    }
}

fn sequenced(rng: &mut SplitMix64) -> Sequenced {
    let offset = rng.below(5) as u32;
    let holder = rival(rng.below(3));
    let height = 140 + rng.below(4) as u32;
    match rng.below(28) {
        0 => Sequenced::MarkContested,
        1 | 2 => Sequenced::Settle(vec![held_slot(offset, holder)]),
        3 | 4 => {
            let from = rng.chance(0.5).then(|| held_slot(offset, holder).holder);
            let checks = *rng.pick(&[
                RespendChecks::Decided,
                RespendChecks::Spend { height: 300 },
                RespendChecks::Listed { height: 300 },
                RespendChecks::Live { height: 300 },
            ]);
            let slots = vec![RespendSlot { slot: claim(offset), from }];
            Sequenced::Respend(Respend { to: rival(rng.below(3)), slots, checks })
        }
        5 | 6 => Sequenced::Accept,
        7 => Sequenced::MarkConflicting { reason: Reason::Frozen { input: offset }, height },
        8 => Sequenced::AddConflictingChild(holder),
        9 => Sequenced::RemoveConflictingChild(holder),
        10 | 11 => {
            let height = if rng.chance(0.1) { 700_000 } else { height };
            Sequenced::SetMined { mined_in: mined_in(height), longest_chain: rng.chance(0.7) }
        }
        12 => Sequenced::UnsetMined { block_id: height, height },
        13 if rng.chance(0.5) => Sequenced::SetFrozen(rng.chance(0.3)),
        13 => Sequenced::SetLocked(rng.chance(0.3)),
        27 => Sequenced::AddSlots {
            slots: vec![(offset, claim(offset).utxo_hash)],
            height: if rng.chance(0.5) { 700_000 } else { height },
        },
        14 => Sequenced::Freeze { offset },
        15 => Sequenced::Unfreeze { offset },
        16 => Sequenced::FreezeUntil { offset, height: height + 10, decided: rng.chance(0.5) },
        17 => Sequenced::Reassign {
            offset,
            utxo_hash: hash(offset),
            new_utxo_hash: hash(offset + 50),
            output: output(offset + 50),
            block_height: height,
            spendable_at: height + 1_000,
            decided: rng.chance(0.5),
        },
        18 => Sequenced::Preserve { until: height + rng.below(10) as u32 },
        19 => Sequenced::MarkSpenderPruned(vec![held_slot(offset, holder)]),
        20 => Sequenced::WasMined(mined_in(height)),
        21 => Sequenced::PostponePruning { until: height + rng.below(400) as u32 },
        22 => Sequenced::ForgetTombstone { height: 400 },
        23 => Sequenced::Revive,
        24 => Sequenced::ReplaceBody(claimed_body(4)),
        25 => {
            let owner = rng.chance(0.5).then(|| (hash(offset), output(offset)));
            Sequenced::LiftBars { offset, owner, block_height: height }
        }
        _ => Sequenced::Prune { height, keep_until: rng.chance(0.5).then_some(height + 144) },
    }
}
