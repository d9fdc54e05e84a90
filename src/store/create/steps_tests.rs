use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::{
    record::{
        self, Key, LockRecord, Operation, Page, Phase, Record, Rules, Sequenced, Stamp, Verdict,
        build::{NewTxState, PageParams, Pages, build_pages},
    },
    rng::SplitMix64,
    store::{
        create::{InitialState, PagedTx, build_master_create, build_page_rows},
        into_page, testing,
    },
    tx::{Network, Transaction, Txid},
};

const RULES: Rules = Rules::main(288);

/// A small store over the pure functions of `record`.
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

    /// Returns whether a slot of this page can be spent.
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
    let setting = PageParams { network: Network::Regtest, height: 100, batch_size: size, created_at: 1, event: None };
    build_pages(&parsed, bytes.clone(), parsed.txid(), &setting, &NewTxState::default()).unwrap()
}

/// Progress of one creator.
struct Attempt {
    kind: CreationKind,
    creation: Creation,
    owner: u64,
}

impl Attempt {
    fn new(kind: CreationKind, others: u32, owner: u64) -> Self {
        Attempt { kind, creation: Creation::new(kind, others, 2), owner }
    }

    fn ended(&self) -> Option<&Outcome> {
        match self.creation.step() {
            CreationStep::Ended(outcome) => Some(outcome),
            _ => None,
        }
    }

    fn work(&self, pages: &Pages) -> PagedTx {
        let initial_state = if self.kind == CreationKind::Live { InitialState::Live } else { InitialState::Contested };
        PagedTx { master: pages.master.clone().into(), others: pages.others.clone().unwrap().into(), initial_state }
    }

