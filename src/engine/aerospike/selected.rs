//! Reads of parts of pages: one request names the bins, and the elements of lists, that a [`Selection`] needs.

use aerospike::{
    BatchOperation, BatchReadPolicy, Bins, Key as ServerKey,
    operations::{Operation, get_bin, lists},
};

use super::{layout::Layout, names};
use crate::record::{Selection, SlotRange};

/// Bins that decide whether an output can be spent. `recordUtxos` tells a page with slots from a stub.
const STATUS: [&str; 11] = [
    names::RECORD_UTXOS,
    names::LOCKED,
    names::CONFLICTING,
    names::FROZEN,
    names::CREATING,
    names::CREATING_AT,
    names::SPENDING_HEIGHT,
    names::SPENDABLE_IN,
    names::PRUNED,
    names::VERDICT,
    names::REASON,
];

/// Bins of the stored data of a transaction besides [`STATUS`], slots, inputs and outputs.
const META: [&str; 21] = [
    names::VERSION,
    names::LOCK_TIME,
    names::FEE,
    names::SIZE_IN_BYTES,
    names::EXTENDED_SIZE,
    names::SPENT_UTXOS,
    names::IS_COINBASE,
    names::DELETE_AT_HEIGHT,
    names::TOTAL_UTXOS,
    names::TOTAL_EXTRA_RECS,
    names::BLOCK_IDS,
    names::BLOCK_HEIGHTS,
    names::SUBTREE_IDXS,
    names::CREATED_AT,
    names::UNMINED_SINCE,
    names::EXTERNAL,
    names::OTHER_BLOB,
    names::BLOB_HASH,
    names::CONFLICTING_CHILDREN,
    names::SPENT_PAGES,
    names::PRESERVE_UNTIL,
];

/// Builds the read of the selected parts of one page.
pub fn read(layout: Layout, policy: &BatchReadPolicy, key: ServerKey, selection: Selection) -> BatchOperation {
    if layout == Layout::Compact {
        return read_compact(policy, key, selection);
    }
    let bins = STATUS.iter().chain(selection.meta.then_some(&META).into_iter().flatten());
    let Some(SlotRange { first, count }) = selection.slots else {
        return BatchOperation::read(policy, key, Bins::Some(bins.map(|name| (*name).to_owned()).collect()));
    };
    // A range outside the list is empty; an index outside the list would fail the whole read.
    let range = |bin| lists::get_range(bin, first.into(), count.into());
    let mut operations: Vec<Operation> = bins.map(|name| get_bin(*name)).collect();
    operations.push(range(names::UTXOS));
    if selection.output {
        operations.push(range(names::OUTPUTS));
        operations.push(get_bin(names::REASSIGNMENTS));
    }
    BatchOperation::read_ops(policy, key, operations)
}

/// Bins of a page in `compact`, besides its slots. Few pages have more than `tx` and the heights.
const COMPACT: [&str; 17] = [
    names::TX,
    names::FLAGS,
    names::UNSPENT,
    names::CREATING_AT,
    names::SPENDABLE_IN,
    names::REASSIGNMENTS,
    names::CONTESTED,
    names::PRUNED,
    names::VERDICT,
    names::REASON,
    names::CHAIN_POS,
    names::DELETE_AT_HEIGHT,
    names::BLOCKS,
    names::UNMINED_SINCE,
    names::CONFLICTING_CHILDREN,
    names::SPENT_PAGES,
    names::PRESERVE_UNTIL,
];

fn read_compact(policy: &BatchReadPolicy, key: ServerKey, selection: Selection) -> BatchOperation {
    let body = selection.output.then_some(&[names::BODY, names::OUTPUTS]).into_iter().flatten();
    let bins = COMPACT.iter().chain(body);
    let Some(SlotRange { first, count }) = selection.slots else {
        return BatchOperation::read(policy, key, Bins::Some(bins.map(|name| (*name).to_owned()).collect()));
    };
    let mut operations: Vec<Operation> = bins.map(|name| get_bin(*name)).collect();
    operations.push(lists::get_range(names::UTXOS, first.into(), count.into()));
    BatchOperation::read_ops(policy, key, operations)
}
