//! The listed transactions of a block that have lost: their records are read ahead, a few transactions at a time.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use futures_util::future::BoxFuture;

use crate::{
    record::{Key, Page, Slot},
    sequencer::{
        SequencerError, SequencerParts,
        context::HandlerContext,
        record_cache::RecordCache,
        window::{list_inputs, master_of},
    },
    store::into_page,
    tx::Txid,
};

/// Transactions whose records are read ahead together.
const READ_AHEAD: usize = 128;
/// Records of one request.
const READ_AT_ONCE: usize = 128;

/// Listed transactions that have lost, in the order of the block.
pub struct ListedLosers<'a> {
    cx: HandlerContext<'a>,
    unread: VecDeque<Txid>,
    /// Number of transactions whose records are read and which are not handled yet.
    ahead: usize,
    /// The parts that read from the cache, once the first transaction is handled.
    cached: Option<(SequencerParts, Arc<RecordCache>)>,
}

impl<'a> ListedLosers<'a> {
    /// Makes a reader of these transactions.
    pub fn new(cx: &HandlerContext<'a>, losers: impl Iterator<Item = Txid>) -> Self {
        ListedLosers { cx: *cx, unread: losers.collect(), ahead: 0, cached: None }
    }

    /// Returns the context in which the next transactions, some or one, are handled. A rebuild waits for records, and
    /// reads none ahead.
    pub async fn next_context(&mut self, transactions: usize) -> Result<HandlerContext<'_>, SequencerError> {
        if self.cx.is_replay() {
            return Ok(self.cx);
        }
        let (parts, cache) = self.cached.get_or_insert_with(|| self.cx.parts.with_record_cache());
        if self.ahead == 0 {
            let txids: Vec<Txid> = self.unread.drain(..self.unread.len().min(READ_AHEAD)).collect();
            self.ahead = txids.len();
            cache.clear();
            read_ahead(parts, cache, txids).await?;
        }
        self.ahead = self.ahead.saturating_sub(transactions);
        Ok(HandlerContext { parts, ..self.cx })
    }
}

/// Reads the transactions, the pages with the slots that they spend, and the holders of the slots.
fn read_ahead<'a>(
    parts: &'a SequencerParts,
    cache: &'a RecordCache,
    txids: Vec<Txid>,
) -> BoxFuture<'a, Result<(), SequencerError>> {
    Box::pin(async move {
        let masters = read(parts, cache, txids.into_iter().map(Key::master).collect()).await?;
        let slots: Vec<(Key, u32)> = masters.values().flat_map(|page| list_inputs(parts, page)).collect();
        let keys = slots.iter().flat_map(|(key, _)| [Some(*key), master_of(key)]).flatten().collect();
        let pages = read(parts, cache, keys).await?;
        let holder = |(key, offset): &(Key, u32)| {
            let spender = pages.get(key)?.utxos.as_ref()?.get(*offset as usize).and_then(Slot::spender)?;
            Some(Key::master(spender.txid))
        };
        let holders = slots.iter().filter_map(holder).collect();
        read(parts, cache, holders).await.map(drop)
    })
}

/// Reads pages into the cache until the cache is full.
async fn read(
    parts: &SequencerParts,
    cache: &RecordCache,
    mut keys: Vec<Key>,
) -> Result<BTreeMap<Key, Arc<Page>>, SequencerError> {
    keys.sort_unstable();
    keys.dedup();
    let mut pages = BTreeMap::new();
    for keys in keys.chunks(READ_AT_ONCE) {
        if cache.is_full() {
            break;
        }
        let records = parts.wait_for("the store", parts.store.read(keys.to_vec())).await?;
        let read = records.into_iter().filter_map(into_page);
        pages.extend(read.map(|page| (Key::Page(page.txid, page.number), page)));
    }
    Ok(pages)
}
