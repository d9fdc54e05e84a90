//! The planner alone, with answers written by hand: no engine, no log, no runtime.

use std::sync::Arc;

use bytes::Bytes;

use super::*;
use crate::{
    broker::Message,
    event::Validated,
    prepare::{PrepareSettings, PreparedEvent, PreparedTx, prepare},
    record::{
        Key, LockRecord, Marks, Operation, Rejection, Reply, SpendingData, TxState, Verdict, build::InlineBodies,
    },
    tx::{Network, Outpoint, Output, TransactionBuilder},
};

const SETTINGS: PlanSettings =
    PlanSettings { retry_min_ms: 10, retry_max_ms: 100, flag_grace_ms: 1_000, rules: Rules::main(288) };
const OUTSIDE: Txid = Txid([9; 32]);

/// Returns a transaction that spends an output of 1,000 satoshis with script `51` for each outpoint, into two outputs.
fn tx(outpoints: &[Outpoint], tag: u8) -> Arc<PreparedTx> {
    tx_of(outpoints, tag, &[0x51])
}

/// Returns the same transaction, whose event claims another script of the previous output.
fn claiming(tx: &PreparedTx, script: &[u8]) -> Arc<PreparedTx> {
    let other = tx_of(&[outside(0)], 1, script);
    assert_eq!(other.txid, tx.txid);
    other
}

fn tx_of(outpoints: &[Outpoint], tag: u8, claimed: &[u8]) -> Arc<PreparedTx> {
    let each = 1_000 * outpoints.len() as u64 / 2;
    let mut builder = TransactionBuilder::default();
    for outpoint in outpoints {
        let satoshis = if outpoint.txid == OUTSIDE { 1_000 } else { 500 };
        builder = builder.input(*outpoint, &[tag], u32::MAX, Some(Output { satoshis, script: claimed }));
    }
    let each = if outpoints.iter().all(|outpoint| outpoint.txid == OUTSIDE) { each } else { 200 };
    let extended = builder.output(each, &[0x51]).output(each, &[0x51]).extended();
    let txid = crate::tx::Transaction::parse(&extended).unwrap().txid();
    let payload = Validated { tx: &extended, height: 200, locked: false }.encode();
    let message = Message {
        offset: 0,
        timestamp_ms: 1,
        key: Bytes::copy_from_slice(&txid.0),
        payload: payload.into(),
        headers: vec![],
    };
    let settings = PrepareSettings { network: Network::Regtest, utxo_batch_size: 100, inline: InlineBodies::All };
    match prepare(&settings, &message).unwrap() {
        PreparedEvent::Validated(tx) => tx,
        PreparedEvent::Seeded(_) => unreachable!(),
    }
}

fn outside(vout: u32) -> Outpoint {
    Outpoint { txid: OUTSIDE, vout }
}

fn of(tx: &PreparedTx, vout: u32) -> Outpoint {
    Outpoint { txid: tx.txid, vout }
}

fn event(offset: u64) -> EventRef {
    EventRef { timestamp_ms: offset as i64, partition: 0, offset, epoch: 1 }
}

fn actions(planner: &mut Planner) -> Vec<Action> {
    std::iter::from_fn(|| planner.next_action()).collect()
}

/// Returns the last row that the planner asks for.
fn row(planner: &mut Planner) -> (Token, Row) {
    match actions(planner).pop() {
        Some(Action::Apply(token, row)) => (token, row),
        other => panic!("{other:?}"),
    }
}

fn applied() -> Outcome {
    Outcome::Applied(Reply::None)
}

fn completed(planner: &mut Planner) -> Vec<(u64, Completion)> {
    let done = |action| match action {
        Action::Complete(event, _, how) => Some((event.offset, how)),
        _ => None,
    };
    actions(planner).into_iter().filter_map(done).collect()
}

#[test]
fn a_transaction_is_spent_created_and_completed() {
    let mut planner = Planner::new(SETTINGS);
    planner.submit(event(0), tx(&[outside(0)], 1), Mode::Normal, 0);
    let (token, spend) = row(&mut planner);
    assert!(matches!(spend.operation, Operation::Spend(_)) && spend.key == Key::master(OUTSIDE));
    planner.outcome(token, applied(), 0);
    let (token, create) = row(&mut planner);
    assert!(matches!(create.operation, Operation::Create(_)));
    planner.outcome(token, applied(), 0);
    assert_eq!(completed(&mut planner), [(0, Completion::Live)]);
    assert_eq!(planner.flights().counts().active, 0);
}

#[test]
fn a_parents_create_carries_the_spends_of_a_waiting_child() {
    for (answer, child_creates_at_once) in
        [(applied(), true), (Outcome::AlreadyApplied(Reply::State(TxState::Live)), false)]
    {
        let mut planner = Planner::new(SETTINGS);
        let parent = tx(&[outside(0)], 1);
        let child = tx(&[of(&parent, 1)], 2);
        planner.submit(event(0), parent.clone(), Mode::Normal, 0);
        let (token, _) = row(&mut planner);
        planner.submit(event(1), child.clone(), Mode::Normal, 0);
        assert!(actions(&mut planner).is_empty(), "the child waits");
        planner.outcome(token, applied(), 0);
        let (token, create) = row(&mut planner);
        let Operation::Create(page) = create.operation else { panic!() };
        let spender = page.utxos.as_ref().unwrap()[1].spender();
        assert_eq!(spender, Some(SpendingData { txid: child.txid, input: 0 }));
        assert_eq!(parent.page.spent_utxos, 0, "the prepared page is unchanged");
        planner.outcome(token, answer, 0);
        let (_, next) = row(&mut planner);
        assert_eq!(matches!(next.operation, Operation::Create(_)), child_creates_at_once, "{next:?}");
    }
}

