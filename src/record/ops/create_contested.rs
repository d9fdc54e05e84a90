//! `CreateContested`: stores a contested transaction with its body, also in the place of a stub. Pages other than the
//! master are `creating`, as in every paged create: the master bars the transaction.

use std::sync::Arc;

use crate::record::{Key, Page, Record, Rejection, Reply, Rules, TxState};

use super::{Effect, check_key, create::check_same_content, find_page, prune, slots::slot};

pub(super) fn apply(
    rules: &Rules,
    key: &Key,
    record: &mut Option<Record>,
    new: &Arc<Page>,
) -> Result<Effect, Rejection> {
    check_key(key, new)?;
    let is_contested = match new.state() {
        TxState::Conflicting(_) => new.number > 0 || new.verdict().is_some(),
        TxState::Creating => new.number > 0,
        _ => false,
    };
    if !is_contested {
        return Err(Rejection::Unexpected);
    }
    let Some(page) = find_page(record)? else {
        let state = new.state();
        *record = Some(Record::Page(Arc::clone(new)));
        return Ok(Effect::applied(Reply::State(state)));
    };
    check_same_content(page, new)?;
    match page.state() {
        TxState::Stub(_) => *page = Arc::new(fill_stub(page, new)),
        // Two events of one transaction have equal pages other than the master.
        state @ TxState::Creating if page.master.is_none() => {
            return Ok(Effect::already_applied(Reply::State(state), false));
        }
        state @ TxState::Conflicting(_) => return Ok(Effect::already_applied(Reply::State(state), false)),
        state @ TxState::Pruned(_) if page.is_conflicting_tombstone() => {
            let Some(extended) = prune::extend_tombstone(rules, page, new) else {
                return Ok(Effect::already_applied(Reply::State(state), false));
            };
            *page = Arc::new(extended);
        }
        state @ (TxState::Live | TxState::Creating | TxState::Pruned(_)) => return Err(Rejection::Exists(state)),
    }
    Ok(Effect::applied(Reply::State(page.state())))
}

/// Returns `new` with the stub's marks, verdict and `deleteAtHeight`.
fn fill_stub(stub: &Page, new: &Page) -> Page {
    let mut page = copy_stub_marks(stub, new);
    page.delete_at_height = stub.delete_at_height;
    if let (Some(master), Some(stub)) = (&mut page.master, &stub.master) {
        master.verdict = stub.verdict;
    }
    page
}

