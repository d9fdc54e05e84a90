//! What one record says of others, gathered until there is a batch of it, then asked.

use std::collections::BTreeMap;

use crate::{
    engine::EngineError,
    record::{Key, Page, Slot, TxState},
    store::{
        Store,
        body::{BodyError, ParsedBody},
        into_page,
    },
    tx::{Outpoint, Txid},
};

use super::{Holder, Violation, lost};

/// Records read at once. A page can have a megabyte.
const KEYS: usize = 256;
/// Questions gathered at most: many of them may be about one record.
const QUESTIONS: usize = 100_000;

/// Questions to records, by the record that has the answer.
#[derive(Default)]
pub(super) struct Questions {
    by_key: BTreeMap<Key, Vec<Question>>,
    count: usize,
}

enum Question {
    /// To a page: a live transaction's input spends this slot of yours; do you know?
    Input { spender: Holder, outpoint: Outpoint, offset: u32 },
    /// To a master: a slot names this input of yours; do you spend it?
    Slot { outpoint: Outpoint, input: u32 },
    /// To a master: is this page yours? It is `creating`, since then, or not.
    Page(u32, Option<u64>),
}

impl Questions {
    pub(super) fn input(&mut self, spender: Holder, outpoint: Outpoint, (page, offset): (u32, u32)) {
        self.add(Key::Page(outpoint.txid, page), Question::Input { spender, outpoint, offset });
    }

    pub(super) fn slot(&mut self, outpoint: Outpoint, spender: Holder) {
        self.add(Key::master(spender.txid), Question::Slot { outpoint, input: spender.input });
    }

    pub(super) fn page(&mut self, txid: Txid, number: u32, creating_at: Option<u64>) {
        self.add(Key::master(txid), Question::Page(number, creating_at));
    }

    pub(super) fn are_many(&self) -> bool {
        self.by_key.len() >= KEYS || self.count >= QUESTIONS
    }

    fn add(&mut self, key: Key, question: Question) {
        self.by_key.entry(key).or_default().push(question);
        self.count += 1;
    }

    /// Asks them all, and forgets them.
    pub(super) async fn ask(&mut self, store: &Store, found: &mut impl FnMut(Violation)) -> Result<(), EngineError> {
        self.count = 0;
        let asked = std::mem::take(&mut self.by_key);
        let records = store.read(asked.keys().copied().collect()).await?;
        for ((key, questions), record) in asked.into_iter().zip(records) {
            let Key::Page(txid, _) = key else { continue };
            let page = into_page(record);
            let spends = spends(store, txid, page.as_deref(), &questions).await;
            for question in questions {
                match question {
                    Question::Input { spender, outpoint, offset } => {
                        input(page.as_deref(), spender, outpoint, offset).into_iter().for_each(&mut *found);
                    }
                    Question::Slot { outpoint, input } => {
                        let spender = Holder { txid, input };
                        slot(page.as_deref(), &spends, outpoint, spender).into_iter().for_each(&mut *found);
                    }
                    Question::Page(number, creating_at) => {
                        if !has_page(page.as_deref(), number) {
                            found(Violation::OrphanedPage { txid, page: number });
                        }
                        // The master of who is contested bars it.
                        let barred = page.as_ref().is_some_and(|master| master.conflicting);
                        if let Some(since) = creating_at.filter(|_| !barred) {
                            found(Violation::Creating { txid, page: number, since });
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// What a transaction spends, as far as it can be told.
enum Spends {
    /// Its outpoints, by input.
    Known(Vec<Outpoint>),
    /// The body is missing, damaged or elsewhere: a violation of its own.
    Unknown,
}

async fn spends(store: &Store, txid: Txid, master: Option<&Page>, questions: &[Question]) -> Spends {
    let is_asked = questions.iter().any(|question| matches!(question, Question::Slot { .. }));
    let Some(master) = master.filter(|_| is_asked) else { return Spends::Unknown };
    let known = async {
        let body = store.body(master).await?;
        let body = ParsedBody::parse(txid, &body)?;
        Ok::<_, BodyError>(
            body.transaction().map(|transaction| transaction.inputs().map(|input| input.outpoint).collect()),
        )
    };
    match known.await {
        Ok(spends) => Spends::Known(spends.unwrap_or_default()),
        Err(_) => Spends::Unknown,
    }
}

fn input(page: Option<&Page>, spender: Holder, outpoint: Outpoint, offset: u32) -> Option<Violation> {
    let page = page?;
    let Holder { txid, input } = spender;
    // A stub or a tombstone tells nothing.
    let slots = page.utxos.as_deref()?;
    if page.conflicting {
        return Some(Violation::ConflictingParent { txid, parent: page.txid });
    }
    match slots.get(offset as usize) {
        None | Some(Slot::Nil) => Some(Violation::NoSuchSlot { txid, input, outpoint }),
        Some(slot) => {
            let holder = slot.spender().map(Holder::from);
            (holder != Some(spender)).then_some(Violation::InputNotTaken { txid, input, outpoint, holder })
        }
    }
}

fn slot(master: Option<&Page>, spends: &Spends, outpoint: Outpoint, spender: Holder) -> Option<Violation> {
    let Some(master) = master else { return Some(Violation::SpenderMissing { outpoint, spender }) };
    if lost(master) {
        return Some(Violation::ConflictingHoldsSlot { outpoint, spender });
    }
    if matches!(master.state(), TxState::Stub(_) | TxState::Pruned(_)) {
        return None;
    }
    match spends {
        Spends::Known(spends) if spends.get(spender.input as usize) != Some(&outpoint) => {
            Some(Violation::SpenderNeverNamedIt { outpoint, spender })
        }
        Spends::Known(_) | Spends::Unknown => None,
    }
}

/// A stub may yet be filled; a tombstone's pages went before it.
fn has_page(master: Option<&Page>, number: u32) -> bool {
    let Some(master) = master else { return false };
    match master.state() {
        TxState::Stub(_) => true,
        TxState::Pruned(_) => false,
        _ => master.master.as_ref().is_some_and(|bins| number <= bins.total_extra_recs),
    }
}