#[test]
fn a_second_event_joins_and_both_complete() {
    let mut planner = Planner::new(SETTINGS);
    let tx = tx(&[outside(0)], 1);
    planner.submit(event(0), tx.clone(), Mode::Normal, 0);
    planner.submit(event(7), tx, Mode::Normal, 0);
    let (token, _) = row(&mut planner);
    planner.outcome(token, applied(), 0);
    let (token, _) = row(&mut planner);
    planner.outcome(token, applied(), 0);
    assert_eq!(completed(&mut planner), [(0, Completion::Live), (7, Completion::Live)]);
}

/// A transaction that the store cannot take, and a child of it in another partition. Protects: the drain does not wait
/// for the transaction, its child waits on, and no flight is left once its partition is revoked.
#[test]
fn a_transaction_too_large_for_the_store_halts_and_its_child_waits() {
    let mut planner = Planner::new(SETTINGS);
    let parent = tx(&[outside(0)], 1);
    planner.submit(event(5), parent.clone(), Mode::Normal, 0);
    let (token, _) = row(&mut planner);
    planner.outcome(token, applied(), 0);
    let (create, _) = row(&mut planner);
    // The event of the child is older.
    planner.submit(EventRef { partition: 1, ..event(0) }, tx(&[of(&parent, 1)], 2), Mode::Normal, 0);
    assert_eq!(planner.halt(create.flight(), 0), Some((parent.txid, vec![event(5)])));
    planner.submit(event(7), parent.clone(), Mode::Normal, 0);
    assert_eq!(
        planner.halt(create.flight(), 0),
        Some((parent.txid, vec![event(5), event(7)])),
        "the flight counts once"
    );
    assert_eq!((planner.flights().counts().active, planner.flights().counts().parked), (0, 2));

    planner.retry_due(u64::MAX);
    planner.on_parent_created(&parent.txid, 0);
    planner.reread_own_records(0, 0);
    let Some(Action::ReadOwn(child, _)) = planner.next_action() else { panic!("only the child reads its own record") };
    planner.own_record(child, None, 0);
    assert!(actions(&mut planner).is_empty() && planner.next_due_ms().is_none());
    assert!(
        planner.flights().has_halted() && planner.flights().waiting_for_absent().is_empty(),
        "its parent is in flight"
    );

    planner.revoke(0, 0);
    assert!(!planner.flights().has_halted());
    let (_, spend) = row(&mut planner);
    assert_eq!(
        (spend.key, planner.flights().counts().active),
        (Key::master(parent.txid), 1),
        "the child spends without its parent"
    );
}

