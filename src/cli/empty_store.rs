//! The empty store that a command fills, and the blob store for its large bodies.

use std::sync::Arc;

use clap::Args;

use super::{Failure, opening};
use crate::{
    blob::{BlobStore, BlobUrl, Intent},
    config::{Config, writable_blobs},
    engine::StoreUrl,
    telemetry::Metrics,
};

/// Options that name an empty store and its empty blob store.
#[derive(Debug, Clone, Args)]
pub struct EmptyStoreArgs {
    /// URL of the empty store
    #[arg(long, value_name = "URL")]
    pub store: StoreUrl,
    /// URL of an empty blob store for the bodies that the store does not hold itself
    #[arg(long, value_name = "URL")]
    pub blobs: Option<BlobUrl>,
}

impl EmptyStoreArgs {
    /// Checks the place of the bodies before anything is opened.
    ///
    /// # Errors
    /// The engine limits its records and no blob store is named, or the blob store cannot be written or does not last
    /// as long as the records. The error is one line for the user.
    pub fn check_blobs(&self) -> Result<(), String> {
        match &self.blobs {
            None if self.store.bounds_records() => {
                Err("--blobs must be given: --store limits its records, and large bodies go to an empty blob store"
                    .to_owned())
            }
            None => Ok(()),
            Some(url) => writable_blobs(url, &self.store).map_err(|problem| format!("--blobs {problem}")),
        }
    }

    /// Opens the blob store, if one is named.
    ///
    /// # Errors
    /// The blob store cannot be opened.
    pub async fn open_blobs(&self, config: &Config, metrics: &Arc<Metrics>) -> Result<Option<BlobStore>, Failure> {
        match &self.blobs {
            Some(url) => Ok(Some(opening::open_blobs_at(config, url, Intent::Write, metrics).await?)),
            None => Ok(None),
        }
    }
}
