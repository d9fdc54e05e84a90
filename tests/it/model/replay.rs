//! Walks the chain topic event by event, asks of each decision whether the history justifies it, and does what it says.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use utxo_store::{
    event::{Action, Block, BlockMined, ConeMember, Contest, DecidedInput, Decision, DecisionBody, Event, OutcomeKind},
    event::{Position, SubtreeTransactions},
    record::{MinedIn, Reason, SpendingData},
    tx::{Outpoint, Txid},
};

use super::{
    Complaint, Expected, Logged, Logs, Place, Rules,
    facts::{Facts, Origin},
    history::{Bars, Fate, History, Standing, Tip},
};

/// What opens a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened {
    /// A contest, for this reason.
    ByEvent(Reason),
    /// A `Reconsider`.
    Reconsider,
}

/// The walk.
pub struct Replay<'l> {
    pub logs: &'l Logs,
    pub history: History,
    /// By chain offset, in their order.
    pub decisions: BTreeMap<u64, Vec<DecisionBody>>,
    /// Of the event that is being handled: its offset, and the decision that is next.
    pub at: u64,
    pub next: usize,
    /// Outputs that the sequencer has touched, and since when: they have a history.
    pub touched: BTreeMap<Outpoint, u64>,
    /// Transactions that were conflicting by verdict at some time.
    pub ever_lost: BTreeSet<Txid>,
    /// Transactions that a contest or a decision has named.
    pub mentioned: BTreeSet<Txid>,
    /// Transactions that became conflicting, by the parents that certainly know of them: those give second chances.
    pub noted: BTreeMap<Txid, BTreeSet<Txid>>,
    /// Certainly stored whole by now, whatever became of them.
    pub stored: BTreeSet<Txid>,
    /// Who must be reconsidered behind which offset.
    pub chances: Vec<(Txid, u64)>,
    pub reconsidered: BTreeMap<Txid, u64>,
    /// What validators and clients must have been told.
    pub told: Vec<(Txid, u64, OutcomeKind)>,
    /// Events that the sequencer must have buried.
    pub buried: BTreeSet<Place>,
    /// Ids of the commands so far.
    pub commands: BTreeSet<[u8; 16]>,
    /// Messages of the chain that are no event that belongs there.
    pub chain_poison: BTreeSet<u64>,
    pub complaints: Vec<Complaint>,
}

impl<'l> Replay<'l> {
    pub fn new(logs: &'l Logs, rules: &Rules) -> Self {
        let facts = Facts::of(logs, rules);
        let history = History {
            rules: *rules,
            facts: Arc::new(facts),
            fates: BTreeMap::new(),
            bars: Bars::default(),
            blocks: BTreeMap::new(),
            tip: None,
            sequence: 0,
        };
        Replay {
            logs,
            history,
            decisions: BTreeMap::new(),
            at: 0,
            next: 0,
            touched: BTreeMap::new(),
            ever_lost: BTreeSet::new(),
            mentioned: BTreeSet::new(),
            noted: BTreeMap::new(),
            stored: BTreeSet::new(),
            chances: Vec::new(),
            reconsidered: BTreeMap::new(),
            told: Vec::new(),
            buried: BTreeSet::new(),
            commands: BTreeSet::new(),
            chain_poison: BTreeSet::new(),
            complaints: Vec::new(),
        }
    }

    pub fn run(mut self) -> Result<Expected, Vec<Complaint>> {
        self.read_decisions();
        self.begin();
        for logged in &self.logs.chain {
            self.chain_event(logged);
        }
        self.finish();
        self.check_messages();
        if !self.complaints.is_empty() {
            return Err(self.complaints);
        }
        if let Some(height) = self.history.rules.pruned_to {
            self.history.forget(height);
        }
        Ok(self.history.expected())
    }

    pub fn complain(&mut self, what: impl Into<String>) {
        self.complain_of(format!("chain offset {}", self.at), what);
    }

    pub fn complain_of(&mut self, about: impl ToString, what: impl Into<String>) {
        self.complaints.push(Complaint { about: about.to_string(), what: what.into() });
    }

