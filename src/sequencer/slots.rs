//! Slots of a transaction that is mined at the other side of Genesis than its event said.
//!
//! An event says the height of the block that its transaction can first be in, and its slots are made by the rule of
//! that height. The block that lists it decides: nodes connect outputs by the height of their block.

use crate::{
    record::{Key, Outcome, Page, Phase, Rejection, Reply, Sequenced, build::slot_changes},
    sequencer::{
        Stop,
        handler::{At, Handler},
        pages::others,
    },
    store::body::ParsedBody,
};

impl Handler {
    /// Gives the outputs of an unmined transaction the slots that they have by the rule at `height`: on the other pages
    /// first, since the master is what a repeat goes by. Nothing is done where the rule at the height of its event is
    /// the same.
    pub(super) async fn set_slots(&self, at: At, master: &Page, height: u32) -> Result<(), Stop> {
        let txid = master.txid;
        let settings = &self.parts.store.settings;
        let made_at = master.master.as_ref().and_then(|bins| bins.unmined_since);
        let Some(made_at) = made_at.filter(|made_at| !settings.rules.have_same_slots(*made_at, height)) else {
            return Ok(());
        };
        tracing::info!(%txid, made_at, height, "sequencer: change the slots of a transaction mined across Genesis");
        let damaged = |error| Stop::Halt(format!("the store is damaged: {error}"));
        // Rare, and a part of every future here: boxed.
        let body = Box::pin(self.answer("the store", self.parts.store.body(master))).await.map_err(damaged)?;
        let parsed = ParsedBody::parse(txid, &body).map_err(damaged)?;
        let changes = slot_changes(txid, parsed.outputs(), settings.network, (made_at, height));
        let size = settings.utxo_batch_size.max(1);
        let mut on_master = (Vec::new(), Vec::new());
        let mut changes = changes.into_iter().peekable();
        while let Some((vout, _)) = changes.peek() {
            let number = vout / size;
            let (mut add, mut remove) = (Vec::new(), Vec::new());
            while let Some((vout, hash)) = changes.next_if(|(vout, _)| vout / size == number) {
                match hash {
                    Some(hash) => add.push((vout % size, hash)),
                    None => remove.push(vout % size),
                }
            }
            if number == 0 {
                on_master = (add, remove);
            } else {
                let set = Sequenced::SetSlots { add, remove, height };
                self.set_slots_of_other(at, master, number, &set).await?;
            }
        }
        let (add, remove) = on_master;
        let set = at.row(Phase::Apply, Key::master(txid), Sequenced::SetSlots { add, remove, height });
        self.apply_decided(at, vec![set]).await
    }

    /// The same on one page besides the master, which is told whether all slots of the page are spent. A page that a
    /// node forgot is made again first.
    async fn set_slots_of_other(&self, at: At, master: &Page, number: u32, set: &Sequenced) -> Result<(), Stop> {
        if number > others(master) {
            return Ok(());
        }
        let row = || at.row(Phase::Apply, Key::Page(master.txid, number), set.clone());
        let mut outcome = self.apply(vec![row()]).await?.pop();
        if outcome == Some(Outcome::Rejected(Rejection::NotFound)) {
            self.restore_page(master.txid, number).await?;
            outcome = self.apply(vec![row()]).await?.pop();
        }
        let all_spent = match outcome {
            Some(
                Outcome::Applied(Reply::Slots { all_spent, .. })
                | Outcome::AlreadyApplied(Reply::Slots { all_spent, .. }),
            ) => all_spent,
            Some(Outcome::Rejected(Rejection::StaleStamp(_) | Rejection::Pruned(_))) => return Ok(()),
            other => {
                let txid = master.txid;
                return Err(Stop::Halt(format!("cannot change the slots of page {number} of {txid}: {other:?}")));
            }
        };
        let said = Sequenced::SetPageSpent { page: number, spent: all_spent };
        self.apply_decided(at, vec![at.row(Phase::Apply, Key::master(master.txid), said)]).await
    }
}
