//! The previous output as it is stored, against what a spender claims it to be.

use crate::record::{Body, Page, SpendSlot, StoredOutput};

/// The stored outputs that a set of claims is about.
pub(super) enum StoredOutputs<'a> {
    /// Nothing is stored with this page: the hash alone counts.
    Elsewhere,
    /// A partial transaction's outputs.
    Partial(&'a [Option<StoredOutput>]),
}

impl<'a> StoredOutputs<'a> {
    /// Finds what the claims name, in one pass over the body.
    pub(super) fn find(page: &'a Page, _claims: impl Iterator<Item = u32>) -> Self {
        // A body lies with the record only where there is one page, so that an offset is an output index.
        match page.master.as_ref().and_then(|master| master.body.as_ref()) {
            Some(Body::Outputs(outputs)) => StoredOutputs::Partial(outputs),
            Some(Body::Transaction(_)) | Some(Body::External) | None => StoredOutputs::Elsewhere,
        }
    }

    /// Whether amount and script are those stored; the new owner's where the slot was reassigned.
    pub(super) fn agree(&self, page: &Page, claim: &SpendSlot) -> bool {
        let same = |stored: &StoredOutput| stored.satoshis == claim.satoshis && stored.script == claim.script;
        if let Some(latest) = page.reassignments.iter().rev().find(|reassigned| reassigned.offset == claim.offset) {
            return same(&latest.output);
        }
        match self {
            StoredOutputs::Elsewhere => true,
            StoredOutputs::Partial(outputs) => {
                outputs.get(claim.offset as usize).and_then(Option::as_ref).is_some_and(same)
            }
        }
    }
}