#[test]
fn a_halted_transaction_ignores_other_answers() {
    let mut planner = Planner::new(SETTINGS);
    let others = [7, 8].map(|tag| Outpoint { txid: Txid([tag; 32]), vout: 0 });
    planner.submit(event(0), tx(&others, 1), Mode::Normal, 0);
    let tokens: Vec<Token> = actions(&mut planner)
        .into_iter()
        .map(|action| match action {
            Action::Apply(token, _) => token,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(planner.halt(tokens[0].flight(), 0).is_some());
    planner.outcome(tokens[1], applied(), 0);
    assert!(planner.halt(tokens[1].flight(), 0).is_some());
    assert!(actions(&mut planner).is_empty());
    assert_eq!((planner.flights().counts().active, planner.flights().counts().parked), (0, 1));
}

#[test]
fn a_revoked_transaction_is_not_halted() {
    let mut planner = Planner::new(SETTINGS);
    planner.submit(event(0), tx(&[outside(0)], 1), Mode::Normal, 0);
    let (token, _) = row(&mut planner);
    planner.revoke(0, 0);
    assert_eq!(planner.halt(token.flight(), 0), None);
    assert_eq!((planner.flights().counts().active, planner.flights().counts().parked), (0, 0));
    assert_eq!(planner.halt(token.flight(), 0), None, "the flight has ended");
}

/// Submits a transaction whose parent is absent, until the transaction is parked.
fn park(planner: &mut Planner, tx: Arc<PreparedTx>) {
    park_at_offset(planner, 0, tx);
    assert_eq!((planner.flights().counts().parked, planner.flights().counts().active), (1, 0));
}

fn park_at_offset(planner: &mut Planner, offset: u64, tx: Arc<PreparedTx>) {
    planner.submit(event(offset), tx, Mode::Normal, 0);
    let (token, _) = row(planner);
    planner.outcome(token, Outcome::Rejected(Rejection::NotFound), 0);
    let Some(Action::ReadOwn(id, _)) = planner.next_action() else { panic!("it reads its own record") };
    planner.own_record(id, None, 0);
    assert!(actions(planner).is_empty());
}

#[test]
fn a_parked_child_is_retried_and_woken_by_its_parent() {
    let parent = tx(&[outside(0)], 1);
    let child = tx(&[of(&parent, 0)], 2);
    let mut planner = Planner::new(SETTINGS);
    park(&mut planner, child.clone());
    assert_eq!(planner.next_due_ms(), Some(10));
    planner.retry_due(9);
    assert!(actions(&mut planner).is_empty());
    planner.retry_due(10);
    let (token, _) = row(&mut planner);
    planner.outcome(token, Outcome::Rejected(Rejection::NotFound), 10);
    assert_eq!(planner.next_due_ms(), Some(20), "no other flight is parked");
    planner.submit(event(1), parent, Mode::Normal, 11);
    assert_eq!(planner.next_due_ms(), None, "the child waits for the parent in flight");
    let (token, _) = row(&mut planner);
    planner.outcome(token, applied(), 11);
    let (token, create) = row(&mut planner);
    let Operation::Create(page) = &create.operation else { panic!() };
    assert_eq!(page.spent_utxos, 1, "the create carries the spend of the child");
    planner.outcome(token, applied(), 11);
    assert!(actions(&mut planner).iter().any(|action| matches!(action, Action::Apply(Token::Create(_), _))));
}

#[test]
fn a_double_spend_completes_with_its_contest() {
    let mut planner = Planner::new(SETTINGS);
    let tx = tx(&[outside(0)], 1);
    planner.submit(event(0), tx.clone(), Mode::Normal, 0);
    let (token, _) = row(&mut planner);
    let winner = SpendingData { txid: Txid([3; 32]), input: 0 };
    planner.outcome(token, Outcome::Rejected(Rejection::SpentBy(0, winner)), 0);
    let (token, store) = row(&mut planner);
    let Operation::CreateContested(page) = &store.operation else { panic!() };
    assert_eq!(page.state(), TxState::Conflicting(Verdict::Pending));
    planner.outcome(token, Outcome::Applied(Reply::State(page.state())), 0);
    let Some(Action::PublishContest { flight, txid, reason, .. }) = planner.next_action() else { panic!() };
    assert_eq!((txid, reason), (tx.txid, Reason::DoubleSpend { input: 0, winner: winner.txid }));
    assert!(completed(&mut planner).is_empty());
    planner.contest_published(flight, 0);
    assert_eq!(completed(&mut planner), [(0, Completion::Contested)]);
}

#[test]
fn a_redelivered_loser_without_slots_is_not_contested_again() {
    let mut planner = Planner::new(SETTINGS);
    planner.submit(event(0), tx(&[outside(0)], 1), Mode::Normal, 0);
    let (token, _) = row(&mut planner);
    planner.outcome(token, Outcome::Rejected(Rejection::Contested(0)), 0);
    let (token, _) = row(&mut planner);
    let lost = TxState::Conflicting(Verdict::Conflicting(Reason::Command));
    planner.outcome(token, Outcome::AlreadyApplied(Reply::State(lost)), 0);
    assert_eq!(completed(&mut planner).len(), 1);
}

/// The tombstone keeps its body for longer, and there is nothing to decide.
#[test]
fn an_event_of_a_pruned_conflicting_transaction_is_not_contested() {
    for answer in [Outcome::Applied, Outcome::AlreadyApplied] {
        let mut planner = Planner::new(SETTINGS);
        planner.submit(event(0), tx(&[outside(0)], 1), Mode::Normal, 0);
        let (token, _) = row(&mut planner);
        planner.outcome(token, applied(), 0);
        let (token, _) = row(&mut planner);
        planner.outcome(token, Outcome::Rejected(Rejection::Exists(TxState::Pruned(7))), 0);
        let (token, store) = row(&mut planner);
        assert!(matches!(store.operation, Operation::CreateContested(_)), "{store:?}");
        planner.outcome(token, answer(Reply::State(TxState::Pruned(7))), 0);
        assert_eq!(completed(&mut planner), [(0, Completion::PassedOver)]);
    }
}

/// A second instance that creates the transaction gets time: simulator, seed 7195, in which the planner repeated its
/// request without a pause.
#[test]
fn a_child_of_a_locked_parent_is_contested_after_the_grace() {
    let lock_record = LockRecord {
        created_at: 0,
        expires_at: 32_000,
        process_id: 1,
        hostname: "elsewhere".into(),
        expected_recs: 2,
        owner: 7,
    };
    for busy in [Rejection::Held(lock_record), Rejection::Exists(TxState::Creating)] {
        let mut planner = Planner::new(SETTINGS);
        planner.submit(event(0), tx(&[outside(0)], 1), Mode::Normal, 0);
        let (token, _) = row(&mut planner);
        planner.outcome(token, Outcome::Rejected(Rejection::Locked), 0);
        let Some(Action::ReadOwn(id, _)) = planner.next_action() else { panic!() };
        planner.own_record(id, None, 0);
        planner.retry_due(1_000);
        let (token, _) = row(&mut planner);
        planner.outcome(token, Outcome::Rejected(Rejection::Locked), 1_000);
        let (token, contested) = row(&mut planner);
        assert!(matches!(contested.operation, Operation::CreateContested(_)));
        planner.outcome(token, Outcome::Rejected(busy), 1_000);
        assert!(actions(&mut planner).is_empty());
        planner.retry_due(1_100);
        assert!(matches!(row(&mut planner).1.operation, Operation::Spend(_)));
    }
}

#[test]
fn a_child_of_a_missing_parent_spends_once_more() {
    for (answer, contested) in [(Outcome::Rejected(Rejection::NotFound), true), (applied(), false)] {
        let mut planner = Planner::new(SETTINGS);
        park(&mut planner, tx(&[outside(0)], 1));
        let (_, id, wanted) = planner.flights().waiting_for_absent().remove(0);
        planner.on_parents_proven_missing(id, wanted, TieRule::Break, 5);
        let (token, spend) = row(&mut planner);
        assert!(matches!(spend.operation, Operation::Spend(_)), "the parent may have been created since");
        planner.outcome(token, answer, 5);
        assert_eq!(matches!(row(&mut planner).1.operation, Operation::CreateContested(_)), contested);
    }
}

/// Simulator, seeds 945, 2223 and 2656: a parent that waited for a lock was taken for missing, although its event was
/// older.
#[test]
fn a_child_waits_for_older_parents_before_a_later_one_counts_as_missing() {
    for (offset_of_other, tries_again) in [(0, false), (5, true)] {
        let (other, later_parent) = (tx(&[outside(0)], 1), tx(&[outside(1)], 2));
        let child = tx(&[of(&other, 0), of(&later_parent, 0)], 3);
        let mut planner = Planner::new(SETTINGS);
        park_at_offset(&mut planner, offset_of_other, other);
        planner.submit(event(1), child.clone(), Mode::Normal, 0);
        park_at_offset(&mut planner, 2, later_parent);
        let id = planner.flights().id_of(&child.txid).unwrap();
        let wanted = parents_in_question(&planner, id);
        planner.on_parents_proven_missing(id, wanted, TieRule::BreakKnown, 5);
        assert_eq!(!actions(&mut planner).is_empty(), tries_again);
    }
}

/// 186 dead letters `missing-parent` halted a partition: each parent was produced within the millisecond of its child,
/// into a higher partition, and waited for a lock for longer than the grace.
#[test]
fn a_child_waits_for_a_parent_in_flight_until_known_ties_break() {
    for (ties, is_contested) in [(TieRule::Wait, false), (TieRule::Break, false), (TieRule::BreakKnown, true)] {
        let parent = tx(&[outside(0)], 1);
        let child = tx(&[of(&parent, 0)], 2);
        let mut planner = Planner::new(SETTINGS);
        planner.submit(event(0), child.clone(), Mode::Normal, 0);
        answer_all_absent(&mut planner, 0);
        park_at_offset(&mut planner, 1, parent);
        planner.retry_due(10_000);
        for action in actions(&mut planner) {
            answer_absent(&mut planner, action, 10_000);
        }
        let id = planner.flights().id_of(&child.txid).unwrap();
        let wanted = parents_in_question(&planner, id);
        planner.on_parents_proven_missing(id, wanted, ties, 10_005);
        assert_eq!(!actions(&mut planner).is_empty(), is_contested, "{ties:?}");
    }
}

/// Simulator, seed 5114 (24 November): the event of one of two parents was later than the event of the child; the
/// other, older parent waited in a partition of another instance. The child was contested as soon as the first parent
/// was proven missing, with the second one in the reason.
#[test]
fn a_child_is_contested_once_every_absent_parent_is_proven_missing() {
    for all_are_proven in [false, true] {
        let later_parent = tx(&[outside(1)], 1);
        let child = tx(&[outside(0), of(&later_parent, 0)], 2);
        let mut planner = Planner::new(SETTINGS);
        planner.submit(event(0), child.clone(), Mode::Normal, 0);
        answer_all_absent(&mut planner, 0);
        park_at_offset(&mut planner, 1, later_parent.clone());
        planner.retry_due(10_000);
        let id = planner.flights().id_of(&child.txid).unwrap();
        for action in actions(&mut planner) {
            answer_absent(&mut planner, action, 10_000);
        }
        let wanted = parents_in_question(&planner, id);
        assert_eq!(wanted, [later_parent.txid, outside(0).txid]);
        let proven = if all_are_proven { wanted } else { vec![later_parent.txid] };
        planner.on_parents_proven_missing(id, proven, TieRule::BreakKnown, 10_005);
        let tries = actions(&mut planner);
        assert_eq!(tries.len(), 2);
        tries.into_iter().for_each(|action| answer_absent(&mut planner, action, 10_005));
        let is_contested = |action: &Action| match action {
            Action::Apply(_, row) => matches!(row.operation, Operation::CreateContested(_)),
            _ => false,
        };
        assert_eq!(actions(&mut planner).iter().any(is_contested), all_are_proven);
    }
}

/// Returns the parents in question of a flight.
fn parents_in_question(planner: &Planner, id: FlightId) -> Vec<Txid> {
    let waiting = planner.flights().waiting_for_absent().into_iter().find(|(_, flight, _)| *flight == id);
    waiting.map_or(Vec::new(), |(.., wanted)| wanted)
}

/// Simulator, seeds 2698 and, with `SIM_PRUNE`, 1273: the later event waited for a parent that is proven missing only
/// after the end of the child.
#[test]
fn a_child_does_not_wait_for_a_later_event_of_a_decided_parent() {
    for refusal_of_parent in [Rejection::Conflicting(Verdict::Conflicting(Reason::Command)), Rejection::Pruned(7)] {
        let parent = tx(&[outside(0)], 1);
        let child = tx(&[of(&parent, 0), outside(1)], 2);
        let mut planner = Planner::new(SETTINGS);
        planner.submit(event(0), child.clone(), Mode::Normal, 0);
        let answer = |planner: &mut Planner| {
            for action in actions(planner) {
                let Action::Apply(token, row) = action else { panic!("{action:?}") };
                let refusal =
                    if row.key == Key::master(parent.txid) { refusal_of_parent.clone() } else { Rejection::NotFound };
                planner.outcome(token, Outcome::Rejected(refusal), 0);
            }
        };
        answer(&mut planner);
        let id = planner.flights().id_of(&child.txid).unwrap();
        planner.own_record(id, None, 0);
        actions(&mut planner);
        park_at_offset(&mut planner, 1, parent.clone());
        planner.retry_due(10_000);
        answer(&mut planner);
        let wanted = parents_in_question(&planner, id);
        planner.on_parents_proven_missing(id, wanted, TieRule::Break, 5);
        assert_eq!(actions(&mut planner).len(), 2, "it tries both parents once more: {refusal_of_parent:?}");
    }
}

#[test]
fn a_revoked_flight_ends_unless_it_may_hold_slots() {
    let parent = tx(&[outside(0)], 1);
    let mut planner = Planner::new(SETTINGS);
    park(&mut planner, tx(&[of(&parent, 0)], 2));
    planner.revoke(0, 0);
    assert_eq!(
        (planner.flights().counts(), planner.next_due_ms()),
        (PlanCounts { parked_max: 1, ..PlanCounts::default() }, None)
    );

    planner.submit(event(0), tx(&[outside(0)], 3), Mode::Normal, 0);
    let (token, _) = row(&mut planner);
    planner.revoke(0, 0);
    planner.outcome(token, applied(), 0);
    let (token, _) = row(&mut planner);
    let contested = TxState::Conflicting(Verdict::Pending);
    planner.outcome(token, Outcome::Rejected(Rejection::Exists(contested)), 0);
    let (token, _) = row(&mut planner);
    planner.outcome(token, Outcome::AlreadyApplied(Reply::State(contested)), 0);
    assert!(matches!(planner.next_action(), Some(Action::PublishContest { .. })), "it took a slot");
}

#[test]
fn below_the_frontier_no_contest_is_published() {
    let mut planner = Planner::new(SETTINGS);
    planner.submit(event(0), tx(&[outside(0)], 1), Mode::RebuildContested, 0);
    let (token, _) = row(&mut planner);
    // Another instance creates the transaction. One more attempt follows after the pause.
    planner.outcome(token, Outcome::Rejected(Rejection::Exists(TxState::Creating)), 0);
    planner.retry_due(SETTINGS.retry_max_ms);
    let (token, store) = row(&mut planner);
    assert!(matches!(store.operation, Operation::CreateContested(_)), "it takes no slot");
    planner.outcome(token, applied(), 0);
    assert_eq!(completed(&mut planner).len(), 1);

    planner.submit(event(1), tx(&[outside(1)], 2), Mode::RebuildWon, 0);
    let Some(Action::ReadOwn(id, _)) = planner.next_action() else {
        panic!("it reads its own record before it spends")
    };
    planner.own_record(id, None, 0);
    let (token, spend) = row(&mut planner);
    assert!(matches!(&spend.operation, Operation::Spend(spend) if spend.marks == Marks::Ignore));
    let holder = SpendingData { txid: Txid([3; 32]), input: 0 };
    planner.outcome(token, Outcome::Rejected(Rejection::SpentBy(1, holder)), 0);
    assert!(matches!(planner.next_action(), Some(Action::ReadOwn(..))), "it waits instead of being contested");
}

/// The first event claims wrong previous outputs, the second the true ones (simulator, seeds 354 and 838).
#[test]
fn in_a_rebuild_true_claims_win_unless_a_verdict_accepted_the_others() {
    for mode in [Mode::RebuildWon, Mode::RebuildAccepted] {
        let mut planner = Planner::new(SETTINGS);
        let honest = tx(&[outside(0)], 1);
        planner.submit(event(0), claiming(&honest, &[0x52]), mode, 0);
        planner.submit(event(1), honest, mode, 0);
        let Some(Action::ReadOwn(id, _)) = planner.next_action() else { panic!("it reads its own record first") };
        planner.own_record(id, None, 0);
        let (token, _) = row(&mut planner);
        planner.outcome(token, Outcome::Rejected(Rejection::HashMismatch(0)), 0);
        if mode == Mode::RebuildAccepted {
            let (_, store) = row(&mut planner);
            assert!(matches!(store.operation, Operation::CreateContested(_)), "with the claims of the verdict");
            continue;
        }
        let Some(Action::ReadOwn(id, _)) = planner.next_action() else { panic!("it may have lost since") };
        planner.own_record(id, None, 0);
        let actions = actions(&mut planner);
        assert!(
            matches!(&actions[0], Action::Complete(event, _, Completion::PassedOver) if event.offset == 0),
            "{actions:?}"
        );
        assert!(matches!(actions[1], Action::ReadOwn(..)), "the second event follows");
    }
}

#[test]
fn a_repeat_joins_and_an_event_with_other_claims_follows() {
    let mut planner = Planner::new(SETTINGS);
    let first = tx(&[outside(0)], 1);
    let claims_otherwise = claiming(&first, &[0x52]);
    assert_eq!(first.txid, claims_otherwise.txid);
    planner.submit(event(0), first.clone(), Mode::Normal, 0);
    planner.submit(event(1), claims_otherwise.clone(), Mode::Normal, 0);
    planner.submit(event(2), first.clone(), Mode::Normal, 0);
    planner.submit(event(3), claims_otherwise, Mode::Normal, 0);
    let (token, _) = row(&mut planner);
    planner.outcome(token, applied(), 0);
    let (token, _) = row(&mut planner);
    planner.outcome(token, applied(), 0);
    let actions = actions(&mut planner);
    let done: Vec<u64> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Complete(event, _, Completion::Live) => Some(event.offset),
            _ => None,
        })
        .collect();
    assert_eq!(done, [0, 2]);
    let Some(Action::Apply(token, spend)) = actions.into_iter().next_back() else { panic!() };
    let Operation::Spend(spend) = spend.operation else { panic!("the second event sends its own spend") };
    assert_eq!(spend.slots[0].script.as_ref(), [0x52]);
    planner.outcome(token, Outcome::Rejected(Rejection::HashMismatch(0)), 0);
    let (token, _) = row(&mut planner);
    planner.outcome(token, Outcome::Rejected(Rejection::Exists(TxState::Live)), 0);
    assert_eq!(completed(&mut planner).len(), 2, "its claims prove nothing against a live transaction");
    assert_eq!(planner.flights().counts().active, 0);
}