    /// The first record for (chain offset, step) counts; steps are contiguous; `Closed` is the last.
    fn read_decisions(&mut self) {
        for logged in &self.logs.decisions {
            let offset = logged.message.offset;
            let Ok(Event::Decision(Decision { chain_offset, step, body })) = Event::decode(&logged.message.payload)
            else {
                self.complain_of(format!("decision at {offset}"), "is no decision");
                continue;
            };
            let steps = self.decisions.entry(chain_offset).or_default();
            let count = steps.len() as u32;
            let closed = steps.last() == Some(&DecisionBody::Closed);
            if step == count {
                steps.push(body);
            }
            let about = format!("decision at {offset} (chain offset {chain_offset}, step {step})");
            if step == count && closed {
                self.complain_of(about, "comes behind `Closed`");
            } else if step > count {
                self.complain_of(about, format!("skips step {count}"));
            }
        }
        let handled: BTreeSet<u64> = self.logs.chain.iter().map(|logged| logged.message.offset).collect();
        for offset in self.decisions.keys().copied().collect::<Vec<_>>() {
            if !handled.contains(&offset) {
                self.complain_of(format!("chain offset {offset}"), "is decided on, and is not there");
            }
        }
    }

    /// What a transaction was when a decision first named it is what it had been from the start: contested, or live.
    fn begin(&mut self) {
        let mut first: BTreeMap<Txid, bool> = BTreeMap::new();
        let mut note = |txid: Txid, live: bool| {
            first.entry(txid).or_insert(live);
        };
        for body in self.decisions.values().flatten() {
            match body {
                DecisionBody::Accepted { txid, inputs, losers, .. } => {
                    note(*txid, false);
                    losers.iter().for_each(|loser| note(*loser, true));
                    inputs.iter().filter_map(|input| input.holder).for_each(|holder| note(holder.txid, false));
                }
                DecisionBody::Conflicting { txid, reason, live, .. } => {
                    note(*txid, *live);
                    if let Reason::DoubleSpend { winner, .. } = reason {
                        note(*winner, true);
                    }
                }
                DecisionBody::Cone { members, .. } => members.iter().for_each(|member| note(member.txid, member.live)),
                DecisionBody::PassedOver { .. } | DecisionBody::CommandDone { .. } | DecisionBody::Closed => {}
            }
        }
        for txid in self.history.facts.txs.keys() {
            let live = first.get(txid).copied().unwrap_or(true);
            let standing = if live { Standing::Uncontested } else { Standing::Pending };
            self.history.fates.insert(*txid, Fate::new(standing));
        }
    }

    fn chain_event(&mut self, logged: &Logged) {
        (self.at, self.next) = (logged.message.offset, 0);
        match Event::decode(&logged.message.payload) {
            Ok(Event::BlockMined(mined)) => self.block_mined(logged, &mined),
            Ok(Event::Reorg(reorg)) => self.reorg(logged, &reorg),
            Ok(Event::Contest(contest)) => self.contest(&contest),
            Ok(Event::Command(command)) => match command.action {
                Action::Reconsider { txid } => {
                    self.reconsidered.insert(txid, self.at);
                    self.decide_on(txid, Opened::Reconsider, None);
                    self.expect_closed();
                }
                _ => self.command(&command),
            },
            _ => {
                self.chain_poison.insert(self.at);
            }
        }
        let count = self.decisions.get(&self.at).map_or(0, Vec::len);
        if self.next < count {
            let left: Vec<_> = self.decisions[&self.at][self.next..].to_vec();
            self.complain(format!("has decisions that nothing asks for: {left:?}"));
        }
    }

    /// The next decision on the event that is being handled.
    pub fn step(&mut self) -> Option<DecisionBody> {
        let body = self.peek();
        self.next += usize::from(body.is_some());
        body
    }

    pub fn peek(&self) -> Option<DecisionBody> {
        self.decisions.get(&self.at)?.get(self.next).cloned()
    }

    pub fn expect_closed(&mut self) {
        match self.step() {
            Some(DecisionBody::Closed) => {}
            other => self.complain(format!("is not closed: {other:?}")),
        }
    }

