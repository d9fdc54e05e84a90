use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::{
    record::{
        self, Key, LockRecord, Operation, Page, Phase, Record, Rules, Sequenced, Stamp, Verdict,
        build::{Pages, Setting, Start, pages_of},
    },
    seeded::Seeded,
    store::{
        create::{Paged, Starts, create_master, rows_of_pages},
        into_page, testing,
    },
    tx::{Network, Transaction, Txid},
};

const RULES: Rules = Rules::main(288);

/// A small store, as pure as what it is to test.
#[derive(Default)]
struct Records(BTreeMap<Key, Option<Record>>);

impl Records {
    fn apply(&mut self, key: Key, operation: &Operation) -> Outcome {
        let record = self.0.entry(key).or_default();
        record::apply(&RULES, &key, record, operation).outcome
    }

    fn page(&self, txid: Txid, number: u32) -> Option<&Page> {
        self.0.get(&Key::Page(txid, number))?.as_ref()?.page()
    }

    /// Whether an output of this page could be spent.
    fn is_open(&self, txid: Txid, number: u32) -> bool {
        self.page(txid, number).is_some_and(|page| page.state() == TxState::Live)
    }
}

fn transaction(outputs: usize) -> Bytes {
    testing::transaction(&[(testing::outpoint(Txid([9; 32]), 0), 1 << 40)], &vec![7; outputs])
}

fn pages(outputs: usize, size: u32) -> Pages {
    let bytes = transaction(outputs);
    let parsed = Transaction::parse(&bytes).unwrap();
    let setting = Setting { network: Network::Regtest, height: 100, batch_size: size, created_at: 1 };
    pages_of(&parsed, bytes.clone(), parsed.txid(), &setting, &Start::default()).unwrap()
}

/// One creator and how far it is.
struct Attempt {
    kind: Kind,
    creation: Creation,
    owner: u64,
}

impl Attempt {
    fn new(kind: Kind, others: u32, owner: u64) -> Self {
        Attempt { kind, creation: Creation::new(kind, others, 2), owner }
    }

    fn ended(&self) -> Option<&Outcome> {
        match self.creation.step() {
            Step::Ended(outcome) => Some(outcome),
            _ => None,
        }
    }

    fn work(&self, pages: &Pages) -> Paged {
        let starts = if self.kind == Kind::Live { Starts::Live } else { Starts::Contested };
        Paged { master: pages.master.clone().into(), others: pages.others.clone().unwrap().into(), starts }
    }

    fn rows(&self, pages: &Pages) -> Vec<(Key, Operation)> {
        let others = pages.others.as_ref().unwrap();
        let lock_record = Key::LockRecord(others.txid());
        let (owner, expected_recs) = (self.owner, others.count() + 1);
        match self.creation.step() {
            Step::Acquire => {
                // It has run out at once, so that rivals meet.
                let taken = LockRecord {
                    created_at: 0,
                    expires_at: 0,
                    process_id: 1,
                    hostname: String::new(),
                    expected_recs,
                    owner,
                };
                vec![(lock_record, Operation::AcquireLockRecord { lock_record: taken, now_ms: 1 })]
            }
            Step::Release => vec![(lock_record, Operation::ReleaseLockRecord { owner })],
            step => {
                rows_of_pages(step, &self.work(pages), owner).into_iter().map(|row| (row.key, row.operation)).collect()
            }
        }
    }

    /// Takes the present step; with `once_more`, as when a reply was lost, twice.
    fn take(&mut self, records: &mut Records, pages: &Pages, dice: &mut Seeded, check: &mut impl FnMut(&Records)) {
        match self.creation.step() {
            Step::Body => return self.creation.body_stored(),
            Step::Look => {
                let master = into_page(records.0.get(&Key::master(pages.master.txid)).cloned().flatten());
                let create = create_master(&self.work(pages), self.owner);
                return self.creation.looked(Seen::of(master.as_ref(), &create));
            }
            _ => {}
        }
        let rows = self.rows(pages);
        let mut outcomes = Vec::new();
        for (key, operation) in &rows {
            let mut outcome = records.apply(*key, operation);
            if dice.chance(0.2) {
                outcome = records.apply(*key, operation);
            }
            check(records);
            outcomes.push(outcome);
        }
        self.creation.answered(&outcomes);
    }
}

fn stamp(offset: u64) -> Stamp {
    Stamp { offset, phase: Phase::Apply }
}