/// The record of the later event is the first event's to write, which is applied again.
#[test]
fn a_later_event_writes_no_record_over_a_store_that_can_lose_writes() {
    for (answer, done) in
        [(applied(), Completion::Live), (Outcome::Rejected(Rejection::HashMismatch(0)), Completion::AlreadyLive)]
    {
        let mut planner = Planner::new(SETTINGS).with_forgetful_store(true);
        let first = tx(&[outside(0)], 1);
        planner.submit(event(0), first.clone(), Mode::Normal, 0);
        planner.submit(event(1), claiming(&first, &[0x52]), Mode::Normal, 0);
        for _ in ["spend", "create"] {
            let (token, _) = row(&mut planner);
            planner.outcome(token, applied(), 0);
        }
        let (token, spend) = row(&mut planner);
        assert!(matches!(spend.operation, Operation::Spend(_)), "the later event spends");
        planner.outcome(token, answer.clone(), 0);
        let Some(Action::ReadOwn(id, _)) = planner.next_action() else { panic!("it reads its own record first") };
        planner.own_record(id, None, 0);
        assert_eq!(
            (planner.flights().counts().parked, actions(&mut planner).len()),
            (1, 0),
            "a node lost the record of the first event"
        );
        planner.retry_due(10_000);
        if let Some(Action::Apply(token, _)) = actions(&mut planner).pop() {
            planner.outcome(token, answer, 10_000);
        }
        planner.own_record(id, Some(&first.page), 10_000);
        assert_eq!(completed(&mut planner).pop(), Some((1, done)));
    }
}

