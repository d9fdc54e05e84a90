//! Comparison of a meta record with the configuration and with the logs.

use crate::{
    record::MetaRecord,
    store::{StateStore, StoreSettings},
};

use super::MetaError;

/// Version of the record layout that this program reads and writes.
pub const LAYOUT_VERSION: u32 = 1;

/// Verifies that the chain topic with this id ([`compute_chain_id`](super::compute_chain_id); `None`: no record at
/// offset 0) is the one that the store was made from. A store without a chain id accepts every topic.
///
/// # Errors
/// [`MetaError::ChainRecreated`]
pub fn check_chain_id(meta: &MetaRecord, chain_id: Option<[u8; 32]>) -> Result<(), MetaError> {
    match meta.chain_id {
        Some(store) if chain_id != Some(store) => Err(MetaError::ChainRecreated {
            store: hex::encode(store),
            found: chain_id.map_or_else(|| "none".into(), hex::encode),
        }),
        _ => Ok(()),
    }
}

/// Verifies the number of partitions of the topic of validated transactions.
///
/// # Errors
/// [`MetaError::OtherPartitions`]
pub fn check_partition_count(meta: &MetaRecord, found: u32) -> Result<(), MetaError> {
    match meta.partitions {
        Some(store) if store != found => Err(MetaError::OtherPartitions { store, found }),
        _ => Ok(()),
    }
}

/// Verifies that no rebuild of the set is under way.
///
/// # Errors
/// [`MetaError::UnfinishedRebuild`]
pub fn check_not_rebuilding(meta: &MetaRecord) -> Result<(), MetaError> {
    match &meta.rebuilding {
        Some(rebuilding) => Err(MetaError::UnfinishedRebuild { frontier: rebuilding.frontier }),
        None if meta.restored.as_ref().is_some_and(|restored| restored.is_loading) => Err(MetaError::UnfinishedRestore),
        None => Ok(()),
    }
}

/// Verifies that the bodies in the blob store can be read.
///
/// # Errors
/// [`MetaError::NoBlobStore`] for a store with blobs that is opened without a blob store.
pub fn check_blobs(meta: &MetaRecord, store: &StateStore) -> Result<(), MetaError> {
    if meta.has_blobs && store.blobs.is_none() { Err(MetaError::NoBlobStore) } else { Ok(()) }
}

pub(super) fn check_rebuilder(meta: &MetaRecord, rebuilder: u64) -> Result<(), MetaError> {
    if meta.rebuilder == Some(rebuilder) { Ok(()) } else { Err(MetaError::RebuildTakenOver) }
}

/// Compares a meta record with the settings of the store. The layout comes first: with another layout the other fields
/// may have another meaning.
pub(super) fn check_settings(meta: &MetaRecord, settings: &StoreSettings) -> Result<(), MetaError> {
    if meta.layout_version != LAYOUT_VERSION {
        return Err(MetaError::OtherLayout { store: meta.layout_version });
    }
    if meta.network != settings.network.to_string() {
        return Err(MetaError::OtherNetwork { store: meta.network.clone(), configured: settings.network });
    }
    if meta.utxo_batch_size != settings.utxo_batch_size {
        return Err(MetaError::OtherBatchSize { store: meta.utxo_batch_size, configured: settings.utxo_batch_size });
    }
    Ok(())
}
