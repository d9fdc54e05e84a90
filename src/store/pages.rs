//! The pages of a transaction beside its master, read a few at a time.

use std::{iter::Zip, ops::Range, sync::Arc, vec};

use crate::{engine::EngineError, record::Page, tx::Txid};

use super::StateStore;

/// Number of pages of one transaction in memory at a time, about 10 MB where the pages are full.
pub(crate) const PAGES_AT_A_TIME: u32 = 8;

/// Reader of the pages of a transaction beside its master, in the order of their numbers. Memory is bounded.
pub(crate) struct ExtraPages<'a> {
    store: &'a StateStore,
    txid: Txid,
    unread: Range<u32>,
    read: Zip<Range<u32>, vec::IntoIter<Option<Arc<Page>>>>,
}

impl<'a> ExtraPages<'a> {
    pub(crate) fn of(store: &'a StateStore, master: &Page) -> Self {
        let unread = 1..master.extra_pages().saturating_add(1);
        ExtraPages { store, txid: master.txid, unread, read: (0..0).zip(Vec::new()) }
    }

    /// Returns the next number with its page, or with `None` where the page is missing. `None`: there is no next
    /// number.
    pub(crate) async fn next(&mut self) -> Result<Option<(u32, Option<Arc<Page>>)>, EngineError> {
        if self.read.len() == 0 && !self.unread.is_empty() {
            let Range { start, end } = self.unread;
            let to = end.min(start.saturating_add(PAGES_AT_A_TIME));
            self.read = (start..to).zip(self.store.pages(self.txid, start, to).await?);
            self.unread = to..end;
        }
        Ok(self.read.next())
    }
}

/// Returns the number of slots that page `number` of a transaction should have.
pub(super) fn slots_of_page(master: &Page, number: u32, batch_size: u32) -> u32 {
    let total = master.master.as_ref().map_or(0, |bins| bins.total_utxos);
    total.saturating_sub(number.saturating_mul(batch_size)).min(batch_size)
}
