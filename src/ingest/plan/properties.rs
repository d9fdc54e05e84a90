//! The planner against a small store and a small sequencer: random transactions in a random order, answers that come
//! late and in any order, repeated requests, partitions that are taken away. Whatever happens, every event ends once,
//! nothing is created before its slots are held, and nothing is left behind.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::{
    broker::Message,
    event::{Seeded, SeededOutput, Validated},
    group::proof::Ties,
    prepare::{PrepareSettings, Prepared, prepare},
    record::{self, HeldSlot, LockRecord, Phase, Record, Sequenced, Stamp, Verdict, build::Inline},
    seeded::Seeded as Random,
    store::{
        create::{
            create_master, rows_of_pages,
            steps::{Creation, Kind, Seen, Step},
        },
        into_page,
    },
    tx::{Network, Outpoint, Output, Transaction, TransactionBuilder},
};

const SETTINGS: PlanSettings =
    PlanSettings { retry_min_ms: 10, retry_max_ms: 100, flag_grace_ms: 1_000, rules: Rules::main(288) };
const PARTITIONS: i32 = 3;
const SEED_OUTPUTS: u32 = 4;

/// Partial transactions, by how they come.
const LIVE: u8 = 0;
const LOCKED: u8 = 1;
const COMES_LATER: u8 = 2;
const TWO_CLAIMS: u8 = 3;
const NEVER_COMES: u8 = 4;

/// What an event brings.
#[derive(Debug, Clone)]
enum Content {
    Transaction(Arc<PreparedTx>),
    Partial(Arc<PreparedSeed>),
}

impl Content {
    fn txid(&self) -> Txid {
        match self {
            Content::Transaction(tx) => tx.txid,
            Content::Partial(seed) => seed.txid,
        }
    }
}

/// Something that the planner asked for and that has not been done.
#[derive(Debug)]
enum Asked {
    Row(Token, Row),
    Paged(Token, Paged),
    Own(FlightId, Txid),
    Parent(FlightId, u32, Txid),
    Publish(FlightId, Txid, Reason),
}

/// Something that was done and that the planner has not heard of.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a few at a time, in a test")]
enum Answer {
    Outcome(Token, Row, Outcome),
    Created(Token, Outcome),
    TooBig(Token),
    GivenUp(Token),
    Own(FlightId, Option<Record>),
    Parent(FlightId, u32, Option<Record>),
    Published(FlightId),
}

/// What the sequencer has yet to do.
#[derive(Debug)]
enum Verdicts {
    Decide(Txid, Reason),
    Settle(Txid),
}

#[derive(Debug, Default)]
struct Log {
    /// Submitted and not ended, with what they bring.
    open: BTreeMap<EventRef, Txid>,
    ended: BTreeMap<EventRef, &'static str>,
    /// Contests that are in the log.
    contested: BTreeSet<Txid>,
    /// Groups of spends that were answered as held, by flight; and those that rode on a create, by transaction.
    held: BTreeSet<(FlightId, Key)>,
    rode: BTreeSet<(Txid, Key)>,
    /// The last flight that was named for a transaction, and those that have ended.
    flights: BTreeMap<Txid, FlightId>,
    dead: BTreeSet<FlightId>,
}

struct World {
    /// Slots a page.
    page_size: u32,
    random: Random,
    planner: Planner,
    now_ms: u64,
    transactions: BTreeMap<Txid, Arc<PreparedTx>>,
    records: BTreeMap<Key, Option<Record>>,
    to_come: Vec<Content>,
    next_offset: u64,
    epochs: [u64; PARTITIONS as usize],
    /// The store has no room for some rows.
    bounded: bool,
    /// A partition was halted.
    halted: bool,
    asked: Vec<Asked>,
    answers: Vec<Answer>,
    sequencer: Vec<Verdicts>,
    chain_offset: u64,
    log: Log,
}

fn message(txid: Txid, payload: Vec<u8>) -> Message {
    let key = Bytes::copy_from_slice(&txid.0);
    Message { offset: 0, timestamp_ms: 1, key, payload: payload.into(), headers: vec![] }
}

fn prepared(page_size: u32, txid: Txid, payload: Vec<u8>) -> Content {
    let settings = PrepareSettings { network: Network::Regtest, utxo_batch_size: page_size, inline: Inline::All };
    match prepare(&settings, &message(txid, payload)).unwrap() {
        Prepared::Validated(tx) => Content::Transaction(tx),
        Prepared::Seeded(seed) => Content::Partial(seed),
    }
}

