//! Slots of a transaction that was validated before Genesis and is mined since Genesis.
//!
//! An event says the height of the block that its transaction can first be in, and its slots are made by the rule of
//! that height. The block that lists the transaction decides: nodes connect outputs by the height of their block. The
//! other way round (validated since Genesis, mined before, after a deep reorg) the slots stay: no block can list a
//! spend of theirs.

use crate::{
    record::{Key, Outcome, Page, Phase, Rejection, Reply, Sequenced, build::added_slots},
    sequencer::{
        Stop,
        handler::{At, Handler},
        pages::others,
    },
    store::body::ParsedBody,
    tx::Txid,
};

impl Handler {
    /// Whether an unmined transaction lacks slots that its outputs have in a block of this height.
    pub(super) fn needs_slots(&self, master: &Page, height: u32) -> bool {
        master.unmined_since().is_some_and(|made_at| self.parts.store.settings.rules.adds_slots(made_at, height))
    }

    /// As [`add_slots`](Self::add_slots), for a transaction whose master has yet to be read.
    pub(super) async fn add_slots_of(&self, at: At, txid: Txid, height: u32) -> Result<(), Stop> {
        match self.master(txid).await? {
            Some(master) => self.add_slots(at, &master, height).await,
            None => Ok(()),
        }
    }

    /// Gives the outputs of an unmined transaction the slots that they have in a block of this height: on the other
    /// pages first, since the master is what a repeat goes by. Changes nothing where no output needs one.
    pub(super) async fn add_slots(&self, at: At, master: &Page, height: u32) -> Result<(), Stop> {
        if !self.needs_slots(master, height) {
            return Ok(());
        }
        let txid = master.txid;
        let settings = &self.parts.store.settings;
        tracing::info!(%txid, height, "sequencer: add the slots of a transaction that is mined since Genesis");
        let damaged = |error| Stop::Halt(format!("the store is damaged: {error}"));
        // Rare, and a part of every future here: boxed.
        let body = Box::pin(self.answer("the store", self.parts.store.body(master))).await.map_err(damaged)?;
        let parsed = ParsedBody::parse(txid, &body).map_err(damaged)?;
        let mut added = added_slots(txid, parsed.outputs(), settings.network, height).into_iter().peekable();
        let size = settings.utxo_batch_size.max(1);
        let mut on_master = Vec::new();
        while let Some((vout, _)) = added.peek() {
            let number = vout / size;
            let mut slots = Vec::new();
            while let Some((vout, hash)) = added.next_if(|(vout, _)| vout / size == number) {
                slots.push((vout % size, hash));
            }
            if number == 0 {
                on_master = slots;
            } else {
                self.add_slots_to_other(at, master, number, &Sequenced::AddSlots { slots, height }).await?;
            }
        }
        let row = at.row(Phase::Apply, Key::master(txid), Sequenced::AddSlots { slots: on_master, height });
        self.apply_decided(at, vec![row]).await
    }

    /// Adds slots to one page besides the master, which is told whether all slots of the page are spent. A page that a
    /// node forgot is made again first.
    async fn add_slots_to_other(&self, at: At, master: &Page, number: u32, add: &Sequenced) -> Result<(), Stop> {
        if number > others(master) {
            return Ok(());
        }
        let row = || at.row(Phase::Apply, Key::Page(master.txid, number), add.clone());
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
                return Err(Stop::Halt(format!("cannot add slots to page {number} of {txid}: {other:?}")));
            }
        };
        let said = Sequenced::SetPageSpent { page: number, spent: all_spent };
        self.apply_decided(at, vec![at.row(Phase::Apply, Key::master(master.txid), said)]).await
    }
}
