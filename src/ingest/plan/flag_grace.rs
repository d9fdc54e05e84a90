//! Start of the grace of locked parents.

use std::sync::atomic::{AtomicU64, Ordering};

/// Time from which the waits for locked parents count, steady ms. A restored store sets the time into the future while
/// the chain reads the log again: the chain event that unlocks a parent can come much later than the child.
///
/// ```
/// use utxo_store::ingest::plan::FlagGraceStart;
///
/// let start = FlagGraceStart::default();
/// assert_eq!(start.of_wait_since(5), 5);
/// start.move_to(9);
/// assert_eq!(start.of_wait_since(5), 9);
/// ```
#[derive(Debug, Default)]
pub struct FlagGraceStart(AtomicU64);

impl FlagGraceStart {
    /// Lets no wait count before this time, steady ms.
    pub fn move_to(&self, steady_ms: u64) {
        self.0.store(steady_ms, Ordering::Relaxed);
    }

    /// Returns the time from which a wait since `since_ms` counts, steady ms.
    pub fn of_wait_since(&self, since_ms: u64) -> u64 {
        since_ms.max(self.0.load(Ordering::Relaxed))
    }
}