#[test]
fn later_requests_are_revoked_with_their_partition() {
    let mut planner = Planner::new(SETTINGS);
    let first = tx(&[outside(0)], 1);
    planner.submit(event(0), first.clone(), Mode::Normal, 0);
    planner.submit(event(1), claiming(&first, &[0x52]), Mode::Normal, 0);
    planner.revoke(0, 0);
    let (token, _) = row(&mut planner);
    planner.outcome(token, applied(), 0);
    let (token, _) = row(&mut planner);
    planner.outcome(token, applied(), 0);
    assert!(actions(&mut planner).is_empty());
    assert_eq!(planner.flights().counts().active, 0);
}

/// Answers every request: the record is absent.
fn answer_all_absent(planner: &mut Planner, now_ms: u64) {
    while let Some(action) = planner.next_action() {
        answer_absent(planner, action, now_ms);
    }
}

fn answer_absent(planner: &mut Planner, action: Action, now_ms: u64) {
    match action {
        Action::Apply(token, _) => planner.outcome(token, Outcome::Rejected(Rejection::NotFound), now_ms),
        Action::ReadOwn(id, _) => planner.own_record(id, None, now_ms),
        Action::ReadParent(id, group, _) => planner.parent_record(id, group, None, now_ms),
        other => panic!("{other:?}"),
    }
}

