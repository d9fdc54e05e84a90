//! Random sequences of operations, the same for every engine, against the pure function.

use std::sync::Arc;

use super::{
    Bench,
    fixtures::*,
    states::{Model, rival},
};
use crate::{engine::Row, record::*, seeded::Seeded, tx::Txid};

/// Each transaction goes its own way, and each step of all of them is one batch.
const TRANSACTIONS: u64 = 48;
const STEPS: u64 = 60;

pub(super) async fn random_sequences(bench: Bench) {
    let mut model = Model::default();
    let mut seeded = Seeded::new(0x5EED);
    for step in 0..STEPS {
        let rows: Vec<Row> = (0..TRANSACTIONS).map(|n| row(&mut seeded, bench.txid(n), n, step)).collect();
        bench.apply_as(&mut model, &rows).await;
        model.check_records(&bench).await;
        if step % 10 == 9 {
            model.check_indexes(&bench).await;
        }
    }
}

/// Of six kinds of keys, most are masters.
pub(super) fn row(seeded: &mut Seeded, txid: Txid, number: u64, step: u64) -> Row {
    match number % 8 {
        0 => Row { key: Key::LockRecord(txid), operation: on_lock_record(seeded, step) },
        1 => {
            let id = 2_000_000 + number as u32;
            let block = block(id, seeded.below(5));
            Row {
                key: Key::Block(id),
                operation: Operation::Sequenced(stamp(seeded, step), Sequenced::PutBlock(block)),
            }
        }
        2 => Row { key: Key::Page(txid, 1), operation: on_page(seeded, second_page(txid, 3), step) },
        3 => {
            let page = creating(txid, 4, 1 + number);
            Row { key: Key::master(txid), operation: on_page(seeded, page, step) }
        }
        4 => Row { key: Key::master(txid), operation: on_page(seeded, whole(txid, 4), step) },
        _ => Row { key: Key::master(txid), operation: on_page(seeded, page_of(txid, 4), step) },
    }
}

fn on_lock_record(seeded: &mut Seeded, step: u64) -> Operation {
    let owner = seeded.below(3);
    if seeded.chance(0.3) {
        return Operation::ReleaseLockRecord { owner };
    }
    let now_ms = 1_000 * step;
    Operation::AcquireLockRecord { lock_record: lock_record(owner, now_ms + 5_000), now_ms }
}

/// Mostly in the order of the log, sometimes a zombie's.
fn stamp(seeded: &mut Seeded, step: u64) -> Stamp {
    let phase = *seeded.pick(&[Phase::Evaluate, Phase::Apply, Phase::Prune]);
    Stamp { offset: step.saturating_sub(seeded.below(4)), phase }
}

fn on_page(seeded: &mut Seeded, page: Page, step: u64) -> Operation {
    match seeded.below(24) {
        0..5 => Operation::Create(Arc::new(page)),
        5 => {
            let contested = contested(page.txid, 4, Verdict::Pending);
            Operation::CreateContested(Arc::new(contested))
        }
        6..12 => {
            let marks = if seeded.chance(0.9) { Marks::Respect } else { Marks::Ignore };
            let slots: Vec<_> = (0..1 + seeded.below(2)).map(|_| claim(seeded.below(5) as u32)).collect();
            let height = 100 + 50 * seeded.below(8) as u32;
            Operation::Spend(Spend {
                spender: rival(seeded.below(3)),
                height,
                slots: slots.into(),
                marks,
                signals: seeded.below(2) == 0,
            })
        }
        12 => Operation::ClearCreating,
        13 => Operation::SetPageSpent { page: 1, spent: seeded.chance(0.7) },
        14 => Operation::SetDeleteAtHeight(seeded.chance(0.6).then(|| seeded.below(1_000) as u32)),
        _ => {
            let stamp = stamp(seeded, step);
            Operation::Sequenced(stamp, sequenced(seeded))
        }
    }
}

fn sequenced(seeded: &mut Seeded) -> Sequenced {
    let offset = seeded.below(5) as u32;
    let holder = rival(seeded.below(3));
    let height = 140 + seeded.below(4) as u32;
    match seeded.below(28) {
        0 => Sequenced::MarkContested,
        1 | 2 => Sequenced::Settle(vec![held(offset, holder)]),
        3 | 4 => {
            let from = seeded.chance(0.5).then(|| held(offset, holder).holder);
            let checks = *seeded.pick(&[
                RespendChecks::Decided,
                RespendChecks::Spend { height: 300 },
                RespendChecks::Listed { height: 300 },
            ]);
            let slots = vec![RespendSlot { slot: claim(offset), from }];
            Sequenced::Respend(Respend { to: rival(seeded.below(3)), slots, checks })
        }
        5 | 6 => Sequenced::Accept,
        7 => Sequenced::MarkConflicting { reason: Reason::Frozen { input: offset }, height },
        8 => Sequenced::AddConflictingChild(holder),
        9 => Sequenced::RemoveConflictingChild(holder),
        10 | 11 => {
            let height = if seeded.chance(0.1) { 700_000 } else { height };
            Sequenced::SetMined { mined_in: mined_in(height), longest_chain: seeded.chance(0.7) }
        }
        12 => Sequenced::UnsetMined { block_id: height, height },
        13 => Sequenced::SetLocked(seeded.chance(0.3)),
        27 => Sequenced::AddSlots {
            slots: vec![(offset, claim(offset).utxo_hash)],
            height: if seeded.chance(0.5) { 700_000 } else { height },
        },
        14 => Sequenced::Freeze { offset },
        15 => Sequenced::Unfreeze { offset },
        16 => Sequenced::FreezeUntil { offset, height: height + 10, decided: seeded.chance(0.5) },
        17 => Sequenced::Reassign {
            offset,
            utxo_hash: hash(offset),
            new_utxo_hash: hash(offset + 50),
            output: output(offset + 50),
            block_height: height,
            spendable_at: height + 1_000,
            decided: seeded.chance(0.5),
        },
        18 => Sequenced::Preserve { until: height + seeded.below(10) as u32 },
        19 => Sequenced::MarkSpenderPruned(vec![held(offset, holder)]),
        20 => Sequenced::WasMined(mined_in(height)),
        21 => Sequenced::PostponePruning { until: height + seeded.below(400) as u32 },
        22 => Sequenced::ForgetTombstone { height: 400 },
        23 => Sequenced::Revive,
        24 => Sequenced::ReplaceBody(claimed(4)),
        _ => Sequenced::Prune { height, keep_until: seeded.chance(0.5).then_some(height + 144) },
    }
}
