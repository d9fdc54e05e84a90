//! Executes the decided commands. Each part is idempotent, so that a command can be executed again from its beginning.

use std::slice;

use crate::{
    event::CommandAction,
    record::{
        CommandResult, HeldSlot, Key, Outcome, Phase, Rejection, Sequenced, Slot, SpendingData, TxState, Verdict,
    },
    replay::FinalState,
    sequencer::{
        SequencerError,
        command::evaluate::{NO_HOLDER, build_reassign},
        contest::HolderState,
        handler::{EventContext, Handler},
        steps::DecisionMode,
    },
    tx::{Outpoint, Txid},
};

impl Handler {
    pub(super) async fn execute(
        &self,
        ctx: EventContext,
        applied_again: bool,
        action: &CommandAction<'_>,
        result: &CommandResult,
    ) -> Result<(), SequencerError> {
        if matches!(result, CommandResult::Refused { .. }) {
            return Ok(());
        }
        let subject = action.subject();
        if ctx.mode == DecisionMode::Replay && self.parts.verdicts.get(&subject) == Some(FinalState::Accepted) {
            // The verdict on the transaction may have a later offset than the command, and its event may wait for the
            // verdict on a parent. A stub makes the pipeline store it.
            self.contest_holders(ctx, Phase::Apply, vec![subject]).await?;
        }
        if let CommandAction::Unspend { outpoint, spender, input } = action {
            // Also where the slot does not name the spender: a late spend is barred by the mark.
            let holder = SpendingData { txid: *spender, input: *input };
            return self.unspend(ctx, applied_again, *outpoint, holder).await;
        }
        if *result != CommandResult::Applied {
            return Ok(());
        }
        match action {
            CommandAction::Lock { txid } => {
                self.apply_to_every_page(ctx, applied_again, *txid, Sequenced::SetLocked(true)).await
            }
            CommandAction::Unlock { txid } => {
                self.apply_to_every_page(ctx, applied_again, *txid, Sequenced::SetLocked(false)).await?;
                self.publish_chances_after_lifting(ctx, &[*txid], None).await
            }
            CommandAction::Preserve { txid, until } => {
                self.apply_to_every_page(ctx, applied_again, *txid, Sequenced::Preserve { until: *until }).await
            }
            CommandAction::Delete { txid } => self.delete(ctx, applied_again, *txid).await,
            CommandAction::Freeze { outpoint } => {
                self.free_slot(ctx, applied_again, *outpoint).await?;
                self.apply_to_slot(ctx, applied_again, *outpoint, |offset| Some(Sequenced::Freeze { offset })).await
            }
            CommandAction::Unfreeze { outpoint } => {
                self.apply_to_slot(ctx, applied_again, *outpoint, |offset| Some(Sequenced::Unfreeze { offset }))
                    .await?;
                self.publish_chances_after_lifting(ctx, &[outpoint.txid], Some(*outpoint)).await
            }
            CommandAction::FreezeUntil { outpoint, height } => {
                let until = |offset| Some(Sequenced::FreezeUntil { offset, height: *height, decided: true });
                self.free_slot(ctx, applied_again, *outpoint).await?;
                self.apply_to_slot(ctx, applied_again, *outpoint, until).await
            }
            CommandAction::Reassign { outpoint, .. } => {
                self.free_slot(ctx, applied_again, *outpoint).await?;
                self.apply_to_slot(ctx, applied_again, *outpoint, |offset| build_reassign(action, offset, true)).await
            }
            CommandAction::SetConflicting { .. } | CommandAction::Unspend { .. } | CommandAction::Reconsider { .. } => {
                Ok(())
            }
        }
    }

    /// Applies an operation to every page of a transaction, the master last.
    async fn apply_to_every_page(
        &self,
        ctx: EventContext,
        applied_again: bool,
        txid: Txid,
        operation: Sequenced,
    ) -> Result<(), SequencerError> {
        let Some(master) = self.wait_for_bodies(ctx, applied_again, &[txid]).await?.pop() else { return Ok(()) };
        if let TxState::Pruned(_) = master.state() {
            return Ok(());
        }
        self.apply_to_every_extra_page(ctx, &master, &operation).await?;
        self.apply_decided(ctx, vec![ctx.row(Phase::Apply, Key::master(txid), operation)]).await
    }

    /// Frees a slot that a command was granted. The holder is not live, or the decision is applied again: then the
    /// holder took the slot because a node lost its mark, or got it by an event after the command. A live holder loses
    /// the slot and gets a `Reconsider`. A rebuild leaves the slot to its holder, who has it at the frontier.
    async fn free_slot(
        &self,
        ctx: EventContext,
        applied_again: bool,
        outpoint: Outpoint,
    ) -> Result<(), SequencerError> {
        if ctx.mode == DecisionMode::Replay {
            return Ok(());
        }
        if applied_again {
            // A node may have lost the mark that was made before the decision.
            self.wait_for_bodies(ctx, applied_again, &[outpoint.txid]).await?;
            self.settle_slot(ctx, outpoint, NO_HOLDER).await?;
        }
        let Some(holder) = self.read_holder(ctx, applied_again, outpoint).await? else { return Ok(()) };
        let holder_states = self.contest_holders(ctx, Phase::Apply, vec![holder.txid]).await?;
        if holder_states.get(&holder.txid) == Some(&HolderState::Live) {
            if !applied_again {
                let offset = ctx.offset;
                return Err(SequencerError::Halt(format!(
                    "chain offset {offset}: cannot free the decided slot {outpoint}: its holder {} is live",
                    holder.txid
                )));
            }
            self.publish_reconsider(ctx, &[holder.txid]).await?;
        }
        self.settle_slot(ctx, outpoint, holder).await
    }