    fn contest(&mut self, contest: &Contest) {
        self.check_contest(contest);
        self.mentioned.insert(contest.txid);
        if !matches!(contest.reason, Reason::MissingParent { .. }) {
            self.check_parents_are_decided(&contest.txid);
        }
        let fate = self.history.fate(&contest.txid);
        fate.contest.get_or_insert_with(|| contest.position.clone());
        let verdict = self.decide_on(contest.txid, Opened::ByEvent(contest.reason), Some(&contest.position));
        if let Some(DecisionBody::Conflicting { reason: Reason::MissingParent { .. }, .. }) = verdict {
            let Position { partition, offset, timestamp_ms, .. } = contest.position;
            self.buried.insert(Place { timestamp_ms, partition, offset });
        }
        self.expect_closed();
    }

    /// A transaction is contested only when all its parents are live, or conflicting by verdict.
    fn check_parents_are_decided(&mut self, txid: &Txid) {
        let parents = self.history.tx(txid).map(super::facts::Tx::parents).unwrap_or_default();
        for parent in parents {
            let decided = self.history.witness(&parent)
                || matches!(self.history.standing(&parent), Some(Standing::Lost(_) | Standing::Pruned(_)));
            if !decided {
                let standing = self.history.standing(&parent);
                self.complain(format!("{txid} is contested before its parent {parent} is decided: {standing:?}"));
            }
            self.stored.insert(parent);
        }
    }

    /// Decisions until the one on the transaction itself.
    fn decide_on(&mut self, txid: Txid, opened: Opened, position: Option<&Position>) -> Option<DecisionBody> {
        loop {
            let body = self.step();
            match &body {
                Some(DecisionBody::PassedOver { txid: named }) if *named == txid => {
                    self.check_passed_over(txid, opened);
                    self.passed_over(txid, opened);
                }
                Some(DecisionBody::Accepted { txid: named, height, inputs, losers, by_block: false })
                    if *named == txid =>
                {
                    self.take_version(txid, opened, position);
                    self.check_open(txid, opened);
                    self.accepted(txid, *height, inputs, losers, None);
                }
                Some(DecisionBody::Conflicting { txid: named, reason, height, live }) if *named == txid => {
                    self.take_version(txid, opened, position);
                    self.conflicting(txid, *reason, *height, *live, opened);
                }
                // A node forgot a spend: a live rival has to give way first.
                Some(DecisionBody::Conflicting { txid: rival, reason, height, live: true })
                    if self.history.rules.forgetful =>
                {
                    self.conflicting(*rival, *reason, *height, true, opened);
                    continue;
                }
                other => self.complain(format!("asks for a verdict on {txid}, and gets {other:?}")),
            }
            self.touch_inputs(&txid);
            if opened != Opened::Reconsider {
                self.stored.insert(txid);
            }
            return body;
        }
    }

    /// A verdict that is given for a contest is about the event that the contest names.
    fn take_version(&mut self, txid: Txid, opened: Opened, position: Option<&Position>) {
        if let (Opened::ByEvent(_), Some(position)) = (opened, position) {
            self.history.fate(&txid).contest = Some(position.clone());
        }
    }

    /// A verdict holds, unless this opens it again.
    fn check_open(&mut self, txid: Txid, opened: Opened) {
        let standing = self.history.standing(&txid);
        let open = match standing {
            Some(Standing::Pending) => true,
            Some(Standing::Lost(reason)) => opens(opened, reason),
            Some(Standing::Live | Standing::Uncontested) => self.history.rules.forgetful,
            Some(Standing::Pruned(_)) | None => false,
        };
        if !open {
            self.complain(format!("{txid} gets a verdict, though it has one that holds: {standing:?}"));
        }
    }

