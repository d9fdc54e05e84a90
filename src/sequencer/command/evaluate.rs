//! What a command comes to. Mostly that is what its record operation would answer: the pure function is asked with what was read.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    event::{Action, DecisionBody},
    record::{
        self, CommandResult, HeldSlot, Key, Operation, Outcome, Page, Phase, Reason, Reassignment, Record, Rejection,
        Sequenced, Slot, SpendingData, StoredOutput, TxState, Verdict,
    },
    sequencer::{
        Stop,
        contest::Named,
        handler::{At, Handler},
        pages::others,
    },
    store::into_page,
    tx::{Outpoint, Txid, utxo_hash},
};

/// What a command comes to.
pub(super) enum Answer {
    /// This.
    Result(CommandResult),
    /// It can be done, and this is decided, and done, before it is.
    First(DecisionBody),
}

/// The longest locking script of a new owner, bytes: records stay small, and no command is too large for the store.
const LONGEST_SCRIPT: usize = 10_000;

/// Holds no slot: to say in a `Settle` that a slot is only to be marked.
pub(super) const NOBODY: SpendingData = SpendingData { txid: Txid([0; 32]), input: u32::MAX };

/// What refuses a command whatever the store holds.
pub(super) fn refused_unseen(action: &Action<'_>) -> Option<CommandResult> {
    let height = match action {
        Action::FreezeUntil { height, .. } => *height,
        Action::Preserve { until, .. } => *until,
        Action::Reassign { new_script, .. } if new_script.len() > LONGEST_SCRIPT => {
            let message =
                format!("the new owner's script has {} bytes, {LONGEST_SCRIPT} are the most", new_script.len());
            return Some(refused("SCRIPT_TOO_LONG", message));
        }
        Action::Reassign { height, spendable_after, .. } => height.saturating_add(*spendable_after),
        _ => return None,
    };
    let message = "no block comes at height 4294967295 or above".to_owned();
    (height == u32::MAX).then(|| refused("INVALID_HEIGHT", message))
}

/// It was not done, and why.
pub(super) fn refused(code: &str, message: impl Into<String>) -> CommandResult {
    CommandResult::Refused { code: code.to_owned(), message: message.into() }
}

/// The operation that a reassignment is.
pub(super) fn reassign(action: &Action<'_>, offset: u32, decided: bool) -> Option<Sequenced> {
    let Action::Reassign { outpoint, utxo_hash: now, new_script, satoshis, height, spendable_after } = action else {
        return None;
    };
    Some(Sequenced::Reassign {
        offset,
        utxo_hash: *now,
        new_utxo_hash: utxo_hash(&outpoint.txid, outpoint.vout, new_script, *satoshis),
        output: StoredOutput { satoshis: *satoshis, script: Bytes::copy_from_slice(new_script) },
        block_height: *height,
        spendable_at: height.saturating_add(*spendable_after),
        decided,
    })
}

impl Handler {
    pub(super) async fn evaluate(&self, at: At, action: &Action<'_>, master: &Arc<Page>) -> Result<Answer, Stop> {
        let on_master = |operation| self.would_be(at, Key::master(master.txid), master, operation);
        let result = match action {
            Action::Lock { .. } => on_master(Sequenced::SetLocked(true))?,
            Action::Unlock { .. } => on_master(Sequenced::SetLocked(false))?,
            Action::Preserve { until, .. } => on_master(Sequenced::Preserve { until: *until })?,
            Action::Delete { .. } if master.is_coinbase => {
                return Ok(not_conflicting("a coinbase stays: its block may return"));
            }
            Action::Delete { .. } => match master.state() {
                TxState::Conflicting(Verdict::Conflicting(_)) if self.is_barred(master).await? => {
                    Outcome::Rejected(Rejection::NotPrunable)
                }
                TxState::Conflicting(Verdict::Conflicting(_)) => {
                    on_master(Sequenced::Prune { height: self.height(), keep_until: None })?
                }
                _ => return Ok(not_conflicting("only what is conflicting by verdict is deleted")),
            },
            Action::SetConflicting { txid } => return self.evaluate_set_conflicting(at, *txid).await,
            Action::Unspend { outpoint, spender, input } => {
                let holder = SpendingData { txid: *spender, input: *input };
                return self.evaluate_unspend(at, *outpoint, holder, master).await.map(Answer::Result);
            }
            Action::Freeze { outpoint } => {
                return self.evaluate_slot(at, *outpoint, master, |offset| Sequenced::Freeze { offset }).await;
            }
            Action::Unfreeze { outpoint } => {
                return self.evaluate_slot(at, *outpoint, master, |offset| Sequenced::Unfreeze { offset }).await;
            }
            Action::FreezeUntil { outpoint, height } => {
                let until = |offset| Sequenced::FreezeUntil { offset, height: *height, decided: false };
                return self.evaluate_slot(at, *outpoint, master, until).await;
            }
            Action::Reassign { outpoint, .. } => return self.evaluate_reassign(at, action, *outpoint, master).await,
            Action::Reconsider { .. } => {
                return Err(Stop::Halt(format!("chain offset {}: a `Reconsider` has no result", at.offset)));
            }
        };
        Ok(Answer::Result(result_of(result)))
    }

