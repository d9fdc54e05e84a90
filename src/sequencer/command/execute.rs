//! Does what a command was decided to do. Every part is idempotent, so it can be done again from its beginning.

use std::slice;

use crate::{
    event::Action,
    record::{
        CommandResult, HeldSlot, Key, Outcome, Phase, Rejection, Sequenced, Slot, SpendingData, TxState, Verdict,
    },
    replay::Fate,
    sequencer::{
        Stop,
        command::evaluate::{NOBODY, reassign},
        contest::Named,
        handler::{At, Handler},
        steps::Making,
    },
    tx::{Outpoint, Txid},
};

impl Handler {
    pub(super) async fn execute(
        &self,
        at: At,
        applied_again: bool,
        action: &Action<'_>,
        result: &CommandResult,
    ) -> Result<(), Stop> {
        if matches!(result, CommandResult::Refused { .. }) {
            return Ok(());
        }
        let subject = action.subject();
        if at.making == Making::Replaying && self.parts.verdicts.get(&subject) == Some(Fate::Accepted) {
            // Its verdict may stand behind the command, and it may wait for that of a parent: a stub makes it come.
            self.contest_holders(at, Phase::Apply, vec![subject]).await?;
        }
        if let Action::Unspend { outpoint, spender, input } = action {
            // Whether the slot named the spender or not: its spend may have been on the way.
            let holder = SpendingData { txid: *spender, input: *input };
            return self.unspend(at, applied_again, *outpoint, holder).await;
        }
        if *result != CommandResult::Applied {
            return Ok(());
        }
        match action {
            Action::Lock { txid } => self.apply_to_whole(at, applied_again, *txid, Sequenced::SetLocked(true)).await,
            Action::Unlock { txid } => {
                self.apply_to_whole(at, applied_again, *txid, Sequenced::SetLocked(false)).await?;
                self.chances_after_lifting(at, &[*txid], None).await
            }
            Action::Preserve { txid, until } => {
                self.apply_to_whole(at, applied_again, *txid, Sequenced::Preserve { until: *until }).await
            }
            Action::Delete { txid } => self.delete(at, applied_again, *txid).await,
            Action::Freeze { outpoint } => {
                self.free_slot(at, applied_again, *outpoint).await?;
                self.apply_to_slot(at, applied_again, *outpoint, |offset| Some(Sequenced::Freeze { offset })).await
            }
            Action::Unfreeze { outpoint } => {
                self.apply_to_slot(at, applied_again, *outpoint, |offset| Some(Sequenced::Unfreeze { offset })).await?;
                self.chances_after_lifting(at, &[outpoint.txid], Some(*outpoint)).await
            }
            Action::FreezeUntil { outpoint, height } => {
                let until = |offset| Some(Sequenced::FreezeUntil { offset, height: *height, decided: true });
                self.free_slot(at, applied_again, *outpoint).await?;
                self.apply_to_slot(at, applied_again, *outpoint, until).await
            }
            Action::Reassign { outpoint, .. } => {
                self.free_slot(at, applied_again, *outpoint).await?;
                self.apply_to_slot(at, applied_again, *outpoint, |offset| reassign(action, offset, true)).await
            }
            Action::SetConflicting { .. } | Action::Unspend { .. } | Action::Reconsider { .. } => Ok(()),
        }
    }

    /// The same to every page, the master last.
    async fn apply_to_whole(&self, at: At, applied_again: bool, txid: Txid, operation: Sequenced) -> Result<(), Stop> {
        let Some(master) = self.wait_for_bodies(at, applied_again, &[txid]).await?.pop() else { return Ok(()) };
        if let TxState::Pruned(_) = master.state() {
            return Ok(());
        }
        self.apply_to_all_others(at, &master, &operation).await?;
        self.apply_decided(at, vec![at.row(Phase::Apply, Key::master(txid), operation)]).await
    }

    /// Takes a slot that a command was granted from whoever holds it: one who is not live, or, where the decision is applied again, a
    /// stranger who took it because a node forgot it, or who got it behind the command. Of the live ones each gets its own turn. In a
    /// rebuild whoever holds a slot holds it in the end.
    async fn free_slot(&self, at: At, applied_again: bool, outpoint: Outpoint) -> Result<(), Stop> {
        if at.making == Making::Replaying {
            return Ok(());
        }
        if applied_again {
            // A node may have forgotten the mark that was made before this was decided.
            self.wait_for_bodies(at, applied_again, &[outpoint.txid]).await?;
            self.settle_slot(at, outpoint, NOBODY).await?;
        }
        let Some(holder) = self.holder_of(at, applied_again, outpoint).await? else { return Ok(()) };
        let named = self.contest_holders(at, Phase::Apply, vec![holder.txid]).await?;
        if named.get(&holder.txid) == Some(&Named::Live) {
            if !applied_again {
                let offset = at.offset;
                return Err(Stop::Halt(format!(
                    "chain offset {offset}: {outpoint} was free, and {} is live",
                    holder.txid
                )));
            }
            self.publish_reconsider(at, &[holder.txid]).await?;
        }
        self.settle_slot(at, outpoint, holder).await
    }

