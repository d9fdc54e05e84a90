//! The planner against a small store and a small sequencer: random transactions in a random order, late answers in any
//! order, repeated requests, revoked partitions. Every event completes once, no transaction is created before its slots
//! are taken, and no flight is left at the end.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::{
    broker::Message,
    event::{PartialOutput, PartialTxEvent, Validated},
    prepare::{PrepareSettings, PreparedEvent, PreparedPartialTx, PreparedTx, prepare},
    record::{
        self, HeldSlot, Key, LockRecord, Operation, Phase, Record, Rejection, Sequenced, Stamp, TxState, Verdict,
        build::InlineBodies,
    },
    rng::SplitMix64,
    store::{
        create::{
            InitialState, build_master_create, build_page_rows,
            steps::{Creation, CreationKind, CreationStep, ExistingMaster},
        },
        into_page,
    },
    tx::{Network, Outpoint, Output, Transaction, TransactionBuilder},
};

const SETTINGS: PlanSettings =
    PlanSettings { retry_min_ms: 10, retry_max_ms: 100, flag_grace_ms: 1_000, rules: Rules::main(288) };
const PARTITIONS: i32 = 3;
const SEED_OUTPUTS: u32 = 4;

/// Partial transactions, by their arrival.
const LIVE: u8 = 0;
const LOCKED: u8 = 1;
const ARRIVES_LATER: u8 = 2;
const TWO_CONTENTS: u8 = 3;
const NEVER_ARRIVES: u8 = 4;

/// Content of an event.
#[derive(Debug, Clone)]
enum Content {
    Transaction(Arc<PreparedTx>),
    Partial(Arc<PreparedPartialTx>),
}

impl Content {
    fn txid(&self) -> Txid {
        match self {
            Content::Transaction(tx) => tx.txid,
            Content::Partial(seed) => seed.txid,
        }
    }
}

/// A request of the planner that the store has not handled yet.
#[derive(Debug)]
enum Requested {
    Row(Token, Row),
    PagedTx(Token, PagedTx),
    Own(FlightId, Txid),
    Parent(FlightId, u32, Txid),
    Publish(FlightId, Txid, Reason),
}

/// An answer that the planner has not received yet.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a few at a time, in a test")]
enum PendingAnswer {
    Outcome(Token, Row, Outcome),
    Created(Token, Outcome),
    TooBig(Token),
    Cancelled(Token),
    Own(FlightId, Option<Record>),
    Parent(FlightId, u32, Option<Record>),
    Published(FlightId),
}

/// A step of the sequencer that is still to be done.
#[derive(Debug)]
enum SequencerStep {
    Decide(Txid, Reason),
    Settle(Txid),
}

#[derive(Debug, Default)]
struct Log {
    /// Submitted events that have not ended, with their transactions.
    open: BTreeMap<EventRef, Txid>,
    ended: BTreeMap<EventRef, &'static str>,
    /// Transactions whose contest is in the log.
    contested: BTreeSet<Txid>,
    /// Groups of spends that were answered as taken, by flight; and spends that a parent's create carried, by
    /// transaction.
    taken: BTreeSet<(FlightId, Key)>,
    attached: BTreeSet<(Txid, Key)>,
    /// The last flight of each transaction, and the flights that have ended.
    flights: BTreeMap<Txid, FlightId>,
    ended_flights: BTreeSet<FlightId>,
}

struct World {
    /// Number of slots of one page.
    page_size: u32,
    random: SplitMix64,
    planner: Planner,
    now_ms: u64,
    transactions: BTreeMap<Txid, Arc<PreparedTx>>,
    records: BTreeMap<Key, Option<Record>>,
    unread: Vec<Content>,
    next_offset: u64,
    epochs: [u64; PARTITIONS as usize],
    /// The store refuses some rows as too large.
    bounded: bool,
    /// At least one partition is halted.
    halted: bool,
    requests: Vec<Requested>,
    answers: Vec<PendingAnswer>,
    sequencer: Vec<SequencerStep>,
    chain_offset: u64,
    log: Log,
}