    async fn is_barred(&self, master: &Page) -> Result<bool, Stop> {
        let mut found = false;
        self.each_page(master, |page| found |= page.is_barred()).await?;
        Ok(found)
    }

    /// What an operation would answer, had this been decided.
    fn would_be(&self, at: At, key: Key, page: &Arc<Page>, operation: Sequenced) -> Result<Outcome, Stop> {
        let mut record = Some(Record::Page(page.clone()));
        let operation = Operation::Sequenced(at.stamp(Phase::Apply), operation);
        match record::apply(&self.parts.store.settings.rules, &key, &mut record, &operation).outcome {
            Outcome::Rejected(Rejection::StaleStamp(_)) => Err(Stop::Behind(at.offset)),
            outcome => Ok(outcome),
        }
    }

    /// What an operation on a slot would answer. One that is free is marked before it is looked at for good: from then on only the
    /// sequencer takes it. One that is held by who is not live counts as free, and the holder is contested, so that it stays so.
    async fn evaluate_slot(
        &self,
        at: At,
        outpoint: Outpoint,
        master: &Arc<Page>,
        operation: impl Fn(u32) -> Sequenced,
    ) -> Result<Answer, Stop> {
        let (key, offset) = self.place(outpoint);
        let mut marked = false;
        loop {
            let Some(page) = self.page_of_slot(key, master).await? else { return Ok(no_such_output(outpoint)) };
            let result = match self.would_be(at, key, &page, operation(offset))? {
                Outcome::Rejected(Rejection::SpentBy(_, holder)) if page.pruned_spenders.contains(&offset) => {
                    spent_by(holder)
                }
                Outcome::Rejected(Rejection::SpentBy(_, holder)) => {
                    let named = self.contest_holders(at, Phase::Evaluate, vec![holder.txid]).await?;
                    match named.get(&holder.txid) {
                        Some(Named::Live) => spent_by(holder),
                        _ => CommandResult::Applied,
                    }
                }
                Outcome::Applied(_) if !marked && matches!(slot_in(&page, offset), Some(Slot::Unspent(_))) => {
                    self.mark(at, key, offset).await?;
                    marked = true;
                    continue;
                }
                outcome => result_of(outcome),
            };
            return Ok(Answer::Result(result));
        }
    }

    async fn evaluate_reassign(
        &self,
        at: At,
        action: &Action<'_>,
        outpoint: Outpoint,
        master: &Arc<Page>,
    ) -> Result<Answer, Stop> {
        let (key, offset) = self.place(outpoint);
        let Some(page) = self.page_of_slot(key, master).await? else { return Ok(no_such_output(outpoint)) };
        let Some(operation) = reassign(action, offset, false) else { return Ok(no_such_output(outpoint)) };
        if page.reassignments.iter().any(|entry| is_entry_of(entry, &operation)) {
            let message = "this very output was given to this very owner at this very height before";
            return Ok(Answer::Result(refused("ALREADY_REASSIGNED", message)));
        }
        Ok(Answer::Result(result_of(self.would_be(at, key, &page, operation)?)))
    }

    /// The spender is contested first, so that it cannot become live behind our back.
    async fn evaluate_unspend(
        &self,
        at: At,
        outpoint: Outpoint,
        holder: SpendingData,
        master: &Arc<Page>,
    ) -> Result<CommandResult, Stop> {
        let (key, offset) = self.place(outpoint);
        let no_such_output = || result_of(Outcome::Rejected(Rejection::NoSuchOutput(offset)));
        let Some(page) = self.page_of_slot(key, master).await? else { return Ok(no_such_output()) };
        let is_live = || refused("INVALID_SPEND", format!("{} is live: it keeps what it spends", holder.txid));
        match slot_in(&page, offset) {
            None | Some(Slot::Nil) => return Ok(no_such_output()),
            Some(Slot::Frozen(_)) => return Ok(result_of(Outcome::Rejected(Rejection::Frozen(offset)))),
            Some(Slot::Spent(_, there)) if there == holder && page.pruned_spenders.contains(&offset) => {
                return Ok(is_live());
            }
            Some(Slot::Unspent(_) | Slot::Spent(..)) => {}
        }
        let named = self.contest_holders(at, Phase::Evaluate, vec![holder.txid]).await?;
        if named.get(&holder.txid) != Some(&Named::NotLive) {
            return Ok(is_live());
        }
        let names = slot_in(&page, offset).and_then(|slot| slot.spender()) == Some(holder);
        Ok(if names { CommandResult::Applied } else { CommandResult::AlreadyApplied })
    }

