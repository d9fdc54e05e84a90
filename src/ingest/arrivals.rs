//! Transactions that come by no event of theirs: coinbases, which the sequencer creates.

use tokio::sync::mpsc;

use crate::{ingest::dispatch::Done, tx::Txid};

/// Where the sequencer of an instance tells its pipeline what has come, so that nobody waits for the next try. Whoever waits
/// elsewhere tries again by himself.
#[derive(Debug, Clone, Default)]
pub struct Arrivals(Option<mpsc::UnboundedSender<Done>>);

impl Arrivals {
    pub(super) fn to(done: mpsc::UnboundedSender<Done>) -> Self {
        Arrivals(Some(done))
    }

    /// A transaction is there, live.
    pub fn came(&self, txid: Txid) {
        if let Some(done) = &self.0 {
            // A pipeline that has ended has nobody who waits.
            let _ = done.send(Done::Came(txid));
        }
    }
}