fn planner_with_parked(count: u32) -> Planner {
    let mut planner = Planner::new(SETTINGS);
    for tag in 0..count {
        let parent = Outpoint { txid: Txid([3; 32]), vout: tag };
        planner.submit(event(u64::from(tag)), tx(&[parent], (tag % 251) as u8), Mode::Normal, 0);
    }
    answer_all_absent(&mut planner, 0);
    assert_eq!(planner.flights().counts().parked, count as usize);
    planner
}

#[test]
fn a_waiting_flight_does_not_keep_its_batch_in_memory() {
    let mut planner = Planner::new(SETTINGS);
    let waits = tx(&[outside(0)], 1);
    let child = tx(&[of(&waits, 0)], 2);
    let read = [waits.source.payload.clone(), child.source.payload.clone()];
    park(&mut planner, waits);
    planner.submit(event(1), child, Mode::Normal, 0);
    assert!(actions(&mut planner).is_empty(), "the child waits for its parent");
    let shared_batches = || read.iter().filter(|payload| !payload.is_unique()).count();
    planner.detach_parked_buffers();
    assert_eq!(shared_batches(), 2, "most flights wait only for a moment");
    planner.detach_parked_buffers();
    assert_eq!(shared_batches(), 0);
    // Repeats, and events with other claims, keep no batch either.
    let repeat = tx(&[outside(0)], 1);
    let otherwise = claiming(&repeat, &[0x52]);
    let read = [repeat.source.payload.clone(), otherwise.source.payload.clone()];
    planner.submit(event(2), repeat, Mode::Normal, 0);
    planner.submit(event(3), otherwise, Mode::Normal, 0);
    assert!(read.iter().all(Bytes::is_unique));
    planner.retry_due(10);
    let (token, spend) = row(&mut planner);
    assert!(matches!(&spend.operation, Operation::Spend(spend) if spend.slots[0].script[..] == [0x51]));
    planner.outcome(token, applied(), 10);
    assert!(matches!(row(&mut planner), (Token::Create(_), _)), "the transaction is unchanged");
}

