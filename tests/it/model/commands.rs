//! Side chains, reorgs and commands: what they mean. On a command is decided what it makes conflicting first, then what became of it, then
//! `Closed`.

use std::collections::BTreeSet;

use utxo_store::{
    event::{Action, Block, Command, CommandResult, DecisionBody, OutcomeKind, Reorg},
    record::{MinedIn, Reason, Reassignment, StoredOutput},
    tx::{Outpoint, Transaction, Txid, utxo_hash},
};

use super::{
    Logged,
    facts::Origin,
    history::{Standing, Tip},
    replay::Replay,
};

/// What must become of a command: as a code where it is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Done,
    Nothing,
    /// One or the other: when the fast path did something nobody can know.
    DoneOrNothing,
    DoneOrNothingOr(&'static str),
    Refused(&'static str),
}

use Answer::{Done, DoneOrNothing, DoneOrNothingOr, Nothing, Refused};

impl Answer {
    fn is_said_by(self, result: &CommandResult) -> bool {
        match (self, result) {
            (Done | DoneOrNothing | DoneOrNothingOr(_), CommandResult::Applied) => true,
            (Nothing | DoneOrNothing | DoneOrNothingOr(_), CommandResult::AlreadyApplied) => true,
            (Refused(code) | DoneOrNothingOr(code), CommandResult::Refused { code: said, .. }) => said == code,
            _ => false,
        }
    }
}

/// The longest script of a new owner, bytes.
const LONGEST_SCRIPT: usize = 10_000;

/// What no state of a transaction makes possible.
fn refused_unseen(action: &Action<'_>) -> Option<Answer> {
    match action {
        Action::Reassign { new_script, .. } if new_script.len() > LONGEST_SCRIPT => Some(Refused("SCRIPT_TOO_LONG")),
        Action::FreezeUntil { height: u32::MAX, .. } | Action::Preserve { until: u32::MAX, .. } => {
            Some(Refused("INVALID_HEIGHT"))
        }
        Action::Reassign { height, spendable_after, .. }
            if height.checked_add(*spendable_after).is_none_or(|from| from == u32::MAX) =>
        {
            Some(Refused("INVALID_HEIGHT"))
        }
        _ => None,
    }
}

/// What became of the first command of an id.
#[derive(Debug, Clone)]
pub struct Executed {
    asked: String,
    at: u64,
    result: CommandResult,
}

impl Executed {
    pub fn new(action: &Action<'_>, at: u64, result: &CommandResult) -> Self {
        Executed { asked: format!("{action:?}"), at, result: result.clone() }
    }

    /// Whether this is what a later command of the same id is told.
    pub fn answers(&self, action: &Action<'_>, at: u64, result: &CommandResult) -> bool {
        let right = match (self.asked == format!("{action:?}"), result) {
            (true, result) => *result == self.result,
            (false, CommandResult::Refused { code, .. }) => code == "ID_USED",
            (false, _) => false,
        };
        right && at == self.at
    }
}

impl Replay<'_> {
    /// A block on a side chain decides nothing: its coinbase is there, conflicting, and its triples are written.
    pub fn side_block(&mut self, logged: &Logged, block: &Block<'_>) {
        self.history.blocks.insert(block.block_id, false);
        let lost = Standing::Lost(Reason::Disconnected);
        let coinbase = self.make_coinbase(logged, block, lost);
        if let Some(txid) = coinbase
            && self.history.standing(&txid) == Some(lost)
        {
            let fate = self.history.fate(&txid);
            (fate.unmined_since, fate.lost_at) = (Some(Some(block.height)), block.height);
            self.ever_lost.insert(txid);
        }
        let listed = self.listed(block).into_iter().chain(coinbase.map(|txid| (txid, 0)));
        for (txid, subtree) in listed.collect::<Vec<_>>() {
            if let Some(fate) = self.history.fates.get_mut(&txid) {
                fate.mined.insert(block.block_id, MinedIn { block_id: block.block_id, height: block.height, subtree });
            }
        }
    }

    /// The longest chain changed: its blocks leave newest first, and come oldest first.
    pub fn reorg(&mut self, logged: &Logged, reorg: &Reorg<'_>) {
        if reorg.sequence != self.history.sequence + 1 {
            return;
        }
        self.history.sequence = reorg.sequence;
        for block in reorg.disconnected.iter().rev() {
            self.disconnect(block);
        }
        for block in &reorg.connected {
            self.connect(logged, block);
        }
        self.close_any();
    }

    fn disconnect(&mut self, block: &Block<'_>) {
        let Some(coinbase) = self.unmine(block) else { return };
        if self.history.is_mined(&coinbase) {
            // An earlier block has it, too, and counts again.
            self.history.fate(&coinbase).unmined_since = Some(None);
            return;
        }
        match self.step() {
            Some(DecisionBody::Conflicting { txid, reason: Reason::Disconnected, height, live })
                if txid == coinbase =>
            {
                if height != block.height || live != self.history.is_live(&coinbase) {
                    self.complain(format!("the coinbase of block {} leaves at {height}, live: {live}", block.height));
                }
                let fell = self.fell(height, vec![(txid, Reason::Disconnected)], None);
                self.after_verdict(None, &fell);
            }
            other => self.complain(format!("the coinbase of block {} leaves with it, but {other:?}", block.height)),
        }
    }

    /// A block leaves the longest chain, whose tip it is: what it lists is unmined. Answers its coinbase.
    pub fn unmine(&mut self, block: &Block<'_>) -> Option<Txid> {
        if self.history.tip.is_none_or(|tip| tip.hash != block.hash) {
            self.complain(format!("block {} leaves the chain, and is not its tip", block.height));
        }
        self.history.tip = Some(Tip { hash: block.previous, height: block.height.saturating_sub(1) });
        self.history.blocks.insert(block.block_id, false);
        let coinbase = Transaction::parse(block.coinbase).map(|tx| tx.txid()).ok();
        for txid in self.listed(block).into_iter().map(|(txid, _)| txid).chain(coinbase) {
            let since = self.history.unmined_since(&txid);
            if let Some(fate) = self.history.fates.get_mut(&txid)
                && fate.mined.remove(&block.block_id).is_some()
            {
                fate.unmined_since = Some(Some(since.map_or(block.height, |since| since.min(block.height))));
            }
        }
        coinbase
    }

    /// What became of a command is what must become of it, and is told. A repeat of one does nothing, and is told the same.
    pub fn command(&mut self, logged: &Logged, command: &Command<'_>) {
        let subject = command.action.subject();
        let first = self.commands.get(&command.id).cloned();
        self.touch(&command.action);
        let expected = match first {
            Some(_) => None,
            None if self.is_absent(logged, command) => Some(Refused("TX_NOT_FOUND")),
            None => Some(self.execute(&command.action)),
        };
        match self.step() {
            Some(DecisionBody::CommandDone { id, executed_at, result }) if id == command.id => {
                let agrees = match (&first, expected) {
                    (Some(first), _) => first.answers(&command.action, executed_at, &result),
                    (None, expected) => executed_at == self.at && expected.is_some_and(|it| it.is_said_by(&result)),
                };
                if !agrees {
                    let must = first.map_or(format!("{expected:?}"), |first| format!("{first:?}"));
                    self.complain(format!(
                        "{:?} must be {must}, and is {result:?}, executed at {executed_at}",
                        command.action
                    ));
                }
                self.commands.entry(id).or_insert(Executed::new(&command.action, executed_at, &result));
                self.tell(subject, OutcomeKind::Command { id, result });
            }
            other => self.complain(format!("{:?} leads to {other:?}", command.action)),
        }
        self.expect_closed();
    }

    /// Whether the command was refused because its transaction is not there; it may only be so for one that does not come by itself.
    fn is_absent(&mut self, logged: &Logged, command: &Command<'_>) -> bool {
        let subject = command.action.subject();
        let said = self.peek();
        let absent = matches!(&said, Some(DecisionBody::CommandDone { result: CommandResult::Refused { code, .. }, .. })
            if code == "TX_NOT_FOUND");
        let may_be_late = self.history.rules.slow || self.history.may_be_pruned(&subject);
        if absent && !may_be_late && self.comes_by_itself(&subject, logged.place().timestamp_ms) {
            self.complain(format!("{subject} is said not to be there, and comes by itself"));
        }
        let unseen = matches!(refused_unseen(&command.action), Some(Refused(_)));
        if !absent && !unseen {
            self.stored.insert(subject);
        }
        absent && !unseen
    }

    /// Whether everything that it needs was produced by then, nobody had to decide on any of that, and no lock bars the way.
    fn comes_by_itself(&self, txid: &Txid, by_ms: i64) -> bool {
        let mut open = vec![*txid];
        let mut seen = BTreeSet::new();
        while let Some(txid) = open.pop() {
            if !seen.insert(txid) {
                continue;
            }
            let Some(tx) = self.history.tx(&txid) else { return false };
            let produced = match &tx.origin {
                Origin::Validated(versions) => {
                    versions.first().is_some_and(|first| first.place.timestamp_ms <= by_ms && !first.locked)
                }
                Origin::Seeded { .. } => {
                    self.history.facts.seeds.get(&txid).into_iter().flatten().any(|seed| seed.timestamp_ms <= by_ms)
                }
                Origin::Block { .. } => false,
            };
            let locked = self.history.fates.get(&txid).is_some_and(|fate| fate.locked == Some(true));
            if !produced || locked || self.ever_contested.contains(&txid) {
                return false;
            }
            open.extend(tx.parents());
        }
        true
    }

    fn execute(&mut self, action: &Action<'_>) -> Answer {
        if let Some(refused) = refused_unseen(action) {
            return refused;
        }
        let txid = action.subject();
        let standing = self.history.standing(&txid);
        if standing.is_none() || self.history.is_pruned(&txid) {
            return Refused("TX_NOT_FOUND");
        }
        match *action {
            Action::Lock { txid } => self.set_locked(&txid, true),
            Action::Unlock { txid } => self.set_locked(&txid, false),
            Action::Freeze { outpoint } => self.freeze(outpoint),
            Action::Unfreeze { outpoint } => self.unfreeze(outpoint),
            Action::FreezeUntil { outpoint, height } => self.freeze_until(outpoint, height),
            Action::Reassign { outpoint, .. } => self.reassign(outpoint, action),
            Action::Unspend { outpoint, spender, .. } => self.unspend(outpoint, spender),
            Action::SetConflicting { txid } => self.set_conflicting(txid),
            Action::Preserve { txid, until } => {
                let fate = self.history.fate(&txid);
                let raised = fate.preserve_until < Some(until);
                fate.preserve_until = fate.preserve_until.max(Some(until));
                if raised { Done } else { Nothing }
            }
            // Its block may return.
            Action::Delete { txid } if self.history.tx(&txid).is_some_and(|tx| tx.coinbase) => Refused("INVALID_SPEND"),
            Action::Delete { txid } if matches!(standing, Some(Standing::Lost(_))) => {
                let height = self.history.height();
                let preserved = self.history.fate(&txid).preserve_until.is_some_and(|until| until > height);
                if preserved || self.history.stays(&txid) {
                    return Refused("NOT_PRUNABLE");
                }
                self.history.set(&txid, Standing::Pruned(height));
                Done
            }
            Action::Delete { .. } => Refused("INVALID_SPEND"),
            Action::Reconsider { .. } => Nothing,
        }
    }

    /// What a command does that was done, whoever was live.
    pub fn carry_out(&mut self, action: &Action<'_>) {
        let height = self.history.height();
        match *action {
            Action::Lock { txid } => self.history.fate(&txid).locked = Some(true),
            Action::Unlock { txid } => self.history.fate(&txid).locked = Some(false),
            Action::Preserve { txid, until } => {
                let fate = self.history.fate(&txid);
                fate.preserve_until = fate.preserve_until.max(Some(until));
            }
            Action::Delete { txid } => self.history.set(&txid, Standing::Pruned(height)),
            Action::Freeze { outpoint } => {
                self.history.bars.frozen.insert(outpoint);
            }
            Action::Unfreeze { outpoint } => {
                self.history.bars.frozen.remove(&outpoint);
            }
            Action::FreezeUntil { outpoint, height } => {
                self.history.bars.spendable_from.insert(outpoint, height);
            }
            Action::Reassign { outpoint, height, spendable_after, .. } => {
                self.touched.entry(outpoint).or_insert(self.at);
                let entry = self.entry_of(outpoint, action);
                self.history.bars.frozen.remove(&outpoint);
                self.history.bars.reassigned.entry(outpoint).or_default().extend(entry);
                self.history.bars.spendable_from.insert(outpoint, height.saturating_add(spendable_after));
            }
            Action::Unspend { .. } | Action::SetConflicting { .. } | Action::Reconsider { .. } => {}
        }
    }

    fn set_locked(&mut self, txid: &Txid, locked: bool) -> Answer {
        if self.history.locked(txid) == locked {
            return Nothing;
        }
        self.history.fate(txid).locked = Some(locked);
        if !locked {
            self.chances_of(*txid, |_| true);
        }
        Done
    }

    /// Who names one of these outputs of a transaction, is certainly known to it, and is certainly not barred by what its verdict names,
    /// gets a second chance. Whoever fell by this very event is judged with all that it did.
    pub fn chances_of(&mut self, parent: Txid, outputs: impl Fn(&Outpoint) -> bool) {
        let history = &self.history;
        // One that nobody has decided on may have come behind this.
        let is_open = |txid: &Txid| {
            let there = *txid == parent || self.stored.contains(txid);
            there && history.is_live(txid) && !history.locked(txid)
        };
        let noted = self.noted.get(&parent);
        for (txid, fate) in &history.fates {
            let Standing::Lost(reason) = fate.standing else { continue };
            let inputs = history.inputs(txid);
            if fate.lost_by == self.at || !inputs.iter().any(|input| input.txid == parent && outputs(input)) {
                continue;
            }
            let is_noted = noted.is_some_and(|noted| noted.contains(txid));
            let deserves = match reason {
                Reason::Locked { parent: barring } => (barring == parent || is_noted) && is_open(&barring),
                Reason::MissingParent { parent: barring } => {
                    ((barring == parent && !history.rules.forgetful) || is_noted) && is_open(&barring)
                }
                Reason::ConflictingParent { parent: barring } => is_noted && is_open(&barring),
                Reason::Frozen { input } => inputs.get(input as usize).is_some_and(|input| {
                    (input.txid == parent || is_noted)
                        && !history.bars.frozen.contains(input)
                        && history.live_spenders(input, txid).is_empty()
                }),
                _ => false,
            };
            if deserves {
                self.chances.push((*txid, self.at));
            }
        }
    }

    /// Why an output cannot be barred, if it cannot.
    fn spendable(&self, outpoint: &Outpoint) -> Option<Answer> {
        if self.history.owed(outpoint).is_none() {
            return Some(Refused("UTXO_NOT_FOUND"));
        }
        let spent = !self.history.live_spenders(outpoint, &outpoint.txid).is_empty();
        (spent || self.history.bars.spender_pruned.contains_key(outpoint)).then_some(Refused("SPENT"))
    }

    /// A slot that is to be frozen is marked before that is decided, whatever comes of it.
    pub fn touch(&mut self, action: &Action<'_>) {
        if let Action::Freeze { outpoint } | Action::FreezeUntil { outpoint, .. } | Action::Unspend { outpoint, .. } =
            action
        {
            self.touched.entry(*outpoint).or_insert(self.at);
        }
    }

    fn freeze(&mut self, outpoint: Outpoint) -> Answer {
        if let Some(refused) = self.spendable(&outpoint) {
            return refused;
        }
        if self.history.bars.frozen.insert(outpoint) { Done } else { Refused("ALREADY_FROZEN") }
    }

    fn unfreeze(&mut self, outpoint: Outpoint) -> Answer {
        if self.history.owed(&outpoint).is_none() {
            return Refused("UTXO_NOT_FOUND");
        }
        if !self.history.bars.frozen.remove(&outpoint) {
            return Refused("NOT_FROZEN");
        }
        self.chances_of(outpoint.txid, |input| *input == outpoint);
        Done
    }

    fn freeze_until(&mut self, outpoint: Outpoint, height: u32) -> Answer {
        if let Some(refused) = self.spendable(&outpoint) {
            return refused;
        }
        if self.history.bars.frozen.contains(&outpoint) {
            return Refused("FROZEN");
        }
        let before = self.history.bars.spendable_from.insert(outpoint, height);
        if before == Some(height) { Nothing } else { Done }
    }

    fn entry_of(&self, outpoint: Outpoint, action: &Action<'_>) -> Option<Reassignment> {
        let Action::Reassign { utxo_hash: claimed, new_script, satoshis, height, .. } = *action else { return None };
        Some(Reassignment {
            offset: outpoint.vout % self.history.rules.utxo_batch_size,
            utxo_hash: claimed,
            new_utxo_hash: utxo_hash(&outpoint.txid, outpoint.vout, new_script, satoshis),
            block_height: height,
            output: StoredOutput { satoshis, script: bytes::Bytes::copy_from_slice(new_script) },
        })
    }

    fn reassign(&mut self, outpoint: Outpoint, action: &Action<'_>) -> Answer {
        let Some(entry) = self.entry_of(outpoint, action) else { return Nothing };
        if self.history.bars.reassigned.get(&outpoint).is_some_and(|before| before.contains(&entry)) {
            return Refused("ALREADY_REASSIGNED");
        }
        if self.history.owed(&outpoint).is_none() {
            return Refused("UTXO_NOT_FOUND");
        }
        if !self.history.bars.frozen.contains(&outpoint) {
            return Refused("NOT_FROZEN");
        }
        let now = self.history.owed(&outpoint);
        let now = now.map(|coin| utxo_hash(&outpoint.txid, outpoint.vout, &coin.script, coin.satoshis));
        if now != Some(entry.utxo_hash) {
            return Refused("UTXO_HASH_MISMATCH");
        }
        self.carry_out(action);
        Done
    }

    /// Only who is not live gives a slot back; it may have been about to take it.
    fn unspend(&mut self, outpoint: Outpoint, spender: Txid) -> Answer {
        if self.history.owed(&outpoint).is_none() {
            return Refused("UTXO_NOT_FOUND");
        }
        if self.history.bars.frozen.contains(&outpoint) {
            return Refused("FROZEN");
        }
        self.mentioned.insert(spender);
        let pruned_with_it = self.history.bars.spender_pruned.get(&outpoint).is_some_and(|by| by.txid == spender);
        // It is live as soon as it comes, which may be later.
        if self.history.is_partial(&spender) || self.history.may_be_pruned.contains(&spender) {
            return DoneOrNothingOr("INVALID_SPEND");
        }
        // What was deleted had fallen.
        if pruned_with_it || self.history.witness(&spender) { Refused("INVALID_SPEND") } else { DoneOrNothing }
    }

    fn set_conflicting(&mut self, txid: Txid) -> Answer {
        if self.history.is_mined(&txid) || self.history.is_partial(&txid) {
            return Refused("INVALID_SPEND");
        }
        if matches!(self.history.standing(&txid), Some(Standing::Lost(_))) {
            return Nothing;
        }
        let was_live = self.history.witness(&txid);
        match self.step() {
            Some(DecisionBody::Conflicting { txid: named, reason: Reason::Command, height, live }) if named == txid => {
                self.check_height(&txid, height, None);
                if live != was_live {
                    self.complain(format!("{txid} is said to be live until now: {live}; it was: {was_live}"));
                }
                let fell = self.fell(height, vec![(txid, Reason::Command)], None);
                self.after_verdict(None, &fell);
            }
            other => self.complain(format!("{txid} is to become conflicting, but {other:?}")),
        }
        Done
    }
}