fn message(txid: Txid, payload: Vec<u8>) -> Message {
    let key = Bytes::copy_from_slice(&txid.0);
    Message { offset: 0, timestamp_ms: 1, key, payload: payload.into(), headers: vec![] }
}

fn prepared(page_size: u32, txid: Txid, payload: Vec<u8>) -> Content {
    let settings = PrepareSettings { network: Network::Regtest, utxo_batch_size: page_size, inline: InlineBodies::All };
    match prepare(&settings, &message(txid, payload)).unwrap() {
        PreparedEvent::Validated(tx) => Content::Transaction(tx),
        PreparedEvent::Seeded(seed) => Content::Partial(seed),
    }
}

fn seed_txid(kind: u8) -> Txid {
    Txid([0xA0 + kind; 32])
}

fn partial(page_size: u32, kind: u8, satoshis: u64) -> Content {
    let output = |vout| PartialOutput { vout, satoshis, script: &[0x51] };
    let outputs = (0..SEED_OUTPUTS).map(output).collect();
    prepared(
        page_size,
        seed_txid(kind),
        PartialTxEvent { txid: seed_txid(kind), coinbase: false, height: 1, outputs }.encode(),
    )
}

/// Removes and returns a random element.
fn take_any<T>(random: &mut SplitMix64, items: &mut Vec<T>) -> Option<T> {
    let index = random.below(items.len() as u64) as usize;
    (!items.is_empty()).then(|| items.swap_remove(index))
}

impl World {
    fn new(seed: u64, size: usize) -> Self {
        let mut random = SplitMix64::new(seed);
        let page_size = *random.pick(&[1, 2, 3, 100]);
        let partial = |kind, satoshis| partial(page_size, kind, satoshis);
        let mut world = World {
            page_size,
            random,
            planner: Planner::new(SETTINGS),
            now_ms: 0,
            transactions: BTreeMap::new(),
            records: BTreeMap::new(),
            unread: Vec::new(),
            next_offset: 0,
            epochs: [1; PARTITIONS as usize],
            bounded: false,
            halted: false,
            requests: Vec::new(),
            answers: Vec::new(),
            sequencer: Vec::new(),
            chain_offset: 0,
            log: Log::default(),
        };
        for kind in [LIVE, LOCKED] {
            let Content::Partial(seed) = partial(kind, 1_000) else { unreachable!() };
            let others = seed.others.iter().flat_map(|others| others.numbers().map(|number| others.page(number, 1)));
            for mut page in others.chain([Page::clone(&seed.page)]) {
                page.locked = kind == LOCKED;
                page.creating_at = None;
                world.records.insert(Key::Page(page.txid, page.number), Some(Record::Page(page.into())));
            }
        }
        world.unread.extend([
            partial(ARRIVES_LATER, 1_000),
            partial(TWO_CONTENTS, 1_000),
            partial(TWO_CONTENTS, 2_000),
        ]);
        world.invent(size);
        world
    }

