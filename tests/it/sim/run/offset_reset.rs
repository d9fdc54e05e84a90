//! Offset reset at the end of a history: an operator resets the group, and an instance that is killed on the way, then
//! one that is not, read the events again. The state must stay the same. Only a transaction that lost for wrong claims
//! may become live: its own event with true claims judges the transaction again (decision 0245).

use std::time::Duration;

use utxo_store::{
    instance::offset_reset::{OffsetReset, RereadBound},
    record::{Reason, TxState, Verdict},
    rng::SplitMix64,
    store::StateStore,
    tx::Txid,
};

use super::Simulation;
use crate::harness::{GROUP, PARTITIONS, dump};

const OFFSET_RESET: OffsetReset<'static> = OffsetReset { topic: "txs", group: GROUP };

/// Whether this history ends with an offset reset: an eighth of them, or all with `SIM_SET_BACK=1`.
pub fn is_wanted(rng_seed: u64) -> bool {
    rng_seed.is_multiple_of(8) || std::env::var("SIM_SET_BACK").is_ok_and(|text| text == "1")
}

impl Simulation<'_> {
    /// Resets the group to random offsets and lets instances read from there.
    pub(super) async fn read_again(&mut self) -> Result<(), String> {
        let mut rng = SplitMix64::new(self.plan.rng_seed ^ 0x5e7_bac4);
        self.wait_until_group_is_empty().await?;
        let meta = self.world.store.meta().await.map_err(|error| error.to_string())?;
        let floor = meta.map(|meta| meta.replay_floor).unwrap_or_default();
        let committed = OFFSET_RESET.consumed_offsets(&self.world.broker).await.map_err(|error| error.to_string())?;
        let from = (0..PARTITIONS).filter_map(|number| {
            let least = floor.validated.get(&number.unsigned_abs()).copied().unwrap_or(0);
            let most = committed.validated.get(&number.unsigned_abs()).copied().filter(|most| *most >= least)?;
            let from =
                if rng.next_u64().is_multiple_of(2) { least } else { least + rng.next_u64() % (most - least + 1) };
            Some((number, from))
        });
        let from = RereadBound::Offsets(from.collect());
        let ranges = OFFSET_RESET.plan_ranges(&self.world.broker, &from, &RereadBound::End, &floor).await;
        let ranges = ranges.map_err(|error| format!("cannot reset the group: {error}"))?;
        if ranges.is_empty() {
            return Ok(());
        }
        let before = self.dump_state().await;
        let losers = self.find_losers_by_claims().await?;
        self.observer.trace(format!("set back {ranges:?}"));
        self.observer.count("operator", "sets the group back");
        OFFSET_RESET.reset_offsets(&self.world.broker, &ranges).await.map_err(|error| error.to_string())?;
        self.commits.record_offset_reset("txs", ranges.iter().map(|range| (range.partition, range.from)));
        self.start(0).await?;
        if let Some(running) = &self.slots[0] {
            running.gate.kill_after_ticks(rng.next_u64() % 400);
        }
        tokio::time::sleep(Duration::from_millis(rng.next_u64() % 2_000)).await;
        let killed = self.slots[0].as_ref().is_some_and(|running| running.gate.is_dead());
        self.observer.count("operator", if killed { "reads again, killed" } else { "reads again" });
        self.heal_and_consume().await?;
        if self.is_any_live(&losers).await? {
            // What follows from the verdict is in the log; the comparison with the model follows.
            self.observer.count("operator", "reads again, judged again");
            return Ok(());
        }
        let after = self.dump_state().await;
        // Records that are due may be pruned meanwhile; the comparison with the rebuild follows.
        let gone: Vec<_> =
            before.iter().filter(|line| !after.contains(line) && self.plan.prune_after.is_none()).collect();
        let new: Vec<_> = after.iter().filter(|line| !before.contains(line)).collect();
        if !gone.is_empty() || !new.is_empty() {
            let story = self.story().await;
            return Err(format!("the events read again changed the state: {gone:#?}\nis now {new:#?}\n{story}"));
        }
        Ok(())
    }

    /// Waits until both groups have no member: a group notices a killed member only after its session timeout.
    pub(super) async fn wait_until_group_is_empty(&self) -> Result<(), String> {
        while !OFFSET_RESET.describe_members(&self.world.broker).await.map_err(|error| error.to_string())?.is_empty() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Ok(())
    }

    /// Returns the transactions that lost for wrong claims.
    async fn find_losers_by_claims(&self) -> Result<Vec<Txid>, String> {
        let mut losers = Vec::new();
        for made in self.made.values() {
            let page = self.world.store.master(made.txid).await.map_err(|error| error.to_string())?;
            let state = page.map(|page| page.state());
            if let Some(TxState::Conflicting(Verdict::Conflicting(Reason::Mismatch { .. }))) = state {
                losers.push(made.txid);
            }
        }
        Ok(losers)
    }

    async fn is_any_live(&self, txids: &[Txid]) -> Result<bool, String> {
        let masters = self.world.store.masters(txids).await.map_err(|error| error.to_string())?;
        Ok(masters.into_iter().flatten().any(|page| page.state() == TxState::Live))
    }

    async fn dump_state(&self) -> Vec<String> {
        let store: &StateStore = &self.world.store;
        dump(store).await
    }
}
