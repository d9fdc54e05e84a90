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

/// Lets the spend apply; both creates then find the own record contested.
fn find_own_record_contested(planner: &mut Planner, spend: Token) {
    planner.outcome(spend, applied(), 0);
    let (token, _) = row(planner);
    let contested = TxState::Conflicting(Verdict::Pending);
    planner.outcome(token, Outcome::Rejected(Rejection::Exists(contested)), 0);
    let (token, _) = row(planner);
    planner.outcome(token, Outcome::AlreadyApplied(Reply::State(contested)), 0);
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
    assert_eq!(planner.on_named([named(parent.txid)], 0), 0, "the child waits for the flight");
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

/// A transaction is halted before or after the partitions of its child and its grandchild are revoked.
/// Protects: no flight without an event waits for a halted one; other flights wait for their parents.
#[test]
fn revoked_descendants_of_a_halted_transaction_are_dropped() {
    for is_halted_first in [true, false] {
        let mut planner = Planner::new(SETTINGS);
        let parent = tx(&[outside(0)], 1);
        let child = tx(&[of(&parent, 1)], 2);
        planner.submit(event(5), parent, Mode::Normal, 0);
        let (token, _) = row(&mut planner);
        planner.outcome(token, applied(), 0);
        let (create, _) = row(&mut planner);
        for (partition, tx) in [(1, child.clone()), (2, tx(&[of(&child, 0)], 3))] {
            planner.submit(EventRef { partition, ..event(7) }, tx, Mode::Normal, 0);
        }
        let in_all = |planner: &Planner| planner.flights().counts().active + planner.flights().counts().parked;
        if is_halted_first {
            planner.halt(create.flight(), 0);
        }
        planner.revoke(2, 0);
        assert_eq!(in_all(&planner), if is_halted_first { 2 } else { 3 });
        planner.revoke(1, 0);
        planner.halt(create.flight(), 0);
        assert_eq!(in_all(&planner), 1, "the halted one");
        planner.revoke(0, 0);
        assert_eq!((in_all(&planner), actions(&mut planner).len()), (0, 0));
    }
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
    assert_eq!(planner.next_due_ms(), Some(30), "the pause doubles");
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

/// Protects: simulator, seed 990057 with a snapshot. A restored store reads the block that unlocks the parent long
/// after the child.
#[test]
fn the_grace_of_a_locked_parent_begins_at_its_start() {
    for (flag_grace_ms, ends_at) in [(1_000, 6_000), (0, 5_000)] {
        let history = StoreHistory::default();
        let start = history.flag_grace_start.clone();
        let mut planner = Planner::new(PlanSettings { flag_grace_ms, ..SETTINGS }).with_history(history);
        start.move_to(5_000);
        planner.submit(event(0), tx(&[outside(0)], 1), Mode::Normal, 0);
        let (token, _) = row(&mut planner);
        planner.outcome(token, Outcome::Rejected(Rejection::Locked), 0);
        let Some(Action::ReadOwn(id, _)) = planner.next_action() else { panic!() };
        planner.own_record(id, None, 0);
        for now_ms in [1_000, 4_800, 5_000, 5_800, 6_000].into_iter().take_while(|now_ms| *now_ms <= ends_at) {
            planner.retry_due(now_ms);
            let (token, spend) = row(&mut planner);
            assert!(matches!(spend.operation, Operation::Spend(_)));
            planner.outcome(token, Outcome::Rejected(Rejection::Locked), now_ms);
            assert_eq!(!actions(&mut planner).is_empty(), now_ms == ends_at, "{now_ms} of {ends_at} ms");
        }
    }
}

/// A restored store reads the log again, without a time limit for its waits yet.
fn read_again() -> Planner {
    let history = StoreHistory { live_grace_start: Some(Arc::default()), ..StoreHistory::default() };
    Planner::new(SETTINGS).with_history(history)
}

/// Takes the request for the own record, and answers it.
fn own_record(planner: &mut Planner, own: Option<&Page>, now_ms: u64) {
    let Some(Action::ReadOwn(id, _)) = planner.next_action() else { panic!("the own record is read") };
    planner.own_record(id, own, now_ms);
}

/// Protects: simulator, seeds 990055 and 990211 with a snapshot. The chain may have handled the contest without the
/// inputs of the loser. A kill between the record and the contest leaves the record alone.
#[test]
fn a_loser_that_is_read_again_is_contested_unless_an_event_would_open_its_verdict() {
    let stored = |verdict| Outcome::AlreadyApplied(Reply::State(TxState::Conflicting(verdict)));
    let missing_parent = Verdict::Conflicting(Reason::MissingParent { parent: OUTSIDE });
    let answers = [
        (applied(), true),
        (stored(Verdict::Pending), true),
        (stored(Verdict::Conflicting(Reason::Command)), true),
        (stored(missing_parent), false),
    ];
    for (answer, is_contested) in answers {
        let mut planner = read_again();
        planner.submit(event(0), tx(&[outside(0)], 1), Mode::SettlesByContest, 0);
        let (token, store) = row(&mut planner);
        assert!(matches!(store.operation, Operation::CreateContested(_)), "the loser takes no slot");
        planner.outcome(token, answer, 0);
        match planner.next_action() {
            Some(Action::PublishContest { .. }) => assert!(is_contested),
            Some(Action::Complete(..)) => assert!(!is_contested),
            other => panic!("{other:?}"),
        }
    }
}

/// An instance died between the contested record and the contest.
#[test]
fn a_contested_record_without_a_verdict_is_contested_when_it_is_read_again() {
    let made = tx(&[outside(0)], 1);
    let record = Page::clone(SubmittedTx::from(made.clone()).page()).contested();
    let mut planner = read_again();
    planner.submit(event(0), made, Mode::EndsLive, 0);
    own_record(&mut planner, Some(&record), 0);
    let (token, spend) = row(&mut planner);
    assert!(matches!(&spend.operation, Operation::Spend(spend) if spend.marks == Marks::Respect));
    find_own_record_contested(&mut planner, token);
    assert!(matches!(planner.next_action(), Some(Action::PublishContest { .. })));
}

/// Protects: a producer sends a mined transaction again, whose parent is pruned, or claims its outputs wrongly.
#[test]
fn a_repeat_of_a_live_transaction_ends_without_the_grace() {
    for refusal in [Rejection::Pruned(7), Rejection::HashMismatch(0)] {
        let made = tx(&[outside(0)], 1);
        let record = Page::clone(SubmittedTx::from(made.clone()).page());
        let mut planner = read_again();
        planner.steps.history.can_lose_writes = true;
        planner.submit(event(0), made, Mode::EndsLive, 0);
        own_record(&mut planner, Some(&record), 0);
        let (token, _) = row(&mut planner);
        planner.outcome(token, Outcome::Rejected(refusal.clone()), 0);
        own_record(&mut planner, Some(&record), 0);
        planner.retry_due(100);
        let (token, _) = row(&mut planner);
        planner.outcome(token, Outcome::Rejected(refusal), 100);
        let (_, store) = row(&mut planner);
        assert!(matches!(store.operation, Operation::CreateContested(_)), "the record answers that it is live");
    }
}

/// Protects: a chain of payments whose first one has lost to a rival above the earlier store's offsets.
#[test]
fn children_of_a_loser_wait_for_the_chain_only() {
    let mut planner = read_again();
    planner.steps.history.live_grace_start.clone().unwrap().move_to(1_000_000);
    planner.submit(event(0), tx(&[outside(0)], 1), Mode::EndsLive, 0);
    own_record(&mut planner, None, 0);
    let lost = Rejection::Conflicting(Verdict::Conflicting(Reason::Command));
    let (token, _) = row(&mut planner);
    planner.outcome(token, Outcome::Rejected(lost.clone()), 0);
    own_record(&mut planner, None, 0);
    let now_ms = SETTINGS.flag_grace_ms;
    planner.retry_due(now_ms);
    let (token, _) = row(&mut planner);
    planner.outcome(token, Outcome::Rejected(lost.clone()), now_ms);
    own_record(&mut planner, None, now_ms);
    let (token, _) = row(&mut planner);
    planner.outcome(token, Outcome::Rejected(lost), now_ms);
    assert!(matches!(row(&mut planner).1.operation, Operation::CreateContested(_)));
}

/// Protects: a client sends a transaction again that lost for a missing parent, and the first event is read again at
/// the same time.
#[test]
fn a_later_event_does_not_join_one_that_the_log_decides() {
    let mut planner = read_again();
    let made = tx(&[outside(0)], 1);
    planner.submit(event(0), made.clone(), Mode::EndsConflicting, 0);
    planner.submit(event(1), made, Mode::Normal, 0);
    let (token, _) = row(&mut planner);
    planner.outcome(token, applied(), 0);
    let (_, spend) = row(&mut planner);
    assert!(matches!(spend.operation, Operation::Spend(_)), "the later event is judged by itself");
}

/// Protects: simulator, seed 990204 with a snapshot. The decision of a snapshot's verdict is below its offsets.
#[test]
fn a_transaction_whose_record_has_lost_takes_no_slot() {
    let lost = tx(&[outside(0)], 1);
    let mut record = Page::clone(SubmittedTx::from(lost.clone()).page()).contested();
    record.master.as_mut().unwrap().verdict = Some(Verdict::Conflicting(Reason::Disconnected));
    for (mut planner, takes_slots) in [(read_again(), false), (Planner::new(SETTINGS), true)] {
        planner.submit(event(0), lost.clone(), Mode::EndsLive, 0);
        own_record(&mut planner, Some(&record), 0);
        assert_eq!(matches!(row(&mut planner).1.operation, Operation::Spend(_)), takes_slots);
    }
}

/// Protects: simulator, seeds 990099 and 990134 with a snapshot.
#[test]
fn a_transaction_of_a_stub_is_contested_when_it_is_read_again() {
    let stub = Outcome::Rejected(Rejection::Exists(TxState::Stub(Verdict::Pending)));
    for (mut planner, is_contested) in [(read_again(), true), (Planner::new(SETTINGS), false)] {
        planner.submit(event(0), tx(&[outside(0)], 1), Mode::EndsLive, 0);
        own_record(&mut planner, None, 0);
        let (token, _) = row(&mut planner);
        planner.outcome(token, applied(), 0);
        let (token, _) = row(&mut planner);
        planner.outcome(token, stub.clone(), 0);
        let (token, store) = row(&mut planner);
        assert!(matches!(store.operation, Operation::CreateContested(_)));
        planner.outcome(token, applied(), 0);
        assert_eq!(matches!(planner.next_action(), Some(Action::PublishContest { .. })), is_contested);
    }
}

/// Protects: a rival above the earlier store's offsets can hold the coin for good.
#[test]
fn a_transaction_that_ends_live_by_the_log_is_treated_normally_after_the_grace() {
    let mut planner = read_again();
    let start = planner.steps.history.live_grace_start.clone().unwrap();
    start.move_to(5_000);
    planner.submit(event(0), tx(&[outside(0)], 1), Mode::EndsLive, 0);
    own_record(&mut planner, None, 0);
    let refusal = || Outcome::Rejected(Rejection::SpentBy(0, SpendingData { txid: Txid([3; 32]), input: 0 }));
    let (token, spend) = row(&mut planner);
    assert!(matches!(&spend.operation, Operation::Spend(spend) if spend.marks == Marks::Ignore));
    planner.outcome(token, refusal(), 0);
    own_record(&mut planner, None, 0);
    let grace_ms = SETTINGS.flag_grace_ms;
    for (now_ms, is_over) in [(1_000, false), (4_900 + grace_ms, false), (5_000 + grace_ms, true)] {
        planner.retry_due(now_ms);
        let (token, _) = row(&mut planner);
        planner.outcome(token, refusal(), now_ms);
        own_record(&mut planner, None, now_ms);
        if is_over {
            let (token, spend) = row(&mut planner);
            assert!(matches!(&spend.operation, Operation::Spend(spend) if spend.marks == Marks::Respect));
            planner.outcome(token, refusal(), now_ms);
            assert!(matches!(row(&mut planner).1.operation, Operation::CreateContested(_)));
        }
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
    find_own_record_contested(&mut planner, token);
    assert!(matches!(planner.next_action(), Some(Action::PublishContest { .. })), "it took a slot");
}

#[test]
fn below_the_frontier_no_contest_is_published() {
    let mut planner = Planner::new(SETTINGS);
    planner.submit(event(0), tx(&[outside(0)], 1), Mode::EndsConflicting, 0);
    let (token, _) = row(&mut planner);
    // Another instance creates the transaction. One more attempt follows after the pause.
    planner.outcome(token, Outcome::Rejected(Rejection::Exists(TxState::Creating)), 0);
    planner.retry_due(SETTINGS.retry_max_ms);
    let (token, store) = row(&mut planner);
    assert!(matches!(store.operation, Operation::CreateContested(_)), "it takes no slot");
    planner.outcome(token, applied(), 0);
    assert_eq!(completed(&mut planner).len(), 1);

    planner.submit(event(1), tx(&[outside(1)], 2), Mode::EndsLive, 0);
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
    for mode in [Mode::EndsLive, Mode::EndsAccepted] {
        let mut planner = Planner::new(SETTINGS);
        let honest = tx(&[outside(0)], 1);
        planner.submit(event(0), claiming(&honest, &[0x52]), mode, 0);
        planner.submit(event(1), honest, mode, 0);
        let Some(Action::ReadOwn(id, _)) = planner.next_action() else { panic!("it reads its own record first") };
        planner.own_record(id, None, 0);
        let (token, _) = row(&mut planner);
        planner.outcome(token, Outcome::Rejected(Rejection::HashMismatch(0)), 0);
        if mode == Mode::EndsAccepted {
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
        let mut planner =
            Planner::new(SETTINGS).with_history(StoreHistory { can_lose_writes: true, ..StoreHistory::default() });
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

/// The retries are the net below the outcomes: every flight is tried, at a rate that does not grow with their number.
#[test]
fn every_parked_flight_is_retried_at_a_bounded_rate() {
    for (count, least, most) in [(1, 95, 105), (250, 20_000, 20_100), (15_000, 20_000, 20_100)] {
        let mut planner = planner_with_parked(count);
        let mut tries = vec![0; count as usize];
        for now_ms in 0..10_000 {
            planner.retry_due(now_ms);
            while let Some(action) = planner.next_action() {
                if let Action::Apply(token, _) = &action {
                    tries[token.flight().index as usize] += 1;
                }
                answer_absent(&mut planner, action, now_ms);
            }
        }
        let all: u32 = tries.iter().sum();
        assert!((least..=most).contains(&all), "{count} wait: {all}");
        let bounds = (tries.iter().min().unwrap(), tries.iter().max().unwrap());
        assert!(*bounds.0 > 0 && *bounds.1 <= *bounds.0 + 10, "{count} wait: {bounds:?}");
    }
}

#[test]
fn tries_wait_for_the_answers_of_open_tries() {
    let mut planner = planner_with_parked(150);
    let due_ms = planner.next_due_ms().unwrap();
    assert_eq!(planner.retry_due(due_ms), 64);
    let all = actions(&mut planner);
    assert_eq!((all.len(), planner.next_due_ms()), (64, None), "not before an answer");
    assert_eq!(planner.retry_due(due_ms + 1_000), 0);
    all.into_iter().for_each(|action| answer_absent(&mut planner, action, due_ms));
    answer_all_absent(&mut planner, due_ms);
    assert_eq!(planner.next_due_ms(), Some(due_ms + 32), "2,000 rows a second");
    assert_eq!([31, 32].map(|ms| planner.retry_due(due_ms + ms)), [0, 64]);
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
    let due_ms = planner.next_due_ms().unwrap();
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
    let (wide, others) = (planner.flights().iter().next().unwrap().id, 10);
    let mut rows = [0; 2];
    for now_ms in 0..20_000 {
        planner.retry_due(now_ms);
        while let Some(action) = planner.next_action() {
            if let Action::Apply(token, _) = &action {
                rows[usize::from(token.flight() != wide)] += 1;
            }
            answer_absent(&mut planner, action, now_ms);
        }
    }
    assert!((20_000..=41_000).contains(&rows[0]), "{rows:?}: 2,000 a second");
    assert!(rows[1] >= 195 * others, "{rows:?}: each of the others is tried every 100 ms, as without the wide flight");
}

/// Returns a transaction that spends an output of each of these parents.
fn child_of(parents: &[u8]) -> Arc<PreparedTx> {
    let outpoints = parents.iter().map(|byte| Outpoint { txid: Txid([*byte; 32]), vout: 0 });
    tx(&outpoints.collect::<Vec<_>>(), 1)
}

/// Submits a transaction whose first try finds none of its parents; the own record is not read yet.
fn try_in_vain(planner: &mut Planner, child: Arc<PreparedTx>) -> FlightId {
    planner.submit(event(0), child, Mode::Normal, 0);
    let mut id = None;
    while let Some(action) = planner.next_action() {
        match action {
            Action::ReadOwn(flight, _) => id = Some(flight),
            other => answer_absent(planner, other, 0),
        }
    }
    id.unwrap()
}

/// Outcome of a transaction's own event.
fn named(txid: Txid) -> NamedTransaction {
    NamedTransaction { txid, can_unlock: false }
}

#[test]
fn outcomes_wake_a_flight_once_they_have_named_all_its_parents() {
    let mut planner = Planner::new(SETTINGS);
    let id = try_in_vain(&mut planner, child_of(&[1, 2]));
    planner.own_record(id, None, 0);
    let name = |planner: &mut Planner, byte| (planner.on_named([named(Txid([byte; 32]))], 1), actions(planner).len());
    assert_eq!([7, 1, 1].map(|byte| name(&mut planner, byte)), [(0, 0); 3], "another one, and one of two");
    assert_eq!(name(&mut planner, 2), (1, 2), "both are tried");
    assert_eq!(planner.flights().counts().parked, 0);
    // A flight that is not parked any more is not woken.
    assert_eq!(name(&mut planner, 2), (0, 0));
    assert!(planner.next_due_ms().is_none());
}

/// Protects: no outcome about the holder of a slot has to come.
#[test]
fn a_flight_waits_for_no_outcome_of_a_parent_that_refuses_for_good() {
    let mut planner = Planner::new(SETTINGS);
    planner.submit(event(0), child_of(&[1, 2]), Mode::Normal, 0);
    let holder = SpendingData { txid: OUTSIDE, input: 0 };
    let refusals = [Rejection::NotFound, Rejection::SpentBy(0, holder)];
    for (action, refusal) in actions(&mut planner).into_iter().zip(refusals) {
        let Action::Apply(token, _) = action else { panic!("{action:?}") };
        planner.outcome(token, Outcome::Rejected(refusal), 0);
    }
    answer_all_absent(&mut planner, 0);
    assert_eq!(planner.on_named([named(Txid([1; 32]))], 0), 1);
}

/// A client can publish the event of a locked parent without an end, and each event has an outcome.
#[test]
fn repeats_of_a_locked_parent_wake_no_child() {
    let mut planner = Planner::new(SETTINGS);
    planner.submit(event(0), child_of(&[1, 2]), Mode::Normal, 0);
    let (first, rest) = (actions(&mut planner), [Rejection::Locked, Rejection::NotFound]);
    let repeat = |planner: &mut Planner| planner.on_named([named(Txid([1; 32]))], 0);
    assert_eq!(repeat(&mut planner), 0);
    for (action, refusal) in first.into_iter().zip(rest) {
        let Action::Apply(token, _) = action else { panic!("{action:?}") };
        planner.outcome(token, Outcome::Rejected(refusal), 0);
    }
    answer_all_absent(&mut planner, 0);
    assert_eq!(planner.flights().counts().parked, 1, "the repeat during the try causes no second try");
    assert_eq!(planner.on_named([named(Txid([2; 32]))], 0), 0);
    assert_eq!([(); 3].map(|()| repeat(&mut planner)), [0; 3]);
    assert_eq!(planner.on_named([NamedTransaction { txid: Txid([1; 32]), can_unlock: true }], 0), 1);
    assert!(planner.flights().waiters_by_txid.is_empty(), "nothing is left of the wait");
}

#[test]
fn a_parent_named_during_a_try_is_tried_again_at_once() {
    // The outcome is read before the flight is parked.
    let mut planner = Planner::new(SETTINGS);
    let id = try_in_vain(&mut planner, child_of(&[1]));
    assert_eq!(planner.on_named([named(Txid([1; 32]))], 0), 0);
    planner.own_record(id, None, 0);
    assert!(matches!(row(&mut planner), (Token::Spend(..), _)), "tried at once");
    // The record is absent all the same: a node has lost the parent. The outcome is older than the second try.
    planner.outcome(Token::Spend(id, 0), Outcome::Rejected(Rejection::NotFound), 0);
    assert_eq!((actions(&mut planner).len(), planner.flights().counts().parked), (0, 1), "no third try");
    // An outcome during the second of two tries counts, too.
    assert_eq!(planner.retry_due(10), 1);
    planner.on_named([named(Txid([1; 32]))], 10);
    let (token, _) = row(&mut planner);
    planner.outcome(token, Outcome::Rejected(Rejection::NotFound), 10);
    assert!(matches!(row(&mut planner), (Token::Spend(..), _)));
    // One of two parents is named during the try: the flight waits for the other one only.
    let mut planner = Planner::new(SETTINGS);
    let id = try_in_vain(&mut planner, child_of(&[1, 2]));
    planner.on_named([named(Txid([1; 32]))], 0);
    planner.own_record(id, None, 0);
    assert!(actions(&mut planner).is_empty());
    assert_eq!(planner.on_named([named(Txid([2; 32]))], 0), 1);
}

#[test]
fn outcomes_wake_flights_behind_locked_and_undecided_parents_and_their_own_record() {
    for refusal in [Rejection::Locked, Rejection::Creating, Rejection::Conflicting(Verdict::Pending)] {
        let mut planner = Planner::new(SETTINGS);
        planner.submit(event(0), child_of(&[1]), Mode::Normal, 0);
        let (token, _) = row(&mut planner);
        planner.outcome(token, Outcome::Rejected(refusal.clone()), 0);
        let Some(Action::ReadOwn(id, _)) = planner.next_action() else { panic!() };
        planner.own_record(id, None, 0);
        let decided = NamedTransaction { txid: Txid([1; 32]), can_unlock: true };
        assert_eq!(planner.on_named([decided], 0), 1, "{refusal:?}");
    }
    let mut planner = Planner::new(SETTINGS);
    let child = child_of(&[1]);
    planner.submit(event(0), child.clone(), Mode::Normal, 0);
    let (token, _) = row(&mut planner);
    planner.outcome(token, applied(), 0);
    let (token, _) = row(&mut planner);
    planner.outcome(token, Outcome::Rejected(Rejection::Exists(TxState::Creating)), 0);
    assert_eq!(planner.flights().counts().parked, 1, "another instance creates the transaction");
    assert_eq!(planner.on_named([named(child.txid)], 0), 1);
}

#[test]
fn a_flight_that_is_no_longer_parked_leaves_no_waiter_behind() {
    let mut planner = Planner::new(SETTINGS);
    let id = try_in_vain(&mut planner, child_of(&[1, 2]));
    planner.own_record(id, None, 0);
    assert_eq!(planner.steps.flights.waiters_by_txid.len(), 2);
    planner.retry_due(10);
    assert_eq!(planner.steps.flights.waiters_by_txid.len(), 0);
    answer_all_absent(&mut planner, 10);
    planner.on_named([named(Txid([1; 32]))], 10);
    assert_eq!(planner.steps.flights.waiters_by_txid.len(), 1);
    planner.revoke(0, 10);
    assert_eq!((planner.steps.flights.waiters_by_txid.len(), planner.flights().iter().count()), (0, 0));
}