/// What the sequencer may do to it: a stub in its place, then a verdict.
fn sequence(records: &mut Records, txid: Txid, others: u32, offset: u64, dice: &mut Seeded) {
    let contested = |offset| Operation::Sequenced(stamp(offset), Sequenced::MarkContested);
    records.apply(Key::master(txid), &contested(offset));
    let whole = |records: &Records| records.page(txid, 0).is_some_and(|page| page.utxos.is_some());
    let state = records.page(txid, 0).map(Page::state);
    if !whole(records) || !matches!(state, Some(TxState::Conflicting(_))) {
        return;
    }
    let verdict = if dice.chance(0.5) {
        Sequenced::Accept
    } else {
        Sequenced::MarkConflicting { reason: record::Reason::Command, height: 5 }
    };
    for number in (1..=others).chain([0]) {
        let outcome = records.apply(Key::Page(txid, number), &Operation::Sequenced(stamp(offset + 1), verdict.clone()));
        assert!(outcome.is_done(), "page {number}: {verdict:?} was {outcome:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// Rival creators of both kinds, a sequencer, repeated requests, crashes at any step: no page is open before all are there, none is open while
    /// the transaction is contested, and one more attempt brings everything to its end.
    #[test]
    fn nothing_is_open_early_and_one_more_attempt_completes_it(seed: u64, outputs in 4_usize..16, kinds in prop::collection::vec(any::<bool>(), 1..4)) {
        let mut dice = Seeded::new(seed);
        let pages = pages(outputs, 3);
        let others = pages.others.as_ref().unwrap().count();
        let txid = pages.master.txid;
        let mut records = Records::default();
        let mut was_there = BTreeSet::new();
        let mut check = |records: &Records| {
            was_there.extend((0..=others).filter(|number| records.page(txid, *number).is_some()));
            let all = (0..=others).all(|number| records.page(txid, number).is_some_and(|page| page.utxos.is_some()));
            let open: Vec<u32> = (0..=others).filter(|number| records.is_open(txid, *number)).collect();
            assert!(open.is_empty() || all, "{open:?} can be spent, of {was_there:?}");
            let contested = matches!(records.page(txid, 0).map(Page::state), Some(TxState::Conflicting(Verdict::Pending) | TxState::Stub(_)));
            assert!(open.is_empty() || !contested, "{open:?} can be spent, though it is contested");
        };
        let kind = |live: bool| if live { Kind::Live } else { Kind::Contested };
        let mut attempts: Vec<Attempt> =
            kinds.iter().zip(1..).map(|(live, owner)| Attempt::new(kind(*live), others, owner)).collect();
        let mut offset = 1;
        for _ in 0..200 {
            let place = dice.below(attempts.len() as u64) as usize;
            match dice.below(40) {
                // It crashes, and perhaps another comes.
                0 => attempts[place] = Attempt::new(attempts[place].kind, others, 100 + offset),
                1 => sequence(&mut records, txid, others, offset, &mut dice),
                _ => attempts[place].take(&mut records, &pages, &mut dice, &mut check),
            }
            offset += 2;
        }
        let mut last = Attempt::new(Kind::Live, others, 99);
        while last.ended().is_none() {
            last.take(&mut records, &pages, &mut dice, &mut check);
        }
        let state = records.page(txid, 0).map(Page::state);
        match last.ended() {
            Some(Outcome::Applied(_) | Outcome::AlreadyApplied(_)) => {
                prop_assert_eq!(state, Some(TxState::Live));
                prop_assert!((0..=others).all(|number| records.is_open(txid, number)));
            }
            Some(Outcome::Rejected(Rejection::Exists(told))) => prop_assert_eq!(state, Some(*told)),
            other => prop_assert!(false, "{:?}", other),
        }
    }
}

fn run(kind: Kind, answer: impl Fn(&Step) -> Vec<Outcome>) -> (Vec<Step>, Outcome) {
    let mut creation = Creation::new(kind, 3, 2);
    let mut steps = Vec::new();
    loop {
        match creation.step().clone() {
            Step::Ended(outcome) => return (steps, outcome),
            Step::Look => creation.looked(None),
            Step::Body => creation.body_stored(),
            step => {
                creation.answered(&answer(&step));
                steps.push(step);
            }
        }
    }
}

fn applied(step: &Step) -> Vec<Outcome> {
    let rows = match step {
        Step::Others(pages) | Step::Clear(pages) => pages.len(),
        _ => 1,
    };
    vec![Outcome::Applied(Reply::None); rows]
}

#[test]
fn the_master_comes_last_and_is_cleared_last() {
    let (steps, outcome) = run(Kind::Live, applied);
    let expected = [
        Step::Acquire,
        Step::Others(1..3),
        Step::Others(3..4),
        Step::Master,
        Step::Release,
        Step::Clear(1..4),
        Step::ClearMaster,
    ];
    assert_eq!((&*steps, outcome), (&expected[..], Outcome::Applied(Reply::None)));
    let (steps, _) = run(Kind::Contested, applied);
    assert_eq!(steps, expected[..5], "its master bars the others");
}

#[test]
fn who_finds_somebody_else_at_it_does_nothing() {
    let held = record::LockRecord {
        created_at: 0,
        expires_at: 9,
        process_id: 1,
        hostname: String::new(),
        expected_recs: 4,
        owner: 5,
    };
    let refusal = Outcome::Rejected(Rejection::Held(held));
    let (steps, outcome) = run(Kind::Live, |_| vec![refusal.clone()]);
    assert_eq!((steps.len(), outcome), (1, refusal));
}

/// Every way in which the master can be found, by what is answered in the end and whether anything was cleared.
#[test]
fn the_master_decides() {
    let lost = Verdict::Conflicting(record::Reason::Command);
    let exists = |state| Outcome::Rejected(Rejection::Exists(state));
    let live = Outcome::AlreadyApplied(Reply::State(TxState::Live));
    let pruned = Outcome::AlreadyApplied(Reply::State(TxState::Pruned(7)));
    let cases = [
        (Kind::Live, live.clone(), live.clone(), true),
        (Kind::Live, exists(TxState::Creating), live, true),
        (Kind::Live, Outcome::Applied(Reply::ContestDue), Outcome::Applied(Reply::ContestDue), true),
        (Kind::Live, pruned.clone(), pruned, false),
        (Kind::Live, exists(TxState::Stub(lost)), exists(TxState::Stub(lost)), false),
        (Kind::Live, exists(TxState::Conflicting(lost)), exists(TxState::Conflicting(lost)), false),
        (Kind::Live, Outcome::Rejected(Rejection::OtherKind), Outcome::Rejected(Rejection::OtherKind), false),
        (Kind::Contested, exists(TxState::Creating), exists(TxState::Live), true),
        (Kind::Contested, exists(TxState::Live), exists(TxState::Live), true),
        (Kind::Contested, exists(TxState::Pruned(7)), exists(TxState::Pruned(7)), false),
    ];
    for (kind, found, told, clears) in cases {
        let (steps, outcome) =
            run(kind, |step| if *step == Step::Master { vec![found.clone()] } else { applied(step) });
        assert_eq!(outcome, told, "{kind:?} {found:?}");
        assert_eq!(steps.contains(&Step::ClearMaster), clears, "{kind:?} {found:?}");
        assert!(steps.contains(&Step::Release));
    }
}

#[test]
fn who_falls_before_it_is_cleared_is_told_so() {
    let fell = Verdict::Conflicting(record::Reason::Command);
    let refused = Outcome::Rejected(Rejection::Conflicting(fell));
    let (_, outcome) =
        run(Kind::Live, |step| if *step == Step::ClearMaster { vec![refused.clone()] } else { applied(step) });
    assert_eq!(outcome, Outcome::Rejected(Rejection::Exists(TxState::Conflicting(fell))));
}

#[test]
fn a_page_that_was_forgotten_is_sent_again_before_anything_more_is_cleared() {
    let mut forgotten = std::cell::Cell::new(1);
    let gone = Outcome::Rejected(Rejection::NotFound);
    let (steps, _) = run(Kind::Live, |step| match step {
        Step::Clear(pages) if forgotten.replace(0) == 1 => pages
            .clone()
            .map(|number| if number == 2 { gone.clone() } else { applied(&Step::Master).remove(0) })
            .collect(),
        step => applied(step),
    });
    assert_eq!(*forgotten.get_mut(), 0);
    let again = steps.iter().rposition(|step| matches!(step, Step::Others(_))).unwrap();
    let cleared = steps.iter().position(|step| matches!(step, Step::Clear(_))).unwrap();
    assert!(cleared < again && again < steps.iter().position(|step| *step == Step::ClearMaster).unwrap());
}

#[test]
fn pages_of_another_transaction_end_it_before_its_master() {
    let strange = Outcome::Rejected(Rejection::OtherContent);
    let (steps, outcome) = run(Kind::Live, |step| match step {
        Step::Others(pages) => vec![strange.clone(); pages.len()],
        step => applied(step),
    });
    assert_eq!((steps, outcome), (vec![Step::Acquire, Step::Others(1..3), Step::Release], strange));
}
