//! At the end of a history an operator sets the group back, and everything from there on is read again, by an instance that is killed
//! on the way and one that is not. It must be as if nothing had been.

use std::time::Duration;

use utxo_store::{
    instance::set_back::{Position, Reading},
    seeded::Seeded,
    store::Store,
};

use super::Simulation;
use crate::world::{GROUP, PARTITIONS, dump};

const READING: Reading<'static> = Reading { topic: "txs", group: GROUP };

/// In an eighth of the histories, in all of them with `SIM_SET_BACK=1`.
pub fn is_wanted(dice: u64) -> bool {
    dice.is_multiple_of(8) || std::env::var("SIM_SET_BACK").is_ok_and(|asked| asked == "1")
}

impl Simulation<'_> {
    /// Reads again from places that chance names.
    pub(super) async fn read_again(&mut self) -> Result<(), String> {
        let mut dice = Seeded::new(self.plan.dice ^ 0x5e7_bac4);
        // A member that was killed is missed only after a while.
        while !READING.members(&self.world.broker).await.map_err(|error| error.to_string())?.is_empty() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let meta = self.world.store.meta().await.map_err(|error| error.to_string())?;
        let floor = meta.map(|meta| meta.replay_floor).unwrap_or_default();
        let committed = READING.consumed(&self.world.broker).await.map_err(|error| error.to_string())?;
        let from = (0..PARTITIONS).filter_map(|number| {
            let least = floor.validated.get(&number.unsigned_abs()).copied().unwrap_or(0);
            let most = committed.validated.get(&number.unsigned_abs()).copied().filter(|most| *most >= least)?;
            let from =
                if dice.next_u64().is_multiple_of(2) { least } else { least + dice.next_u64() % (most - least + 1) };
            Some((number, from))
        });
        let from = Position::Offsets(from.collect());
        let ranges = READING.ranges(&self.world.broker, &from, &Position::End, &floor).await;
        let ranges = ranges.map_err(|error| format!("the group is not set back: {error}"))?;
        if ranges.is_empty() {
            return Ok(());
        }
        let before = self.state().await;
        self.observer.trace(format!("set back {ranges:?}"));
        self.observer.count("operator", "sets the group back");
        READING.set_back(&self.world.broker, &ranges).await.map_err(|error| error.to_string())?;
        self.commits.set_back("txs", ranges.iter().map(|range| (range.partition, range.from)));
        self.start(0).await?;
        if let Some(running) = &self.slots[0] {
            running.gate.light_fuse(dice.next_u64() % 400);
        }
        tokio::time::sleep(Duration::from_millis(dice.next_u64() % 2_000)).await;
        let killed = self.slots[0].as_ref().is_some_and(|running| running.gate.is_dead());
        self.observer.count("operator", if killed { "reads again, killed" } else { "reads again" });
        self.heal().await?;
        let after = self.state().await;
        // What is due may be pruned meanwhile; that the rebuild agrees is looked at behind this.
        let gone: Vec<_> =
            before.iter().filter(|line| !after.contains(line) && self.plan.prune_after.is_none()).collect();
        let new: Vec<_> = after.iter().filter(|line| !before.contains(line)).collect();
        if !gone.is_empty() || !new.is_empty() {
            let story = self.story().await;
            return Err(format!("what was read again changed something: {gone:#?}\nis now {new:#?}\n{story}"));
        }
        Ok(())
    }

    async fn state(&self) -> Vec<String> {
        let store: &Store = &self.world.store;
        dump(store).await
    }
}
