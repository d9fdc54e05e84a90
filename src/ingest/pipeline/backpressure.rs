//! Limits on what is read ahead: the share of the common limit for each partition, and the throttle of all. Pure.

use crate::{
    group::partition::PartitionLimits,
    ingest::{fair_share::max_min_fair_share, pipeline::PipelineSettings},
};

/// Numbers that decide whether all partitions are paused.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PipelineLoad {
    /// Transactions in motion, and events that are not prepared yet.
    pub in_motion: usize,
    /// Number of parked transactions.
    pub parked: usize,
    /// Completed events that are not durable.
    pub not_durable: usize,
}

/// Change of the throttle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ThrottleChange {
    /// All partitions are paused from now on.
    Begun {
        /// The limit of completed events that are not durable is reached.
        by_not_durable: bool,
    },
    /// All partitions may resume.
    Ended,
}

/// Limits of the partitions, alone and together.
#[derive(Debug)]
pub(super) struct Backpressure {
    /// Limits of one partition by the settings.
    own: PartitionLimits,
    bytes_in_all: u64,
    max_active: usize,
    max_not_durable: usize,
    /// Limits of each partition, after the shares of the common limit.
    limits: PartitionLimits,
    is_throttled: bool,
}

impl Backpressure {
    pub(super) fn new(settings: &PipelineSettings) -> Self {
        Backpressure {
            own: settings.bounds,
            bytes_in_all: settings.bytes_in_all,
            max_active: settings.max_active,
            max_not_durable: settings.max_not_durable,
            limits: settings.bounds,
            is_throttled: false,
        }
    }

    /// Returns the limits of one partition by the settings.
    pub(super) fn own_limits(&self) -> &PartitionLimits {
        &self.own
    }

    /// Returns the limits of each partition, after the shares of the common limit.
    pub(super) fn limits(&self) -> &PartitionLimits {
        &self.limits
    }

    /// Returns the limit of completed events that are not durable.
    pub(super) fn max_not_durable(&self) -> usize {
        self.max_not_durable
    }

    /// Returns whether all partitions are paused.
    pub(super) fn is_throttled(&self) -> bool {
        self.is_throttled
    }

    /// Ends the throttle: nothing is in flight after a rewind.
    pub(super) fn clear_throttle(&mut self) {
        self.is_throttled = false;
    }

    /// Computes the fair shares of the common limit anew. `unfinished`: the unfinished bytes of each partition that is
    /// not halted.
    pub(super) fn redistribute(&mut self, unfinished: impl IntoIterator<Item = u64>) {
        let share = max_min_fair_share(self.bytes_in_all, unfinished);
        self.limits = PartitionLimits { bytes: self.own.bytes.min(share), ..self.own };
    }

    /// Returns whether shares are below an equal share because a partition holds more than its share.
    pub(super) fn has_unequal_shares(&self, partitions: usize) -> bool {
        let equal = max_min_fair_share(self.bytes_in_all, std::iter::repeat_n(0, partitions));
        self.limits.bytes < self.own.bytes.min(equal)
    }

    /// Throttles while too many transactions are in motion, or too many completed events are not durable; ends at half.
    /// Also throttles while too many transactions wait for others in motion and enough are in motion: events that are
    /// read long before they can be applied fall out of the processor's caches.
    pub(super) fn update_throttle(&mut self, load: PipelineLoad) -> Option<ThrottleChange> {
        let PipelineLoad { in_motion, parked, not_durable } = load;
        let too_many = |max_active: usize, max_not_durable: usize| {
            not_durable >= max_not_durable
                || in_motion >= max_active
                || (in_motion + parked >= max_active && in_motion >= self.sufficient_active())
        };
        if !self.is_throttled && too_many(self.max_active, self.max_not_durable) {
            self.is_throttled = true;
            Some(ThrottleChange::Begun { by_not_durable: not_durable >= self.max_not_durable })
        } else if self.is_throttled && !too_many(self.max_active / 2 + 1, self.max_not_durable / 2 + 1) {
            self.is_throttled = false;
            Some(ThrottleChange::Ended)
        } else {
            None
        }
    }

    /// Returns the number of transactions in motion from which reading on gains nothing, however many wait. With fewer,
    /// the next event may be one that the waiting ones need.
    fn sufficient_active(&self) -> usize {
        (self.max_active / 16).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backpressure() -> Backpressure {
        let own = PartitionLimits { span: 100, bytes: 60 };
        let (max_active, max_not_durable) = (160, 1_000);
        Backpressure { own, bytes_in_all: 120, max_active, max_not_durable, limits: own, is_throttled: false }
    }

    #[test]
    fn throttle_begins_at_a_limit_and_ends_at_half() {
        let load = |in_motion, parked, not_durable| PipelineLoad { in_motion, parked, not_durable };
        let begun = |by_not_durable| Some(ThrottleChange::Begun { by_not_durable });
        for (below, at, above_half, half, by_not_durable) in [
            (load(159, 0, 0), load(160, 0, 0), load(81, 0, 0), load(80, 0, 0), false),
            (load(0, 0, 999), load(0, 0, 1_000), load(0, 0, 501), load(0, 0, 500), true),
            // Waiting transactions count while a sixteenth of the limit is in motion.
            (load(9, 900, 0), load(10, 150, 0), load(10, 71, 0), load(9, 900, 0), false),
        ] {
            let mut backpressure = backpressure();
            let changes = [below, at, at, above_half, half].map(|load| backpressure.update_throttle(load));
            assert_eq!(changes, [None, begun(by_not_durable), None, None, Some(ThrottleChange::Ended)], "{at:?}");
        }
    }

    #[test]
    fn shares_are_unequal_while_a_partition_holds_more_than_its_share() {
        let mut backpressure = backpressure();
        let mut limit_for = |unfinished: &[u64]| {
            backpressure.redistribute(unfinished.iter().copied());
            (backpressure.limits().bytes, backpressure.has_unequal_shares(unfinished.len()))
        };
        assert_eq!(limit_for(&[0]), (60, false), "the own limit is less than the share");
        assert_eq!(limit_for(&[60, 0, 0, 0]), (20, true));
        assert_eq!(limit_for(&[30, 0, 0, 0]), (30, false));
    }
}
