//! The planner, asked and answered by hand: no engine, no log, no runtime.

use bytes::Bytes;

use super::*;
use crate::{
    broker::Message,
    event::Validated,
    group::proof::Ties,
    prepare::{PrepareSettings, Prepared, prepare},
    record::{LockRecord, Marks, SpendingData, Verdict, build::Inline},
    tx::{Network, Outpoint, Output, TransactionBuilder},
};

const SETTINGS: PlanSettings =
    PlanSettings { retry_min_ms: 10, retry_max_ms: 100, flag_grace_ms: 1_000, rules: Rules::main(288) };
const OUTSIDE: Txid = Txid([9; 32]);

/// A transaction that spends an output of 1,000 satoshis with script `51` for each outpoint, into two outputs.
fn tx(outpoints: &[Outpoint], tag: u8) -> Arc<PreparedTx> {
    tx_of(outpoints, tag, &[0x51])
}

/// The same transaction, said to spend an output with another script.
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
    let settings = PrepareSettings { network: Network::Regtest, utxo_batch_size: 100, inline: Inline::All };
    match prepare(&settings, &message).unwrap() {
        Prepared::Validated(tx) => tx,
        Prepared::Seeded(_) => unreachable!(),
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

/// The one row that is asked for.
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
        Action::Complete(event, how) => Some((event.offset, how)),
        _ => None,
    };
    actions(planner).into_iter().filter_map(done).collect()
}

#[test]
fn spends_then_creates_then_is_done() {
    let mut planner = Planner::new(SETTINGS);
    planner.submit(event(0), tx(&[outside(0)], 1), Mode::Normal, 0);
    let (token, spend) = row(&mut planner);
    assert!(matches!(spend.operation, Operation::Spend(_)) && spend.key == Key::master(OUTSIDE));
    planner.outcome(token, applied(), 0);
    let (token, create) = row(&mut planner);
    assert!(matches!(create.operation, Operation::Create(_)));
    planner.outcome(token, applied(), 0);
    assert_eq!(completed(&mut planner), [(0, Completion::Live)]);
    assert_eq!(planner.counts().active, 0);
}

