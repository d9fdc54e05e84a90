//! Status of the blob store as its callers see it: the reason of the last failure while a call waits for an answer. The
//! waits of the sequencer and of the pipeline show this reason.

use std::fmt::Display;

use tokio::sync::watch;

/// Reason why the blob store does not answer, shared by all clones of one [`StateStore`](super::StateStore).
#[derive(Debug, Clone, Default)]
pub struct BlobStatus(watch::Sender<Option<String>>);

impl BlobStatus {
    /// Subscribes to the reason, in one line; `None` while no call waits for the blob store.
    pub fn subscribe(&self) -> watch::Receiver<Option<String>> {
        self.0.subscribe()
    }

    /// Begins a wait for the blob store, which lasts until the returned value is dropped.
    pub(super) fn begin_wait(&self) -> BlobWait<'_> {
        self.0.send_replace(Some("no answer yet".to_owned()));
        BlobWait(&self.0)
    }
}

/// A call that waits for the blob store.
pub(super) struct BlobWait<'a>(&'a watch::Sender<Option<String>>);

impl BlobWait<'_> {
    /// Records the failure of a try that is followed by another one. `None` (the last try) changes nothing.
    pub(super) fn record_failure(&self, failure: Option<&impl Display>) {
        if let Some(why) = failure {
            self.0.send_replace(Some(why.to_string()));
        }
    }
}

impl Drop for BlobWait<'_> {
    fn drop(&mut self) {
        self.0.send_replace(None);
    }
}
