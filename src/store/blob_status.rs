//! Status of the blob store as its callers see it: the reason of the last failure while a call waits for an answer. The
//! waits of the sequencer and of the pipeline show this reason.

use std::{
    fmt::Display,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::sync::watch;

/// Reason why the blob store does not answer, shared by all clones of one [`StateStore`](super::StateStore).
#[derive(Debug, Clone, Default)]
pub struct BlobStatus {
    reason: watch::Sender<Option<String>>,
    /// Number of calls that wait; changed under the lock of `reason`.
    waits: Arc<AtomicUsize>,
}

impl BlobStatus {
    /// Subscribes to the reason, in one line; `None` while no call waits for the blob store.
    pub fn subscribe(&self) -> watch::Receiver<Option<String>> {
        self.reason.subscribe()
    }

    /// Begins a wait for the blob store, which lasts until the returned value is dropped.
    pub(super) fn begin_wait(&self) -> BlobWait<'_> {
        self.reason.send_modify(|reason| {
            if self.waits.fetch_add(1, Ordering::Relaxed) == 0 {
                *reason = Some("no answer yet".to_owned());
            }
        });
        BlobWait(self)
    }
}

/// A call that waits for the blob store.
pub(super) struct BlobWait<'a>(&'a BlobStatus);

impl BlobWait<'_> {
    /// Records the failure of a try that is followed by another one. `None` (the last try) changes nothing.
    pub(super) fn record_failure(&self, failure: Option<&impl Display>) {
        if let Some(why) = failure {
            self.0.reason.send_replace(Some(why.to_string()));
        }
    }
}

impl Drop for BlobWait<'_> {
    fn drop(&mut self) {
        self.0.reason.send_modify(|reason| {
            if self.0.waits.fetch_sub(1, Ordering::Relaxed) == 1 {
                *reason = None;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_stays_until_the_last_wait_ends() {
        let status = BlobStatus::default();
        let reason = status.subscribe();
        let shown = || reason.borrow().clone();
        let first = status.begin_wait();
        assert_eq!(shown().as_deref(), Some("no answer yet"));
        first.record_failure(Some(&"connection refused"));
        let second = status.clone();
        let second = second.begin_wait();
        assert_eq!(shown().as_deref(), Some("connection refused"), "a second wait does not hide the reason");
        drop(first);
        assert_eq!(shown().as_deref(), Some("connection refused"), "one call still waits");
        drop(second);
        assert_eq!(shown(), None);
    }
}