    /// Makes transactions over each other's outputs: most spend unspent outputs, some are rivals, some have two events.
    fn invent(&mut self, size: usize) {
        let mut coins: Vec<(Outpoint, u64)> = (LIVE..=NEVER_ARRIVES)
            .flat_map(|kind| (0..SEED_OUTPUTS).map(move |vout| (Outpoint { txid: seed_txid(kind), vout }, 1_000)))
            .collect();
        for tag in 0..size as u32 {
            let mut inputs = BTreeMap::new();
            for _ in 0..1 + self.random.below(3) {
                let index = self.random.below(coins.len() as u64) as usize;
                let rival = self.random.chance(0.2);
                let (outpoint, satoshis) = if rival { coins[index] } else { coins.swap_remove(index) };
                inputs.insert(outpoint, satoshis);
                if coins.is_empty() {
                    break;
                }
            }
            let mut builder = TransactionBuilder::default();
            for (outpoint, satoshis) in &inputs {
                let previous = Output { satoshis: *satoshis, script: &[0x51] };
                builder = builder.input(*outpoint, &tag.to_le_bytes(), u32::MAX, Some(previous));
            }
            let each = inputs.values().sum::<u64>() / 2;
            let extended = builder.output(each, &[0x51]).output(each, &[0x51]).extended();
            let txid = Transaction::parse(&extended).unwrap().txid();
            let content =
                prepared(self.page_size, txid, Validated { tx: &extended, height: 200, locked: false }.encode());
            if let Content::Transaction(tx) = &content {
                self.transactions.insert(txid, tx.clone());
            }
            if self.random.chance(0.2) {
                self.unread.push(content.clone());
            }
            self.unread.push(content);
            coins.extend((0..2).map(|vout| (Outpoint { txid, vout }, each)));
        }
    }

    fn submit(&mut self) -> bool {
        let Some(content) = take_any(&mut self.random, &mut self.unread) else { return false };
        let partition = self.random.below(PARTITIONS as u64) as i32;
        let (offset, epoch) = (self.next_offset, self.epochs[partition as usize]);
        self.next_offset += 1;
        let event = EventRef { timestamp_ms: offset as i64, partition, offset, epoch };
        self.log.open.insert(event, content.txid());
        match content {
            Content::Transaction(tx) => self.planner.submit(event, tx, Mode::Normal, self.now_ms),
            Content::Partial(seed) => self.planner.submit(event, seed, Mode::Normal, self.now_ms),
        }
        true
    }

    /// Revokes a partition and assigns it again: its open events are read again, and some completed ones.
    fn revoke(&mut self, partition: i32) {
        let (revoked, open) =
            std::mem::take(&mut self.log.open).into_iter().partition(|(e, _)| e.partition == partition);
        self.log.open = open;
        let again: BTreeMap<EventRef, Txid> = revoked;
        self.unread.extend(again.into_values().flat_map(|txid| match self.transactions.get(&txid) {
            Some(tx) => vec![Content::Transaction(tx.clone())],
            None if txid == seed_txid(ARRIVES_LATER) => vec![partial(self.page_size, ARRIVES_LATER, 1_000)],
            // Both contents: one of them may be half created, and the other does not complete it.
            None => [1_000, 2_000].map(|satoshis| partial(self.page_size, TWO_CONTENTS, satoshis)).into(),
        }));
        let done = self.transactions.values().nth(self.random.below(self.transactions.len() as u64) as usize);
        self.unread.extend(done.map(|tx| Content::Transaction(tx.clone())));
        self.epochs[partition as usize] += 1;
        self.planner.revoke(partition, self.now_ms);
    }

    /// Performs one random request, perhaps twice: then the second answer counts.
    fn perform_request(&mut self) -> bool {
        let Some(request) = take_any(&mut self.random, &mut self.requests) else { return false };
        let answer = match request {
            Requested::Row(token, row) => {
                let record = self.records.entry(row.key).or_default();
                let mut outcome = record::apply(&SETTINGS.rules, &row.key, record, &row.operation).outcome;
                if self.random.chance(0.1) {
                    outcome = record::apply(&SETTINGS.rules, &row.key, record, &row.operation).outcome;
                }
                PendingAnswer::Outcome(token, row, outcome)
            }
            Requested::PagedTx(token, work) => {
                let outcome = self.create_paged(&work);
                PendingAnswer::Created(token, outcome)
            }
            Requested::Own(flight, txid) => {
                PendingAnswer::Own(flight, self.records.get(&Key::master(txid)).cloned().flatten())
            }
            Requested::Parent(flight, group, txid) => {
                PendingAnswer::Parent(flight, group, self.records.get(&Key::master(txid)).cloned().flatten())
            }
            Requested::Publish(flight, txid, reason) => {
                assert!(self.state(txid).is_some(), "{txid} is contested and was not stored");
                self.sequencer.push(SequencerStep::Decide(txid, reason));
                self.log.contested.insert(txid);
                PendingAnswer::Published(flight)
            }
        };
        self.answers.push(answer);
        true
    }

