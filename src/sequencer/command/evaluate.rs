//! Evaluates commands. The result of most commands is the answer of the pure function of the record operation, applied
//! to the records that were read.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    event::{CommandAction, DecisionBody},
    record::{
        self, CommandResult, HeldSlot, Key, Operation, Outcome, Page, Phase, Reason, Reassignment, Record, Rejection,
        Sequenced, Slot, SpendingData, StoredOutput, TxState, Verdict,
    },
    sequencer::{
        SequencerError,
        context::HandlerContext,
        holders::{HolderState, contest_holder, is_mined},
        pages::{for_each_page, restore_page},
    },
    store::into_page,
    tx::{Outpoint, Txid, utxo_hash},
};

/// The evaluation of a command.
pub enum CommandEvaluation {
    /// The command has this result.
    Result(CommandResult),
    /// The command can be executed after this decision is written and applied.
    DecideFirst(DecisionBody),
}

/// The longest locking script of a new owner, bytes. The limit keeps records small, and each command small enough for
/// the store.
const MAX_SCRIPT_BYTES: usize = 10_000;

/// The most bytes that the reassignments of one page take, beside up to 1.4 MB of slots.
const REASSIGNMENT_BYTES: usize = 262_144;

/// Bytes of a reassignment besides its script, at most.
const REASSIGNMENT_ENTRY: usize = 256;

/// The holder of no slot: a `Settle` with this holder only marks the slot.
pub const NO_HOLDER: SpendingData = SpendingData { txid: Txid([0; 32]), input: u32::MAX };

/// Refuses a command by its content alone, whatever the store holds.
pub fn refuse_by_content(action: &CommandAction<'_>) -> Option<CommandResult> {
    let height = match action {
        CommandAction::FreezeUntil { height, .. } => *height,
        CommandAction::Preserve { until, .. } => *until,
        CommandAction::Reassign { new_script, .. } if new_script.len() > MAX_SCRIPT_BYTES => {
            let message =
                format!("the new owner's script has {} bytes; the limit is {MAX_SCRIPT_BYTES}", new_script.len());
            return Some(refuse("SCRIPT_TOO_LONG", message));
        }
        CommandAction::Reassign { height, spendable_after, .. } => height.saturating_add(*spendable_after),
        _ => return None,
    };
    let message = "height 4294967295 and above is never reached; give a lower height".to_owned();
    (height == u32::MAX).then(|| refuse("INVALID_HEIGHT", message))
}

/// Builds the result of a refused command.
pub fn refuse(code: &str, message: impl Into<String>) -> CommandResult {
    CommandResult::Refused { code: code.to_owned(), message: message.into() }
}

/// Refuses a `Reassign` where the entries of its page would take more than [`REASSIGNMENT_BYTES`]. The entries stay for
/// good, and a page that is too large for the store would halt the chain.
fn refuse_full_page(page: &Page, action: &CommandAction<'_>) -> Option<CommandResult> {
    let CommandAction::Reassign { new_script, .. } = action else { return None };
    let stored: usize = page.reassignments.iter().map(|entry| REASSIGNMENT_ENTRY + entry.output.script.len()).sum();
    let message = || {
        format!(
            "the reassignments of page {} of {} take {stored} bytes already, and at most {REASSIGNMENT_BYTES} fit; \
             spend the output to its new owner instead",
            page.number, page.txid
        )
    };
    let is_full = stored + REASSIGNMENT_ENTRY + new_script.len() > REASSIGNMENT_BYTES;
    is_full.then(|| refuse("TOO_MANY_REASSIGNMENTS", message()))
}

