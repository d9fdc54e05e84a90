//! Start of a grace.

use std::sync::atomic::{AtomicU64, Ordering};

/// Time from which the waits of a kind count, steady ms. A restored store sets the time into the future while the group
/// reads the log again: the event that ends a wait can come much later than the event that waits.
///
/// ```
/// use utxo_store::ingest::plan::GraceStart;
///
/// let start = GraceStart::default();
/// assert_eq!(start.of_wait_since(5), 5);
/// start.move_to(9);
/// assert_eq!(start.of_wait_since(5), 9);
/// ```
#[derive(Debug, Default)]
pub struct GraceStart(AtomicU64);

impl GraceStart {
    /// Lets no wait count before this time, steady ms.
    pub fn move_to(&self, steady_ms: u64) {
        self.0.store(steady_ms, Ordering::Relaxed);
    }

    /// Returns the time from which a wait since `since_ms` counts, steady ms.
    pub fn of_wait_since(&self, since_ms: u64) -> u64 {
        since_ms.max(self.0.load(Ordering::Relaxed))
    }
}
