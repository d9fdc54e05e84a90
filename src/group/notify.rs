//! Notifies the pipeline of an instance that the sequencer of the same instance has created a transaction.

use std::{fmt, sync::Arc};

use crate::tx::Txid;

/// Wakes parked children of a transaction that has no event of its own (a coinbase), also where outcomes of blocks are
/// switched off. Other instances read the outcome of the block.
#[derive(Clone, Default)]
pub struct TxNotifier(Option<Arc<dyn Fn(Txid) + Send + Sync>>);

impl TxNotifier {
    /// Creates a notifier that calls `notify` with each created transaction.
    pub fn new(notify: impl Fn(Txid) + Send + Sync + 'static) -> Self {
        TxNotifier(Some(Arc::new(notify)))
    }

    /// Reports a transaction that has become live.
    pub fn notify_created(&self, txid: Txid) {
        if let Some(notify) = &self.0 {
            notify(txid);
        }
    }
}

impl fmt::Debug for TxNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TxNotifier").field(&self.0.is_some()).finish()
    }
}