/// Returns `new` with the stub's stamp, conflicting children, `preserveUntil`, and marks of the slots that `new` has.
pub(super) fn copy_stub_marks(stub: &Page, new: &Page) -> Page {
    let mut page = new.clone();
    page.chain_pos = stub.chain_pos;
    page.contested.extend(stub.contested.iter().filter(|offset| slot(new, **offset).is_some()));
    if let (Some(master), Some(stub)) = (&mut page.master, &stub.master) {
        master.conflicting_children.clone_from(&stub.conflicting_children);
        master.preserve_until = stub.preserve_until;
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::ops::testing::*;
    use crate::record::{Body, Operation, Reason, Verdict};

    fn create(page: Page) -> Operation {
        Operation::CreateContested(Arc::new(page))
    }

    const LOST: Verdict = Verdict::Conflicting(Reason::Command);

    #[test]
    fn a_stub_is_filled_and_keeps_marks_and_verdict() {
        for verdict in [Verdict::Pending, LOST] {
            let mut stub = stub(verdict);
            stub.chain_pos = Some(stamp(4));
            stub.delete_at_height = Some(500);
            stub.contested = [1, 2].into();
            master(&mut stub).conflicting_children.insert(txid(3));
            master(&mut stub).preserve_until = Some(700);
            let mut record = record(stub);
            let state = TxState::Conflicting(verdict);
            let effect = on_master(&mut record, &create(contested(2, Verdict::Pending)));
            assert_eq!(effect.outcome, applied(Reply::State(state)));
            let page = page(&record);
            assert_eq!((page.chain_pos, page.delete_at_height), (Some(stamp(4)), Some(500)));
            assert_eq!(page.contested, [1].into(), "only marks of existing slots");
            assert_eq!(page.utxos.as_ref().map(Vec::len), Some(2));
            let master = page.master.as_ref().unwrap();
            assert_eq!((master.verdict, master.preserve_until), (Some(verdict), Some(700)));
            assert!(master.body.is_some() && master.conflicting_children.contains(&txid(3)));
        }
    }

    #[test]
    fn an_absent_record_gets_the_contested_page() {
        let state = TxState::Conflicting(Verdict::Pending);
        let mut record = None;
        let effect = on_master(&mut record, &create(contested(1, Verdict::Pending)));
        assert_eq!(effect.outcome, applied(Reply::State(state)));
    }

    #[test]
    fn a_live_creating_or_pruned_transaction_is_refused_with_the_state() {
        for stored in [live(1), creating(1), tombstone(5, None), tombstone(5, Some(Verdict::Accepted))] {
            let state = stored.state();
            let rejection = refused(on_master(&mut record(stored), &create(contested(1, Verdict::Pending))));
            assert_eq!(rejection, Rejection::Exists(state));
        }
    }

    /// The event may precede or follow the pruning: a rebuild may read them in the other order.
    #[test]
    fn a_pruned_page_does_not_come_back_by_its_own_event() {
        let key = Key::Page(TXID, 1);
        let stored = Page { number: 1, master: None, ..tombstone(5, Some(LOST)) };
        for new in [Page { conflicting: true, ..second_page(1) }, Page { creating_at: Some(1), ..second_page(1) }] {
            let rejection = refused(on(&key, &mut record(stored.clone()), &create(new)));
            assert_eq!(rejection, Rejection::Exists(TxState::Pruned(5)));
        }
        assert_eq!(refused(on(&key, &mut None, &create(second_page(1)))), Rejection::Unexpected, "a live page");
    }

    /// A block may list the transaction and needs the body.
    #[test]
    fn a_conflicting_tombstone_gets_the_body_for_another_retention() {
        let mut new = contested(1, Verdict::Pending);
        (master(&mut new).unmined_since, new.size_in_bytes) = (Some(1_000), 250);
        master(&mut new).body = Some(Body::Transaction(transaction(1)));
        let extended = applied(Reply::State(TxState::Pruned(5)));
        let mut stripped = record(tombstone(5, Some(LOST)));
        assert_eq!(on_master(&mut stripped, &create(new.clone())).outcome, extended);
        let page = stripped.as_ref().and_then(Record::page).unwrap();
        assert_eq!((page.delete_at_height, page.body()), (Some(1_000 + RULES.retention), new.body()));
        assert!(page.is_conflicting_tombstone() && page.utxos.is_none(), "a tombstone has no slots to spend");
        assert_eq!(on_master(&mut stripped, &create(new.clone())).outcome, already(Reply::State(TxState::Pruned(5))));
        // A tombstone without `deleteAtHeight` stays for ever and is not extended.
        let mut whole = stripped.as_ref().and_then(Record::page).unwrap().clone();
        whole.delete_at_height = None;
        let effect = on_master(&mut record(whole), &create(new));
        assert_eq!(effect.outcome, already(Reply::State(TxState::Pruned(5))));
    }

    #[test]
    fn a_stored_contested_transaction_keeps_its_body() {
        for verdict in [Verdict::Pending, LOST, Verdict::Conflicting(Reason::Mismatch { input: 0 })] {
            let mut record = record(contested(2, verdict));
            let mut new = contested(2, Verdict::Pending);
            new.fee = 77;
            let effect = on_master(&mut record, &create(new));
            assert_eq!(effect.outcome, already(Reply::State(TxState::Conflicting(verdict))));
            assert!(!effect.changed);
        }
    }

    #[test]
    fn a_page_that_is_not_contested_is_refused() {
        let mut without_verdict = contested(1, Verdict::Pending);
        master(&mut without_verdict).verdict = None;
        for page in [live(1), stub(Verdict::Pending), without_verdict, tombstone(5, Some(LOST))] {
            assert_eq!(refused(on_master(&mut None, &create(page))), Rejection::Unexpected);
        }
    }
}
