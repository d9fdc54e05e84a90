//! `CreateContested`: stores a contested transaction whole, in the place of a stub too. Its other pages are `creating`, like those of
//! any transaction: its master bars them.

use std::sync::Arc;

use crate::record::{Key, Page, Record, Rejection, Reply, Rules, TxState};

use super::{Effect, belongs, create::is_said_of, optional_page, prune, slots::slot};

pub(super) fn apply(
    rules: &Rules,
    key: &Key,
    record: &mut Option<Record>,
    new: &Arc<Page>,
) -> Result<Effect, Rejection> {
    belongs(key, new)?;
    let fits = match new.state() {
        TxState::Conflicting(_) => new.number > 0 || new.verdict().is_some(),
        TxState::Creating => new.number > 0,
        _ => false,
    };
    if !fits {
        return Err(Rejection::Unexpected);
    }
    let Some(page) = optional_page(record)? else {
        let state = new.state();
        *record = Some(Record::Page(Arc::clone(new)));
        return Ok(Effect::applied(Reply::State(state)));
    };
    is_said_of(page, new)?;
    match page.state() {
        TxState::Stub(_) => *page = Arc::new(fill(page, new)),
        // Another page is the same, whoever wrote it.
        state @ TxState::Creating if page.master.is_none() => return Ok(Effect::already(Reply::State(state), false)),
        state @ TxState::Conflicting(_) => return Ok(Effect::already(Reply::State(state), false)),
        state @ TxState::Pruned(_) if page.is_fallen_remains() => {
            let Some(kept) = prune::kept_for_longer(rules, page, new) else {
                return Ok(Effect::already(Reply::State(state), false));
            };
            *page = Arc::new(kept);
        }
        state @ (TxState::Live | TxState::Creating | TxState::Pruned(_)) => return Err(Rejection::Exists(state)),
    }
    Ok(Effect::applied(Reply::State(page.state())))
}

/// A stub gets its body; what the sequencer wrote on it stays, its verdict too.
fn fill(stub: &Page, new: &Page) -> Page {
    let mut page = with_marks_of(stub, new);
    page.delete_at_height = stub.delete_at_height;
    if let (Some(master), Some(stub)) = (&mut page.master, &stub.master) {
        master.verdict = stub.verdict;
    }
    page
}

/// `new` in the place of a stub: its stamp, the marks of slots that turn out to be there, its conflicting children.
pub(super) fn with_marks_of(stub: &Page, new: &Page) -> Page {
    let mut page = new.clone();
    page.chain_pos = stub.chain_pos;
    page.contested.extend(stub.contested.iter().filter(|offset| slot(new, **offset).is_some()));
    if let (Some(master), Some(stub)) = (&mut page.master, &stub.master) {
        master.conflicting_children.clone_from(&stub.conflicting_children);
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
    fn fills_a_stub_and_keeps_what_the_sequencer_wrote() {
        for verdict in [Verdict::Pending, LOST] {
            let mut stub = stub(verdict);
            stub.chain_pos = Some(stamp(4));
            stub.delete_at_height = Some(500);
            stub.contested = [1, 2].into();
            master(&mut stub).conflicting_children.insert(txid(3));
            let mut record = record(stub);
            let state = TxState::Conflicting(verdict);
            let effect = on_master(&mut record, &create(contested(2, Verdict::Pending)));
            assert_eq!(effect.outcome, applied(Reply::State(state)));
            let page = page(&record);
            assert_eq!((page.chain_pos, page.delete_at_height), (Some(stamp(4)), Some(500)));
            assert_eq!(page.contested, [1].into(), "only slots that turn out to be there");
            assert_eq!(page.utxos.as_ref().map(Vec::len), Some(2));
            let master = page.master.as_ref().unwrap();
            assert_eq!(master.verdict, Some(verdict));
            assert!(master.body.is_some() && master.conflicting_children.contains(&txid(3)));
        }
    }

    #[test]
    fn puts_it_where_there_is_nothing() {
        let state = TxState::Conflicting(Verdict::Pending);
        let mut record = None;
        let effect = on_master(&mut record, &create(contested(1, Verdict::Pending)));
        assert_eq!(effect.outcome, applied(Reply::State(state)));
    }

    #[test]
    fn what_is_live_or_begun_or_done_with_is_told() {
        for there in [live(1), creating(1), tombstone(5, None), tombstone(5, Some(Verdict::Accepted))] {
            let state = there.state();
            let told = refused(on_master(&mut record(there), &create(contested(1, Verdict::Pending))));
            assert_eq!(told, Rejection::Exists(state));
        }
    }

    /// Nobody knows whether its event comes before or behind that: in a rebuild it may be the other way round.
    #[test]
    fn what_was_deleted_does_not_come_back_by_an_event_of_its_own() {
        let key = Key::Page(TXID, 1);
        let there = Page { number: 1, master: None, ..tombstone(5, Some(LOST)) };
        for new in [Page { conflicting: true, ..second_page(1) }, Page { creating_at: Some(1), ..second_page(1) }] {
            let told = refused(on(&key, &mut record(there.clone()), &create(new)));
            assert_eq!(told, Rejection::Exists(TxState::Pruned(5)));
        }
        assert_eq!(refused(on(&key, &mut None, &create(second_page(1)))), Rejection::Unexpected, "nothing bars it");
    }

    /// For a block that may list it.
    #[test]
    fn what_is_left_of_the_fallen_keeps_its_body_for_another_retention() {
        let mut new = contested(1, Verdict::Pending);
        (master(&mut new).unmined_since, new.size_in_bytes) = (Some(1_000), 250);
        master(&mut new).body = Some(Body::Transaction(transaction(1)));
        let kept = applied(Reply::State(TxState::Pruned(5)));
        let mut name = record(tombstone(5, Some(LOST)));
        assert_eq!(on_master(&mut name, &create(new.clone())).outcome, kept);
        let page = name.as_ref().and_then(Record::page).unwrap();
        assert_eq!((page.delete_at_height, page.body()), (Some(1_000 + RULES.retention), new.body()));
        assert!(page.is_fallen_remains() && page.utxos.is_none(), "nothing of it can be spent");
        assert_eq!(on_master(&mut name, &create(new.clone())).outcome, already(Reply::State(TxState::Pruned(5))));
        // One that stays for good does.
        let mut whole = name.as_ref().and_then(Record::page).unwrap().clone();
        whole.delete_at_height = None;
        let effect = on_master(&mut record(whole), &create(new));
        assert_eq!(effect.outcome, already(Reply::State(TxState::Pruned(5))));
    }

    #[test]
    fn what_is_there_keeps_its_body() {
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