    fn check_passed_over(&mut self, txid: Txid, opened: Opened) {
        let wrong = match self.history.standing(&txid) {
            None => (opened != Opened::Reconsider).then_some("it was never decided"),
            // What a `Reconsider` names may not have come yet.
            Some(Standing::Pending) => (opened != Opened::Reconsider).then_some("it was never decided"),
            Some(Standing::Live) | Some(Standing::Pruned(_)) => None,
            Some(Standing::Uncontested) => {
                (opened != Opened::Reconsider && !self.history.witness(&txid)).then_some("it cannot be live")
            }
            Some(Standing::Lost(reason)) => {
                let all_there = self.history.inputs(&txid).iter().all(|input| self.stored.contains(&input.txid));
                let height = self.history.unmined_since(&txid).unwrap_or(self.history.height());
                let free = self.history.against(&txid, height).is_empty();
                let known = self.stored.contains(&txid);
                (opens(opened, reason) && all_there && free && known).then_some("nothing stands against it any more")
            }
        };
        if let Some(wrong) = wrong {
            self.complain(format!("{txid} is passed over, though {wrong}"));
        }
    }

    fn passed_over(&mut self, txid: Txid, opened: Opened) {
        if matches!(self.history.standing(&txid), Some(Standing::Lost(_))) && opened != Opened::Reconsider {
            self.note(&txid);
        }
    }

    /// Its parents hear that it is conflicting: those that are there.
    fn note(&mut self, txid: &Txid) {
        for input in self.history.inputs(txid).iter().filter(|input| self.stored.contains(&input.txid)) {
            self.noted.entry(input.txid).or_default().insert(*txid);
        }
    }

    /// It gets all its inputs, from whoever held them.
    fn accepted(&mut self, txid: Txid, height: u32, inputs: &[DecidedInput], losers: &[Txid], block: Option<u32>) {
        self.mentioned.insert(txid);
        self.check_height(height, block);
        self.check_inputs(txid, inputs, losers, block.is_some());
        let lost = losers.iter().map(|loser| {
            let held = inputs.iter().filter_map(|input| input.holder).find(|holder| holder.txid == *loser);
            (*loser, Reason::DoubleSpend { input: held.map_or(0, |held| held.input), winner: txid })
        });
        let fell = if losers.is_empty() { Vec::new() } else { self.fell(height, lost.collect(), Some(txid)) };
        let after = block.or(self.history.unmined_since(&txid)).unwrap_or(height);
        for reason in self.history.against(&txid, after) {
            self.complain(format!("{txid} is accepted, though {reason:?}"));
        }
        for input in self.history.inputs(&txid) {
            self.history.witness(&input.txid);
            self.stored.insert(input.txid);
        }
        let fate = self.history.fate(&txid);
        (fate.standing, fate.accepted) = (Standing::Live, true);
        for children in self.noted.values_mut() {
            children.remove(&txid);
        }
        self.tell(txid, OutcomeKind::Accepted);
        self.after_verdict(Some(txid), &fell);
    }

    /// Each holder really names that input; who is live loses to a block only.
    fn check_inputs(&mut self, txid: Txid, decided: &[DecidedInput], losers: &[Txid], by_block: bool) {
        let named: Vec<(u32, Outpoint)> = decided.iter().map(|input| (input.input, input.outpoint)).collect();
        let own: Vec<(u32, Outpoint)> = (0..).zip(self.history.inputs(&txid)).collect();
        if named != own {
            self.complain(format!("{txid} is accepted with inputs that are not its own: {named:?}"));
        }
        let mut live = BTreeSet::new();
        for DecidedInput { outpoint, holder, .. } in decided {
            if let Some(holder) = holder.filter(|holder| !self.names(holder, outpoint)) {
                self.complain(format!("{} is said to hold {outpoint}, which it does not spend so", holder.txid));
            }
            for holder in self.history.live_spenders(outpoint, &txid) {
                live.insert(holder.txid);
            }
        }
        if by_block && live != losers.iter().copied().collect() {
            self.complain(format!("{txid} takes the slots of {live:?}, but the losers are {losers:?}"));
        }
        for loser in losers {
            if self.history.is_mined(loser) {
                self.complain(format!("{loser} loses to {txid}, though it is mined"));
            }
        }
        if !by_block && !(live.is_empty() && losers.is_empty()) {
            self.complain(format!("{txid} is accepted over {losers:?}, though {live:?} are live"));
        }
    }

    fn names(&self, holder: &SpendingData, outpoint: &Outpoint) -> bool {
        self.history.facts.spenders.get(outpoint).is_some_and(|all| all.contains(holder))
    }