    /// Creates a transaction page by page; sometimes another creator has begun before and crashed half way.
    fn create_paged(&mut self, work: &PagedTx) -> Outcome {
        if self.random.chance(0.1) {
            let some = 1 + self.random.below(6) as usize;
            self.drive(Creation::without_lock_record(CreationKind::Live, work.others.count(), 1), work, some);
        }
        if self.random.chance(0.1) {
            let (created_at, expires_at, process_id, expected_recs, owner) = (0, 9, 1, 2, 5);
            let hostname = String::new();
            let held = LockRecord { created_at, expires_at, process_id, hostname, expected_recs, owner };
            return Outcome::Rejected(Rejection::Held(held));
        }
        let kind =
            if work.initial_state == InitialState::Contested { CreationKind::Contested } else { CreationKind::Live };
        let ended = self.drive(Creation::without_lock_record(kind, work.others.count(), 2), work, usize::MAX);
        ended.expect("the creation ends")
    }

    fn drive(&mut self, mut creation: Creation, work: &PagedTx, steps: usize) -> Option<Outcome> {
        for _ in 0..steps {
            match creation.step().clone() {
                CreationStep::Ended(outcome) => return Some(outcome),
                CreationStep::ReadMaster => {
                    let master = into_page(self.records.get(&Key::master(work.others.txid())).cloned().flatten());
                    creation.on_master_read(ExistingMaster::of(master.as_ref(), &build_master_create(work, 1)));
                }
                CreationStep::Body => creation.on_body_stored(),
                step => {
                    let apply = |row: Row| {
                        let record = self.records.entry(row.key).or_default();
                        record::apply(&SETTINGS.rules, &row.key, record, &row.operation).outcome
                    };
                    let outcomes: Vec<Outcome> = build_page_rows(&step, work, 1).into_iter().map(apply).collect();
                    creation.on_outcomes(&outcomes);
                }
            }
        }
        None
    }

    fn deliver_answer(&mut self) -> bool {
        let Some(answer) = take_any(&mut self.random, &mut self.answers) else { return false };
        match answer {
            PendingAnswer::Outcome(token, row, outcome) => {
                self.record_taken(token, &row, &outcome);
                self.planner.outcome(token, outcome, self.now_ms);
            }
            PendingAnswer::Created(token, outcome) => self.planner.outcome(token, outcome, self.now_ms),
            PendingAnswer::TooBig(token) => {
                let halted = self.planner.halt(token.flight(), self.now_ms);
                for event in halted.iter().flat_map(|(_, events)| events) {
                    assert!(self.log.open.contains_key(event), "{event:?} is not open");
                    self.halted = true;
                }
            }
            PendingAnswer::Cancelled(token) => self.planner.on_cancelled(token, self.now_ms),
            PendingAnswer::Parent(flight, group, master) => {
                let master = master.as_ref().and_then(Record::page);
                self.planner.parent_record(flight, group, master, self.now_ms);
            }
            PendingAnswer::Own(flight, own) => {
                self.planner.own_record(flight, own.as_ref().and_then(Record::page), self.now_ms)
            }
            PendingAnswer::Published(flight) => self.planner.contest_published(flight, self.now_ms),
        }
        true
    }

