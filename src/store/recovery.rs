//! Completing what others have begun: a transaction over several pages whose master is there has all its pages, so that
//! clearing `creating` is all that is left to do, whoever began it (`DESIGN.md` section 5, "Recovery").

use std::sync::Arc;

use crate::{
    engine::{EngineError, Row},
    record::{Key, Operation, Outcome, Page, Rejection, TxState, build::OtherPages},
    tx::Txid,
};

use super::{Store, create::clear, digest::PAGES_AT_A_TIME};

/// Why a transaction cannot be completed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CompleteError {
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The store is damaged, or has forgotten: a page that the master tells of is not there, and what is stored does not tell
    /// what it was.
    #[error("page {page} of {txid} is missing, and its body does not tell what it was")]
    MissingPage {
        /// Whose.
        txid: Txid,
        /// Which.
        page: u32,
    },
}

impl Store {
    /// Completes a transaction whose master has slots and is not contested: a page that is missing (which a store that forgets
    /// can cause) is made from the body, and `creating` is cleared, the master's last. Answers its master as it is then; anything
    /// else is left as it is.
    ///
    /// # Errors
    /// The engine failed for good, or a page cannot be had.
    pub async fn complete(&self, txid: Txid) -> Result<Option<Arc<Page>>, CompleteError> {
        let Some(master) = self.master(txid).await? else { return Ok(None) };
        if !matches!(master.state(), TxState::Creating | TxState::Live) {
            return Ok(Some(master));
        }
        let pages = master.master.as_ref().map_or(0, |bins| bins.total_extra_recs);
        self.clear_others(&master, pages).await?;
        if master.creating_at.is_none() {
            return Ok(Some(master));
        }
        // Refused: it has fallen meanwhile.
        self.apply_one(Row { key: Key::master(txid), operation: Operation::ClearCreating }).await?;
        tracing::info!(%txid, pages = pages + 1, "a half-created transaction is complete");
        Ok(self.master(txid).await?)
    }

    async fn clear_others(&self, master: &Page, pages: u32) -> Result<(), CompleteError> {
        let missing = self.clear_pages(master.txid, (1..=pages).collect()).await?;
        let Some(first) = missing.first().copied() else { return Ok(()) };
        let cannot = || CompleteError::MissingPage { txid: master.txid, page: first };
        self.restore_pages(master, &missing).await?.ok_or_else(cannot)?;
        match self.clear_pages(master.txid, missing).await?.first() {
            None => Ok(()),
            Some(page) => Err(CompleteError::MissingPage { txid: master.txid, page: *page }),
        }
    }

    /// Clears `creating` on these pages; those that are not there.
    async fn clear_pages(&self, txid: Txid, pages: Vec<u32>) -> Result<Vec<u32>, EngineError> {
        let rows = pages.iter().flat_map(|number| clear(txid, *number..*number + 1)).collect();
        let outcomes = self.apply(rows).await?;
        let missing = pages.into_iter().zip(outcomes);
        Ok(missing.filter(|(_, it)| *it == Outcome::Rejected(Rejection::NotFound)).map(|(number, _)| number).collect())
    }

    /// Makes these pages again, `creating`, from the body that the master has. `None`: it does not tell.
    pub(crate) async fn restore_pages(&self, master: &Page, missing: &[u32]) -> Result<Option<()>, EngineError> {
        let Some(others) = self.other_pages(master).await else { return Ok(None) };
        tracing::warn!(txid = %master.txid, ?missing, "pages that are not there are made again from the body");
        for numbers in missing.chunks(PAGES_AT_A_TIME as usize) {
            let row = |number: &u32| {
                let page = others.page(*number, master.creating_at.unwrap_or_default());
                Row { key: Key::Page(master.txid, *number), operation: Operation::Create(Arc::new(page)) }
            };
            self.apply(numbers.iter().map(row).collect()).await?;
        }
        Ok(Some(()))
    }

    async fn other_pages(&self, master: &Page) -> Option<OtherPages> {
        let body =
            self.body(master).await.inspect_err(|error| tracing::warn!(%error, "no pages without a body")).ok()?;
        OtherPages::of_stored(master, &body, self.settings.network, self.settings.utxo_batch_size)
    }
}

#[cfg(test)]
#[path = "recovery_tests.rs"]
mod tests;
