//! What keeps the blob store from answering: for whoever waits for the store, and is to say for what.

use std::fmt::Display;

use tokio::sync::watch;

/// Of everybody who works with one handle of a store, or a clone of it.
#[derive(Debug, Clone, Default)]
pub struct BlobTrouble(watch::Sender<Option<String>>);

impl BlobTrouble {
    /// What the blob store is waited for with, in a line; `None` while nobody waits for it.
    pub fn watched(&self) -> watch::Receiver<Option<String>> {
        self.0.subscribe()
    }

    /// It is waited for until what is answered here is dropped.
    pub(super) fn asking(&self) -> Asking<'_> {
        self.0.send_replace(Some("it has not answered yet".to_owned()));
        Asking(&self.0)
    }
}

/// Somebody waits for the blob store.
pub(super) struct Asking<'a>(&'a watch::Sender<Option<String>>);

impl Asking<'_> {
    /// What came of a try that is followed by another, `None`: of the last one.
    pub(super) fn heard(&self, failed: Option<&impl Display>) {
        if let Some(why) = failed {
            self.0.send_replace(Some(why.to_string()));
        }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.send_replace(None);
    }
}