    async fn settle_slot(
        &self,
        ctx: EventContext,
        outpoint: Outpoint,
        holder: SpendingData,
    ) -> Result<(), SequencerError> {
        let (key, offset) = self.locate(outpoint);
        let settled = Sequenced::Settle(vec![HeldSlot { offset, holder }]);
        self.apply_to_slots(vec![ctx.row(Phase::Apply, key, settled)]).await.map(drop)
    }

    async fn read_holder(
        &self,
        ctx: EventContext,
        applied_again: bool,
        outpoint: Outpoint,
    ) -> Result<Option<SpendingData>, SequencerError> {
        let masters = self.wait_for_bodies(ctx, applied_again, &[outpoint.txid]).await?;
        let slots = self.read_slots(&masters, std::iter::once(outpoint)).await?;
        Ok(slots.get(&outpoint).and_then(Slot::spender))
    }

    async fn apply_to_slot(
        &self,
        ctx: EventContext,
        applied_again: bool,
        outpoint: Outpoint,
        operation: impl Fn(u32) -> Option<Sequenced>,
    ) -> Result<(), SequencerError> {
        let (key, offset) = self.locate(outpoint);
        let (Key::Page(txid, number), Some(operation)) = (key, operation(offset)) else { return Ok(()) };
        loop {
            self.wait_for_bodies(ctx, applied_again, &[txid]).await?;
            let row = ctx.row(Phase::Apply, key, operation.clone());
            match self.apply(vec![row.clone()]).await?.pop() {
                None => return Ok(()),
                // A reassigned output is no longer spent, so the master learns that not all outputs of the page are.
                Some(done @ (Outcome::Applied(_) | Outcome::AlreadyApplied(_))) => {
                    return self.update_masters(&[row], &[done]).await;
                }
                // A later chain event has already changed the slot.
                Some(Outcome::Rejected(
                    Rejection::StaleStamp(_)
                    | Rejection::AlreadyFrozen(_)
                    | Rejection::NotFrozen(_)
                    | Rejection::Pruned(_),
                )) => return Ok(()),
                // In a rebuild the slot may already have the spender that it gets after a later event.
                Some(Outcome::Rejected(Rejection::SpentBy(..))) if ctx.mode == DecisionMode::Replay => return Ok(()),
                Some(Outcome::Rejected(Rejection::NotFound)) => self.restore_page(txid, number).await?,
                Some(Outcome::Rejected(rejection)) => {
                    let (offset, code) = (ctx.offset, rejection.code());
                    return Err(SequencerError::Halt(format!(
                        "chain offset {offset}: {outpoint} refuses what was decided: {code}"
                    )));
                }
            }
        }
    }

    /// Frees a slot of a spender that is not live, and bars a spend that may still be late. In a rebuild a spender that
    /// is live at the frontier keeps the slot.
    async fn unspend(
        &self,
        ctx: EventContext,
        applied_again: bool,
        outpoint: Outpoint,
        holder: SpendingData,
    ) -> Result<(), SequencerError> {
        self.wait_for_bodies(ctx, applied_again, &[outpoint.txid]).await?;
        if self.is_live_at_frontier(ctx, &holder.txid) {
            return Ok(());
        }
        if ctx.mode == DecisionMode::Live {
            let holder_states = self.contest_holders(ctx, Phase::Apply, vec![holder.txid]).await?;
            // The spender was not live at the decision. A later event made it live, or a node lost its verdict.
            if holder_states.get(&holder.txid) != Some(&HolderState::NotLive) {
                return Ok(());
            }
        }
        self.settle_slot(ctx, outpoint, holder).await
    }

    /// Turns a conflicting transaction into a tombstone, the other pages before the master. The tombstone has all that
    /// a repeat of the deletion needs. In a rebuild a transaction that is live at the frontier is left alone: a later
    /// event made it live again.
    async fn delete(&self, ctx: EventContext, applied_again: bool, txid: Txid) -> Result<(), SequencerError> {
        let Some(master) = self.wait_for_bodies(ctx, applied_again, &[txid]).await?.pop() else { return Ok(()) };
        let is_conflicting = match master.state() {
            TxState::Conflicting(Verdict::Conflicting(_)) => true,
            // Deleted before: the parts that a node lost are deleted again by the tombstone's contents.
            TxState::Pruned(_) => master.conflicting,
            _ => false,
        };
        if !is_conflicting || self.is_live_at_frontier(ctx, &txid) {
            return Ok(());
        }
        self.settle_transactions(ctx, applied_again, slice::from_ref(&master)).await?;
        let height = self.height();
        let keep = self.parts.settings.prune.and_then(|task| task.pass.keep_tombstones);
        let prune = |keep_until| Sequenced::Prune { height, keep_until };
        self.apply_to_every_extra_page(ctx, &master, &prune(None)).await?;
        let row = ctx.row(Phase::Apply, Key::master(txid), prune(keep.map(|blocks| height.saturating_add(blocks))));
        self.apply_decided(ctx, vec![row]).await
    }
}