    fn check_height(&mut self, height: u32, block: Option<u32>) {
        let expected = block.unwrap_or(self.history.height());
        if height != expected {
            self.complain(format!("is decided at height {height}, but the chain is at {expected}"));
        }
    }

    fn conflicting(&mut self, txid: Txid, reason: Reason, height: u32, live: bool, opened: Opened) {
        self.mentioned.insert(txid);
        self.check_height(height, None);
        if live != self.history.is_live(&txid) {
            self.complain(format!("{txid} is said to be live until now: {live}; it was: {}", !live));
        }
        match self.history.standing(&txid) {
            Some(Standing::Pending) => {}
            Some(Standing::Live | Standing::Uncontested) if self.history.rules.forgetful => {}
            other => {
                self.complain(format!("{txid} is found conflicting, though it has a verdict that holds: {other:?}"))
            }
        }
        if !self.is_justified(txid, reason, opened) {
            let height = self.history.unmined_since(&txid).unwrap_or(self.history.height());
            let true_ones = self.history.against(&txid, height);
            self.complain(format!(
                "{txid} is conflicting because of {reason:?}; what stands against it is {true_ones:?}"
            ));
        }
        if let Reason::DoubleSpend { winner, .. } = reason {
            self.history.witness(&winner);
            self.stored.insert(winner);
        }
        let fell = self.fell(height, vec![(txid, reason)], None);
        self.after_verdict(None, &fell);
    }

    /// Whether the history knows this reason.
    fn is_justified(&self, txid: Txid, reason: Reason, opened: Opened) -> bool {
        match reason {
            Reason::MissingParent { parent } => {
                let waits = !matches!(opened, Opened::Reconsider | Opened::ByEvent(Reason::MissingParent { .. }));
                let position = self.history.fates.get(&txid).and_then(|fate| fate.contest.clone());
                let names = self.history.inputs(&txid).iter().any(|input| input.txid == parent);
                !waits && names && position.is_some_and(|position| self.was_missing(&parent, &position))
            }
            _ => {
                let height = self.history.unmined_since(&txid).unwrap_or(self.history.height());
                self.history.against(&txid, height).contains(&reason)
            }
        }
    }

    /// Whether a parent was never produced before the event at this position: no event of it is older; a coinbase comes
    /// with its block.
    pub fn was_missing(&self, parent: &Txid, position: &Position) -> bool {
        let event = (position.timestamp_ms, position.partition, position.offset);
        let order = |place: &Place| (place.timestamp_ms, place.partition, place.offset);
        match self.history.tx(parent).map(|tx| &tx.origin) {
            None => true,
            Some(Origin::Validated(versions)) => versions.iter().all(|version| order(&version.place) > event),
            Some(Origin::Block { .. }) => false,
            Some(Origin::Seeded { .. }) => self
                .logs
                .validated
                .iter()
                .all(|logged| logged.message.key.as_ref() != parent.0 || order(&logged.place()) > event),
        }
    }

    /// They fall, and what descends from them: real descendants only, and all that are live.
    pub fn fell(&mut self, height: u32, roots: Vec<(Txid, Reason)>, winner: Option<Txid>) -> Vec<(Txid, bool)> {
        let before = self.history.clone();
        let mut fallen: BTreeSet<Txid> = winner.into_iter().collect();
        let mut fell = Vec::new();
        for (txid, reason) in roots {
            fallen.insert(txid);
            fell.push((txid, before.is_live(&txid)));
            self.lose(txid, reason, height);
        }
        while let Some(body) = self.step() {
            let DecisionBody::Cone { members, height: at } = body else {
                self.complain(format!("{body:?} stands inside a cone"));
                break;
            };
            if at != height {
                self.complain(format!("a cone is at height {at}, its verdict at {height}"));
            }
            if members.is_empty() {
                self.check_cone(&before, &fallen, winner);
                return fell;
            }
            for member in members {
                if self.check_member(&before, &fallen, &member) && fallen.insert(member.txid) {
                    if member.live {
                        self.history.pin(&member.txid);
                    }
                    fell.push((member.txid, member.live));
                    self.lose(member.txid, Reason::ConflictingParent { parent: member.parent }, height);
                }
            }
        }
        self.complain("a cone has no end");
        fell
    }

