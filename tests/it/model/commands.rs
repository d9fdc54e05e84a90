//! Side chains, reorgs and commands. The decisions on a command are: transactions that it makes conflicting, its
//! result, `Closed`.

use std::collections::BTreeSet;

use utxo_store::{
    event::{Block, Command, CommandAction, CommandResult, DecisionBody, LiftedOutput, OutcomeKind, Reorg},
    record::{MinedIn, Reason, Reassignment, StoredOutput},
    tx::{Outpoint, Transaction, Txid, utxo_hash},
};

use super::{
    Logged,
    facts::{Coin, Origin},
    history::{History, Tip, TxEntry, TxStatus},
    replay::Replay,
};

/// The result that a command must have; a refusal with its code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExpectedResult {
    Done,
    Nothing,
    /// Either result is correct: the logs do not say when the fast path acted.
    DoneOrNothing,
    DoneOrNothingOr(&'static str),
    Refused(&'static str),
}

use ExpectedResult::{Done, DoneOrNothing, DoneOrNothingOr, Nothing, Refused};

impl ExpectedResult {
    fn permits(self, result: &CommandResult) -> bool {
        match (self, result) {
            (Done | DoneOrNothing | DoneOrNothingOr(_), CommandResult::Applied) => true,
            (Nothing | DoneOrNothing | DoneOrNothingOr(_), CommandResult::AlreadyApplied) => true,
            (Refused(code) | DoneOrNothingOr(code), CommandResult::Refused { code: actual, .. }) => actual == code,
            _ => false,
        }
    }
}

/// Maximum length of a new owner's script, in bytes.
const LONGEST_SCRIPT: usize = 10_000;

/// Returns the refusal that does not depend on the state of the transaction.
fn refused_unseen(action: &CommandAction<'_>) -> Option<ExpectedResult> {
    match action {
        CommandAction::Reassign { new_script, .. } if new_script.len() > LONGEST_SCRIPT => {
            Some(Refused("SCRIPT_TOO_LONG"))
        }
        CommandAction::FreezeUntil { height: u32::MAX, .. } | CommandAction::Preserve { until: u32::MAX, .. } => {
            Some(Refused("INVALID_HEIGHT"))
        }
        CommandAction::Reassign { height, spendable_after, .. }
            if height.checked_add(*spendable_after).is_none_or(|from| from == u32::MAX) =>
        {
            Some(Refused("INVALID_HEIGHT"))
        }
        _ => None,
    }
}

/// The first command with an id, and its result.
#[derive(Debug, Clone)]
pub struct ExecutedCommand {
    action: String,
    executed_at: u64,
    result: CommandResult,
}

impl ExecutedCommand {
    pub fn new(action: &CommandAction<'_>, executed_at: u64, result: &CommandResult) -> Self {
        ExecutedCommand { action: format!("{action:?}"), executed_at, result: result.clone() }
    }

    /// Whether a later command of the same id has the correct result: a repeat gets the first result, another action is
    /// refused.
    pub fn matches_repeat(&self, action: &CommandAction<'_>, executed_at: u64, result: &CommandResult) -> bool {
        let is_same_result = match (self.action == format!("{action:?}"), result) {
            (true, result) => *result == self.result,
            (false, CommandResult::Refused { code, .. }) => code == "ID_USED",
            (false, _) => false,
        };
        is_same_result && executed_at == self.executed_at
    }
}

impl Replay<'_> {
    /// Applies a block of a side chain: no decision; its coinbase is created conflicting, and its listing is recorded.
    pub fn apply_side_block(&mut self, logged: &Logged, block: &Block<'_>) {
        self.history.blocks.insert(block.block_id, false);
        let lost = TxStatus::Conflicting(Reason::Disconnected);
        let coinbase = self.make_coinbase(logged, block, lost);
        if let Some(txid) = coinbase
            && self.history.status(&txid) == Some(lost)
        {
            let tx_entry = self.history.tx_entry(&txid);
            (tx_entry.unmined_since, tx_entry.conflicting_height) = (Some(Some(block.height)), block.height);
            self.ever_conflicting.insert(txid);
        }
        let listed = self.listed_transactions(block).into_iter().chain(coinbase.map(|txid| (txid, 0)));
        for (txid, subtree) in listed.collect::<Vec<_>>() {
            if let Some(tx_entry) = self.history.tx_entries.get_mut(&txid) {
                tx_entry
                    .mined
                    .insert(block.block_id, MinedIn { block_id: block.block_id, height: block.height, subtree });
            }
        }
    }

    /// Applies a reorg: blocks are disconnected newest first and connected oldest first.
    pub fn apply_reorg(&mut self, logged: &Logged, reorg: &Reorg<'_>) {
        if reorg.sequence != self.history.sequence + 1 {
            return;
        }
        self.history.sequence = reorg.sequence;
        for block in reorg.disconnected.iter().rev() {
            self.disconnect_with_coinbase(block);
        }
        self.lift_bars(reorg.connected.last().map_or(0, |block| block.height));
        for block in &reorg.connected {
            self.connect_block(logged, block);
        }
        self.expect_closed_if_decided();
    }

    fn disconnect_with_coinbase(&mut self, block: &Block<'_>) {
        let Some(coinbase) = self.disconnect_block(block) else { return };
        if self.history.is_mined(&coinbase) {
            // An earlier block of the chain has the same coinbase and counts again.
            self.history.tx_entry(&coinbase).unmined_since = Some(None);
            return;
        }
        match self.next_decision() {
            Some(DecisionBody::Conflicting { txid, reason: Reason::Disconnected, height, live })
                if txid == coinbase =>
            {
                if height != block.height || live != self.history.is_live(&coinbase) {
                    self.complain(format!(
                        "the coinbase of block {} is disconnected at {height}, live: {live}",
                        block.height
                    ));
                }
                let newly_conflicting =
                    self.mark_descendants_conflicting(height, vec![(txid, Reason::Disconnected)], &BTreeSet::new());
                self.after_verdict(&BTreeSet::new(), &newly_conflicting);
            }
            other => self.complain(format!(
                "the coinbase of block {} must become conflicting, but the decision is {other:?}",
                block.height
            )),
        }
    }

    /// Disconnects the tip: its transactions become unmined. Returns its coinbase.
    pub fn disconnect_block(&mut self, block: &Block<'_>) -> Option<Txid> {
        if self.history.tip.is_none_or(|tip| tip.hash != block.hash) {
            self.complain(format!("block {} is disconnected, but is not the tip", block.height));
        }
        self.history.tip = Some(Tip { hash: block.previous, height: block.height.saturating_sub(1) });
        self.history.blocks.insert(block.block_id, false);
        let coinbase = Transaction::parse(block.coinbase).map(|tx| tx.txid()).ok();
        let left: Vec<Txid> =
            self.listed_transactions(block).into_iter().map(|(txid, _)| txid).chain(coinbase).collect();
        self.expect_unmined(block, left.iter().copied());
        for txid in left {
            let since = self.history.unmined_since(&txid);
            if let Some(tx_entry) = self.history.tx_entries.get_mut(&txid)
                && tx_entry.mined.remove(&block.block_id).is_some()
            {
                tx_entry.unmined_since = Some(Some(since.map_or(block.height, |since| since.min(block.height))));
            }
        }
        coinbase
    }

    /// Checks the result of a command and expects its outcome. A repeat changes nothing and has the same result.
    pub fn apply_command(&mut self, logged: &Logged, command: &Command<'_>) {
        let subject = command.action.subject();
        let first = self.commands.get(&command.id).cloned();
        self.mark_touched(&command.action);
        let expected = match first {
            Some(_) => None,
            None if self.is_absent(logged, command) => Some(Refused("TX_NOT_FOUND")),
            None => Some(self.expected_result(&command.action)),
        };
        match self.next_decision() {
            Some(DecisionBody::CommandDone { id, executed_at, result }) if id == command.id => {
                let agrees = match (&first, expected) {
                    (Some(first), _) => first.matches_repeat(&command.action, executed_at, &result),
                    (None, expected) => executed_at == self.offset && expected.is_some_and(|it| it.permits(&result)),
                };
                if !agrees {
                    let must = first.map_or(format!("{expected:?}"), |first| format!("{first:?}"));
                    self.complain(format!(
                        "{:?} must be {must}, and is {result:?}, executed at {executed_at}",
                        command.action
                    ));
                }
                self.commands.entry(id).or_insert(ExecutedCommand::new(&command.action, executed_at, &result));
                self.expect_outcome(subject, OutcomeKind::Command { id, result });
            }
            other => self.complain(format!("{:?} must have a result, but the decision is {other:?}", command.action)),
        }
        self.expect_closed();
    }

    /// Whether the command was refused because its transaction is absent; that is allowed only if no event creates it
    /// meanwhile.
    fn is_absent(&mut self, logged: &Logged, command: &Command<'_>) -> bool {
        let subject = command.action.subject();
        let decision = self.peek_decision();
        let absent = match &decision {
            Some(DecisionBody::CommandDone { result: CommandResult::Refused { code, .. }, .. }) => {
                code == "TX_NOT_FOUND"
            }
            _ => false,
        };
        let may_be_late = self.history.rules.slow || self.history.may_be_pruned(&subject);
        if absent && !may_be_late && self.comes_by_itself(&subject, logged.place().timestamp_ms) {
            self.complain(format!("{subject} is refused as absent, although its events create it"));
        }
        let unseen = matches!(refused_unseen(&command.action), Some(Refused(_)));
        if !absent && !unseen {
            self.stored.insert(subject);
        }
        absent && !unseen
    }

    /// Whether the events alone create the transaction: it and its ancestors were produced by then, uncontested and not
    /// locked.
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
            let locked = self.history.tx_entries.get(&txid).is_some_and(|tx_entry| tx_entry.locked == Some(true));
            if !produced || locked || self.ever_contested.contains(&txid) {
                return false;
            }
            open.extend(tx.parents());
        }
        true
    }

    fn expected_result(&mut self, action: &CommandAction<'_>) -> ExpectedResult {
        if let Some(refused) = refused_unseen(action) {
            return refused;
        }
        let txid = action.subject();
        let status = self.history.status(&txid);
        if status.is_none() || self.history.is_pruned(&txid) {
            return Refused("TX_NOT_FOUND");
        }
        match *action {
            CommandAction::Lock { txid } => self.set_locked(&txid, true),
            CommandAction::Unlock { txid } => self.set_locked(&txid, false),
            CommandAction::FreezeTransaction { txid } => self.set_frozen(&txid, true),
            CommandAction::UnfreezeTransaction { txid } => self.set_frozen(&txid, false),
            CommandAction::Freeze { outpoint } => self.freeze(outpoint),
            CommandAction::Unfreeze { outpoint } => self.unfreeze(outpoint),
            CommandAction::FreezeUntil { outpoint, height } => self.freeze_until(outpoint, height),
            CommandAction::Reassign { outpoint, .. } => self.reassign(outpoint, action),
            CommandAction::Unspend { outpoint, spender, .. } => self.unspend(outpoint, spender),
            CommandAction::SetConflicting { txid } => self.set_conflicting(txid),
            CommandAction::Preserve { txid, until } => {
                let tx_entry = self.history.tx_entry(&txid);
                let raised = tx_entry.preserve_until < Some(until);
                tx_entry.preserve_until = tx_entry.preserve_until.max(Some(until));
                if raised { Done } else { Nothing }
            }
            // The block of a coinbase may be connected again.
            CommandAction::Delete { txid } if self.history.tx(&txid).is_some_and(|tx| tx.coinbase) => {
                Refused("INVALID_SPEND")
            }
            CommandAction::Delete { txid } if matches!(status, Some(TxStatus::Conflicting(_))) => {
                let height = self.history.decision_height(&txid);
                let preserved = self.history.tx_entry(&txid).preserve_until.is_some_and(|until| until > height);
                if preserved || self.history.is_kept_for_output(&txid) {
                    return Refused("NOT_PRUNABLE");
                }
                self.history.set_status(&txid, TxStatus::Pruned(height));
                Done
            }
            CommandAction::Delete { .. } => Refused("INVALID_SPEND"),
            CommandAction::Reconsider { .. } => Nothing,
        }
    }

    /// Applies the effect of an executed command, independent of which transactions were live.
    pub fn apply_restrictions(&mut self, action: &CommandAction<'_>) {
        match *action {
            CommandAction::Lock { txid } => self.history.tx_entry(&txid).locked = Some(true),
            CommandAction::Unlock { txid } => self.history.tx_entry(&txid).locked = Some(false),
            CommandAction::FreezeTransaction { txid } => self.history.tx_entry(&txid).frozen = Some(true),
            CommandAction::UnfreezeTransaction { txid } => self.history.tx_entry(&txid).frozen = Some(false),
            CommandAction::Preserve { txid, until } => {
                let tx_entry = self.history.tx_entry(&txid);
                tx_entry.preserve_until = tx_entry.preserve_until.max(Some(until));
            }
            CommandAction::Delete { txid } => {
                let height = self.history.decision_height(&txid);
                self.history.set_status(&txid, TxStatus::Pruned(height));
            }
            CommandAction::Freeze { outpoint } => {
                self.history.restrictions.frozen.insert(outpoint);
            }
            CommandAction::Unfreeze { outpoint } => {
                self.history.restrictions.frozen.remove(&outpoint);
            }
            CommandAction::FreezeUntil { outpoint, height } => {
                self.history.restrictions.spendable_from.insert(outpoint, height);
            }
            CommandAction::Reassign { outpoint, height, spendable_after, .. } => {
                self.touched.entry(outpoint).or_insert(self.offset);
                let entry = self.entry_of(outpoint, action);
                self.history.restrictions.frozen.remove(&outpoint);
                self.history.restrictions.reassigned.entry(outpoint).or_default().extend(entry);
                self.history.restrictions.spendable_from.insert(outpoint, height.saturating_add(spendable_after));
            }
            CommandAction::Unspend { .. } | CommandAction::SetConflicting { .. } | CommandAction::Reconsider { .. } => {
            }
        }
    }

    fn set_locked(&mut self, txid: &Txid, locked: bool) -> ExpectedResult {
        self.set_flag(txid, locked, self.history.is_locked(txid), |tx_entry| &mut tx_entry.locked)
    }

    fn set_frozen(&mut self, txid: &Txid, frozen: bool) -> ExpectedResult {
        self.set_flag(txid, frozen, self.history.is_transaction_frozen(txid), |tx_entry| &mut tx_entry.frozen)
    }

    fn set_flag(
        &mut self,
        txid: &Txid,
        value: bool,
        present: bool,
        flag: fn(&mut TxEntry) -> &mut Option<bool>,
    ) -> ExpectedResult {
        if present == value {
            return Nothing;
        }
        *flag(self.history.tx_entry(txid)) = Some(value);
        if !value {
            self.reconsider_children(*txid, |_| true);
        }
        Done
    }

    /// Records second chances for conflicting transactions that spend one of these outputs, are certainly known to the
    /// parent, and are certainly no longer barred by the reason of their verdict. Transactions that this very event
    /// made conflicting are checked with all of its effects.
    pub fn reconsider_children(&mut self, parent: Txid, outputs: impl Fn(&Outpoint) -> bool) {
        let history = &self.history;
        // An undecided transaction may have been stored only later.
        let is_open = |txid: &Txid| {
            let there = *txid == parent || self.stored.contains(txid);
            there && history.is_live(txid) && !history.is_locked(txid)
        };
        let known_children = self.known_children.get(&parent);
        for (txid, tx_entry) in &history.tx_entries {
            let TxStatus::Conflicting(reason) = tx_entry.status else { continue };
            let inputs = history.inputs(txid);
            if tx_entry.conflicting_offset == self.offset
                || !inputs.iter().any(|input| input.txid == parent && outputs(input))
            {
                continue;
            }
            let is_known = known_children.is_some_and(|known_children| known_children.contains(txid));
            let deserves = match reason {
                Reason::Locked { parent: barring } => (barring == parent || is_known) && is_open(&barring),
                Reason::MissingParent { parent: barring } => {
                    ((barring == parent && !history.rules.forgetful) || is_known) && is_open(&barring)
                }
                Reason::ConflictingParent { parent: barring } => is_known && is_open(&barring),
                Reason::Frozen { input } => inputs.get(input as usize).is_some_and(|input| {
                    (input.txid == parent || is_known)
                        && !history.is_frozen(input)
                        && history.live_spenders(input, txid).is_empty()
                }),
                _ => false,
            };
            if deserves {
                self.due_second_chances.push((*txid, self.offset));
            }
        }
    }

    /// Returns the refusal of a freeze, if the output cannot be made unspendable.
    fn spendable(&self, outpoint: &Outpoint) -> Option<ExpectedResult> {
        if self.history.current_output(outpoint).is_none() {
            return Some(Refused("UTXO_NOT_FOUND"));
        }
        let spent = !self.history.live_spenders(outpoint, &outpoint.txid).is_empty();
        (spent || self.history.restrictions.spender_pruned.contains_key(outpoint)).then_some(Refused("SPENT"))
    }

    /// Records the slot that a command is about to change: the sequencer marks it before the decision, whatever the
    /// result.
    pub fn mark_touched(&mut self, action: &CommandAction<'_>) {
        if let CommandAction::Freeze { outpoint }
        | CommandAction::FreezeUntil { outpoint, .. }
        | CommandAction::Unspend { outpoint, .. } = action
        {
            self.touched.entry(*outpoint).or_insert(self.offset);
        }
    }

    fn freeze(&mut self, outpoint: Outpoint) -> ExpectedResult {
        if let Some(refused) = self.spendable(&outpoint) {
            return refused;
        }
        if self.history.restrictions.frozen.insert(outpoint) { Done } else { Refused("ALREADY_FROZEN") }
    }

    fn unfreeze(&mut self, outpoint: Outpoint) -> ExpectedResult {
        if self.history.current_output(&outpoint).is_none() {
            return Refused("UTXO_NOT_FOUND");
        }
        if !self.history.restrictions.frozen.remove(&outpoint) {
            return Refused("NOT_FROZEN");
        }
        self.reconsider_children(outpoint.txid, |input| *input == outpoint);
        Done
    }

    fn freeze_until(&mut self, outpoint: Outpoint, height: u32) -> ExpectedResult {
        if let Some(refused) = self.spendable(&outpoint) {
            return refused;
        }
        if self.history.restrictions.frozen.contains(&outpoint) {
            return Refused("FROZEN");
        }
        let before = self.history.restrictions.spendable_from.insert(outpoint, height);
        if before == Some(height) { Nothing } else { Done }
    }

    fn entry_of(&self, outpoint: Outpoint, action: &CommandAction<'_>) -> Option<Reassignment> {
        let CommandAction::Reassign { utxo_hash: claimed, new_script, satoshis, height, .. } = *action else {
            return None;
        };
        Some(Reassignment {
            offset: outpoint.vout % self.history.rules.utxo_batch_size,
            utxo_hash: claimed,
            new_utxo_hash: utxo_hash(&outpoint.txid, outpoint.vout, new_script, satoshis),
            block_height: height,
            output: StoredOutput { satoshis, script: bytes::Bytes::copy_from_slice(new_script) },
        })
    }

    fn reassign(&mut self, outpoint: Outpoint, action: &CommandAction<'_>) -> ExpectedResult {
        let Some(entry) = self.entry_of(outpoint, action) else { return Nothing };
        if self.history.restrictions.reassigned.get(&outpoint).is_some_and(|before| before.contains(&entry)) {
            return Refused("ALREADY_REASSIGNED");
        }
        if self.history.current_output(&outpoint).is_none() {
            return Refused("UTXO_NOT_FOUND");
        }
        if !self.history.restrictions.frozen.contains(&outpoint) {
            return Refused("NOT_FROZEN");
        }
        let now = self.history.current_output(&outpoint);
        let now = now.map(|coin| utxo_hash(&outpoint.txid, outpoint.vout, &coin.script, coin.satoshis));
        if now != Some(entry.utxo_hash) {
            return Refused("UTXO_HASH_MISMATCH");
        }
        let page = |at: &Outpoint| (at.txid, at.vout / self.history.rules.utxo_batch_size);
        let on_page = self.history.restrictions.reassigned.iter().filter(|(at, _)| page(at) == page(&outpoint));
        let entries = on_page.flat_map(|(_, entries)| entries).chain([&entry]);
        if entries.map(|entry| 256 + entry.output.script.len()).sum::<usize>() > 262_144 {
            return Refused("TOO_MANY_REASSIGNMENTS");
        }
        self.apply_restrictions(action);
        Done
    }

    /// Lifts the bars on the outputs that an operator has named for this event.
    pub fn lift_bars(&mut self, block_height: u32) {
        for LiftedOutput { outpoint, owner } in self.lifted.remove(&self.offset).unwrap_or_default() {
            let History { facts, rules, restrictions, tx_entries, .. } = &mut self.history;
            restrictions.frozen.remove(&outpoint);
            restrictions.spendable_from.remove(&outpoint);
            let is_unfrozen = tx_entries.get_mut(&outpoint.txid).and_then(|tx_entry| tx_entry.frozen.replace(false));
            let hash_of = |coin: &Coin| utxo_hash(&outpoint.txid, outpoint.vout, &coin.script, coin.satoshis);
            let entries = restrictions.reassigned.entry(outpoint).or_default();
            let present = entries.last().map(|entry| entry.new_utxo_hash);
            if let (Some(utxo_hash), Some(owner)) = (present.filter(|present| Some(*present) != owner), owner) {
                let made = facts.output(&outpoint, rules).filter(|made| hash_of(made) == owner);
                let output = match made {
                    Some(made) => StoredOutput { satoshis: made.satoshis, script: made.script.clone() },
                    None => entries.iter().find(|entry| entry.new_utxo_hash == owner).unwrap().output.clone(),
                };
                let offset = outpoint.vout % rules.utxo_batch_size;
                entries.push(Reassignment { offset, utxo_hash, new_utxo_hash: owner, block_height, output });
            }
            if entries.is_empty() {
                restrictions.reassigned.remove(&outpoint);
            }
            if is_unfrozen == Some(true) {
                self.reconsider_children(outpoint.txid, |_| true);
            }
        }
    }

    /// Only a transaction that is not live releases a slot; it may have been about to take the slot.
    fn unspend(&mut self, outpoint: Outpoint, spender: Txid) -> ExpectedResult {
        if self.history.current_output(&outpoint).is_none() {
            return Refused("UTXO_NOT_FOUND");
        }
        if self.history.restrictions.frozen.contains(&outpoint) {
            return Refused("FROZEN");
        }
        self.mentioned.insert(spender);
        let pruned_with_it =
            self.history.restrictions.spender_pruned.get(&outpoint).is_some_and(|by| by.txid == spender);
        // A partial transaction is live as soon as it is stored, which may be later.
        if self.history.is_partial(&spender) || self.history.may_be_pruned.contains(&spender) {
            return DoneOrNothingOr("INVALID_SPEND");
        }
        // A deleted transaction was conflicting.
        if pruned_with_it || self.history.require_live(&spender) { Refused("INVALID_SPEND") } else { DoneOrNothing }
    }

    fn set_conflicting(&mut self, txid: Txid) -> ExpectedResult {
        if self.history.is_mined(&txid) || self.history.is_partial(&txid) {
            return Refused("INVALID_SPEND");
        }
        if matches!(self.history.status(&txid), Some(TxStatus::Conflicting(_))) {
            return Nothing;
        }
        let was_live = self.history.require_live(&txid);
        match self.next_decision() {
            Some(DecisionBody::Conflicting { txid: named, reason: Reason::Command, height, live }) if named == txid => {
                self.check_height(&txid, height, None);
                if live != was_live {
                    self.complain(format!("{txid} is decided as live before: {live}; the history says: {was_live}"));
                }
                let newly_conflicting =
                    self.mark_descendants_conflicting(height, vec![(txid, Reason::Command)], &BTreeSet::new());
                self.after_verdict(&BTreeSet::new(), &newly_conflicting);
            }
            other => self.complain(format!("{txid} must become conflicting, but the decision is {other:?}")),
        }
        Done
    }
}