fn seed_txid(kind: u8) -> Txid {
    Txid([0xA0 + kind; 32])
}

fn partial(page_size: u32, kind: u8, satoshis: u64) -> Content {
    let output = |vout| SeededOutput { vout, satoshis, script: &[0x51] };
    let outputs = (0..SEED_OUTPUTS).map(output).collect();
    prepared(page_size, seed_txid(kind), Seeded { txid: seed_txid(kind), coinbase: false, height: 1, outputs }.encode())
}

/// Takes any element out.
fn any_of<T>(random: &mut Random, items: &mut Vec<T>) -> Option<T> {
    let index = random.below(items.len() as u64) as usize;
    (!items.is_empty()).then(|| items.swap_remove(index))
}

impl World {
    fn new(seed: u64, size: usize) -> Self {
        let mut random = Random::new(seed);
        let page_size = *random.pick(&[1, 2, 3, 100]);
        let partial = |kind, satoshis| partial(page_size, kind, satoshis);
        let mut world = World {
            page_size,
            random,
            planner: Planner::new(SETTINGS),
            now_ms: 0,
            transactions: BTreeMap::new(),
            records: BTreeMap::new(),
            to_come: Vec::new(),
            next_offset: 0,
            epochs: [1; PARTITIONS as usize],
            bounded: false,
            halted: false,
            asked: Vec::new(),
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
        world.to_come.extend([partial(COMES_LATER, 1_000), partial(TWO_CLAIMS, 1_000), partial(TWO_CLAIMS, 2_000)]);
        world.invent(size);
        world
    }

    /// Transactions over each other's outputs: most spend what nobody has spent, some are rivals; some come twice.
    fn invent(&mut self, size: usize) {
        let mut coins: Vec<(Outpoint, u64)> = (LIVE..=NEVER_COMES)
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
                self.to_come.push(content.clone());
            }
            self.to_come.push(content);
            coins.extend((0..2).map(|vout| (Outpoint { txid, vout }, each)));
        }
    }

    fn submit(&mut self) -> bool {
        let Some(content) = any_of(&mut self.random, &mut self.to_come) else { return false };
        let partition = self.random.below(PARTITIONS as u64) as i32;
        let (offset, epoch) = (self.next_offset, self.epochs[partition as usize]);
        self.next_offset += 1;
        let event = EventRef { timestamp_ms: offset as i64, partition, offset, epoch };
        self.log.open.insert(event, content.txid());
        match content {
            Content::Transaction(tx) => self.planner.submit(event, tx, Mode::Normal, self.now_ms),
            Content::Partial(seed) => self.planner.submit_seed(event, seed, Mode::Normal, self.now_ms),
        }
        true
    }

    /// A partition goes, and comes back: what was read of it and has not ended is read again, and some of the rest.
    fn revoke(&mut self, partition: i32) {
        let (gone, kept) = std::mem::take(&mut self.log.open).into_iter().partition(|(e, _)| e.partition == partition);
        self.log.open = kept;
        let again: BTreeMap<EventRef, Txid> = gone;
        self.to_come.extend(again.into_values().flat_map(|txid| match self.transactions.get(&txid) {
            Some(tx) => vec![Content::Transaction(tx.clone())],
            None if txid == seed_txid(COMES_LATER) => vec![partial(self.page_size, COMES_LATER, 1_000)],
            // Whichever it was: what one of them has half created, the other does not complete.
            None => [1_000, 2_000].map(|satoshis| partial(self.page_size, TWO_CLAIMS, satoshis)).into(),
        }));
        let done = self.transactions.values().nth(self.random.below(self.transactions.len() as u64) as usize);
        self.to_come.extend(done.map(|tx| Content::Transaction(tx.clone())));
        self.epochs[partition as usize] += 1;
        self.planner.revoke(partition, self.now_ms);
    }

    /// The store does one of the things that were asked for, perhaps twice: then the second answer counts.
    fn perform(&mut self) -> bool {
        let Some(asked) = any_of(&mut self.random, &mut self.asked) else { return false };
        let answer = match asked {
            Asked::Row(token, row) => {
                let record = self.records.entry(row.key).or_default();
                let mut outcome = record::apply(&SETTINGS.rules, &row.key, record, &row.operation).outcome;
                if self.random.chance(0.1) {
                    outcome = record::apply(&SETTINGS.rules, &row.key, record, &row.operation).outcome;
                }
                Answer::Outcome(token, row, outcome)
            }
            Asked::Paged(token, work) => {
                let outcome = self.create_paged(&work);
                Answer::Created(token, outcome)
            }
            Asked::Own(flight, txid) => Answer::Own(flight, self.records.get(&Key::master(txid)).cloned().flatten()),
            Asked::Parent(flight, group, txid) => {
                Answer::Parent(flight, group, self.records.get(&Key::master(txid)).cloned().flatten())
            }
            Asked::Publish(flight, txid, reason) => {
                assert!(self.state(txid).is_some(), "{txid} is contested and was not stored");
                self.sequencer.push(Verdicts::Decide(txid, reason));
                self.log.contested.insert(txid);
                Answer::Published(flight)
            }
        };
        self.answers.push(answer);
        true
    }

    /// From its first page to its last; or somebody else has begun, and crashed half way.
    fn create_paged(&mut self, work: &Paged) -> Outcome {
        if self.random.chance(0.1) {
            let some = 1 + self.random.below(6) as usize;
            self.drive(Creation::without_lock_record(Kind::Live, work.others.count(), 1), work, some);
        }
        if self.random.chance(0.1) {
            let (created_at, expires_at, process_id, expected_recs, owner) = (0, 9, 1, 2, 5);
            let hostname = String::new();
            let held = LockRecord { created_at, expires_at, process_id, hostname, expected_recs, owner };
            return Outcome::Rejected(Rejection::Held(held));
        }
        let kind = if work.starts == Starts::Contested { Kind::Contested } else { Kind::Live };
        let ended = self.drive(Creation::without_lock_record(kind, work.others.count(), 2), work, usize::MAX);
        ended.expect("it is driven to its end")
    }

    fn drive(&mut self, mut creation: Creation, work: &Paged, steps: usize) -> Option<Outcome> {
        for _ in 0..steps {
            match creation.step().clone() {
                Step::Ended(outcome) => return Some(outcome),
                Step::Look => {
                    let master = into_page(self.records.get(&Key::master(work.others.txid())).cloned().flatten());
                    creation.looked(Seen::of(master.as_ref(), &create_master(work, 1)));
                }
                Step::Body => creation.body_stored(),
                step => {
                    let apply = |row: Row| {
                        let record = self.records.entry(row.key).or_default();
                        record::apply(&SETTINGS.rules, &row.key, record, &row.operation).outcome
                    };
                    let outcomes: Vec<Outcome> = rows_of_pages(&step, work, 1).into_iter().map(apply).collect();
                    creation.answered(&outcomes);
                }
            }
        }
        None
    }

    fn answer(&mut self) -> bool {
        let Some(answer) = any_of(&mut self.random, &mut self.answers) else { return false };
        match answer {
            Answer::Outcome(token, row, outcome) => {
                self.note_held(token, &row, &outcome);
                self.planner.outcome(token, outcome, self.now_ms);
            }
            Answer::Created(token, outcome) => self.planner.outcome(token, outcome, self.now_ms),
            Answer::TooBig(token) => {
                let halted = self.planner.halt(token.flight(), self.now_ms);
                for event in halted.iter().flat_map(|(_, events)| events) {
                    assert!(self.log.open.contains_key(event), "{event:?} is nobody's (any more)");
                    self.halted = true;
                }
            }
            Answer::GivenUp(token) => self.planner.given_up(token, self.now_ms),
            Answer::Parent(flight, group, master) => {
                let master = master.as_ref().and_then(Record::page);
                self.planner.parent_record(flight, group, master, self.now_ms);
            }
            Answer::Own(flight, own) => {
                self.planner.own_record(flight, own.as_ref().and_then(Record::page), self.now_ms)
            }
            Answer::Published(flight) => self.planner.contest_published(flight, self.now_ms),
        }
        true
    }

    fn note_held(&mut self, token: Token, row: &Row, outcome: &Outcome) {
        match (token, &row.operation, outcome) {
            (Token::Spend(flight, _), _, Outcome::Applied(_) | Outcome::AlreadyApplied(_)) => {
                self.log.held.insert((flight, row.key));
            }
            (Token::Create(_), Operation::Create(page), Outcome::Applied(_)) => {
                let spenders = page.utxos.iter().flatten().filter_map(crate::record::Slot::spender);
                self.log.rode.extend(spenders.map(|spender| (spender.txid, row.key)));
            }
            _ => {}
        }
    }

    /// Everybody who is contested loses: flagged first, settled later.
    fn sequence(&mut self) -> bool {
        let Some(next) = any_of(&mut self.random, &mut self.sequencer) else { return false };
        self.chain_offset += 1;
        let stamp = Stamp { offset: self.chain_offset, phase: Phase::Apply };
        match next {
            Verdicts::Decide(txid, reason) => {
                if self.state(txid) == Some(TxState::Conflicting(Verdict::Pending)) {
                    let flag = Sequenced::MarkConflicting { reason, height: 200 };
                    for key in self.pages_of(txid) {
                        self.apply(key, Operation::Sequenced(stamp, flag.clone()));
                    }
                }
                self.sequencer.push(Verdicts::Settle(txid));
            }
            Verdicts::Settle(txid) if self.state(txid) != Some(TxState::Live) => {
                let tx = self.transactions[&txid].clone();
                for group in &tx.groups {
                    let held = group.slots.iter().map(|slot| HeldSlot {
                        offset: slot.offset,
                        holder: crate::record::SpendingData { txid, input: slot.input },
                    });
                    self.apply(group.key(), Operation::Sequenced(stamp, Sequenced::Settle(held.collect())));
                }
            }
            Verdicts::Settle(_) => {}
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

    /// The pages of a transaction that are there.
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

    /// Takes what the planner asks for, and checks it.
    fn listen(&mut self) {
        while let Some(action) = self.planner.next_action() {
            match action {
                Action::Apply(token, row) => {
                    let flight = token.flight();
                    let txid = match &row.operation {
                        Operation::SetPageSpent { .. } => {
                            self.asked.push(Asked::Row(token, row));
                            continue;
                        }
                        Operation::Spend(spend) => spend.spender,
                        Operation::Create(page) | Operation::CreateContested(page) => page.txid,
                        other => panic!("the fast path only adds: {other:?}"),
                    };
                    self.check_alive(flight, txid);
                    if let Token::Create(_) = token {
                        self.check_all_held(flight, txid);
                    }
                    self.asked.push(Asked::Row(token, row));
                }
                Action::CreatePaged(token, work) => {
                    let (flight, txid) = (token.flight(), work.others.txid());
                    self.check_alive(flight, txid);
                    if let Token::Create(_) = token {
                        self.check_all_held(flight, txid);
                    }
                    self.asked.push(Asked::Paged(token, work));
                }
                Action::GiveUp(flight) => self.give_up(flight),
                Action::ReadParent(flight, group, txid) => self.asked.push(Asked::Parent(flight, group, txid)),
                Action::ReadOwn(flight, txid) => {
                    self.check_alive(flight, txid);
                    self.asked.push(Asked::Own(flight, txid));
                }
                Action::PublishContest { flight, txid, reason, .. } => {
                    self.check_alive(flight, txid);
                    self.asked.push(Asked::Publish(flight, txid, reason));
                }
                Action::Mismatched { event, work } => {
                    assert_eq!(work.page().txid, seed_txid(TWO_CLAIMS), "only that one is claimed twice");
                    self.end(event, "mismatched");
                }
                Action::Complete(event, how) => {
                    let txid = self.end(event, "complete");
                    assert!(how != Completion::Contested || self.log.contested.contains(&txid), "{txid}: no contest");
                    let state = self.state(txid);
                    assert!(how != Completion::Live || state.is_some(), "{txid} is live and has no record");
                    self.log.dead.extend(self.log.flights.get(&txid));
                }
            }
        }
    }

    /// What was asked for is done no further, wherever it stands, or comes to its end all the same; what is in a batch does.
    fn give_up(&mut self, flight: FlightId) {
        let of_it = |asked: &Asked| matches!(asked, Asked::Paged(token, _) if token.flight() == flight);
        if let Some(place) = self.asked.iter().position(of_it).filter(|_| self.random.chance(0.8))
            && let Asked::Paged(token, work) = self.asked.swap_remove(place)
        {
            let some = self.random.below(6) as usize;
            let kind = if work.starts == Starts::Contested { Kind::Contested } else { Kind::Live };
            self.drive(Creation::without_lock_record(kind, work.others.count(), 1), &work, some);
            self.answers.push(Answer::GivenUp(token));
        }
    }

    fn check_alive(&mut self, flight: FlightId, txid: Txid) {
        assert!(!self.log.dead.contains(&flight), "{flight:?} of {txid} has ended, and yet something is asked for it");
        let last = self.log.flights.insert(txid, flight);
        assert!(last.is_none_or(|last| last.generation <= flight.generation), "{txid}: an older flight goes on");
    }

    fn check_all_held(&self, flight: FlightId, txid: Txid) {
        for group in self.transactions.get(&txid).iter().flat_map(|tx| &tx.groups) {
            let key = group.key();
            let held = self.log.held.contains(&(flight, key)) || self.log.rode.contains(&(txid, key));
            assert!(held, "{txid} is created, and nobody said that it holds its slots of {key:?}");
        }
    }

    fn end(&mut self, event: EventRef, how: &'static str) -> Txid {
        let before = self.log.ended.insert(event, how);
        assert_eq!(before, None, "{event:?} ends again");
        self.log.open.remove(&event).unwrap_or_else(|| panic!("{event:?} is nobody's (any more)"))
    }

    /// The store has no room for one of the rows.
    fn refuse(&mut self) {
        let asked = self.asked.iter().position(|asked| matches!(asked, Asked::Row(..) | Asked::Paged(..)));
        if let Some(Asked::Row(token, _) | Asked::Paged(token, _)) = asked.map(|asked| self.asked.swap_remove(asked)) {
            self.answers.push(Answer::TooBig(token));
        }
    }

    /// Whoever is started later has every partition anew, and the store room for all.
    fn lift_halts(&mut self) {
        if std::mem::take(&mut self.halted) {
            (0..PARTITIONS).for_each(|partition| self.revoke(partition));
        }
    }

    /// Something happens; `false`: nothing is left that could.
    fn step(&mut self) -> bool {
        match self.random.below(40) {
            0 => {
                let partition = self.random.below(PARTITIONS as u64) as i32;
                self.revoke(partition);
            }
            1 => self.unlock(),
            3 if self.bounded => self.refuse(),
            4 => self.lift_halts(),
            2 => self.pass(30),
            _ => {}
        }
        self.listen();
        // Whatever the dice say first, and if there is none of it, whatever there is.
        let first = self.random.below(4);
        let moved = (first..first + 4).any(|kind| match kind % 4 {
            0 => self.submit(),
            1 => self.perform(),
            2 => self.answer(),
            _ => self.sequence(),
        });
        self.listen();
        moved
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        self.planner.retry_due(self.now_ms);
    }

    /// Until nothing is in flight.
    fn run(&mut self) {
        for _ in 0..400 {
            if self.random.chance(0.3) {
                self.submit();
                self.listen();
            }
            self.step();
        }
        let mut idle = 0;
        loop {
            while self.quiet_step() {}
            self.lift_halts();
            while self.quiet_step() {}
            if self.log.open.is_empty() && self.planner.counts().active + self.planner.counts().parked == 0 {
                return;
            }
            // Only time, or the proof that a parent will never come, can move what is left.
            let ended = self.log.ended.len();
            self.pass(SETTINGS.flag_grace_ms);
            while self.quiet_step() {}
            idle = if self.log.ended.len() > ended { 0 } else { idle + 1 };
            if idle > 0
                && let Some((_, flight, wanted)) = self.planner.waiting_for_absent().into_iter().min()
            {
                self.planner.parents_are_missing(flight, wanted, Ties::BreakKnown, self.now_ms);
            }
            let waits = self.planner.one_that_waits();
            assert!(idle < 50, "stuck: {:?}, {waits:?}, open {:?}", self.planner.counts(), self.log.open);
        }
    }

    /// As [`step`](Self::step), without anything that disturbs.
    fn quiet_step(&mut self) -> bool {
        self.listen();
        let moved = self.submit() | self.perform() | self.answer() | self.sequence();
        self.listen();
        moved
    }

    /// What holds in the end, in the planner and in the store.
    fn check(&self) {
        assert!(self.log.open.is_empty(), "never ended: {:?}", self.log.open);
        let counts = self.planner.counts();
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
    fn every_event_ends_once_and_nothing_is_created_before_its_slots_are_held(
        seed in any::<u64>(), size in 1usize..40, bounded in any::<bool>()
    ) {
        let mut world = World { bounded, ..World::new(seed, size) };
        world.run();
        world.check();
    }
}

/// What crashed half way was by the other claim than the one that came again.
#[test]
fn a_half_created_partial_transaction_is_completed_by_its_own_event() {
    let mut world = World::new(7_142_952_053_734_946_036, 31);
    world.run();
    world.check();
}
