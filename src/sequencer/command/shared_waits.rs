//! The waits of commands for partitions of validated transactions, shared by all commands that were in the chain log
//! when a wait began. Pure but for the time, which comes in.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

/// The progress of one partition, as its last commit shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionProgress {
    /// Committed offset: every event below is completed and durable.
    pub completed: u64,
    /// Offset of the next event to read.
    pub position: u64,
    /// The partition is paused at its limit of unfinished events.
    pub is_over_limit: bool,
}

/// Longest waits for one partition. Neither an event that waits for a later chain event, nor a partition that is halted
/// or that no instance has, may stop the chain.
#[derive(Debug, Clone, Copy)]
pub struct WaitLimits {
    /// While events are not read.
    pub unread: Duration,
    /// While all events are read and some are not completed.
    pub read: Duration,
}

/// The wait for the events of one partition below an end offset.
#[derive(Debug, Clone, Copy)]
pub struct PartitionWait {
    /// End of the chain log when the wait began: the wait is shared by every command below.
    commands_below: u64,
    /// End of the partition when the wait began.
    end: u64,
    since: Instant,
    read_since: Option<Instant>,
    /// Position of the partition at the last look, and since when it has not moved; `None`: no event was unread then.
    stopped: Option<(u64, Instant)>,
    is_over: bool,
}

/// The waits of commands while this sequencer has the chain.
#[derive(Debug, Default)]
pub struct SharedWaits {
    /// Every event whose writes a node may have lost before the chain was acquired was waited for.
    pub is_past_restart: bool,
    /// The last wait for each partition.
    by_partition: BTreeMap<i32, PartitionWait>,
}

impl PartitionWait {
    /// Begins a wait for the events below `end`, for the commands below `commands_below`.
    pub fn new(commands_below: u64, end: u64, now: Instant) -> Self {
        PartitionWait { commands_below, end, since: now, read_since: None, stopped: None, is_over: false }
    }

    fn observe(&mut self, progress: PartitionProgress, limits: WaitLimits, now: Instant) -> bool {
        let PartitionProgress { completed, position, is_over_limit } = progress;
        let stopped = self.stopped.filter(|(stopped_at, _)| *stopped_at == position).unwrap_or((position, now));
        let is_read = position >= self.end || is_over_limit;
        // A partition without an event to read stands still, too, and is not stuck.
        let has_unread = completed < self.end && !is_read;
        self.stopped = has_unread.then_some(stopped);
        self.is_over |= if completed >= self.end {
            true
        } else if is_read {
            now - *self.read_since.get_or_insert(now) >= limits.read
        } else {
            now - self.since.min(stopped.1) >= limits.unread
        };
        self.is_over
    }
}

impl SharedWaits {
    /// Returns whether the command at this chain offset shares the last wait for a partition.
    pub fn covers(&self, partition: i32, command: u64) -> bool {
        self.by_partition.get(&partition).is_some_and(|wait| command < wait.commands_below)
    }

    /// Begins a wait for a partition. A partition that had unread events at the last look, and has not moved since, is
    /// not waited for anew.
    pub fn begin(&mut self, partition: i32, wait: PartitionWait) {
        let stopped = self.by_partition.get(&partition).and_then(|earlier| earlier.stopped);
        self.by_partition.insert(partition, PartitionWait { stopped, ..wait });
    }

