//! A block lists a master that does not know of it yet: on the longest chain a live one, on a side chain any. One with
//! conflicting children goes the other way, which says so.

use aerospike::{
    BatchWritePolicy, Bin, ListPolicy, ListReturnType, Value,
    expressions::{bin_exists, eq, int_val, list_bin, lists as in_lists},
    operations::{
        self, Operation as ServerOperation,
        exp::{ExpReadFlags, read_exp},
        lists,
    },
};

use super::{
    super::{
        bins::stamp_number,
        names,
        template::{Conditions, Fill, Template, absent, hole, prepacked, unset},
    },
    Listing, behind, due, integer, not_after_a_later_stamp,
};
use crate::record::{Reply, Rules};

pub struct Templates {
    on_longest_chain: Conditions,
    on_side_chain: Conditions,
    /// One hole: the stamp.
    stamp: Template,
    /// One hole: the block id.
    new: Template,
    due: Option<ServerOperation>,
    mined: [ServerOperation; 2],
}

impl Templates {
    pub fn new(rules: &Rules) -> Self {
        let listed = in_lists::get_by_value(ListReturnType::COUNT, hole(), list_bin(names::BLOCK_IDS), &[]);
        let conditions = [
            bin_exists(names::UTXOS),
            absent(names::CONFLICTING_CHILDREN),
            unset(names::CREATING),
            unset(names::CONFLICTING),
            absent(names::DELETE_AT_HEIGHT),
        ];
        Templates {
            on_side_chain: Conditions::new(&conditions[..2]),
            on_longest_chain: Conditions::new(&conditions),
            stamp: not_after_a_later_stamp(),
            new: Template::new(&eq(listed, int_val(0))),
            due: due::write(rules.retention),
            mined: read_mined(),
        }
    }

    pub fn compile(&self, (stamp, mined_in, longest_chain): Listing) -> (BatchWritePolicy, Vec<ServerOperation>) {
        let stamp = stamp_number(&stamp);
        let conditions = if longest_chain { &self.on_longest_chain } else { &self.on_side_chain };
        let mut filter = conditions.and(2, self.stamp.size() + self.new.size());
        self.stamp.fill(&mut filter, &[Fill::Int(stamp)]);
        self.new.fill(&mut filter, &[Fill::Int(mined_in.block_id.into())]);
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
        operations.extend(self.mined.clone());
        (behind(filter), operations)
    }
}

/// Reads what [`reply`] takes apart: all block ids, and the number of further pages.
pub fn read_mined() -> [ServerOperation; 2] {
    let ids = read_exp("told", prepacked(&list_bin(names::BLOCK_IDS)), ExpReadFlags::DEFAULT);
    [ids, operations::get_bin(names::TOTAL_EXTRA_RECS)]
}

pub fn reply(results: &[Value]) -> Option<Reply> {
    let [.., Value::List(ids), pages] = results else { return None };
    let block_ids = ids.iter().map(|id| u32::try_from(integer(Some(id))?).ok()).collect::<Option<_>>()?;
    let extra_pages = u32::try_from(integer(Some(pages))?).ok()?;
    Some(Reply::Mined { block_ids, extra_pages, conflicting_children: false })
}