    async fn evaluate_set_conflicting(&self, at: At, txid: Txid) -> Result<Answer, Stop> {
        // Whoever is not live stays so until it has this verdict.
        self.contest_holders(at, Phase::Evaluate, vec![txid]).await?;
        let Some(page) = self.master(txid).await? else { return Err(Stop::Behind(at.offset)) };
        let is_mined = page.master.as_ref().is_some_and(|master| master.unmined_since.is_none());
        let live = match page.state() {
            TxState::Conflicting(Verdict::Conflicting(_)) => {
                return Ok(Answer::Result(CommandResult::AlreadyApplied));
            }
            TxState::Live if is_mined => return Ok(not_conflicting("it is mined on the longest chain")),
            state => state == TxState::Live,
        };
        let height = self.decision_height(&page);
        Ok(Answer::First(DecisionBody::Conflicting { txid, reason: Reason::Command, height, live }))
    }

    async fn mark(&self, at: At, key: Key, offset: u32) -> Result<(), Stop> {
        let marked = Sequenced::Settle(vec![HeldSlot { offset, holder: NOBODY }]);
        match self.apply(vec![at.row(Phase::Evaluate, key, marked)]).await?.pop() {
            Some(Outcome::Rejected(Rejection::StaleStamp(_))) => Err(Stop::Behind(at.offset)),
            _ => Ok(()),
        }
    }

    /// The page of a slot; `None`: its master tells of no such page.
    async fn page_of_slot(&self, key: Key, master: &Arc<Page>) -> Result<Option<Arc<Page>>, Stop> {
        let Key::Page(txid, number) = key else { return Ok(None) };
        if number > others(master) {
            return Ok(None);
        }
        loop {
            let there = self.answer("the store", self.parts.store.read(vec![key])).await?;
            if let Some(page) = into_page(there.into_iter().flatten().next()) {
                return Ok(Some(page));
            }
            self.restore_page(txid, number).await?;
        }
    }
}

fn slot_in(page: &Page, offset: u32) -> Option<Slot> {
    page.utxos.as_ref()?.get(offset as usize).copied()
}

fn is_entry_of(entry: &Reassignment, operation: &Sequenced) -> bool {
    matches!(operation, Sequenced::Reassign { offset, utxo_hash, new_utxo_hash, output, block_height, .. }
        if (entry.offset, entry.utxo_hash, entry.new_utxo_hash) == (*offset, *utxo_hash, *new_utxo_hash)
            && (entry.block_height, &entry.output) == (*block_height, output))
}

fn not_conflicting(why: &str) -> Answer {
    Answer::Result(refused("INVALID_SPEND", why))
}

fn no_such_output(outpoint: Outpoint) -> Answer {
    Answer::Result(refused("UTXO_NOT_FOUND", format!("there is no output {outpoint} that could be spent")))
}

fn spent_by(holder: SpendingData) -> CommandResult {
    refused("SPENT", format!("it is spent by input {} of {}", holder.input, holder.txid))
}

fn result_of(outcome: Outcome) -> CommandResult {
    match outcome {
        Outcome::Applied(_) => CommandResult::Applied,
        Outcome::AlreadyApplied(_) => CommandResult::AlreadyApplied,
        Outcome::Rejected(rejection) => refused(rejection.code(), why(&rejection)),
    }
}

fn why(rejection: &Rejection) -> String {
    match rejection {
        Rejection::NoSuchOutput(_) => "there is no such output that could be spent".to_owned(),
        Rejection::AlreadyFrozen(_) => "it is frozen already".to_owned(),
        Rejection::Frozen(_) => "it is frozen".to_owned(),
        Rejection::NotFrozen(_) => "it is not frozen".to_owned(),
        Rejection::HashMismatch(_) => "its hash is another one".to_owned(),
        Rejection::NotPrunable => "it is preserved, or an output of it was given to a new owner".to_owned(),
        other => format!("{other:?}"),
    }
}
