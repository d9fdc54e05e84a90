//! A block lists a master that does not know of it yet: on the longest chain a live one, on a side chain any. Nearly always it is of
//! one page and the block is its first: then all that there is to answer is known beforehand. Where that is refused, the same is sent
//! again and read back. One with conflicting children goes the other way, which says so.

use aerospike::{
    BatchWritePolicy, Bin, ListPolicy, ListReturnType, Value,
    expressions::{and, bin_exists, eq, ge, int_bin, int_val, list_bin, lists as in_lists, or},
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
    Form, Listing, behind, due, integer, not_after_a_later_stamp,
};
use crate::record::{Reply, Rules};

pub struct Templates {
    /// On the longest chain, by whether the block stands before Genesis, or not.
    before_genesis: Conditions,
    since_genesis: Conditions,
    genesis_height: u32,
    on_side_chain: Conditions,
    /// One hole: the stamp.
    stamp: Template,
    /// No block lists it, and it has no other pages.
    first: Template,
    /// This block does not list it. One hole: its id.
    new: Template,
    due: Option<ServerOperation>,
}

impl Templates {
    pub fn new(rules: &Rules) -> Self {
        let ids = || list_bin(names::BLOCK_IDS);
        let conditions = [
            bin_exists(names::UTXOS),
            absent(names::CONFLICTING_CHILDREN),
            unset(names::CREATING),
            unset(names::CONFLICTING),
            absent(names::DELETE_AT_HEIGHT),
        ];
        // A transaction that was validated before Genesis may lack slots.
        let genesis = int_val(rules.network.genesis_activation_height().into());
        let has_slots = or(vec![absent(names::UNMINED_SINCE), ge(int_bin(names::UNMINED_SINCE), genesis)]);
        let none = eq(in_lists::size(ids(), &[]), int_val(0));
        let listed = in_lists::get_by_value(ListReturnType::COUNT, hole(), ids(), &[]);
        Templates {
            on_side_chain: Conditions::new(&conditions[..2]),
            before_genesis: Conditions::new(&conditions),
            since_genesis: Conditions::new(&[&conditions[..], &[has_slots]].concat()),
            genesis_height: rules.network.genesis_activation_height(),
            stamp: not_after_a_later_stamp(),
            first: Template::new(&and(vec![none, eq(int_bin(names::TOTAL_EXTRA_RECS), int_val(0))])),
            new: Template::new(&eq(listed, int_val(0))),
            due: due::write(rules.retention),
        }
    }

    /// Of one page and in no block; or any, and read back.
    pub fn compile(
        &self,
        (stamp, mined_in, longest_chain): Listing,
        answer: Form,
    ) -> (BatchWritePolicy, Vec<ServerOperation>) {
        let stamp = stamp_number(&stamp);
        let conditions = match longest_chain {
            true if mined_in.height < self.genesis_height => &self.before_genesis,
            true => &self.since_genesis,
            false => &self.on_side_chain,
        };
        let mut filter = conditions.and(2, self.stamp.size() + self.new.size().max(self.first.size()));
        self.stamp.fill(&mut filter, &[Fill::Int(stamp)]);
        match answer {
            Form::Blocks => self.new.fill(&mut filter, &[Fill::Int(mined_in.block_id.into())]),
            _ => self.first.fill(&mut filter, &[]),
        }
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
        if answer == Form::Blocks {
            operations.extend(read_mined());
        }
        (behind(filter), operations)
    }
}

/// What the filter has seen: no other block lists it, it is one page, and has no conflicting children.
pub fn first_reply(block_id: u32) -> Reply {
    Reply::Mined { block_ids: vec![block_id], extra_pages: 0, conflicting_children: false }
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