/// Counts the tries of each flight within this time, ms, after all have waited for as long; answers come at once.
fn tries_within_ms(planner: &mut Planner, ms: u64) -> Vec<u32> {
    let mut tries = vec![0; planner.flights().iter().count()];
    for now_ms in 0..2 * ms {
        while planner.next_due_ms().is_some_and(|due_ms| due_ms <= now_ms) {
            planner.retry_due(now_ms);
            while let Some(action) = planner.next_action() {
                if let (Action::Apply(token, _), true) = (&action, now_ms >= ms) {
                    tries[token.flight().index as usize] += 1;
                }
                answer_absent(planner, action, now_ms);
            }
        }
    }
    tries
}

#[test]
fn younger_flights_pause_longer_the_more_are_parked() {
    // Tries of the oldest, of one in the middle of the front, and of the youngest flight. The classes of the front
    // pause for 10, 20, 40 and 80 ms.
    for (count, tries) in [(1, [100; 3]), (250, [100, 100, 50]), (1_024, [100, 25, 12])] {
        let mut planner = planner_with_parked(count);
        let all = tries_within_ms(&mut planner, 1_000);
        let of = |number: u32| all[number.min(count - 1) as usize];
        let middle = if count > 500 { 500 } else { 100 };
        let near = |(tried, usual): (u32, u32)| tried.abs_diff(usual) <= 1 + usual / 10;
        let looked = [of(0), of(middle), of(count)];
        assert!(looked.into_iter().zip(tries).all(near), "{count} wait: {looked:?}");
        assert!(all.iter().all(|tried| *tried > 0), "{count} wait: every flight is tried");
    }
}

#[test]
fn the_backlog_tries_as_often_as_tries_help() {
    let mut planner = planner_with_parked(5_000);
    let backlog_tries = |tries: &[u32]| tries[1_024..].iter().sum::<u32>();
    tries_within_ms(&mut planner, 2_000);
    let mut now_ms = 4_000;
    let mut tries_until = |planner: &mut Planner, until_ms: u64, answer: fn(&mut Planner, Action, u64)| {
        let mut tries = vec![0; 5_000];
        while now_ms < until_ms {
            planner.retry_due(now_ms);
            while let Some(action) = planner.next_action() {
                if let Action::Apply(token @ Token::Spend(..), _) = &action {
                    tries[token.flight().index as usize] += 1;
                }
                answer(planner, action, now_ms);
            }
            now_ms += 1;
        }
        tries
    };
    let tries = tries_until(&mut planner, 5_000, answer_absent);
    // Of 3,976 flights: the lower bounds of the rates of the backlog and of fresh flights.
    assert!((200..=700).contains(&backlog_tries(&tries)), "{}", backlog_tries(&tries));
    assert!((90..=110).contains(&tries[0]), "the front tries as before: {}", tries[0]);
    let tries = tries_until(&mut planner, 30_000, answer_absent);
    assert!(tries.iter().all(|tried| *tried > 0), "every flight is tried");
    // Every parent is created.
    let applied = |planner: &mut Planner, action, now_ms| {
        if let Action::Apply(token, _) = action {
            planner.outcome(token, applied(), now_ms);
        }
    };
    let tries = tries_until(&mut planner, 34_000, applied);
    assert!(tries.iter().all(|tried| *tried == 1), "each flight continues at its first try");
}

