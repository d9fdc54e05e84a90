//! Records between a store and a snapshot: bodies are inline in a snapshot, wherever the store keeps them.

use std::sync::Arc;

use super::SnapshotError;
use crate::{
    record::{Body, Key, Page, Record},
    store::StateStore,
};

/// Returns a record of a scan as the snapshot holds it; `None`: the snapshot has no such record.
///
/// A lock record is temporary. The blob of a body is read; where it is gone by now, the record is read again, because a
/// pruner that began before the snapshot can have deleted the blob.
///
/// # Errors
/// The body is missing or damaged, or the store does not answer.
pub(super) async fn to_snapshot(store: &StateStore, key: Key, record: Record) -> Result<Option<Record>, SnapshotError> {
    let mut page = match record {
        Record::LockRecord(_) | Record::Meta(_) | Record::Sentinel(_) => return Ok(None),
        Record::Page(page) => page,
        other @ (Record::Block(_) | Record::Command(_)) => return Ok(Some(other)),
    };
    loop {
        if !matches!(page.body(), Some(Body::External(_))) {
            return Ok(Some(Record::Page(page)));
        }
        if page.pruned.is_some() && !page.conflicting {
            // No reader needs the body of such a tombstone: the bin only locates the blob for its deletion.
            return Ok(Some(Record::Page(with_body(&page, None))));
        }
        let error = match store.body(&page).await {
            Ok(body) => return Ok(Some(Record::Page(with_body(&page, Some(body.into_owned()))))),
            Err(error) => error,
        };
        match store.read(vec![key]).await?.pop().flatten() {
            Some(Record::Page(now)) if now != page => page = now,
            _ => return Err(error.into()),
        }
    }
}

/// Returns whether two records of one key have equal content, each with the store that has its body. A body can be
/// inline in one record and in the blob store in the other.
///
/// # Errors
/// A body is missing or damaged, or a store does not answer.
pub(super) async fn has_equal_content(
    (store, record): (&StateStore, Record),
    (other_store, other): (&StateStore, Record),
    key: Key,
) -> Result<bool, SnapshotError> {
    if record == other {
        return Ok(true);
    }
    Ok(to_snapshot(store, key, record).await? == to_snapshot(other_store, key, other).await?)
}

/// Returns a record of a snapshot as the store holds it: a body that belongs into the blob store is written there
/// first.
///
/// # Errors
/// The blob store refuses the body.
pub(super) async fn to_store(store: &StateStore, record: Record) -> Result<Record, SnapshotError> {
    let Record::Page(page) = record else { return Ok(record) };
    if page.master.is_none() {
        return Ok(Record::Page(page));
    }
    match store.externalize_restored(&page).await? {
        Some(body) => Ok(Record::Page(with_body(&page, Some(body)))),
        None => Ok(Record::Page(page)),
    }
}

/// Returns the same master with another body, and with the sizes of the amounts that the body leaves on the record.
fn with_body(page: &Arc<Page>, body: Option<Body>) -> Arc<Page> {
    let mut page = Page::clone(page);
    let slots = page.utxos.as_ref().map_or(0, Vec::len);
    if let Some(master) = page.master.as_mut() {
        page.amount_sizes = match (&master.body, &body) {
            (Some(inline), Some(Body::External(_))) => inline.amount_sizes(slots),
            _ => Default::default(),
        };
        master.body = body;
    }
    Arc::new(page)
}
