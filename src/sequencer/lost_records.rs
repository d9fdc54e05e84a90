//! Records that a node may have lost: how long they are waited for, and the stubs that replace them.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    record::{Key, Outcome, Page, Phase, Rejection, Sequenced},
    replay::FinalState,
    sequencer::{
        SequencerError,
        context::HandlerContext,
        holders::{HolderState, contest_holders},
        pages::{apply_to_every_extra_page, complete, restore_page, update_masters},
        waiting::format_missing,
    },
    tx::Txid,
};

/// The time for which a record that a node may have lost is waited for, before a stub is created in its place.
#[derive(Debug, Clone, Copy)]
pub struct RestartGrace(Option<Instant>);

/// Longer than any event takes that comes again without a stub.
const RESTART_GRACE: Duration = Duration::from_secs(10);

impl RestartGrace {
    /// Starts the grace now. The grace never expires unless a node `may_have_forgotten` the record.
    pub fn new(may_have_forgotten: bool) -> Self {
        RestartGrace(may_have_forgotten.then(|| Instant::now() + RESTART_GRACE))
    }

    /// Starts the grace of a wait for records that a decision needs. In a rebuild the grace expires, too: a record can
    /// wait for a verdict at a later offset.
    pub fn of_wait(cx: &HandlerContext<'_>) -> Self {
        RestartGrace::new(cx.applied_again || cx.is_replay())
    }

    /// Returns whether the grace is over.
    pub fn has_expired(self) -> bool {
        self.0.is_some_and(|end| Instant::now() >= end)
    }

    /// Returns whether no lost record is waited for: the grace is over, or no record can have been lost.
    pub fn is_inactive(self) -> bool {
        self.0.is_none() || self.has_expired()
    }
}

/// Waits until each of these transactions has a body. With `applied_again` a node may have lost their records.
pub async fn wait_for_bodies(cx: &HandlerContext<'_>, txids: &[Txid]) -> Result<Vec<Arc<Page>>, SequencerError> {
    let grace = RestartGrace::of_wait(cx);
    cx.wait_until("bodies of the decided transactions", || async {
        let masters = cx.masters(txids).await?;
        let missing: Vec<Txid> = txids
            .iter()
            .zip(&masters)
            .filter(|(_, master)| master.as_ref().is_none_or(|page| page.utxos.is_none() && page.pruned.is_none()))
            .map(|(txid, _)| *txid)
            .collect();
        if missing.is_empty() {
            return Ok(Ok(masters.into_iter().flatten().collect()));
        }
        let listed = format_missing(&missing);
        if grace.has_expired() {
            Box::pin(create_missing_stubs(cx, missing)).await?;
        }
        Ok(Err(listed))
    })
    .await
}

/// Applies an operation to every page of a transaction, the master last. A pruned transaction stays as it is.
pub async fn apply_to_every_page(
    cx: &HandlerContext<'_>,
    txid: Txid,
    operation: Sequenced,
) -> Result<(), SequencerError> {
    let master = wait_for_bodies(cx, &[txid]).await?.pop();
    let Some(master) = master.filter(|master| master.pruned.is_none()) else { return Ok(()) };
    apply_to_every_extra_page(cx, &master, &operation).await?;
    cx.apply_to_master(txid, operation).await
}

/// Applies a decided operation on one slot. The transaction is waited for, and a page that a node lost is made again.
/// Returns the refusal of the page.
pub async fn apply_to_stored_slot(
    cx: &HandlerContext<'_>,
    (txid, number): (Txid, u32),
    operation: Sequenced,
) -> Result<Option<Rejection>, SequencerError> {
    let row = cx.row(Phase::Apply, Key::Page(txid, number), operation);
    loop {
        wait_for_bodies(cx, &[txid]).await?;
        match cx.apply(vec![row.clone()]).await?.pop() {
            None => return Ok(None),
            // A reassigned output is no longer spent, so the master learns that not all outputs of the page are.
            Some(done @ (Outcome::Applied(_) | Outcome::AlreadyApplied(_))) => {
                return update_masters(cx, &[row], &[done]).await.map(|()| None);
            }
            Some(Outcome::Rejected(Rejection::NotFound)) => restore_page(cx, txid, number).await?,
            Some(Outcome::Rejected(rejection)) => return Ok(Some(rejection)),
        }
    }
}

/// Creates a stub for each transaction that a node lost and whose own event waits for a verdict at a later offset.
/// A transaction that waits long reads its own record and gives the stub its body. A transaction that is live lacks
/// another page, which is restored from the body. Any other transaction only has to become conflicting or live.
///
/// In a rebuild only a transaction that a verdict accepts in the end gets a stub. The transaction is absent, so that
/// the verdict has a later offset. Without a verdict the transaction waits for its parents alone.
pub async fn create_missing_stubs(cx: &HandlerContext<'_>, mut absent: Vec<Txid>) -> Result<(), SequencerError> {
    if cx.is_replay() {
        absent.retain(|txid| cx.parts.verdicts.get(txid) == Some(FinalState::Accepted));
    }
    let states = contest_holders(cx, Phase::Apply, absent).await?;
    let live = states.into_iter().filter(|(_, state)| *state != HolderState::NotLive).map(|(txid, _)| txid);
    complete(cx, &live.collect::<Vec<_>>()).await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::{
        engine::{EngineDecorator, EngineError, RecordEngine},
        record::{Key, Record, TxState, Verdict},
        sequencer::{SequencerParts, handler::Handler, state::ChainState, steps::DecisionMode, tests::parts},
        store::{StateStore, testing},
    };

    struct CountedReads(Arc<dyn RecordEngine>, AtomicUsize);

    impl EngineDecorator for CountedReads {
        fn inner(&self) -> &dyn RecordEngine {
            &*self.0
        }

        async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.read(keys).await
        }
    }

    /// A decision waits until another event makes one transaction live, and for an absent one. Protects: neither is
    /// read at each look.
    #[tokio::test]
    async fn transactions_that_only_wait_are_not_completed() {
        let parts = parts().await;
        let engine = Arc::new(CountedReads(parts.store.engine.clone(), AtomicUsize::new(0)));
        let store = StateStore { engine: engine.clone(), ..parts.store.clone() };
        let spent = testing::outpoint(Txid([9; 32]), 0);
        let contested = testing::page(&testing::transaction(&[(spent, 1_000)], &[500])).contested();
        let (txid, absent) = (contested.txid, Txid([8; 32]));
        store.plant(contested).await;
        let handler = Handler::new(SequencerParts { store: store.clone(), ..parts }, ChainState::default());
        let cx = &handler.context(3, DecisionMode::Live);
        engine.1.store(0, Ordering::Relaxed);
        create_missing_stubs(cx, vec![txid, absent]).await.unwrap();
        assert_eq!(engine.1.load(Ordering::Relaxed), 0);
        let stub = store.master(absent).await.unwrap().unwrap();
        assert_eq!(stub.state(), TxState::Stub(Verdict::Pending));
    }
}