    async fn settle_slot(&self, at: At, outpoint: Outpoint, holder: SpendingData) -> Result<(), Stop> {
        let (key, offset) = self.place(outpoint);
        let settled = Sequenced::Settle(vec![HeldSlot { offset, holder }]);
        self.apply_to_slots(vec![at.row(Phase::Apply, key, settled)]).await.map(drop)
    }

    async fn holder_of(&self, at: At, applied_again: bool, outpoint: Outpoint) -> Result<Option<SpendingData>, Stop> {
        let masters = self.wait_for_bodies(at, applied_again, &[outpoint.txid]).await?;
        let slots = self.slots_of(&masters, std::iter::once(outpoint)).await?;
        Ok(slots.get(&outpoint).and_then(Slot::spender))
    }

    async fn apply_to_slot(
        &self,
        at: At,
        applied_again: bool,
        outpoint: Outpoint,
        operation: impl Fn(u32) -> Option<Sequenced>,
    ) -> Result<(), Stop> {
        let (key, offset) = self.place(outpoint);
        let (Key::Page(txid, number), Some(operation)) = (key, operation(offset)) else { return Ok(()) };
        loop {
            self.wait_for_bodies(at, applied_again, &[txid]).await?;
            let row = at.row(Phase::Apply, key, operation.clone());
            match self.apply(vec![row.clone()]).await?.pop() {
                None => return Ok(()),
                // One that is given to a new owner is all spent no longer.
                Some(done @ (Outcome::Applied(_) | Outcome::AlreadyApplied(_))) => {
                    return self.tell_masters(&[row], &[done]).await;
                }
                // A later event of the chain has seen to it.
                Some(Outcome::Rejected(
                    Rejection::StaleStamp(_)
                    | Rejection::AlreadyFrozen(_)
                    | Rejection::NotFrozen(_)
                    | Rejection::Pruned(_),
                )) => return Ok(()),
                // In a rebuild who gets it once it is free again may be there before.
                Some(Outcome::Rejected(Rejection::SpentBy(..))) if at.making == Making::Replaying => return Ok(()),
                Some(Outcome::Rejected(Rejection::NotFound)) => self.restore_page(txid, number).await?,
                Some(Outcome::Rejected(rejection)) => {
                    let (offset, code) = (at.offset, rejection.code());
                    return Err(Stop::Halt(format!(
                        "chain offset {offset}: {outpoint} refuses what was decided: {code}"
                    )));
                }
            }
        }
    }

    /// Frees a slot that names who is not live, and bars the way of a spend that may still be coming. Who is live in the end of a
    /// rebuild may hold it by then.
    async fn unspend(&self, at: At, applied_again: bool, outpoint: Outpoint, holder: SpendingData) -> Result<(), Stop> {
        self.wait_for_bodies(at, applied_again, &[outpoint.txid]).await?;
        if self.ends_live(at, &holder.txid) {
            return Ok(());
        }
        if at.making == Making::Allowed {
            let named = self.contest_holders(at, Phase::Apply, vec![holder.txid]).await?;
            // It was not when this was decided: by a later event it is, or because a node forgot.
            if named.get(&holder.txid) != Some(&Named::NotLive) {
                return Ok(());
            }
        }
        self.settle_slot(at, outpoint, holder).await
    }

    /// Turns a conflicting transaction into a tombstone, its other pages first; that keeps what it takes to do this again. Who is live in the end of a rebuild was brought back
    /// behind that.
    async fn delete(&self, at: At, applied_again: bool, txid: Txid) -> Result<(), Stop> {
        let Some(master) = self.wait_for_bodies(at, applied_again, &[txid]).await?.pop() else { return Ok(()) };
        let fell = match master.state() {
            TxState::Conflicting(Verdict::Conflicting(_)) => true,
            // Done before: what a node forgot of it is done again by what the tombstone keeps.
            TxState::Pruned(_) => master.conflicting,
            _ => false,
        };
        if !fell || self.ends_live(at, &txid) {
            return Ok(());
        }
        self.settle_all(at, applied_again, slice::from_ref(&master)).await?;
        let height = self.height();
        let keep = self.parts.settings.prune.and_then(|task| task.pass.keep_tombstones);
        let prune = |keep_until| Sequenced::Prune { height, keep_until };
        self.apply_to_all_others(at, &master, &prune(None)).await?;
        let row = at.row(Phase::Apply, Key::master(txid), prune(keep.map(|blocks| height.saturating_add(blocks))));
        self.apply_decided(at, vec![row]).await
    }
}
