//! Compares stored outputs with the amounts and scripts that spenders claim.

use crate::record::{Body, Page, PartialOutputs, SpendSlot, StoredOutput};
use crate::tx::{Output, Transaction, amount_size};

/// Stored outputs of a page that a set of claims names.
pub(super) enum StoredOutputs<'a> {
    /// The page has no inline body.
    NotInline,
    /// All outputs of a partial transaction.
    Partial(&'a PartialOutputs),
    /// Claimed outputs of a whole transaction, ascending by index.
    Claimed(Vec<(u32, Output<'a>)>),
}

impl<'a> StoredOutputs<'a> {
    /// Finds the outputs that the claims name, in one pass over the body.
    pub(super) fn find(page: &'a Page, claims: impl Iterator<Item = u32>) -> Self {
        // Only the first page has a body, and its slot indexes are output indexes.
        match page.body() {
            Some(Body::Outputs(outputs)) => StoredOutputs::Partial(outputs),
            Some(Body::Transaction(bytes)) => StoredOutputs::in_transaction(bytes, claims),
            Some(Body::External(_)) | None => StoredOutputs::NotInline,
        }
    }

    /// Finds the outputs that the claims name in the bytes of a whole transaction.
    pub(super) fn in_transaction(bytes: &'a [u8], claims: impl Iterator<Item = u32>) -> Self {
        StoredOutputs::Claimed(read_outputs(bytes, claims))
    }

    /// Returns `true` if the claimed amount and script equal the stored ones; of a reassigned slot the new owner's.
    pub(super) fn agrees_with(&self, page: &Page, claim: &SpendSlot) -> bool {
        let same = |stored: &StoredOutput| stored.satoshis == claim.satoshis && stored.script == claim.script;
        if let Some(latest) = page.reassignments.iter().rev().find(|reassigned| reassigned.offset == claim.offset) {
            return same(&latest.output);
        }
        match self {
            // The slot's hash covers script and amount without a separator. The stored size of the amount separates
            // them.
            StoredOutputs::NotInline => match page.amount_sizes.get(claim.offset as usize) {
                Some(size) => *size == amount_size(claim.satoshis),
                None => page.amount_sizes.is_empty(),
            },
            StoredOutputs::Partial(outputs) => outputs.get(claim.offset).is_some_and(same),
            StoredOutputs::Claimed(outputs) => {
                let found = outputs.binary_search_by_key(&claim.offset, |(offset, _)| *offset);
                found.is_ok_and(|at| {
                    let output = outputs[at].1;
                    output.satoshis == claim.satoshis && output.script == claim.script
                })
            }
        }
    }
}

/// Returns the outputs at these indexes. A damaged body has no outputs, so that every claim on the body is refused.
fn read_outputs<'a>(bytes: &'a [u8], claims: impl Iterator<Item = u32>) -> Vec<(u32, Output<'a>)> {
    let Ok(transaction) = Transaction::parse(bytes) else { return Vec::new() };
    let mut claimed: Vec<u32> = claims.collect();
    claimed.sort_unstable();
    claimed.dedup();
    let mut found = Vec::with_capacity(claimed.len());
    let mut outputs = transaction.outputs();
    let mut next = 0;
    for offset in claimed {
        let Some(output) = outputs.nth((offset - next) as usize) else { break };
        found.push((offset, output));
        next = offset + 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::record::Blob;
    use crate::record::ops::testing::{hash, page_of, transaction};

    fn claim(offset: u32, satoshis: u64, script: &[u8]) -> SpendSlot {
        SpendSlot { offset, input: 0, utxo_hash: hash(offset), satoshis, script: Bytes::copy_from_slice(script) }
    }

    #[test]
    fn claims_in_any_order_are_found_in_one_pass() {
        let page = page_of(Some(Body::Transaction(transaction(5))));
        let stored = StoredOutputs::find(&page, [4, 0, 2, 4].into_iter());
        for offset in [0, 2, 4] {
            assert!(stored.agrees_with(&page, &claim(offset, 100 + u64::from(offset), &[0x51, offset as u8])));
            assert!(!stored.agrees_with(&page, &claim(offset, 99, &[0x51, offset as u8])));
            assert!(!stored.agrees_with(&page, &claim(offset, 100 + u64::from(offset), &[0x51])));
        }
    }

    #[test]
    fn a_claim_on_an_output_out_of_range_does_not_agree() {
        let page = page_of(Some(Body::Transaction(transaction(2))));
        let stored = StoredOutputs::find(&page, [u32::MAX, 7, 1].into_iter());
        assert!(!stored.agrees_with(&page, &claim(7, 107, &[0x51, 7])));
        assert!(!stored.agrees_with(&page, &claim(u32::MAX, 0, &[])));
        assert!(stored.agrees_with(&page, &claim(1, 101, &[0x51, 1])));
    }

    #[test]
    fn no_claim_agrees_with_a_damaged_body() {
        let page = page_of(Some(Body::Transaction(transaction(2).slice(..20))));
        assert!(!StoredOutputs::find(&page, [0].into_iter()).agrees_with(&page, &claim(0, 100, &[0x51, 0])));
    }

    #[test]
    fn without_an_inline_body_the_amount_size_is_compared() {
        for body in [Some(Body::External(Blob::First(None))), None] {
            let mut page = page_of(body);
            let agrees = |page: &_, claim: &SpendSlot| {
                StoredOutputs::find(page, [claim.offset].into_iter()).agrees_with(page, claim)
            };
            assert!(agrees(&page, &claim(0, 5, &[])), "records of the reference have no amount sizes, only the hash");
            page.amount_sizes = Bytes::from_static(&[1, 9, 0]);
            let (small, vast) = (claim(0, 5, &[]), claim(1, u64::MAX, &[]));
            assert!(agrees(&page, &small) && agrees(&page, &vast));
            let (as_vast, as_small) = (SpendSlot { offset: 1, ..small.clone() }, SpendSlot { offset: 0, ..vast });
            assert!(!agrees(&page, &as_vast) && !agrees(&page, &as_small));
            for offset in [2, 3] {
                assert!(!agrees(&page, &SpendSlot { offset, ..small.clone() }), "nil, and out of range");
            }
        }
    }

    #[test]
    fn no_claim_agrees_with_an_absent_output_of_a_partial_transaction() {
        let output = StoredOutput { satoshis: 7, script: Bytes::from_static(&[1]) };
        let page = page_of(Some(Body::Outputs([None, Some(output)].into_iter().collect())));
        let stored = StoredOutputs::find(&page, [0, 1].into_iter());
        assert!(!stored.agrees_with(&page, &claim(0, 7, &[1])));
        assert!(stored.agrees_with(&page, &claim(1, 7, &[1])));
        assert!(!stored.agrees_with(&page, &claim(1, 8, &[1])));
    }
}
