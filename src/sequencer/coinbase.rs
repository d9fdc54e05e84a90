//! A coinbase that several blocks of one chain have (blocks 91,722 and 91,880 of the main chain have one), or that a
//! block brings again at another height.
//!
//! Nodes replace the outputs of the earlier block by those of the later one, so that they mature from the later. Once
//! the later block has left the longest chain the earlier one counts again.

use std::collections::BTreeMap;

use crate::{
    event::{Block, DecisionBody},
    record::{
        HeldSlot, Key, MinedIn, Outcome, Page, Phase, Reason, Record, Rejection, Sequenced, Slot, SpendingData,
        build::COINBASE_MATURITY,
    },
    sequencer::{
        Stop,
        contest::Named,
        handler::{At, BODIES_AT_ONCE, Handler},
        steps::{Making, Steps},
    },
    tx::{Outpoint, Txid},
};

impl Handler {
    /// The outputs of a coinbase that was there before its block mature from the last block that has it. Live spenders
    /// that are not mined and are too young for that fall; the others that hold a slot are decided on by their own
    /// contests.
    pub(super) async fn mature_from(
        &self,
        at: At,
        steps: &mut Steps<'_>,
        block: &Block<'_>,
        coinbase: Txid,
    ) -> Result<(), Stop> {
        let Some(master) = self.master(coinbase).await?.filter(|page| page.pruned.is_none()) else { return Ok(()) };
        let here = MinedIn { block_id: block.block_id, height: block.height, subtree: 0 };
        let mined = self.blocks_with(&master, block).await?;
        let from = mined.iter().chain([&here]).map(|mined| mined.height).max().unwrap_or(block.height);
        let from = from.saturating_add(COINBASE_MATURITY);
        // The usual case: the block comes back, or its event is handled again. A holder that still waits for another
        // parent has no record, and must not be contested for that.
        if mined.is_empty() && master.spending_height == Some(from) {
            return Ok(());
        }
        let is_behind = self.set_spending_height(at, &master, from).await?;
        if is_behind || at.making == Making::Replaying {
            return Ok(());
        }
        let young = self.holders_below(&master, from).await?;
        let holders: Vec<Txid> = young.keys().map(|holder| holder.txid).collect();
        let named = self.contest_holders(at, Phase::Apply, holders).await?;
        let is = |holder: &SpendingData, what| named.get(&holder.txid) == Some(&what);
        let undecided: Vec<(Outpoint, HeldSlot)> =
            young.iter().filter(|(holder, _)| is(holder, Named::NotLive)).map(|(_, held)| *held).collect();
        // They hold a slot by the earlier block: freed, the slot is asked for once more by the contest of each.
        self.settle_slots(at, &undecided, |_| false).await?;
        for holder in young.keys().filter(|holder| is(holder, Named::Live)) {
            // A holder may have fallen with another one.
            let txid = holder.txid;
            if self.contest_holders(at, Phase::Apply, vec![txid]).await?.get(&txid) != Some(&Named::Live) {
                continue;
            }
            let reason = Reason::Immature { input: holder.input };
            let fallen = DecisionBody::Conflicting { txid, reason, height: block.height, live: true };
            steps.pass_over_closed();
            let body = steps.decide(async { Ok(fallen) }).await?;
            if body != DecisionBody::Closed {
                Box::pin(self.carry_out(at, steps, body)).await?;
            }
        }
        Ok(())
    }