#[test]
fn a_waiting_child_rides_on_its_parents_create_and_spends_for_itself_when_it_existed() {
    for (answer, child_goes_straight) in
        [(applied(), true), (Outcome::AlreadyApplied(Reply::State(TxState::Live)), false)]
    {
        let mut planner = Planner::new(SETTINGS);
        let parent = tx(&[outside(0)], 1);
        let child = tx(&[of(&parent, 1)], 2);
        planner.submit(event(0), parent.clone(), Mode::Normal, 0);
        let (token, _) = row(&mut planner);
        planner.submit(event(1), child.clone(), Mode::Normal, 0);
        assert!(actions(&mut planner).is_empty(), "it waits");
        planner.outcome(token, applied(), 0);
        let (token, create) = row(&mut planner);
        let Operation::Create(page) = create.operation else { panic!() };
        let rider = page.utxos.as_ref().unwrap()[1].spender();
        assert_eq!(rider, Some(SpendingData { txid: child.txid, input: 0 }));
        assert_eq!(parent.page.spent_utxos, 0, "what was prepared stays as it was");
        planner.outcome(token, answer, 0);
        let (_, next) = row(&mut planner);
        assert_eq!(matches!(next.operation, Operation::Create(_)), child_goes_straight, "{next:?}");
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

/// A transaction that the store takes in no way, and a child of it in another partition.
/// Protects: nobody waits for it at a shutdown, its child waits on, and nothing is left once its partition is taken away.
#[test]
fn what_is_too_big_for_the_store_stands_and_so_does_what_waits_for_it() {
    let mut planner = Planner::new(SETTINGS);
    let parent = tx(&[outside(0)], 1);
    planner.submit(event(5), parent.clone(), Mode::Normal, 0);
    let (token, _) = row(&mut planner);
    planner.outcome(token, applied(), 0);
    let (create, _) = row(&mut planner);
    // By its time the child comes first.
    planner.submit(EventRef { partition: 1, ..event(0) }, tx(&[of(&parent, 1)], 2), Mode::Normal, 0);
    assert_eq!(planner.halt(create.flight(), 0), Some((parent.txid, vec![event(5)])));
    planner.submit(event(7), parent.clone(), Mode::Normal, 0);
    assert_eq!(planner.halt(create.flight(), 0), Some((parent.txid, vec![event(5), event(7)])), "it is counted once");
    assert_eq!((planner.counts().active, planner.counts().parked), (0, 2));

    planner.retry_due(u64::MAX);
    planner.on_parent_created(&parent.txid, 0);
    planner.look_at_own(0, 0);
    let Some(Action::ReadOwn(child, _)) = planner.next_action() else { panic!("the child looks, and nobody else") };
    planner.own_record(child, None, 0);
    assert!(actions(&mut planner).is_empty() && planner.next_due_ms().is_none());
    assert!(planner.has_halted() && planner.waiting_for_absent().is_empty(), "its parent is there, and may come");

    planner.revoke(0, 0);
    assert!(!planner.has_halted());
    let (_, spend) = row(&mut planner);
    assert_eq!((spend.key, planner.counts().active), (Key::master(parent.txid), 1), "the child tries by itself");
}

#[test]
fn what_is_too_big_stands_whatever_else_it_is_answered() {
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
    assert_eq!((planner.counts().active, planner.counts().parked), (0, 1));
}

#[test]
fn what_is_too_big_is_nobodys_once_its_partition_was_taken_away() {
    let mut planner = Planner::new(SETTINGS);
    planner.submit(event(0), tx(&[outside(0)], 1), Mode::Normal, 0);
    let (token, _) = row(&mut planner);
    planner.revoke(0, 0);
    assert_eq!(planner.halt(token.flight(), 0), None);
    assert_eq!((planner.counts().active, planner.counts().parked), (0, 0));
    assert_eq!(planner.halt(token.flight(), 0), None, "it has ended");
}

/// Submits a transaction whose parent is absent, up to where it is parked.
fn park(planner: &mut Planner, tx: Arc<PreparedTx>) {
    park_at(planner, 0, tx);
    assert_eq!((planner.counts().parked, planner.counts().active), (1, 0));
}

fn park_at(planner: &mut Planner, offset: u64, tx: Arc<PreparedTx>) {
    planner.submit(event(offset), tx, Mode::Normal, 0);
    let (token, _) = row(planner);
    planner.outcome(token, Outcome::Rejected(Rejection::NotFound), 0);
    let Some(Action::ReadOwn(id, _)) = planner.next_action() else { panic!("it looks whether it is live already") };
    planner.own_record(id, None, 0);
    assert!(actions(planner).is_empty());
}

#[test]
fn what_waits_for_an_absent_parent_is_tried_again_and_woken_by_its_arrival() {
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
    assert_eq!(planner.next_due_ms(), Some(20), "nobody else waits");
    planner.submit(event(1), parent, Mode::Normal, 11);
    assert_eq!(planner.next_due_ms(), None, "it waits for the parent now, which is here");
    let (token, _) = row(&mut planner);
    planner.outcome(token, applied(), 11);
    let (token, create) = row(&mut planner);
    let Operation::Create(page) = &create.operation else { panic!() };
    assert_eq!(page.spent_utxos, 1, "the child rides");
    planner.outcome(token, applied(), 11);
    assert!(actions(&mut planner).iter().any(|action| matches!(action, Action::Apply(Token::Create(_), _))));
}

#[test]
fn what_is_held_by_another_is_stored_contested_and_complete_only_with_the_contest() {
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
fn a_redelivered_loser_that_holds_nothing_is_not_contested_again() {
    let mut planner = Planner::new(SETTINGS);
    planner.submit(event(0), tx(&[outside(0)], 1), Mode::Normal, 0);
    let (token, _) = row(&mut planner);
    planner.outcome(token, Outcome::Rejected(Rejection::Contested(0)), 0);
    let (token, _) = row(&mut planner);
    let lost = TxState::Conflicting(Verdict::Conflicting(Reason::Command));
    planner.outcome(token, Outcome::AlreadyApplied(Reply::State(lost)), 0);
    assert_eq!(completed(&mut planner).len(), 1);
}

/// Its tombstone has its body for longer, and there is nothing to decide.
#[test]
fn an_event_of_what_was_pruned_as_conflicting_is_not_contested() {
    for told in [Outcome::Applied, Outcome::AlreadyApplied] {
        let mut planner = Planner::new(SETTINGS);
        planner.submit(event(0), tx(&[outside(0)], 1), Mode::Normal, 0);
        let (token, _) = row(&mut planner);
        planner.outcome(token, applied(), 0);
        let (token, _) = row(&mut planner);
        planner.outcome(token, Outcome::Rejected(Rejection::Exists(TxState::Pruned(7))), 0);
        let (token, store) = row(&mut planner);
        assert!(matches!(store.operation, Operation::CreateContested(_)), "{store:?}");
        planner.outcome(token, told(Reply::State(TxState::Pruned(7))), 0);
        assert_eq!(completed(&mut planner), [(0, Completion::PassedOver)]);
    }
}

/// Where somebody else is at it he is given time: simulator, seed 7195, which asked without end.
#[test]
fn a_locked_parent_is_waited_for_only_so_long() {
    let held = LockRecord {
        created_at: 0,
        expires_at: 32_000,
        process_id: 1,
        hostname: "elsewhere".into(),
        expected_recs: 2,
        owner: 7,
    };
    for busy in [Rejection::Held(held), Rejection::Exists(TxState::Creating)] {
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
fn a_parent_that_is_proven_missing_is_looked_for_once_more() {
    for (answer, contested) in [(Outcome::Rejected(Rejection::NotFound), true), (applied(), false)] {
        let mut planner = Planner::new(SETTINGS);
        park(&mut planner, tx(&[outside(0)], 1));
        let (_, id, wanted) = planner.waiting_for_absent().remove(0);
        planner.parents_are_missing(id, wanted, Ties::Break, 5);
        let (token, spend) = row(&mut planner);
        assert!(matches!(spend.operation, Operation::Spend(_)), "what it waited for may have come since");
        planner.outcome(token, answer, 5);
        assert_eq!(matches!(row(&mut planner).1.operation, Operation::CreateContested(_)), contested);
    }
}

/// Simulator, seeds 945, 2223 and 2656: a parent that waited for a lock was taken for missing, though its event was older.
#[test]
fn a_child_gives_up_a_parent_that_came_behind_it_only_once_none_that_came_before_it_is_on_its_way() {
    for (offset_of_other, tries_again) in [(0, false), (5, true)] {
        let (other, behind) = (tx(&[outside(0)], 1), tx(&[outside(1)], 2));
        let child = tx(&[of(&other, 0), of(&behind, 0)], 3);
        let mut planner = Planner::new(SETTINGS);
        park_at(&mut planner, offset_of_other, other);
        planner.submit(event(1), child.clone(), Mode::Normal, 0);
        park_at(&mut planner, 2, behind);
        let id = planner.by_txid[&child.txid];
        let wanted = waits_for(&planner, id);
        planner.parents_are_missing(id, wanted, Ties::BreakKnown, 5);
        assert_eq!(!actions(&mut planner).is_empty(), tries_again);
    }
}

/// 186 dead letters `missing-parent` halted a partition: each parent was produced within the millisecond of its child,
/// into a higher partition, and waited for a lock for longer than the grace.
#[test]
fn a_child_waits_for_a_parent_in_flight_whatever_the_place_of_its_event() {
    for (ties, is_contested) in [(Ties::Wait, false), (Ties::Break, false), (Ties::BreakKnown, true)] {
        let parent = tx(&[outside(0)], 1);
        let child = tx(&[of(&parent, 0)], 2);
        let mut planner = Planner::new(SETTINGS);
        planner.submit(event(0), child.clone(), Mode::Normal, 0);
        nothing_is_there(&mut planner, 0);
        park_at(&mut planner, 1, parent);
        planner.retry_due(10_000);
        for action in actions(&mut planner) {
            it_is_not_there(&mut planner, action, 10_000);
        }
        let id = planner.by_txid[&child.txid];
        let wanted = waits_for(&planner, id);
        planner.parents_are_missing(id, wanted, ties, 10_005);
        assert_eq!(!actions(&mut planner).is_empty(), is_contested, "{ties:?}");
    }
}

/// Simulator, seed 5114 (24 November): of two parents one came behind the child, and the other, older, waited in a partition of
/// somebody else's. The child was contested as soon as the first was proven missing, and was told that the second was.
#[test]
fn a_child_gives_up_a_parent_that_came_behind_it_only_once_every_absent_one_is_proven_missing() {
    for all_are_proven in [false, true] {
        let behind = tx(&[outside(1)], 1);
        let child = tx(&[outside(0), of(&behind, 0)], 2);
        let mut planner = Planner::new(SETTINGS);
        planner.submit(event(0), child.clone(), Mode::Normal, 0);
        nothing_is_there(&mut planner, 0);
        park_at(&mut planner, 1, behind.clone());
        planner.retry_due(10_000);
        let id = planner.by_txid[&child.txid];
        for action in actions(&mut planner) {
            it_is_not_there(&mut planner, action, 10_000);
        }
        let wanted = waits_for(&planner, id);
        assert_eq!(wanted, [behind.txid, outside(0).txid]);
        let proven = if all_are_proven { wanted } else { vec![behind.txid] };
        planner.parents_are_missing(id, proven, Ties::BreakKnown, 10_005);
        let tries = actions(&mut planner);
        assert_eq!(tries.len(), 2);
        tries.into_iter().for_each(|action| it_is_not_there(&mut planner, action, 10_005));
        let is_contested = |action: &Action| matches!(action, Action::Apply(_, row) if matches!(row.operation, Operation::CreateContested(_)));
        assert_eq!(actions(&mut planner).iter().any(is_contested), all_are_proven);
    }
}

/// What it has to be asked of whether it is missing.
fn waits_for(planner: &Planner, id: FlightId) -> Vec<Txid> {
    let waiting = planner.waiting_for_absent().into_iter().find(|(_, flight, _)| *flight == id);
    waiting.map_or(Vec::new(), |(.., wanted)| wanted)
}

/// Simulator, seeds 2698 and, with `SIM_PRUNE`, 1273: the later event waited for what is only proven missing once the child has ended.
#[test]
fn a_child_does_not_wait_for_a_later_event_of_a_parent_that_is_conflicting_by_verdict_or_pruned() {
    for fell in [Rejection::Conflicting(Verdict::Conflicting(Reason::Command)), Rejection::Pruned(7)] {
        let parent = tx(&[outside(0)], 1);
        let child = tx(&[of(&parent, 0), outside(1)], 2);
        let mut planner = Planner::new(SETTINGS);
        planner.submit(event(0), child.clone(), Mode::Normal, 0);
        let answer = |planner: &mut Planner| {
            for action in actions(planner) {
                let Action::Apply(token, row) = action else { panic!("{action:?}") };
                let refusal = if row.key == Key::master(parent.txid) { fell.clone() } else { Rejection::NotFound };
                planner.outcome(token, Outcome::Rejected(refusal), 0);
            }
        };
        answer(&mut planner);
        let id = planner.by_txid[&child.txid];
        planner.own_record(id, None, 0);
        actions(&mut planner);
        park_at(&mut planner, 1, parent.clone());
        planner.retry_due(10_000);
        answer(&mut planner);
        let wanted = waits_for(&planner, id);
        planner.parents_are_missing(id, wanted, Ties::Break, 5);
        assert_eq!(actions(&mut planner).len(), 2, "it tries both once more: {fell:?}");
    }
}

#[test]
fn what_was_revoked_ends_but_what_it_may_hold_is_contested() {
    let parent = tx(&[outside(0)], 1);
    let mut planner = Planner::new(SETTINGS);
    park(&mut planner, tx(&[of(&parent, 0)], 2));
    planner.revoke(0, 0);
    assert_eq!(
        (planner.counts(), planner.next_due_ms()),
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
fn below_the_frontier_nothing_is_published() {
    let mut planner = Planner::new(SETTINGS);
    planner.submit(event(0), tx(&[outside(0)], 1), Mode::RebuildContested, 0);
    let (token, _) = row(&mut planner);
    // Somebody is at it. Then once more, when it has waited.
    planner.outcome(token, Outcome::Rejected(Rejection::Exists(TxState::Creating)), 0);
    planner.retry_due(SETTINGS.retry_max_ms);
    let (token, store) = row(&mut planner);
    assert!(matches!(store.operation, Operation::CreateContested(_)), "it takes nothing");
    planner.outcome(token, applied(), 0);
    assert_eq!(completed(&mut planner).len(), 1);

    planner.submit(event(1), tx(&[outside(1)], 2), Mode::RebuildWon, 0);
    let Some(Action::ReadOwn(id, _)) = planner.next_action() else { panic!("it looks before it takes anything") };
    planner.own_record(id, None, 0);
    let (token, spend) = row(&mut planner);
    assert!(matches!(&spend.operation, Operation::Spend(spend) if spend.marks == Marks::Ignore));
    let holder = SpendingData { txid: Txid([3; 32]), input: 0 };
    planner.outcome(token, Outcome::Rejected(Rejection::SpentBy(1, holder)), 0);
    assert!(matches!(planner.next_action(), Some(Action::ReadOwn(..))), "it waits where others would contest");
}

/// The first event claims wrongly what it spends, the second rightly (simulator, seeds 354 and 838).
#[test]
fn in_a_rebuild_wrong_claims_give_way_to_right_ones_unless_there_is_a_verdict_on_them() {
    for mode in [Mode::RebuildWon, Mode::RebuildAccepted] {
        let mut planner = Planner::new(SETTINGS);
        let honest = tx(&[outside(0)], 1);
        planner.submit(event(0), claiming(&honest, &[0x52]), mode, 0);
        planner.submit(event(1), honest, mode, 0);
        let Some(Action::ReadOwn(id, _)) = planner.next_action() else { panic!("it looks first") };
        planner.own_record(id, None, 0);
        let (token, _) = row(&mut planner);
        planner.outcome(token, Outcome::Rejected(Rejection::HashMismatch(0)), 0);
        if mode == Mode::RebuildAccepted {
            let (_, store) = row(&mut planner);
            assert!(matches!(store.operation, Operation::CreateContested(_)), "as it was decided on");
            continue;
        }
        let Some(Action::ReadOwn(id, _)) = planner.next_action() else { panic!("it may have lost meanwhile") };
        planner.own_record(id, None, 0);
        let actions = actions(&mut planner);
        assert!(
            matches!(&actions[0], Action::Complete(event, Completion::PassedOver) if event.offset == 0),
            "{actions:?}"
        );
        assert!(matches!(actions[1], Action::ReadOwn(..)), "the second has its turn");
    }
}

#[test]
fn a_repeat_joins_and_an_event_with_other_claims_has_its_own_turn() {
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
            Action::Complete(event, Completion::Live) => Some(event.offset),
            _ => None,
        })
        .collect();
    assert_eq!(done, [0, 2]);
    let Some(Action::Apply(token, spend)) = actions.into_iter().next_back() else { panic!() };
    let Operation::Spend(spend) = spend.operation else { panic!("the second event spends for itself") };
    assert_eq!(spend.slots[0].script.as_ref(), [0x52]);
    planner.outcome(token, Outcome::Rejected(Rejection::HashMismatch(0)), 0);
    let (token, _) = row(&mut planner);
    planner.outcome(token, Outcome::Rejected(Rejection::Exists(TxState::Live)), 0);
    assert_eq!(completed(&mut planner).len(), 2, "what it claims proves nothing against a live one");
    assert_eq!(planner.counts().active, 0);
}

/// What it would store is for the first to store, which is done again.
#[test]
fn a_later_event_makes_no_record_over_a_store_that_forgets() {
    for (answer, done) in
        [(applied(), Completion::Live), (Outcome::Rejected(Rejection::HashMismatch(0)), Completion::PassedOver)]
    {
        let mut planner = Planner::new(SETTINGS).over_forgetful_store(true);
        let first = tx(&[outside(0)], 1);
        planner.submit(event(0), first.clone(), Mode::Normal, 0);
        planner.submit(event(1), claiming(&first, &[0x52]), Mode::Normal, 0);
        for _ in ["spend", "create"] {
            let (token, _) = row(&mut planner);
            planner.outcome(token, applied(), 0);
        }
        let (token, spend) = row(&mut planner);
        assert!(matches!(spend.operation, Operation::Spend(_)), "its turn");
        planner.outcome(token, answer.clone(), 0);
        let Some(Action::ReadOwn(id, _)) = planner.next_action() else { panic!("it looks first") };
        planner.own_record(id, None, 0);
        assert_eq!((planner.counts().parked, actions(&mut planner).len()), (1, 0), "a node forgot what the first made");
        planner.retry_due(10_000);
        if let Some(Action::Apply(token, _)) = actions(&mut planner).pop() {
            planner.outcome(token, answer, 10_000);
        }
        planner.own_record(id, Some(&first.page), 10_000);
        assert_eq!(completed(&mut planner).pop(), Some((1, done)));
    }
}

#[test]
fn what_stands_behind_a_flight_is_revoked_with_its_partition() {
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
    assert_eq!(planner.counts().active, 0);
}

/// Answers whatever is asked: nothing is there.
fn nothing_is_there(planner: &mut Planner, now_ms: u64) {
    while let Some(action) = planner.next_action() {
        it_is_not_there(planner, action, now_ms);
    }
}

fn it_is_not_there(planner: &mut Planner, action: Action, now_ms: u64) {
    match action {
        Action::Apply(token, _) => planner.outcome(token, Outcome::Rejected(Rejection::NotFound), now_ms),
        Action::ReadOwn(id, _) => planner.own_record(id, None, now_ms),
        Action::ReadParent(id, group, _) => planner.parent_record(id, group, None, now_ms),
        other => panic!("{other:?}"),
    }
}

fn many_that_wait(count: u32) -> Planner {
    let mut planner = Planner::new(SETTINGS);
    for tag in 0..count {
        let parent = Outpoint { txid: Txid([3; 32]), vout: tag };
        planner.submit(event(u64::from(tag)), tx(&[parent], (tag % 251) as u8), Mode::Normal, 0);
    }
    nothing_is_there(&mut planner, 0);
    assert_eq!(planner.counts().parked, count as usize);
    planner
}

#[test]
fn who_waits_does_not_hold_its_batch() {
    let mut planner = Planner::new(SETTINGS);
    let waits = tx(&[outside(0)], 1);
    let child = tx(&[of(&waits, 0)], 2);
    let read = [waits.source.payload.clone(), child.source.payload.clone()];
    park(&mut planner, waits);
    planner.submit(event(1), child, Mode::Normal, 0);
    assert!(actions(&mut planner).is_empty(), "it waits for its parent");
    let held = || read.iter().filter(|payload| !payload.is_unique()).count();
    planner.keep_apart();
    assert_eq!(held(), 2, "most wait for a moment only");
    planner.keep_apart();
    assert_eq!(held(), 0);
    // Nor those of its repeats, and of what others say of it.
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
    assert!(matches!(row(&mut planner), (Token::Create(_), _)), "it goes on as it was");
}

/// How often each was tried within so many milliseconds, once all have waited for long; the answers come at once.
fn tries_within(planner: &mut Planner, ms: u64) -> Vec<u32> {
    let mut tries = vec![0; planner.flights.len()];
    for now_ms in 0..2 * ms {
        while planner.next_due_ms().is_some_and(|due_ms| due_ms <= now_ms) {
            planner.retry_due(now_ms);
            while let Some(action) = planner.next_action() {
                if let (Action::Apply(token, _), true) = (&action, now_ms >= ms) {
                    tries[token.flight().index as usize] += 1;
                }
                it_is_not_there(planner, action, now_ms);
            }
        }
    }
    tries
}

#[test]
fn the_more_wait_the_longer_the_younger_pause() {
    // Of the oldest, one in the middle of the front, the youngest: SETTINGS have a class of the front pause for 10, 20, 40, 80 ms.
    for (count, tries) in [(1, [100; 3]), (250, [100, 100, 50]), (1_024, [100, 25, 12])] {
        let mut planner = many_that_wait(count);
        let all = tries_within(&mut planner, 1_000);
        let of = |number: u32| all[number.min(count - 1) as usize];
        let middle = if count > 500 { 500 } else { 100 };
        let near = |(tried, usual): (u32, u32)| tried.abs_diff(usual) <= 1 + usual / 10;
        let looked = [of(0), of(middle), of(count)];
        assert!(looked.into_iter().zip(tries).all(near), "{count} wait: {looked:?}");
        assert!(all.iter().all(|tried| *tried > 0), "{count} wait: nobody is left out");
    }
}

#[test]
fn behind_the_front_they_try_as_often_as_it_is_of_use() {
    let mut planner = many_that_wait(5_000);
    let behind = |tries: &[u32]| tries[1_024..].iter().sum::<u32>();
    tries_within(&mut planner, 2_000);
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
    let tries = tries_until(&mut planner, 5_000, it_is_not_there);
    // Of 3,976: the least that may, and the least of those that are new.
    assert!((200..=700).contains(&behind(&tries)), "{}", behind(&tries));
    assert!((90..=110).contains(&tries[0]), "the front tries as ever: {}", tries[0]);
    let tries = tries_until(&mut planner, 30_000, it_is_not_there);
    assert!(tries.iter().all(|tried| *tried > 0), "nobody is left out");
    // All they waited for comes.
    let applied = |planner: &mut Planner, action, now_ms| {
        if let Action::Apply(token, _) = action {
            planner.outcome(token, applied(), now_ms);
        }
    };
    let tries = tries_until(&mut planner, 34_000, applied);
    assert!(tries.iter().all(|tried| *tried == 1), "each goes on at its first try");
}

#[test]
fn who_is_new_is_tried_soon_behind_however_many_that_wait_in_vain() {
    let mut planner = many_that_wait(20_000);
    tries_within(&mut planner, 2_000);
    let parent = Outpoint { txid: Txid([5; 32]), vout: 0 };
    let young = tx(&[parent], 7);
    planner.submit(event(20_000), young.clone(), Mode::Normal, 4_000);
    let mut went_on_ms = None;
    for now_ms in 4_000..6_000 {
        planner.retry_due(now_ms);
        while let Some(action) = planner.next_action() {
            match action {
                // Its parent, which somebody else creates, has come by then.
                Action::Apply(Token::Spend(id, _), ref row) if row.key == young.groups[0].key() && now_ms >= 4_020 => {
                    went_on_ms.get_or_insert(now_ms);
                    planner.outcome(Token::Spend(id, 0), applied(), now_ms);
                }
                Action::Apply(token @ Token::Create(_), _) => planner.outcome(token, applied(), now_ms),
                Action::Complete(..) => {}
                other => it_is_not_there(&mut planner, other, now_ms),
            }
        }
    }
    assert!(went_on_ms.is_some_and(|at_ms| at_ms <= 4_100), "{went_on_ms:?}");
}

#[test]
fn who_comes_to_the_front_is_tried_as_often_as_the_rest_of_it() {
    let mut planner = many_that_wait(6_000);
    tries_within(&mut planner, 1_000);
    let young = 5_000;
    assert_eq!(planner.parked.class_of(event(young)), None);
    // The parents of the older ones come.
    for id in planner.flights.iter().flatten().take(young as usize).map(|flight| flight.id).collect::<Vec<_>>() {
        planner.wait_no_longer(id);
        planner.finish(id, Completion::PassedOver);
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
            it_is_not_there(&mut planner, action, now_ms);
        }
        now_ms += 1;
    }
    assert!(first_of_young.is_some_and(|at_ms| at_ms <= 2_020), "{first_of_young:?}: it slept on");
}

#[test]
fn who_tries_again_waits_for_the_answers_to_those_before() {
    let mut planner = many_that_wait(150);
    let due_ms = planner.next_due_ms().unwrap();
    let mut tries = Vec::new();
    while planner.next_due_ms() == Some(due_ms) {
        planner.retry_due(due_ms);
        let all = actions(&mut planner);
        assert_eq!(planner.next_due_ms().filter(|_| all.len() == 64), None, "not before an answer");
        planner.retry_due(due_ms);
        assert!(planner.next_action().is_none());
        tries.push(all.len());
        all.into_iter().for_each(|action| it_is_not_there(&mut planner, action, due_ms));
        nothing_is_there(&mut planner, due_ms);
    }
    assert_eq!(tries, [64, 64, 22]);
}

#[test]
fn of_many_that_wait_each_looks_at_its_own_record_in_its_turn() {
    let mut planner = many_that_wait(1_500);
    let mut looks = |now_ms| {
        planner.look_at_own(100, now_ms);
        std::iter::from_fn(|| planner.next_action()).count()
    };
    assert_eq!([0, 100, 100, 100, 199].map(&mut looks), [0, 1_024, 476, 0, 0]);
    assert_eq!([200, 200, 299].map(looks), [1_024, 476, 0]);
}

#[test]
fn who_waits_for_the_blob_store_keeps_nobody_from_trying() {
    let mut planner = many_that_wait(65);
    let due_ms = planner.next_due_ms().unwrap();
    planner.retry_due(due_ms);
    let tries = actions(&mut planner);
    assert_eq!(tries.len(), 64);
    for action in tries {
        let Action::Apply(token, _) = action else { panic!("{action:?}") };
        planner.outcome(token, applied(), due_ms);
    }
    // None of the creates is answered.
    assert_eq!(actions(&mut planner).len(), 64);
    assert_eq!(planner.next_due_ms(), Some(due_ms));
    planner.retry_due(due_ms);
    assert!(matches!(row(&mut planner), (Token::Spend(..), _)), "the last one has its turn");
}

#[test]
fn who_waits_for_many_parents_does_not_ask_for_them_all_the_time() {
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
    nothing_is_there(&mut planner, 0);
    // Rows: of the wide one TRIES_A_SECOND at the most, of each other as many as ever.
    let rows = tries_within(&mut planner, 2_000);
    assert!((5_000..=11_000).contains(&rows[0]), "{}", rows[0]);
    assert!(rows[1..].iter().all(|tried| (180..=220).contains(tried)), "{rows:?}");
    // A wide one does not have all others wait for its answers, nor they it.
    let due_ms = 10_000;
    planner.retry_due(due_ms);
    assert!(actions(&mut planner).len() > 1_000);
}