    fn check_member(&mut self, before: &History, fallen: &BTreeSet<Txid>, member: &ConeMember) -> bool {
        let ConeMember { txid, parent, live } = member;
        let mut wrong = |what: &str| self.complain(format!("the cone names {txid} under {parent}, {what}"));
        if !fallen.contains(parent) {
            wrong("which did not fall");
        }
        if !before.inputs(txid).iter().any(|input| input.txid == *parent) {
            wrong("which it does not spend");
        }
        if *live != before.is_live(txid) {
            wrong(if *live { "as live, and it was not" } else { "as not live, and it was" });
        }
        if before.is_mined(txid) {
            wrong("and it is mined");
        }
        true
    }

    fn check_cone(&mut self, before: &History, fallen: &BTreeSet<Txid>, winner: Option<Txid>) {
        let certain = |txid: &Txid| before.standing(txid) == Some(Standing::Live);
        let left: Vec<Txid> =
            before.fates.keys().filter(|txid| certain(txid) && !fallen.contains(txid)).copied().collect();
        for txid in left {
            let under = |input: &Outpoint| fallen.contains(&input.txid) && Some(input.txid) != winner;
            if before.inputs(&txid).iter().any(under) {
                self.complain(format!("the cone leaves out {txid}, which is live and descends from it"));
            }
        }
    }

    fn lose(&mut self, txid: Txid, reason: Reason, height: u32) {
        let fate = self.history.fate(&txid);
        (fate.standing, fate.accepted, fate.lost_at) = (Standing::Lost(reason), false, height);
        self.mentioned.insert(txid);
        self.ever_lost.insert(txid);
        self.tell(txid, OutcomeKind::Conflicting { reason });
        self.touch_inputs(&txid);
    }

    fn tell(&mut self, txid: Txid, kind: OutcomeKind) {
        let outcome = (txid, self.at, kind);
        if !self.told.contains(&outcome) {
            self.told.push(outcome);
        }
    }

    pub fn touch_inputs(&mut self, txid: &Txid) {
        for input in self.history.inputs(txid) {
            self.touched.entry(input).or_insert(self.at);
        }
    }

    /// Second chances: conflicting transactions that name what was freed, or what was accepted.
    pub fn after_verdict(&mut self, accepted: Option<Txid>, fell: &[(Txid, bool)]) {
        let won: BTreeSet<Outpoint> = accepted.iter().flat_map(|txid| self.history.inputs(txid)).collect();
        let live = fell.iter().filter(|(_, live)| *live);
        let freed: BTreeSet<Outpoint> =
            live.flat_map(|(txid, _)| self.history.inputs(txid)).filter(|outpoint| !won.contains(outpoint)).collect();
        let fallen: BTreeSet<Txid> = fell.iter().map(|(txid, _)| *txid).collect();
        let parents = freed.iter().map(|outpoint| outpoint.txid).chain(accepted).collect::<BTreeSet<_>>();
        for txid in parents.iter().filter_map(|parent| self.noted.get(parent)).flatten().collect::<BTreeSet<_>>() {
            let lost = self.history.standing(txid);
            let open = matches!(lost, Some(Standing::Lost(reason)) if !matches!(reason, Reason::Immature { .. }));
            let names = |input: &Outpoint| freed.contains(input) || Some(input.txid) == accepted;
            if open && !fallen.contains(txid) && self.history.inputs(txid).iter().any(names) {
                self.chances.push((*txid, self.at));
            }
        }
        // A member that was not live may have been a stub: its parents hear of it with its own contest.
        let whole = fell.iter().zip(0..).filter(|((_, live), place)| *live || *place == 0);
        let whole: Vec<Txid> = whole.map(|((txid, _), _)| *txid).collect();
        self.stored.extend(whole.iter().copied());
        whole.iter().for_each(|txid| self.note(txid));
    }

    fn block_mined(&mut self, logged: &Logged, mined: &BlockMined<'_>) {
        // A repeat, or one that got in before the one that its feed failed to produce: fed again in order.
        if mined.sequence != self.history.sequence + 1 {
            return;
        }
        self.history.sequence = mined.sequence;
        let block = &mined.block;
        if block.longest_chain {
            self.connect(logged, block)
        } else {
            self.side_block(logged, block)
        }
        self.close_any();
    }