    fn rows(&self, pages: &Pages) -> Vec<(Key, Operation)> {
        let others = pages.others.as_ref().unwrap();
        let lock_record = Key::LockRecord(others.txid());
        let (owner, expected_recs) = (self.owner, others.count() + 1);
        match self.creation.step() {
            CreationStep::Acquire => {
                // The lock record expires at once, so that rivals run together.
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
            CreationStep::Release => vec![(lock_record, Operation::ReleaseLockRecord { owner })],
            step => build_page_rows(step, &self.work(pages), owner)
                .into_iter()
                .map(|row| (row.key, row.operation))
                .collect(),
        }
    }

    /// Takes the current step; some rows are applied twice, as after a lost reply.
    fn take(&mut self, records: &mut Records, pages: &Pages, dice: &mut SplitMix64, check: &mut impl FnMut(&Records)) {
        match self.creation.step() {
            CreationStep::Body => return self.creation.on_body_stored(),
            CreationStep::ReadMaster => {
                let master = into_page(records.0.get(&Key::master(pages.master.txid)).cloned().flatten());
                let create = build_master_create(&self.work(pages), self.owner);
                return self.creation.on_master_read(ExistingMaster::of(master.as_ref(), &create));
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
        self.creation.on_outcomes(&outcomes);
    }
}

fn stamp(offset: u64) -> Stamp {
    Stamp { offset, phase: Phase::Apply }
}

/// Applies operations of the sequencer: a stub in the place of the master, then a verdict.
fn sequence(records: &mut Records, txid: Txid, others: u32, offset: u64, dice: &mut SplitMix64) {
    let contested = |offset| Operation::Sequenced(stamp(offset), Sequenced::MarkContested);
    records.apply(Key::master(txid), &contested(offset));
    let has_slots = |records: &Records| records.page(txid, 0).is_some_and(|page| page.utxos.is_some());
    let state = records.page(txid, 0).map(Page::state);
    if !has_slots(records) || !matches!(state, Some(TxState::Conflicting(_))) {
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

    /// Rival creators of both kinds, a sequencer, repeated requests, and crashes at any step. No page is open before
    /// all pages exist, and no page is open while the transaction is contested. One more attempt completes the
    /// creation.
    #[test]
    fn no_page_opens_early_and_one_more_attempt_completes_the_creation(
        seed: u64,
        outputs in 4_usize..16,
        kinds in prop::collection::vec(any::<bool>(), 1..4),
    ) {
        let mut dice = SplitMix64::new(seed);
        let pages = pages(outputs, 3);
        let others = pages.others.as_ref().unwrap().count();
        let txid = pages.master.txid;
        let mut records = Records::default();
        let mut written = BTreeSet::new();
        let mut check = |records: &Records| {
            written.extend((0..=others).filter(|number| records.page(txid, *number).is_some()));
            let all = (0..=others).all(|number| records.page(txid, number).is_some_and(|page| page.utxos.is_some()));
            let open: Vec<u32> = (0..=others).filter(|number| records.is_open(txid, *number)).collect();
            assert!(open.is_empty() || all, "{open:?} can be spent, of {written:?}");
            let contested = matches!(
                records.page(txid, 0).map(Page::state),
                Some(TxState::Conflicting(Verdict::Pending) | TxState::Stub(_))
            );
            assert!(open.is_empty() || !contested, "{open:?} can be spent while the transaction is contested");
        };
        let kind = |live: bool| if live { CreationKind::Live } else { CreationKind::Contested };
        let mut attempts: Vec<Attempt> =
            kinds.iter().zip(1..).map(|(live, owner)| Attempt::new(kind(*live), others, owner)).collect();
        let mut offset = 1;
        for _ in 0..200 {
            let place = dice.below(attempts.len() as u64) as usize;
            match dice.below(40) {
                // The creator crashes, and another one begins.
                0 => attempts[place] = Attempt::new(attempts[place].kind, others, 100 + offset),
                1 => sequence(&mut records, txid, others, offset, &mut dice),
                _ => attempts[place].take(&mut records, &pages, &mut dice, &mut check),
            }
            offset += 2;
        }
        let mut last = Attempt::new(CreationKind::Live, others, 99);
        while last.ended().is_none() {
            last.take(&mut records, &pages, &mut dice, &mut check);
        }
        let state = records.page(txid, 0).map(Page::state);
        match last.ended() {
            Some(Outcome::Applied(_) | Outcome::AlreadyApplied(_)) => {
                prop_assert_eq!(state, Some(TxState::Live));
                prop_assert!((0..=others).all(|number| records.is_open(txid, number)));
            }
            Some(Outcome::Rejected(Rejection::Exists(found))) => prop_assert_eq!(state, Some(*found)),
            other => prop_assert!(false, "{:?}", other),
        }
    }
}

fn run(kind: CreationKind, answer: impl Fn(&CreationStep) -> Vec<Outcome>) -> (Vec<CreationStep>, Outcome) {
    let mut creation = Creation::new(kind, 3, 2);
    let mut steps = Vec::new();
    loop {
        match creation.step().clone() {
            CreationStep::Ended(outcome) => return (steps, outcome),
            CreationStep::ReadMaster => creation.on_master_read(None),
            CreationStep::Body => creation.on_body_stored(),
            step => {
                creation.on_outcomes(&answer(&step));
                steps.push(step);
            }
        }
    }
}

fn applied(step: &CreationStep) -> Vec<Outcome> {
    let rows = match step {
        CreationStep::Others(pages) => pages.len(),
        CreationStep::Clear(pages) => pages.len(),
        _ => 1,
    };
    vec![Outcome::Applied(Reply::None); rows]
}

#[test]
fn the_master_comes_last_and_is_cleared_last() {
    let (steps, outcome) = run(CreationKind::Live, applied);
    let expected = [
        CreationStep::Acquire,
        CreationStep::Others(1..3),
        CreationStep::Others(3..4),
        CreationStep::Master,
        CreationStep::Release,
        CreationStep::Clear(vec![1, 2, 3]),
        CreationStep::ClearMaster,
    ];
    assert_eq!((&*steps, outcome), (&expected[..], Outcome::Applied(Reply::None)));
    let (steps, _) = run(CreationKind::Contested, applied);
    assert_eq!(steps, expected[..5], "the master bars the other pages");
}

#[test]
fn a_lock_record_of_another_creator_ends_the_creation() {
    let held = record::LockRecord {
        created_at: 0,
        expires_at: 9,
        process_id: 1,
        hostname: String::new(),
        expected_recs: 4,
        owner: 5,
    };
    let refusal = Outcome::Rejected(Rejection::Held(held));
    let (steps, outcome) = run(CreationKind::Live, |_| vec![refusal.clone()]);
    assert_eq!((steps.len(), outcome), (1, refusal));
}

/// Each outcome of creating the master, with the outcome of the creation and whether pages are cleared.
#[test]
fn the_state_of_the_master_decides_the_outcome() {
    let lost = Verdict::Conflicting(record::Reason::Command);
    let exists = |state| Outcome::Rejected(Rejection::Exists(state));
    let live = Outcome::AlreadyApplied(Reply::State(TxState::Live));
    let pruned = Outcome::AlreadyApplied(Reply::State(TxState::Pruned(7)));
    let cases = [
        (CreationKind::Live, live.clone(), live.clone(), true),
        (CreationKind::Live, exists(TxState::Creating), live, true),
        (CreationKind::Live, Outcome::Applied(Reply::ContestDue), Outcome::Applied(Reply::ContestDue), true),
        (CreationKind::Live, pruned.clone(), pruned, false),
        (CreationKind::Live, exists(TxState::Stub(lost)), exists(TxState::Stub(lost)), false),
        (CreationKind::Live, exists(TxState::Conflicting(lost)), exists(TxState::Conflicting(lost)), false),
        (CreationKind::Live, Outcome::Rejected(Rejection::OtherKind), Outcome::Rejected(Rejection::OtherKind), false),
        (CreationKind::Contested, exists(TxState::Creating), exists(TxState::Live), true),
        (CreationKind::Contested, exists(TxState::Live), exists(TxState::Live), true),
        (CreationKind::Contested, exists(TxState::Pruned(7)), exists(TxState::Pruned(7)), false),
    ];
    for (kind, found, expected, clears) in cases {
        let (steps, outcome) =
            run(kind, |step| if *step == CreationStep::Master { vec![found.clone()] } else { applied(step) });
        assert_eq!(outcome, expected, "{kind:?} {found:?}");
        assert_eq!(steps.contains(&CreationStep::ClearMaster), clears, "{kind:?} {found:?}");
        assert!(steps.contains(&CreationStep::Release));
    }
}

#[test]
fn a_transaction_conflicting_before_its_clearing_is_reported_as_conflicting() {
    let verdict = Verdict::Conflicting(record::Reason::Command);
    let refused = Outcome::Rejected(Rejection::Conflicting(verdict));
    let (_, outcome) =
        run(
            CreationKind::Live,
            |step| if *step == CreationStep::ClearMaster { vec![refused.clone()] } else { applied(step) },
        );
    assert_eq!(outcome, Outcome::Rejected(Rejection::Exists(TxState::Conflicting(verdict))));
}

#[test]
fn a_lost_page_is_sent_again_before_any_other_page_is_cleared() {
    let mut lost = std::cell::Cell::new(1);
    let not_found = Outcome::Rejected(Rejection::NotFound);
    let (steps, _) = run(CreationKind::Live, |step| match step {
        CreationStep::Clear(pages) if lost.replace(0) == 1 => pages
            .iter()
            .map(|number| if *number == 2 { not_found.clone() } else { applied(&CreationStep::Master).remove(0) })
            .collect(),
        step => applied(step),
    });
    assert_eq!(*lost.get_mut(), 0);
    let again = steps.iter().rposition(|step| matches!(step, CreationStep::Others(_))).unwrap();
    let cleared = steps.iter().position(|step| matches!(step, CreationStep::Clear(_))).unwrap();
    assert!(cleared < again && again < steps.iter().position(|step| *step == CreationStep::ClearMaster).unwrap());
}

#[test]
fn pages_of_another_transaction_end_the_creation_before_the_master() {
    let mismatch = Outcome::Rejected(Rejection::OtherContent);
    let (steps, outcome) = run(CreationKind::Live, |step| match step {
        CreationStep::Others(pages) => vec![mismatch.clone(); pages.len()],
        step => applied(step),
    });
    assert_eq!(
        (steps, outcome),
        (vec![CreationStep::Acquire, CreationStep::Others(1..3), CreationStep::Release], mismatch)
    );
}