/// Builds the record operation of a `Reassign`; `None` for another action.
pub fn build_reassign(action: &CommandAction<'_>, offset: u32, decided: bool) -> Option<Sequenced> {
    let CommandAction::Reassign { outpoint, utxo_hash: now, new_script, satoshis, height, spendable_after } = action
    else {
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

/// Evaluates a command on the transaction with this master.
pub struct CommandEvaluator<'a> {
    cx: &'a HandlerContext<'a>,
    master: &'a Arc<Page>,
}

impl<'a> CommandEvaluator<'a> {
    /// Makes an evaluator of the command's transaction.
    pub fn new(cx: &'a HandlerContext<'a>, master: &'a Arc<Page>) -> Self {
        CommandEvaluator { cx, master }
    }

    /// Evaluates a command. Writes only marks and stubs.
    pub async fn evaluate(&self, action: &CommandAction<'_>) -> Result<CommandEvaluation, SequencerError> {
        let master = self.master;
        let on_master = |operation| self.simulate(Key::master(master.txid), master, operation);
        let result = match action {
            CommandAction::Lock { .. } => on_master(Sequenced::SetLocked(true))?,
            CommandAction::Unlock { .. } => on_master(Sequenced::SetLocked(false))?,
            CommandAction::FreezeTransaction { .. } => on_master(Sequenced::SetFrozen(true))?,
            CommandAction::UnfreezeTransaction { .. } => on_master(Sequenced::SetFrozen(false))?,
            CommandAction::Preserve { until, .. } => on_master(Sequenced::Preserve { until: *until })?,
            CommandAction::Delete { .. } if master.is_coinbase => {
                return Ok(refuse_invalid_spend("a coinbase is not deleted: its block may be connected again"));
            }
            CommandAction::Delete { .. } => match master.state() {
                TxState::Conflicting(Verdict::Conflicting(_)) if self.is_barred().await? => {
                    Outcome::Rejected(Rejection::NotPrunable)
                }
                TxState::Conflicting(Verdict::Conflicting(_)) => {
                    on_master(Sequenced::Prune { height: self.cx.decision_height(master), keep_until: None })?
                }
                _ => return Ok(refuse_invalid_spend("only a transaction that is conflicting by verdict is deleted")),
            },
            CommandAction::SetConflicting { txid } => return self.evaluate_set_conflicting(*txid).await,
            CommandAction::Unspend { outpoint, spender, input } => {
                let holder = SpendingData { txid: *spender, input: *input };
                return self.evaluate_unspend(*outpoint, holder).await.map(CommandEvaluation::Result);
            }
            CommandAction::Freeze { outpoint } => {
                return self.evaluate_slot(*outpoint, |offset| Sequenced::Freeze { offset }).await;
            }
            CommandAction::Unfreeze { outpoint } => {
                return self.evaluate_slot(*outpoint, |offset| Sequenced::Unfreeze { offset }).await;
            }
            CommandAction::FreezeUntil { outpoint, height } => {
                let until = |offset| Sequenced::FreezeUntil { offset, height: *height, decided: false };
                return self.evaluate_slot(*outpoint, until).await;
            }
            CommandAction::Reassign { outpoint, .. } => {
                return self.evaluate_reassign(action, *outpoint).await;
            }
            CommandAction::Reconsider { .. } => {
                return Err(self.cx.halt("a `Reconsider` has no result"));
            }
        };
        Ok(CommandEvaluation::Result(to_result(result)))
    }

    async fn is_barred(&self) -> Result<bool, SequencerError> {
        let mut found = false;
        for_each_page(self.cx, self.master, |page| found |= page.is_barred()).await?;
        Ok(found)
    }

    /// Returns the answer that an operation would give on this page after the decision.
    fn simulate(&self, key: Key, page: &Arc<Page>, operation: Sequenced) -> Result<Outcome, SequencerError> {
        let mut record = Some(Record::Page(page.clone()));
        let operation = Operation::Sequenced(self.cx.stamp(Phase::Apply), operation);
        match record::apply(&self.cx.parts.store.settings.rules, &key, &mut record, &operation).outcome {
            Outcome::Rejected(Rejection::StaleStamp(_)) => Err(SequencerError::Behind(self.cx.offset)),
            outcome => Ok(outcome),
        }
    }

    /// Evaluates an operation on a slot. A free slot is marked and read again before the decision: from the mark on
    /// only the sequencer takes the slot. A slot of a holder that is not live counts as free, and the holder is
    /// contested, so that it cannot become live meanwhile.
    async fn evaluate_slot(
        &self,
        outpoint: Outpoint,
        operation: impl Fn(u32) -> Sequenced,
    ) -> Result<CommandEvaluation, SequencerError> {
        let (key, offset) = self.cx.locate(outpoint);
        let mut marked = false;
        loop {
            let Some(page) = self.read_page_of_slot(key).await? else { return Ok(refuse_no_output(outpoint)) };
            let result = match self.simulate(key, &page, operation(offset))? {
                Outcome::Rejected(Rejection::SpentBy(_, holder)) if page.pruned_spenders.contains(&offset) => {
                    refuse_spent(holder)
                }
                Outcome::Rejected(Rejection::SpentBy(_, holder)) => {
                    match contest_holder(self.cx, Phase::Evaluate, holder.txid).await? {
                        HolderState::Live => refuse_spent(holder),
                        _ => CommandResult::Applied,
                    }
                }
                Outcome::Applied(_) if !marked && matches!(slot_in(&page, offset), Some(Slot::Unspent(_))) => {
                    self.mark_slot(key, offset).await?;
                    marked = true;
                    continue;
                }
                outcome => to_result(outcome),
            };
            return Ok(CommandEvaluation::Result(result));
        }
    }

    async fn evaluate_reassign(
        &self,
        action: &CommandAction<'_>,
        outpoint: Outpoint,
    ) -> Result<CommandEvaluation, SequencerError> {
        let (key, offset) = self.cx.locate(outpoint);
        let Some(page) = self.read_page_of_slot(key).await? else { return Ok(refuse_no_output(outpoint)) };
        let Some(operation) = build_reassign(action, offset, false) else { return Ok(refuse_no_output(outpoint)) };
        if page.reassignments.iter().any(|entry| is_same_reassignment(entry, &operation)) {
            let message = "the same output was given to the same owner at the same height before";
            return Ok(CommandEvaluation::Result(refuse("ALREADY_REASSIGNED", message)));
        }
        let outcome = self.simulate(key, &page, operation)?;
        let refused = refuse_full_page(&page, action).filter(|_| matches!(outcome, Outcome::Applied(_)));
        Ok(CommandEvaluation::Result(refused.unwrap_or_else(|| to_result(outcome))))
    }

    /// Evaluates an `Unspend`. The spender is contested first, so that it cannot become live meanwhile.
    async fn evaluate_unspend(
        &self,
        outpoint: Outpoint,
        holder: SpendingData,
    ) -> Result<CommandResult, SequencerError> {
        let (key, offset) = self.cx.locate(outpoint);
        let refuse_no_output = || to_result(Outcome::Rejected(Rejection::NoSuchOutput(offset)));
        let Some(page) = self.read_page_of_slot(key).await? else { return Ok(refuse_no_output()) };
        let is_live =
            || refuse("INVALID_SPEND", format!("{} is live and keeps the outputs that it spends", holder.txid));
        match slot_in(&page, offset) {
            None | Some(Slot::Nil) => return Ok(refuse_no_output()),
            Some(Slot::Frozen(_)) => return Ok(to_result(Outcome::Rejected(Rejection::Frozen(offset)))),
            Some(Slot::Spent(_, spender)) if spender == holder && page.pruned_spenders.contains(&offset) => {
                return Ok(is_live());
            }
            Some(Slot::Unspent(_) | Slot::Spent(..)) => {}
        }
        if contest_holder(self.cx, Phase::Evaluate, holder.txid).await? != HolderState::NotLive {
            return Ok(is_live());
        }
        let is_holder = slot_in(&page, offset).and_then(|slot| slot.spender()) == Some(holder);
        Ok(if is_holder { CommandResult::Applied } else { CommandResult::AlreadyApplied })
    }

    async fn evaluate_set_conflicting(&self, txid: Txid) -> Result<CommandEvaluation, SequencerError> {
        // A transaction that is not live stays so until this verdict is applied.
        contest_holder(self.cx, Phase::Evaluate, txid).await?;
        let Some(page) = self.cx.master(txid).await? else { return Err(SequencerError::Behind(self.cx.offset)) };
        let live = match page.state() {
            TxState::Conflicting(Verdict::Conflicting(_)) => {
                return Ok(CommandEvaluation::Result(CommandResult::AlreadyApplied));
            }
            TxState::Live if is_mined(&page) => {
                return Ok(refuse_invalid_spend("the transaction is mined on the longest chain"));
            }
            state => state == TxState::Live,
        };
        let height = self.cx.decision_height(&page);
        Ok(CommandEvaluation::DecideFirst(DecisionBody::Conflicting { txid, reason: Reason::Command, height, live }))
    }

    async fn mark_slot(&self, key: Key, offset: u32) -> Result<(), SequencerError> {
        let marked = Sequenced::Settle(vec![HeldSlot { offset, holder: NO_HOLDER }]);
        match self.cx.apply(vec![self.cx.row(Phase::Evaluate, key, marked)]).await?.pop() {
            Some(Outcome::Rejected(Rejection::StaleStamp(_))) => Err(SequencerError::Behind(self.cx.offset)),
            _ => Ok(()),
        }
    }

    /// Reads the page of a slot; `None`: the transaction has no such page. A page that a node lost is restored.
    async fn read_page_of_slot(&self, key: Key) -> Result<Option<Arc<Page>>, SequencerError> {
        let Key::Page(txid, number) = key else { return Ok(None) };
        if number > self.master.extra_pages() {
            return Ok(None);
        }
        loop {
            let records = self.cx.read(vec![key]).await?;
            if let Some(page) = into_page(records.into_iter().flatten().next()) {
                return Ok(Some(page));
            }
            restore_page(self.cx, txid, number).await?;
        }
    }
}

fn slot_in(page: &Page, offset: u32) -> Option<Slot> {
    page.utxos.as_ref()?.get(offset as usize).copied()
}

fn is_same_reassignment(entry: &Reassignment, operation: &Sequenced) -> bool {
    matches!(operation, Sequenced::Reassign { offset, utxo_hash, new_utxo_hash, output, block_height, .. }
        if (entry.offset, entry.utxo_hash, entry.new_utxo_hash) == (*offset, *utxo_hash, *new_utxo_hash)
            && (entry.block_height, &entry.output) == (*block_height, output))
}

fn refuse_invalid_spend(message: &str) -> CommandEvaluation {
    CommandEvaluation::Result(refuse("INVALID_SPEND", message))
}

fn refuse_no_output(outpoint: Outpoint) -> CommandEvaluation {
    CommandEvaluation::Result(refuse("UTXO_NOT_FOUND", format!("there is no spendable output {outpoint}")))
}

fn refuse_spent(holder: SpendingData) -> CommandResult {
    refuse("SPENT", format!("the output is spent by input {} of {}", holder.input, holder.txid))
}

fn to_result(outcome: Outcome) -> CommandResult {
    match outcome {
        Outcome::Applied(_) => CommandResult::Applied,
        Outcome::AlreadyApplied(_) => CommandResult::AlreadyApplied,
        Outcome::Rejected(rejection) => refuse(rejection.code(), explain(&rejection)),
    }
}

fn explain(rejection: &Rejection) -> String {
    match rejection {
        Rejection::NoSuchOutput(_) => "there is no such spendable output".to_owned(),
        Rejection::AlreadyFrozen(_) => "the output is already frozen".to_owned(),
        Rejection::Frozen(_) => "the output is frozen".to_owned(),
        Rejection::NotFrozen(_) => "the output is not frozen".to_owned(),
        Rejection::HashMismatch(_) => "the UTXO hash is another one".to_owned(),
        Rejection::NotPrunable => {
            "the transaction is preserved or frozen, or one of its outputs is barred or was given to a new owner"
                .to_owned()
        }
        other => format!("{other:?}"),
    }
}