    /// A block of the longest chain: its coinbase is made, what it lists wins and is mined.
    pub fn connect(&mut self, logged: &Logged, block: &Block<'_>) {
        if let Some(tip) = self.history.tip.filter(|tip| tip.hash != block.previous) {
            self.complain(format!("block {} does not follow the tip at {}", block.height, tip.height));
        }
        self.history.tip = Some(Tip { hash: block.hash, height: block.height });
        self.history.blocks.insert(block.block_id, true);
        let coinbase = self.make_coinbase(logged, block, Standing::Live);
        let listed = self.listed(block);
        self.decide_on_block(block.height, coinbase, &listed);
        for (txid, subtree) in listed.into_iter().chain(coinbase.map(|txid| (txid, 0))) {
            if !self.history.witness(&txid) {
                let standing = self.history.standing(&txid);
                self.complain(format!("block {} lists {txid}, which is not live: {standing:?}", block.height));
            }
            self.stored.insert(txid);
            self.set_mined(&txid, MinedIn { block_id: block.block_id, height: block.height, subtree });
        }
    }

    /// Verdicts on what a block brings and what was conflicting.
    fn decide_on_block(&mut self, height: u32, coinbase: Option<Txid>, listed: &[(Txid, u32)]) {
        let mut won = BTreeSet::new();
        let brought: BTreeSet<Txid> = listed.iter().map(|(txid, _)| *txid).chain(coinbase).collect();
        while let Some(DecisionBody::Accepted { txid, inputs, losers, by_block: true, height: at }) = self.peek()
            && brought.contains(&txid)
        {
            self.next += 1;
            // Two sequencers at one block: the second decides again what the first has just decided.
            let again = !won.insert(txid);
            if self.history.is_live(&txid) && !again {
                self.complain(format!("{txid} wins by a block, though it is live"));
            }
            self.accepted(txid, at, &inputs, &losers, Some(height));
            self.touch_inputs(&txid);
        }
    }

    /// An event on which anything was decided has a last decision.
    pub fn close_any(&mut self) {
        if self.peek().is_some() || self.next > 0 {
            self.expect_closed();
        }
    }

    pub fn listed(&mut self, block: &Block<'_>) -> Vec<(Txid, u32)> {
        let mut listed = Vec::new();
        for (subtree, index) in block.subtrees.iter().zip(0..) {
            match &subtree.transactions {
                SubtreeTransactions::Inline(_) => {
                    listed.extend(subtree.transactions.inline().into_iter().flatten().map(|txid| (txid, index)));
                }
                SubtreeTransactions::Object { key, .. } => {
                    self.complain(format!("the object {key} is not in the logs"))
                }
            }
        }
        listed
    }

    /// The coinbase of a block, which may be known from another block.
    pub fn make_coinbase(&mut self, logged: &Logged, block: &Block<'_>, standing: Standing) -> Option<Txid> {
        let body = logged.message.payload.slice_ref(block.coinbase);
        let Some(tx) = Facts::coinbase(&body, block.height) else {
            self.complain(format!("the coinbase of block {} is no transaction", block.height));
            return None;
        };
        let txid = tx.txid;
        let rules = self.history.rules;
        if Arc::make_mut(&mut self.history.facts).add(tx, &rules).is_err() {
            self.complain(format!("the coinbase of block {} is known with other content", block.height));
        }
        self.history.fates.entry(txid).or_insert_with(|| Fate::new(standing));
        self.stored.insert(txid);
        Some(txid)
    }

    pub fn set_mined(&mut self, txid: &Txid, mined: MinedIn) {
        let fate = self.history.fate(txid);
        fate.mined.insert(mined.block_id, mined);
        (fate.unmined_since, fate.locked) = (Some(None), Some(false));
    }
}

/// Whether a verdict for this reason is open again.
fn opens(opened: Opened, reason: Reason) -> bool {
    opened == Opened::Reconsider || matches!(reason, Reason::MissingParent { .. } | Reason::Mismatch { .. })
}
