//! Executes the decided commands. Each part is idempotent, so that a command can be executed again from its beginning.

use std::slice;

use crate::{
    event::CommandAction,
    record::{CommandResult, HeldSlot, Key, Phase, Rejection, Sequenced, Slot, SpendingData, TxState, Verdict},
    replay::FinalState,
    sequencer::{
        SequencerError,
        command::{
            evaluate::{NO_HOLDER, build_reassign},
            presence::wait_for_lost_spends,
        },
        context::HandlerContext,
        holders::{HolderState, contest_holder},
        lost_records::{apply_to_every_page, apply_to_stored_slot, wait_for_bodies},
        pages::{apply_to_every_extra_page, apply_to_slots, read_slots},
        second_chances::{publish_chances_after_lifting, publish_reconsider},
        settle::settle_transactions,
    },
    store::into_page,
    tx::{Outpoint, Txid},
};

/// Executes the commands that a decision grants.
pub struct CommandExecutor<'a> {
    cx: &'a HandlerContext<'a>,
}

impl<'a> CommandExecutor<'a> {
    /// Makes an executor in the context of the decision.
    pub fn new(cx: &'a HandlerContext<'a>) -> Self {
        CommandExecutor { cx }
    }

    /// Executes a command with this result.
    pub async fn execute(&self, action: &CommandAction<'_>, result: &CommandResult) -> Result<(), SequencerError> {
        if matches!(result, CommandResult::Refused { .. }) {
            return Ok(());
        }
        let subject = action.subject();
        if self.cx.is_replay() && self.cx.parts.verdicts.get(&subject) == Some(FinalState::Accepted) {
            // The verdict on the transaction may have a later offset than the command, and its event may wait for the
            // verdict on a parent. A stub makes the pipeline store it.
            contest_holder(self.cx, Phase::Apply, subject).await?;
        }
        if let CommandAction::Unspend { outpoint, spender, input } = action {
            // Also where the slot does not name the spender: a late spend is barred by the mark.
            let holder = SpendingData { txid: *spender, input: *input };
            return self.unspend(*outpoint, holder).await;
        }
        if *result != CommandResult::Applied {
            return Ok(());
        }
        match action {
            CommandAction::Lock { txid } => self.set_flag(*txid, Sequenced::SetLocked(true)).await,
            CommandAction::Unlock { txid } => self.clear_flag(*txid, Sequenced::SetLocked(false)).await,
            CommandAction::FreezeTransaction { txid } => self.set_flag(*txid, Sequenced::SetFrozen(true)).await,
            CommandAction::UnfreezeTransaction { txid } => self.clear_flag(*txid, Sequenced::SetFrozen(false)).await,
            CommandAction::Preserve { txid, until } => {
                apply_to_every_page(self.cx, *txid, Sequenced::Preserve { until: *until }).await
            }
            CommandAction::Delete { txid } => self.delete(*txid).await,
            CommandAction::Freeze { outpoint } => {
                self.free_slot(*outpoint).await?;
                self.apply_to_slot(*outpoint, |offset| Some(Sequenced::Freeze { offset })).await
            }
            CommandAction::Unfreeze { outpoint } => {
                self.apply_to_slot(*outpoint, |offset| Some(Sequenced::Unfreeze { offset })).await?;
                publish_chances_after_lifting(self.cx, &[outpoint.txid], Some(*outpoint)).await
            }
            CommandAction::FreezeUntil { outpoint, height } => {
                let until = |offset| Some(Sequenced::FreezeUntil { offset, height: *height, decided: true });
                self.free_slot(*outpoint).await?;
                self.apply_to_slot(*outpoint, until).await
            }
            CommandAction::Reassign { outpoint, .. } => {
                self.free_slot(*outpoint).await?;
                self.apply_to_slot(*outpoint, |offset| build_reassign(action, offset, true)).await
            }
            CommandAction::SetConflicting { .. } | CommandAction::Unspend { .. } | CommandAction::Reconsider { .. } => {
                Ok(())
            }
        }
    }

    /// Sets a flag that bars all outputs of a transaction.
    async fn set_flag(&self, txid: Txid, flag: Sequenced) -> Result<(), SequencerError> {
        wait_for_lost_spends(self.cx, txid).await?;
        apply_to_every_page(self.cx, txid, flag).await
    }

    /// Clears a flag that barred all outputs of a transaction.
    async fn clear_flag(&self, txid: Txid, flag: Sequenced) -> Result<(), SequencerError> {
        apply_to_every_page(self.cx, txid, flag).await?;
        publish_chances_after_lifting(self.cx, &[txid], None).await
    }

    /// Frees a slot that a command was granted. The holder is not live, or the decision is applied again: then the
    /// holder took the slot because a node lost its mark, or got it by an event after the command. A live holder loses
    /// the slot and gets a `Reconsider`. A rebuild leaves the slot to its holder, who has it at the frontier.
    async fn free_slot(&self, outpoint: Outpoint) -> Result<(), SequencerError> {
        if self.cx.is_replay() {
            return Ok(());
        }
        if self.cx.applied_again {
            // A node may have lost the mark that was made before the decision.
            wait_for_bodies(self.cx, &[outpoint.txid]).await?;
            self.settle_slot(outpoint, NO_HOLDER).await?;
        }
        let Some(holder) = self.read_holder(outpoint).await? else { return Ok(()) };
        if contest_holder(self.cx, Phase::Apply, holder.txid).await? == HolderState::Live {
            if !self.cx.applied_again {
                if self.is_changed_later(outpoint).await? {
                    return Err(SequencerError::Behind(self.cx.offset));
                }
                let holder = holder.txid;
                let why = format_args!("cannot free the decided slot {outpoint}: its holder {holder} is live");
                return Err(self.cx.halt(why));
            }
            publish_reconsider(self.cx, &[holder.txid]).await?;
        }
        self.settle_slot(outpoint, holder).await
    }