    fn record_taken(&mut self, token: Token, row: &Row, outcome: &Outcome) {
        match (token, &row.operation, outcome) {
            (Token::Spend(flight, _), _, Outcome::Applied(_) | Outcome::AlreadyApplied(_)) => {
                self.log.taken.insert((flight, row.key));
            }
            (Token::Create(_), Operation::Create(page), Outcome::Applied(_)) => {
                let spenders = page.utxos.iter().flatten().filter_map(crate::record::Slot::spender);
                self.log.attached.extend(spenders.map(|spender| (spender.txid, row.key)));
            }
            _ => {}
        }
    }

    /// Decides one contest: every contested transaction loses. Flags come first, the slots are settled later.
    fn run_sequencer(&mut self) -> bool {
        let Some(next) = take_any(&mut self.random, &mut self.sequencer) else { return false };
        self.chain_offset += 1;
        let stamp = Stamp { offset: self.chain_offset, phase: Phase::Apply };
        match next {
            SequencerStep::Decide(txid, reason) => {
                if self.state(txid) == Some(TxState::Conflicting(Verdict::Pending)) {
                    let flag = Sequenced::MarkConflicting { reason, height: 200 };
                    for key in self.pages_of(txid) {
                        self.apply(key, Operation::Sequenced(stamp, flag.clone()));
                    }
                }
                self.sequencer.push(SequencerStep::Settle(txid));
            }
            SequencerStep::Settle(txid) if self.state(txid) != Some(TxState::Live) => {
                let tx = self.transactions[&txid].clone();
                for group in &tx.groups {
                    let held = group.slots.iter().map(|slot| HeldSlot {
                        offset: slot.offset,
                        holder: crate::record::SpendingData { txid, input: slot.input },
                    });
                    self.apply(group.key(), Operation::Sequenced(stamp, Sequenced::Settle(held.collect())));
                }
            }
            SequencerStep::Settle(_) => {}
        }
        true
    }

    fn unlock(&mut self) {
        self.chain_offset += 1;
        let stamp = Stamp { offset: self.chain_offset, phase: Phase::Apply };
        let unlock = Operation::Sequenced(stamp, Sequenced::SetLocked(false));
        for key in self.pages_of(seed_txid(LOCKED)) {
            self.apply(key, unlock.clone());
        }
    }

    /// Returns the keys of the pages of a transaction that exist.
    fn pages_of(&self, txid: Txid) -> Vec<Key> {
        let there = self.records.iter().filter(|(_, record)| record.is_some()).map(|(key, _)| *key);
        there.filter(|key| matches!(key, Key::Page(of, _) if *of == txid)).collect()
    }

    fn apply(&mut self, key: Key, operation: Operation) {
        let record = self.records.entry(key).or_default();
        let effect = record::apply(&SETTINGS.rules, &key, record, &operation);
        assert!(effect.outcome.is_done(), "{key:?}: {operation:?}: {effect:?}");
    }

    fn state(&self, txid: Txid) -> Option<TxState> {
        Some(self.records.get(&Key::master(txid))?.as_ref()?.page()?.state())
    }