    /// Takes the progress of a partition into account. Returns whether the partition is not waited for any more: all
    /// events are completed, or the wait has lasted for too long. `has_no_event`: no event that is read and not
    /// completed can be one of the command's transaction.
    pub fn observe(
        &mut self,
        partition: i32,
        progress: PartitionProgress,
        has_no_event: bool,
        limits: WaitLimits,
        now: Instant,
    ) -> bool {
        let Some(wait) = self.by_partition.get_mut(&partition) else { return false };
        let is_over = wait.observe(progress, limits, now);
        is_over || has_no_event && progress.position >= wait.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: WaitLimits = WaitLimits { unread: Duration::from_secs(600), read: Duration::from_secs(60) };

    /// A wait for the events below offset 100, for the commands below chain offset 7.
    struct Sample {
        waits: SharedWaits,
        now: Instant,
    }

    impl Sample {
        fn new() -> Self {
            let mut sample = Sample { waits: SharedWaits::default(), now: Instant::now() };
            sample.begin(7, 100);
            sample
        }

        fn begin(&mut self, commands_below: u64, end: u64) {
            self.waits.begin(3, PartitionWait::new(commands_below, end, self.now));
        }

        /// Looks after some seconds.
        fn look(&mut self, seconds: u64, completed: u64, position: u64) -> bool {
            self.now += Duration::from_secs(seconds);
            let progress = PartitionProgress { completed, position, is_over_limit: false };
            self.waits.observe(3, progress, false, LIMITS, self.now)
        }
    }

    #[test]
    fn a_wait_ends_with_the_last_event_or_at_its_limits() {
        let mut sample = Sample::new();
        assert!(!sample.look(0, 50, 99) && !sample.look(599, 99, 100) && sample.look(1, 100, 100), "completed");
        let mut sample = Sample::new();
        assert!(!sample.look(0, 50, 90) && !sample.look(599, 50, 99) && sample.look(1, 50, 99), "not read");
        let mut sample = Sample::new();
        assert!(!sample.look(500, 50, 100) && !sample.look(59, 50, 120) && sample.look(1, 50, 120), "not completed");
        let mut sample = Sample::new();
        let at_limit = PartitionProgress { completed: 50, position: 60, is_over_limit: true };
        assert!(!sample.waits.observe(3, at_limit, false, LIMITS, sample.now));
        sample.now += LIMITS.read;
        assert!(sample.waits.observe(3, at_limit, false, LIMITS, sample.now), "nothing more is read");
    }

    /// Protects: many commands in the log wait as long as one.
    #[test]
    fn commands_that_are_in_the_log_share_a_wait() {
        let mut sample = Sample::new();
        assert!(sample.waits.covers(3, 6) && !sample.waits.covers(3, 7) && !sample.waits.covers(2, 6));
        assert!(!sample.look(0, 50, 100) && sample.look(60, 50, 100) && sample.look(0, 50, 100));
        sample.begin(9, 101);
        assert!(!sample.look(0, 50, 101), "the transaction of a later command may be in a later event");
    }

    #[test]
    fn a_partition_that_stands_still_is_waited_for_once() {
        let mut sample = Sample::new();
        assert!(!sample.look(0, 50, 60) && sample.look(600, 50, 60));
        sample.now += Duration::from_secs(9_000);
        sample.begin(9, 200);
        assert!(sample.look(0, 50, 60), "nothing has been read since");
        sample.begin(11, 300);
        assert!(!sample.look(0, 50, 61) && !sample.look(599, 50, 61) && sample.look(1, 50, 62));
    }

    /// A partition is idle for longer than an unread event is waited for. Then its first event since is produced, and
    /// at once a command on the transaction.
    #[test]
    fn a_partition_that_was_idle_is_waited_for() {
        for (completed, position) in [(100, 100), (50, 100)] {
            let mut sample = Sample::new();
            let _ = sample.look(0, completed, position);
            sample.now += Duration::from_secs(9_000);
            sample.begin(9, 101);
            assert!(!sample.look(0, completed, position), "the event is not read yet");
            assert!(!sample.look(599, completed, position) && sample.look(1, completed, position));
        }
        let mut sample = Sample::new();
        let at_limit = PartitionProgress { completed: 50, position: 60, is_over_limit: true };
        assert!(!sample.waits.observe(3, at_limit, false, LIMITS, sample.now));
        sample.now += Duration::from_secs(9_000);
        sample.begin(9, 101);
        assert!(!sample.look(0, 50, 60), "the partition was paused, and is read again");
    }

    #[test]
    fn unfinished_events_of_other_transactions_are_not_waited_for() {
        let mut sample = Sample::new();
        let progress = |position| PartitionProgress { completed: 50, position, is_over_limit: false };
        assert!(!sample.waits.observe(3, progress(99), true, LIMITS, sample.now), "its event may not be read");
        assert!(sample.waits.observe(3, progress(100), true, LIMITS, sample.now));
        assert!(!sample.waits.observe(3, progress(100), false, LIMITS, sample.now), "another command's may be");
    }
}