    async fn settle_slot(&self, outpoint: Outpoint, holder: SpendingData) -> Result<(), SequencerError> {
        let (key, offset) = self.cx.locate(outpoint);
        let settled = Sequenced::Settle(vec![HeldSlot { offset, holder }]);
        apply_to_slots(self.cx, vec![self.cx.row(Phase::Apply, key, settled)]).await.map(drop)
    }

    /// Returns whether a later event has changed the page of this slot: another sequencer is ahead.
    async fn is_changed_later(&self, outpoint: Outpoint) -> Result<bool, SequencerError> {
        let page = self.cx.read(vec![self.cx.locate(outpoint).0]).await?.into_iter().find_map(into_page);
        Ok(page.is_some_and(|page| page.chain_pos > Some(self.cx.stamp(Phase::Apply))))
    }

    async fn read_holder(&self, outpoint: Outpoint) -> Result<Option<SpendingData>, SequencerError> {
        let masters = wait_for_bodies(self.cx, &[outpoint.txid]).await?;
        let slots = read_slots(self.cx, &masters, std::iter::once(outpoint)).await?;
        Ok(slots.get(&outpoint).and_then(Slot::spender))
    }

    async fn apply_to_slot(
        &self,
        outpoint: Outpoint,
        operation: impl Fn(u32) -> Option<Sequenced>,
    ) -> Result<(), SequencerError> {
        let (key, offset) = self.cx.locate(outpoint);
        let (Key::Page(txid, number), Some(operation)) = (key, operation(offset)) else { return Ok(()) };
        match apply_to_stored_slot(self.cx, (txid, number), operation).await? {
            None => Ok(()),
            // A later chain event has already changed the slot.
            Some(
                Rejection::StaleStamp(_) | Rejection::AlreadyFrozen(_) | Rejection::NotFrozen(_) | Rejection::Pruned(_),
            ) => Ok(()),
            // In a rebuild the slot may already have the spender that it gets after a later event.
            Some(Rejection::SpentBy(..)) if self.cx.is_replay() => Ok(()),
            Some(rejection) => Err(self.cx.halt_refused(outpoint, &rejection)),
        }
    }

    /// Frees a slot of a spender that is not live, and bars a spend that may still be late. In a rebuild a spender that
    /// is live at the frontier keeps the slot.
    async fn unspend(&self, outpoint: Outpoint, holder: SpendingData) -> Result<(), SequencerError> {
        wait_for_bodies(self.cx, &[outpoint.txid]).await?;
        if self.cx.is_live_at_frontier(&holder.txid) {
            return Ok(());
        }
        if !self.cx.is_replay() {
            // The spender was not live at the decision. A later event made it live, or a node lost its verdict.
            if contest_holder(self.cx, Phase::Apply, holder.txid).await? != HolderState::NotLive {
                return Ok(());
            }
        }
        self.settle_slot(outpoint, holder).await
    }

    /// Turns a conflicting transaction into a tombstone, the other pages before the master. The tombstone has all that
    /// a repeat of the deletion needs. In a rebuild a transaction that is live at the frontier is left alone: a later
    /// event made it live again.
    async fn delete(&self, txid: Txid) -> Result<(), SequencerError> {
        let Some(master) = wait_for_bodies(self.cx, &[txid]).await?.pop() else { return Ok(()) };
        let is_conflicting = match master.state() {
            TxState::Conflicting(Verdict::Conflicting(_)) => true,
            // Deleted before: the parts that a node lost are deleted again by the tombstone's contents.
            TxState::Pruned(_) => master.conflicting,
            _ => false,
        };
        if !is_conflicting || self.cx.is_live_at_frontier(&txid) {
            return Ok(());
        }
        settle_transactions(self.cx, slice::from_ref(&master)).await?;
        let height = self.cx.decision_height(&master);
        let keep = self.cx.parts.settings.prune.and_then(|task| task.pass.keep_tombstones);
        let prune = |keep_until| Sequenced::Prune { height, keep_until };
        apply_to_every_extra_page(self.cx, &master, &prune(None)).await?;
        self.cx.apply_to_master(txid, prune(keep.map(|blocks| height.saturating_add(blocks)))).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        record::Stamp,
        sequencer::{handler::Handler, state::ChainState, steps::DecisionMode, tests::parts},
        store::testing,
    };

    /// The slot that a command was granted has a live holder. Protects: only a later event excuses the holder.
    #[tokio::test(start_paused = true)]
    async fn a_live_holder_halts_the_chain_unless_a_later_event_changed_the_slot() {
        for (later, is_behind) in [(None, false), (Some(7), false), (Some(8), true)] {
            let parts = parts().await;
            let store = parts.store.clone();
            let mut parent = testing::seeded(9, 1);
            let outpoint = testing::outpoint(parent.txid, 0);
            parent.chain_pos = later.map(|offset| Stamp::in_era(0, offset, Phase::Apply));
            store.plant(parent).await;
            store.accept(&testing::transaction(&[(outpoint, 1_000)], &[500])).await;
            let handler = Handler::new(parts, ChainState::default());
            let cx = handler.context(7, DecisionMode::Live);
            let freezing = CommandExecutor::new(&cx).free_slot(outpoint).await;
            match freezing.unwrap_err() {
                SequencerError::Behind(7) => assert!(is_behind),
                SequencerError::Halt(why) => assert!(!is_behind && why.contains("its holder"), "{why}"),
                other => panic!("{other}"),
            }
        }
    }
}