    /// Takes the requests of the planner and checks them.
    fn collect_requests(&mut self) {
        while let Some(action) = self.planner.next_action() {
            match action {
                Action::Apply(token, row) => {
                    let flight = token.flight();
                    let txid = match &row.operation {
                        Operation::SetPageSpent { .. } => {
                            self.requests.push(Requested::Row(token, row));
                            continue;
                        }
                        Operation::Spend(spend) => spend.spender,
                        Operation::Create(page) | Operation::CreateContested(page) => page.txid,
                        other => panic!("the fast path only adds: {other:?}"),
                    };
                    self.check_alive(flight, txid);
                    if let Token::Create(_) = token {
                        self.check_all_taken(flight, txid);
                    }
                    self.requests.push(Requested::Row(token, row));
                }
                Action::CreatePaged(token, work) => {
                    let (flight, txid) = (token.flight(), work.others.txid());
                    self.check_alive(flight, txid);
                    if let Token::Create(_) = token {
                        self.check_all_taken(flight, txid);
                    }
                    self.requests.push(Requested::PagedTx(token, work));
                }
                Action::Cancel(flight) => self.cancel(flight),
                Action::ReadParent(flight, group, txid) => self.requests.push(Requested::Parent(flight, group, txid)),
                Action::ReadOwn(flight, txid) => {
                    self.check_alive(flight, txid);
                    self.requests.push(Requested::Own(flight, txid));
                }
                Action::PublishContest { flight, txid, reason, .. } => {
                    self.check_alive(flight, txid);
                    self.requests.push(Requested::Publish(flight, txid, reason));
                }
                Action::Mismatched { event, work } => {
                    assert_eq!(work.page().txid, seed_txid(TWO_CONTENTS), "only that one has two contents");
                    self.end(event, "mismatched");
                }
                Action::Complete(event, of, how) => {
                    let txid = self.end(event, "complete");
                    assert_eq!(txid, of, "an event completes with its own transaction");
                    assert!(how != Completion::Contested || self.log.contested.contains(&txid), "{txid}: no contest");
                    let state = self.state(txid);
                    assert!(how != Completion::Live || state.is_some(), "{txid} is live and has no record");
                    self.log.ended_flights.extend(self.log.flights.get(&txid));
                }
            }
        }
    }

    /// Cancels the create of a flight after some of its steps, or lets it end; rows in a batch are not cancelled.
    fn cancel(&mut self, flight: FlightId) {
        let of_it = |request: &Requested| matches!(request, Requested::PagedTx(token, _) if token.flight() == flight);
        if let Some(place) = self.requests.iter().position(of_it).filter(|_| self.random.chance(0.8))
            && let Requested::PagedTx(token, work) = self.requests.swap_remove(place)
        {
            let some = self.random.below(6) as usize;
            let kind = if work.initial_state == InitialState::Contested {
                CreationKind::Contested
            } else {
                CreationKind::Live
            };
            self.drive(Creation::without_lock_record(kind, work.others.count(), 1), &work, some);
            self.answers.push(PendingAnswer::Cancelled(token));
        }
    }

    fn check_alive(&mut self, flight: FlightId, txid: Txid) {
        assert!(
            !self.log.ended_flights.contains(&flight),
            "{flight:?} of {txid} has ended, and yet the planner makes a request for it"
        );
        let last = self.log.flights.insert(txid, flight);
        assert!(last.is_none_or(|last| last.generation <= flight.generation), "{txid}: an older flight continues");
    }

    fn check_all_taken(&self, flight: FlightId, txid: Txid) {
        for group in self.transactions.get(&txid).iter().flat_map(|tx| &tx.groups) {
            let key = group.key();
            let held = self.log.taken.contains(&(flight, key)) || self.log.attached.contains(&(txid, key));
            assert!(held, "{txid} is created without an answer that it has its slots of {key:?}");
        }
    }

    fn end(&mut self, event: EventRef, how: &'static str) -> Txid {
        let before = self.log.ended.insert(event, how);
        assert_eq!(before, None, "{event:?} ends again");
        self.log.open.remove(&event).unwrap_or_else(|| panic!("{event:?} is not open"))
    }

    /// Refuses one random row as too large.
    fn refuse(&mut self) {
        let place =
            self.requests.iter().position(|request| matches!(request, Requested::Row(..) | Requested::PagedTx(..)));
        if let Some(Requested::Row(token, _) | Requested::PagedTx(token, _)) =
            place.map(|place| self.requests.swap_remove(place))
        {
            self.answers.push(PendingAnswer::TooBig(token));
        }
    }

    /// Lifts all halts: every partition is assigned anew, and the store has room for all rows.
    fn lift_halts(&mut self) {
        if std::mem::take(&mut self.halted) {
            (0..PARTITIONS).for_each(|partition| self.revoke(partition));
        }
    }

