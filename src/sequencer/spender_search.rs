//! Reads the slots of the losers and their descendants, and finds the spenders.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use crate::{
    record::{Page, Slot},
    sequencer::{
        SequencerError,
        context::{BODIES_AT_ONCE, HandlerContext},
        descendants::Descendants,
        steps::Steps,
    },
    store::pages::ExtraPages,
    tx::Txid,
};

/// Spenders that are found at once. The spenders of one page more may exceed the limit.
const SPENDERS_AT_ONCE: usize = 4_096;

/// Search for the spenders of all members, chunk after chunk, also of chunks that are added meanwhile.
///
/// Memory holds the txids of one chunk, the masters of a few members, and a few pages of one member. The masters are
/// read after their members are marked, so that their slots may be examined later.
#[derive(Default)]
pub struct SpenderSearch<'a> {
    /// Number of the next chunk.
    next_chunk: usize,
    /// Members of the chunks before, whose masters are not read.
    unread: VecDeque<Txid>,
    /// Masters whose slots are not examined.
    masters: VecDeque<Arc<Page>>,
    /// Further pages of the master that was examined last.
    extra: Option<ExtraPages<'a>>,
}

impl<'a> SpenderSearch<'a> {
    /// Returns whether the slots of all members are examined.
    pub fn is_at_end(&self, descendants: &Descendants) -> bool {
        let is_examined = self.unread.is_empty() && self.masters.is_empty() && self.extra.is_none();
        is_examined && self.next_chunk >= descendants.chunks()
    }

    /// Examines at most `pages` pages. Returns the spenders that are not known yet, each with one parent. A block that
    /// lists a transaction and a rival of its ancestor is impossible, and halts the chain.
    pub async fn find_next(
        &mut self,
        cx: &'a HandlerContext<'_>,
        steps: &mut Steps<'_>,
        descendants: &Descendants,
        pages: usize,
    ) -> Result<BTreeMap<Txid, Txid>, SequencerError> {
        let mut spenders = BTreeMap::new();
        for _ in 0..pages.max(1) {
            let Some(page) = self.next_page(cx, steps, descendants).await? else { break };
            for spender in page.utxos.iter().flatten().filter_map(Slot::spender) {
                if descendants.is_one_of_winners(&spender.txid) {
                    let (listed, loser) = (spender.txid, page.txid);
                    let why = format_args!("the block lists {listed}, whose parent {loser} loses to another one");
                    return Err(cx.halt(why));
                }
                if !descendants.is_member_or_winner(&spender.txid) {
                    spenders.entry(spender.txid).or_insert(page.txid);
                }
            }
            if spenders.len() >= SPENDERS_AT_ONCE {
                break;
            }
        }
        Ok(spenders)
    }

    /// Returns the next page: all pages of a member, then the pages of the next one. An absent page is skipped.
    async fn next_page(
        &mut self,
        cx: &'a HandlerContext<'_>,
        steps: &mut Steps<'_>,
        descendants: &Descendants,
    ) -> Result<Option<Arc<Page>>, SequencerError> {
        loop {
            while let Some(extra) = &mut self.extra {
                match cx.wait_for("the store", extra.next()).await? {
                    Some((_, Some(page))) => return Ok(Some(page)),
                    Some((_, None)) => {}
                    None => self.extra = None,
                }
            }
            if let Some(master) = self.masters.pop_front() {
                self.extra = (master.extra_pages() > 0).then(|| ExtraPages::of(&cx.parts.store, &master));
                return Ok(Some(master));
            }
            if self.unread.is_empty() {
                if self.next_chunk >= descendants.chunks() {
                    return Ok(None);
                }
                let members = descendants.members(cx, steps, self.next_chunk).await?;
                self.unread.extend(members.iter().map(|loser| loser.txid));
                self.next_chunk += 1;
            }
            let txids: Vec<Txid> = self.unread.drain(..self.unread.len().min(BODIES_AT_ONCE)).collect();
            self.masters = cx.read_existing_masters(&txids).await?.into();
        }
    }
}
