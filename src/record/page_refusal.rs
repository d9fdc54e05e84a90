//! Reason of a refusal by a page other than the master. The flags of such a page say only *that* the page is refused.
//! The master has the reason, and the number of pages that exist.

use super::{Page, Rejection, TxState, Verdict};

/// Returns whether the refusal of an operation on page `number` needs the master to be explained.
pub fn is_explained_by_master(number: u32, rejection: &Rejection) -> bool {
    number > 0 && matches!(rejection, Rejection::NotFound | Rejection::Creating | Rejection::Conflicting(_))
}

/// Returns the refusal of a spend of slot `offset` of page `number`, explained by the master (`None`: no master
/// exists). The master has to be read after the refusal.
///
/// A master with slots means that every page was written. A page above the master's number of pages therefore cannot
/// exist.
pub fn explain_by_master(rejection: Rejection, number: u32, offset: u32, master: Option<&Page>) -> Rejection {
    if !is_explained_by_master(number, &rejection) {
        return rejection;
    }
    let Some((master, bins)) = master.and_then(|master| Some((master, master.master.as_deref()?))) else {
        return Rejection::NotFound;
    };
    match master.state() {
        TxState::Pruned(height) => Rejection::Pruned(height),
        TxState::Stub(Verdict::Pending) => Rejection::NotFound,
        TxState::Stub(verdict) => Rejection::Conflicting(verdict),
        _ if number > bins.total_extra_recs => Rejection::NoSuchOutput(offset),
        TxState::Conflicting(verdict) => Rejection::Conflicting(verdict),
        // The page's own flags are being cleared.
        TxState::Creating | TxState::Live => Rejection::Creating,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        record::{Master, Reason, Slot},
        tx::{Txid, UtxoHash},
    };

    fn master(verdict: Option<Verdict>) -> Page {
        let master = Master { total_extra_recs: 2, verdict, ..Master::default() };
        Page {
            utxos: Some(vec![Slot::Unspent(UtxoHash([1; 32]))]),
            conflicting: verdict.is_some_and(|verdict| verdict != Verdict::Accepted),
            master: Some(Box::new(master)),
            ..Page::empty(Txid([1; 32]))
        }
    }

    const CONFLICTING: Verdict = Verdict::Conflicting(Reason::Command);

    #[test]
    fn the_master_gives_the_reason() {
        let creating = Page { creating_at: Some(1), ..master(None) };
        let stub = |verdict| Page::stub(Txid([1; 32]), verdict);
        let tombstone = Page { pruned: Some(7), ..stub(CONFLICTING) };
        let cases = [
            (None, Rejection::NotFound),
            (Some(stub(Verdict::Pending)), Rejection::NotFound),
            (Some(stub(CONFLICTING)), Rejection::Conflicting(CONFLICTING)),
            (Some(tombstone), Rejection::Pruned(7)),
            (Some(master(Some(Verdict::Pending))), Rejection::Conflicting(Verdict::Pending)),
            (Some(master(Some(CONFLICTING))), Rejection::Conflicting(CONFLICTING)),
            (Some(creating), Rejection::Creating),
            (Some(master(None)), Rejection::Creating),
        ];
        for (master, expected) in cases {
            for refusal in [Rejection::NotFound, Rejection::Creating, Rejection::Conflicting(Verdict::Pending)] {
                assert_eq!(
                    explain_by_master(refusal.clone(), 2, 5, master.as_ref()),
                    expected,
                    "{refusal:?} {master:?}"
                );
            }
        }
    }

    #[test]
    fn a_page_that_cannot_exist_has_no_outputs() {
        for verdict in [None, Some(Verdict::Pending), Some(Verdict::Accepted), Some(CONFLICTING)] {
            assert_eq!(
                explain_by_master(Rejection::NotFound, 3, 5, Some(&master(verdict))),
                Rejection::NoSuchOutput(5)
            );
        }
    }

    #[test]
    fn refusals_that_need_no_master_stay_unchanged() {
        assert_eq!(explain_by_master(Rejection::Creating, 0, 5, None), Rejection::Creating);
        for refusal in [Rejection::Locked, Rejection::NoSuchOutput(1), Rejection::Contested(1)] {
            assert_eq!(explain_by_master(refusal.clone(), 2, 5, None), refusal);
        }
    }
}