    /// Performs one random step; `false`: no step is left.
    fn step(&mut self) -> bool {
        match self.random.below(40) {
            0 => {
                let partition = self.random.below(PARTITIONS as u64) as i32;
                self.revoke(partition);
            }
            1 => self.unlock(),
            3 if self.bounded => self.refuse(),
            4 => self.lift_halts(),
            2 => self.advance(30),
            _ => {}
        }
        self.collect_requests();
        // Tries the kinds of steps in turn, from a random one on.
        let first = self.random.below(4);
        let moved = (first..first + 4).any(|kind| match kind % 4 {
            0 => self.submit(),
            1 => self.perform_request(),
            2 => self.deliver_answer(),
            _ => self.run_sequencer(),
        });
        self.collect_requests();
        moved
    }

    fn advance(&mut self, ms: u64) {
        self.now_ms += ms;
        self.planner.retry_due(self.now_ms);
    }

    /// Runs until no transaction is in flight.
    fn run(&mut self) {
        for _ in 0..400 {
            if self.random.chance(0.3) {
                self.submit();
                self.collect_requests();
            }
            self.step();
        }
        let mut idle = 0;
        loop {
            while self.quiet_step() {}
            self.lift_halts();
            while self.quiet_step() {}
            if self.log.open.is_empty()
                && self.planner.flights().counts().active + self.planner.flights().counts().parked == 0
            {
                return;
            }
            // Only time, or the proof that a parent is missing, can move the remaining flights.
            let ended = self.log.ended.len();
            self.advance(SETTINGS.flag_grace_ms);
            while self.quiet_step() {}
            idle = if self.log.ended.len() > ended { 0 } else { idle + 1 };
            if idle > 0
                && let Some((_, flight, wanted)) = self.planner.flights().waiting_for_absent().into_iter().min()
            {
                self.planner.on_parents_proven_missing(flight, wanted, TieRule::BreakKnown, self.now_ms);
            }
            let waits = self.planner.flights().oldest_wait();
            assert!(idle < 50, "stuck: {:?}, {waits:?}, open {:?}", self.planner.flights().counts(), self.log.open);
        }
    }

    /// Performs every kind of step once, without disturbances; `false`: none was left.
    fn quiet_step(&mut self) -> bool {
        self.collect_requests();
        let moved = self.submit() | self.perform_request() | self.deliver_answer() | self.run_sequencer();
        self.collect_requests();
        moved
    }

    /// Checks the final state of the planner and of the store.
    fn check(&self) {
        assert!(self.log.open.is_empty(), "never ended: {:?}", self.log.open);
        let counts = self.planner.flights().counts();
        assert_eq!((counts.active, counts.parked, self.planner.next_due_ms()), (0, 0, None));
        for (txid, tx) in &self.transactions {
            let state = self.state(*txid);
            assert!(matches!(state, Some(TxState::Live | TxState::Conflicting(_))), "{txid}: {state:?}");
            for (key, slot) in tx.groups.iter().flat_map(|group| group.slots.iter().map(|slot| (group.key(), slot))) {
                let page = self.records.get(&key).and_then(Option::as_ref).and_then(Record::page);
                let holder = page.and_then(|page| page.utxos.as_ref()?.get(slot.offset as usize)?.spender());
                let holds = holder.is_some_and(|holder| holder.txid == *txid);
                assert_eq!(
                    holds,
                    state == Some(TxState::Live),
                    "{txid}, {state:?}, and its slot of {key:?}: {holder:?}"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_event_ends_once_and_slots_are_taken_before_creates(
        seed in any::<u64>(), size in 1usize..40, bounded in any::<bool>()
    ) {
        let mut world = World { bounded, ..World::new(seed, size) };
        world.run();
        world.check();
    }
}

/// A half-created record had the content of the other event than the one that was read again.
#[test]
fn a_half_created_partial_transaction_is_completed_by_its_own_event() {
    let mut world = World::new(7_142_952_053_734_946_036, 31);
    world.run();
    world.check();
}
