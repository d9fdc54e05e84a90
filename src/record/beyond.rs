//! What bars a page beyond the first: a page alone does not know. Its flags say *that* it is barred; why, and whether it can
//! exist at all, its master says.

use super::{Page, Rejection, TxState, Verdict};

/// Whether the refusal of an operation on page `number` means something only together with the master.
pub fn needs_master(number: u32, rejection: &Rejection) -> bool {
    number > 0 && matches!(rejection, Rejection::NotFound | Rejection::Creating | Rejection::Conflicting(_))
}

/// The refusal of taking slot `offset` of page `number`, given the master (`None`: there is none), which is read afterwards.
///
/// A master that has slots means that every page was written: one that it does not tell of cannot exist.
pub fn by_master(rejection: Rejection, number: u32, offset: u32, master: Option<&Page>) -> Rejection {
    if !needs_master(number, &rejection) {
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
        // The page's own flags are about to go.
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

    const LOST: Verdict = Verdict::Conflicting(Reason::Command);

    #[test]
    fn the_master_says_why() {
        let creating = Page { creating_at: Some(1), ..master(None) };
        let stub = |verdict| Page::stub(Txid([1; 32]), verdict);
        let tombstone = Page { pruned: Some(7), ..stub(LOST) };
        let cases = [
            (None, Rejection::NotFound),
            (Some(stub(Verdict::Pending)), Rejection::NotFound),
            (Some(stub(LOST)), Rejection::Conflicting(LOST)),
            (Some(tombstone), Rejection::Pruned(7)),
            (Some(master(Some(Verdict::Pending))), Rejection::Conflicting(Verdict::Pending)),
            (Some(master(Some(LOST))), Rejection::Conflicting(LOST)),
            (Some(creating), Rejection::Creating),
            (Some(master(None)), Rejection::Creating),
        ];
        for (master, expected) in cases {
            for told in [Rejection::NotFound, Rejection::Creating, Rejection::Conflicting(Verdict::Pending)] {
                assert_eq!(by_master(told.clone(), 2, 5, master.as_ref()), expected, "{told:?} {master:?}");
            }
        }
    }

    #[test]
    fn a_page_that_cannot_exist_has_no_outputs() {
        for verdict in [None, Some(Verdict::Pending), Some(Verdict::Accepted), Some(LOST)] {
            assert_eq!(by_master(Rejection::NotFound, 3, 5, Some(&master(verdict))), Rejection::NoSuchOutput(5));
        }
    }

    #[test]
    fn masters_and_what_a_page_knows_itself_stay_as_they_are() {
        assert_eq!(by_master(Rejection::Creating, 0, 5, None), Rejection::Creating);
        for told in [Rejection::Locked, Rejection::NoSuchOutput(1), Rejection::Contested(1)] {
            assert_eq!(by_master(told.clone(), 2, 5, None), told);
        }
    }
}