    /// A block has left the longest chain whose coinbase an earlier block has, too: that one counts again. `false`: no
    /// other block has it.
    pub(super) async fn counts_by_earlier(&self, at: At, block: &Block<'_>, coinbase: Txid) -> Result<bool, Stop> {
        let Some(master) = self.master(coinbase).await?.filter(|page| page.pruned.is_none()) else { return Ok(false) };
        let mined = self.blocks_with(&master, block).await?;
        let Some(last) = mined.into_iter().max_by_key(|mined| mined.height) else { return Ok(false) };
        tracing::info!(%coinbase, height = last.height, "sequencer: coinbase counts by an earlier block again");
        self.set_spending_height(at, &master, last.height.saturating_add(COINBASE_MATURITY)).await?;
        let set_mined = match self.ends_fallen(at, &coinbase) {
            true => Sequenced::WasMined(last),
            false => Sequenced::SetMined { mined_in: last, longest_chain: true },
        };
        self.apply_decided(at, vec![at.row(Phase::Apply, Key::master(coinbase), set_mined)]).await?;
        self.chances_after_lifting(at, &[coinbase], None).await?;
        Ok(true)
    }

    /// The other blocks of the longest chain that have the coinbase.
    async fn blocks_with(&self, master: &Page, block: &Block<'_>) -> Result<Vec<MinedIn>, Stop> {
        let mined = master.master.iter().flat_map(|bins| &bins.mined).copied();
        let others: Vec<MinedIn> = mined.filter(|mined| mined.block_id != block.block_id).collect();
        if others.is_empty() {
            return Ok(others);
        }
        let keys = others.iter().map(|mined| Key::Block(mined.block_id)).collect();
        let records = self.answer("the store", self.parts.store.read(keys)).await?;
        let is_on_chain = |record: &Option<Record>| matches!(record, Some(Record::Block(there)) if there.longest_chain);
        let others = others.into_iter().zip(records).filter(|(_, record)| is_on_chain(record));
        Ok(others.map(|(mined, _)| mined).collect())
    }

    /// Writes the height on every page. Answers whether a later event has seen to that: then this sequencer is behind.
    async fn set_spending_height(&self, at: At, master: &Page, from: u32) -> Result<bool, Stop> {
        let set = Sequenced::SetSpendingHeight(from);
        self.apply_to_all_others(at, master, &set).await?;
        let row = at.row(Phase::Apply, Key::master(master.txid), set);
        match self.apply(vec![row]).await?.pop() {
            Some(Outcome::Applied(_) | Outcome::AlreadyApplied(_)) => Ok(false),
            Some(Outcome::Rejected(Rejection::StaleStamp(_))) => Ok(true),
            other => Err(Stop::Halt(format!("coinbase {} refuses its spending height: {other:?}", master.txid))),
        }
    }

    /// Holders of slots of the coinbase that are not mined and whose height is below this one, each with one slot.
    async fn holders_below(
        &self,
        master: &Page,
        from: u32,
    ) -> Result<BTreeMap<SpendingData, (Outpoint, HeldSlot)>, Stop> {
        let size = self.parts.store.settings.utxo_batch_size;
        let mut holders = BTreeMap::new();
        let note = |page: &Page| {
            for (slot, offset) in page.utxos.iter().flatten().zip(0..) {
                let vout = page.number.saturating_mul(size).saturating_add(offset);
                if let Some(holder) = Slot::spender(slot).filter(|_| !page.pruned_spenders.contains(&offset)) {
                    holders.insert(holder, (Outpoint { txid: page.txid, vout }, HeldSlot { offset, holder }));
                }
            }
        };
        let master = self.master(master.txid).await?;
        if let Some(master) = &master {
            self.each_page(master, note).await?;
        }
        let txids: Vec<Txid> = holders.keys().map(|holder| holder.txid).collect();
        let mut masters = Vec::with_capacity(txids.len());
        for txids in txids.chunks(BODIES_AT_ONCE) {
            masters.extend(self.masters(txids).await?);
        }
        let mut old = masters.into_iter().map(|page| {
            let bins = page.as_ref().and_then(|page| page.master.as_deref());
            let is_whole = page.as_ref().is_some_and(|page| page.utxos.is_some());
            // Without a body nobody knows its height.
            is_whole && bins.is_some_and(|bins| bins.unmined_since.is_none_or(|since| since >= from))
        });
        holders.retain(|_, _| old.next() == Some(false));
        Ok(holders)
    }
}