#[test]
fn a_fresh_flight_is_tried_soon_behind_any_backlog() {
    let mut planner = planner_with_parked(20_000);
    tries_within_ms(&mut planner, 2_000);
    let parent = Outpoint { txid: Txid([5; 32]), vout: 0 };
    let young = tx(&[parent], 7);
    planner.submit(event(20_000), young.clone(), Mode::Normal, 4_000);
    let mut went_on_ms = None;
    for now_ms in 4_000..6_000 {
        planner.retry_due(now_ms);
        while let Some(action) = planner.next_action() {
            match action {
                // The parent, created by another instance, exists by then.
                Action::Apply(Token::Spend(id, _), ref row) if row.key == young.groups[0].key() && now_ms >= 4_020 => {
                    went_on_ms.get_or_insert(now_ms);
                    planner.outcome(Token::Spend(id, 0), applied(), now_ms);
                }
                Action::Apply(token @ Token::Create(_), _) => planner.outcome(token, applied(), now_ms),
                Action::Complete(..) => {}
                other => answer_absent(&mut planner, other, now_ms),
            }
        }
    }
    assert!(went_on_ms.is_some_and(|at_ms| at_ms <= 4_100), "{went_on_ms:?}");
}

#[test]
fn a_flight_that_enters_the_front_is_tried_as_often_as_the_front() {
    let mut planner = planner_with_parked(6_000);
    tries_within_ms(&mut planner, 1_000);
    let young = 5_000;
    assert_eq!(planner.steps.parking.retry_queue.front_class(event(young)), None);
    // The older flights end.
    for id in planner.flights().iter().take(young as usize).map(|flight| flight.id).collect::<Vec<_>>() {
        planner.steps.parking.cancel_wait(&mut planner.steps.flights, id);
        planner.steps.finish(id, Completion::PassedOver);
    }
    actions(&mut planner);
    let mut now_ms = 2_000;
    let mut first_of_young = None;
    while first_of_young.is_none() && now_ms < 4_000 {
        planner.retry_due(now_ms);
        while let Some(action) = planner.next_action() {
            if let Action::Apply(token, _) = &action
                && token.flight().index == young as u32
            {
                first_of_young.get_or_insert(now_ms);
            }
            answer_absent(&mut planner, action, now_ms);
        }
        now_ms += 1;
    }
    assert!(first_of_young.is_some_and(|at_ms| at_ms <= 2_020), "{first_of_young:?}: its pause was not shortened");
}

#[test]
fn tries_wait_for_the_answers_of_open_tries() {
    let mut planner = planner_with_parked(150);
    let due_ms = planner.next_due_ms().unwrap();
    let mut tries = Vec::new();
    while planner.next_due_ms() == Some(due_ms) {
        planner.retry_due(due_ms);
        let all = actions(&mut planner);
        assert_eq!(planner.next_due_ms().filter(|_| all.len() == 64), None, "not before an answer");
        planner.retry_due(due_ms);
        assert!(planner.next_action().is_none());
        tries.push(all.len());
        all.into_iter().for_each(|action| answer_absent(&mut planner, action, due_ms));
        answer_all_absent(&mut planner, due_ms);
    }
    assert_eq!(tries, [64, 64, 22]);
}

#[test]
fn waiting_flights_read_their_own_records_in_bounded_passes() {
    let mut planner = planner_with_parked(1_500);
    let mut reads = |now_ms| {
        planner.reread_own_records(100, now_ms);
        std::iter::from_fn(|| planner.next_action()).count()
    };
    assert_eq!([0, 100, 100, 100, 199].map(&mut reads), [0, 1_024, 476, 0, 0]);
    assert_eq!([200, 200, 299].map(reads), [1_024, 476, 0]);
}

#[test]
fn creates_do_not_count_as_open_tries() {
    let mut planner = planner_with_parked(65);
    let due_ms = planner.next_due_ms().unwrap();
    planner.retry_due(due_ms);
    let tries = actions(&mut planner);
    assert_eq!(tries.len(), 64);
    for action in tries {
        let Action::Apply(token, _) = action else { panic!("{action:?}") };
        planner.outcome(token, applied(), due_ms);
    }
    // No create has an answer.
    assert_eq!(actions(&mut planner).len(), 64);
    assert_eq!(planner.next_due_ms(), Some(due_ms));
    planner.retry_due(due_ms);
    assert!(matches!(row(&mut planner), (Token::Spend(..), _)), "the last flight is tried");
}

#[test]
fn a_flight_with_many_parents_is_retried_by_rows() {
    let mut planner = Planner::new(SETTINGS);
    let outpoints: Vec<Outpoint> = (1..=1_000u32)
        .map(|number| {
            let mut txid = Txid([4; 32]);
            txid.0[..4].copy_from_slice(&number.to_le_bytes());
            Outpoint { txid, vout: 0 }
        })
        .collect();
    planner.submit(event(0), tx(&outpoints, 1), Mode::Normal, 0);
    for tag in 1..=10 {
        let parent = Outpoint { txid: Txid([3; 32]), vout: tag };
        planner.submit(event(tag.into()), tx(&[parent], tag as u8), Mode::Normal, 0);
    }
    answer_all_absent(&mut planner, 0);
    // The wide flight asks for at most BACKLOG_TRIES_PER_SECOND rows, every other flight for as many as before.
    let rows = tries_within_ms(&mut planner, 2_000);
    assert!((5_000..=11_000).contains(&rows[0]), "{}", rows[0]);
    assert!(rows[1..].iter().all(|tried| (180..=220).contains(tried)), "{rows:?}");
    // A wide flight does not make all others wait for its answers, or the reverse.
    let due_ms = 10_000;
    planner.retry_due(due_ms);
    assert!(actions(&mut planner).len() > 1_000);
}
