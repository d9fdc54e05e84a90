//! A block lists a transaction of one page that no block has listed yet: on the longest chain a live one, on a side chain any. Then
//! all that there is to answer is known beforehand. One with conflicting children goes the other way, which says so.

use aerospike::{
    BatchWritePolicy, Bin, ListPolicy, Value,
    expressions::{bin_exists, eq, int_bin, int_val, list_bin, lists as in_lists},
    operations::{self, Operation as ServerOperation, lists},
};

use super::{
    super::{
        bins::stamp_number,
        names,
        template::{Conditions, Fill, Template, absent, unset},
    },
    Listing, behind, due, not_after_a_later_stamp,
};
use crate::record::{Reply, Rules};

pub struct Templates {
    on_longest_chain: Conditions,
    on_side_chain: Conditions,
    /// One hole: the stamp.
    stamp: Template,
    due: Option<ServerOperation>,
}

impl Templates {
    pub fn new(rules: &Rules) -> Self {
        let conditions = [
            bin_exists(names::UTXOS),
            absent(names::CONFLICTING_CHILDREN),
            eq(in_lists::size(list_bin(names::BLOCK_IDS), &[]), int_val(0)),
            eq(int_bin(names::TOTAL_EXTRA_RECS), int_val(0)),
            unset(names::CREATING),
            unset(names::CONFLICTING),
            absent(names::DELETE_AT_HEIGHT),
        ];
        Templates {
            on_side_chain: Conditions::new(&conditions[..4]),
            on_longest_chain: Conditions::new(&conditions),
            stamp: not_after_a_later_stamp(),
            due: due::write(rules.retention),
        }
    }

    pub fn compile(&self, (stamp, mined_in, longest_chain): Listing) -> (BatchWritePolicy, Vec<ServerOperation>) {
        let stamp = stamp_number(&stamp);
        let conditions = if longest_chain { &self.on_longest_chain } else { &self.on_side_chain };
        let mut filter = conditions.and(1, self.stamp.size());
        self.stamp.fill(&mut filter, &[Fill::Int(stamp)]);
        let append = |bin, number: u32| lists::append(&ListPolicy::default(), bin, Value::Int(number.into()));
        let put = |bin, value| operations::put(&Bin::new(bin, value));
        let mut operations = vec![
            append(names::BLOCK_IDS, mined_in.block_id),
            append(names::BLOCK_HEIGHTS, mined_in.height),
            append(names::SUBTREE_IDXS, mined_in.subtree),
            put(names::CHAIN_POS, Value::Int(stamp)),
        ];
        if longest_chain {
            operations.push(put(names::UNMINED_SINCE, Value::Nil));
            operations.push(put(names::LOCKED, Value::Nil));
            operations.extend(self.due.clone());
        }
        (behind(filter), operations)
    }
}

/// What the filter has seen: no other block lists it, it is one page, and has no conflicting children.
pub fn reply(block_id: u32) -> Reply {
    Reply::Mined { block_ids: vec![block_id], extra_pages: 0, conflicting_children: false }
}
