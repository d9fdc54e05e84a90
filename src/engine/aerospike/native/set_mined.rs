//! `SetMined`: adds a block to a master that does not list the block yet. On the longest chain the master must be live,
//! on a side chain it may have any state.
//!
//! Nearly every master has one page, no earlier block and no lock, so that the whole reply is known beforehand and one
//! operation less is sent: the client parses an answer to each. Where the filter for that case refuses, a second
//! request adds the block, removes the lock (layout `teranode`) and reads the reply. Masters with conflicting children
//! are left to the pure function, whose reply tells them, and so are, in `compact`, masters of several blocks.

use aerospike::{
    BatchWritePolicy, Bin, ListPolicy, ListReturnType, Value,
    expressions::{
        ExpType, Expression, and, bin_exists, bitwise::get_int, eq, ge, int_bin, int_val, list_bin, lists as in_lists,
        not, or,
    },
    operations::{
        self, Operation as ServerOperation,
        exp::{ExpReadFlags, read_exp},
        lists,
    },
};

use super::{
    super::{
        bins::{decode_block, encode_block, encode_blocks, stamp_number},
        layout::{Layout, flag, none_of},
        names,
        template::{Fill, PackedConditions, Template, absent, hole, prepack, unset},
    },
    AnswerForm, SetMinedArgs, as_integer, delete_at_height, filtered_policy, stamp_template,
};
use crate::record::{Reply, Rules};

pub struct SetMinedTemplates {
    layout: Layout,
    /// Conditions on the longest chain, for blocks before and since Genesis.
    before_genesis: PackedConditions,
    since_genesis: PackedConditions,
    genesis_height: u32,
    on_side_chain: PackedConditions,
    /// Template with one hole: the stamp.
    stamp: Template,
    /// Condition: no block lists the transaction, and it has one page.
    is_first_block: Template,
    /// The same, and the transaction is not locked.
    is_first_and_unlocked: Template,
    /// Condition: this block does not list the transaction yet. One hole: the block id.
    is_unlisted: Template,
    due: Option<ServerOperation>,
}

impl SetMinedTemplates {
    pub fn new(layout: Layout, rules: &Rules) -> Self {
        let ids = || list_bin(names::BLOCK_IDS);
        // A transaction that was validated before Genesis may lack slots.
        let genesis = int_val(rules.network.genesis_activation_height().into());
        let has_slots = or(vec![absent(names::UNMINED_SINCE), ge(int_bin(names::UNMINED_SINCE), genesis)]);
        let (conditions, on_side_chain, first_block, unlocked) = match layout {
            Layout::Teranode => {
                let side = [bin_exists(names::UTXOS), absent(names::CONFLICTING_CHILDREN)];
                let live = [unset(names::CREATING), unset(names::CONFLICTING), absent(names::DELETE_AT_HEIGHT)];
                let first_block =
                    [eq(in_lists::size(ids(), &[]), int_val(0)), eq(int_bin(names::TOTAL_EXTRA_RECS), int_val(0))];
                ([&side[..], &live].concat(), side.to_vec(), first_block, vec![unset(names::LOCKED)])
            }
            // Without `flags` the master has slots, no children, and no mark.
            Layout::Compact => (
                vec![absent(names::FLAGS), absent(names::DELETE_AT_HEIGHT)],
                vec![none_of(flag::NO_SLOTS | flag::CHILDREN)],
                [absent(names::BLOCKS), absent(names::TOTAL_EXTRA_RECS)],
                Vec::new(),
            ),
        };
        let listed = match layout {
            Layout::Teranode => eq(in_lists::get_by_value(ListReturnType::COUNT, hole(), ids(), &[]), int_val(0)),
            // The operation compares the block id alone, which a filter sees in the only entry of a list.
            Layout::Compact => or(vec![absent(names::BLOCKS), has_one_block(not(eq(first_id(), hole())))]),
        };
        SetMinedTemplates {
            layout,
            on_side_chain: PackedConditions::new(&on_side_chain),
            before_genesis: PackedConditions::new(&conditions),
            since_genesis: PackedConditions::new(&[&conditions[..], &[has_slots]].concat()),
            genesis_height: rules.network.genesis_activation_height(),
            stamp: stamp_template(),
            is_first_block: Template::new(&and(first_block.to_vec())),
            is_first_and_unlocked: Template::new(&and([&first_block[..], &unlocked].concat())),
            is_unlisted: Template::new(&listed),
            due: delete_at_height::write_when_due(layout, rules.retention),
        }
    }

    /// Compiles the request for a master of one page without blocks (`FirstMined`), or for any master (`Blocks`, which
    /// reads the reply).
    pub fn compile(
        &self,
        (stamp, mined_in, longest_chain): SetMinedArgs,
        answer: AnswerForm,
    ) -> (BatchWritePolicy, Vec<ServerOperation>) {
        let stamp = stamp_number(&stamp);
        let conditions = match longest_chain {
            true if mined_in.height < self.genesis_height => &self.before_genesis,
            true => &self.since_genesis,
            false => &self.on_side_chain,
        };
        let (listing, listing_fill) = match answer {
            AnswerForm::Blocks => (&self.is_unlisted, &[Fill::Int(mined_in.block_id.into())][..]),
            _ if longest_chain => (&self.is_first_and_unlocked, &[][..]),
            _ => (&self.is_first_block, &[][..]),
        };
        let mut filter = conditions.and(2, self.stamp.size() + listing.size());
        self.stamp.fill(&mut filter, &[Fill::Int(stamp)]);
        listing.fill(&mut filter, listing_fill);
        let append = |bin, number: u32| lists::append(&ListPolicy::default(), bin, Value::Int(number.into()));
        let put = |bin, value| operations::put(&Bin::new(bin, value));
        let mut operations = match self.layout {
            Layout::Teranode => vec![
                append(names::BLOCK_IDS, mined_in.block_id),
                append(names::BLOCK_HEIGHTS, mined_in.height),
                append(names::SUBTREE_IDXS, mined_in.subtree),
            ],
            Layout::Compact if answer == AnswerForm::Blocks => {
                vec![lists::append(
                    &ListPolicy::default(),
                    names::BLOCKS,
                    Value::Blob(encode_block(&mined_in).to_vec()),
                )]
            }
            Layout::Compact => vec![put(names::BLOCKS, encode_blocks(&[mined_in]))],
        };
        operations.push(put(names::CHAIN_POS, Value::Int(stamp)));
        if longest_chain {
            operations.push(put(names::UNMINED_SINCE, Value::Nil));
            // In `compact` a locked master has `flags`, and is left to the pure function.
            if answer == AnswerForm::Blocks && self.layout == Layout::Teranode {
                operations.push(put(names::LOCKED, Value::Nil));
            }
            operations.extend(self.due.clone());
        }
        if answer == AnswerForm::Blocks {
            operations.extend(read_reply(self.layout));
        }
        (filtered_policy(filter), operations)
    }
}

/// Returns the reply that the filter implies: one block, one page, no conflicting children.
pub fn first_block_reply(block_id: u32) -> Reply {
    Reply::Mined { block_ids: vec![block_id], extra_pages: 0, conflicting_children: false }
}

/// Reads the values that [`parse_reply`] parses: all blocks or their ids, and the number of further pages.
pub fn read_reply(layout: Layout) -> [ServerOperation; 2] {
    let blocks = match layout {
        Layout::Teranode => names::BLOCK_IDS,
        Layout::Compact => names::BLOCKS,
    };
    let blocks = read_exp("told", prepack(&list_bin(blocks)), ExpReadFlags::DEFAULT);
    [blocks, operations::get_bin(names::TOTAL_EXTRA_RECS)]
}

pub fn parse_reply(results: &[Value]) -> Option<Reply> {
    let [.., Value::List(blocks), pages] = results else { return None };
    let id = |block: &Value| match block {
        Value::Blob(_) => decode_block(block.clone()).ok().map(|block| block.block_id),
        id => u32::try_from(as_integer(Some(id))?).ok(),
    };
    let block_ids = blocks.iter().map(id).collect::<Option<_>>()?;
    Some(Reply::Mined { block_ids, extra_pages: parse_extra_pages(pages)?, conflicting_children: false })
}

/// Parses the number of further pages, which only masters of several pages have in `compact`.
pub fn parse_extra_pages(pages: &Value) -> Option<u32> {
    match pages {
        Value::Nil => Some(0),
        pages => u32::try_from(as_integer(Some(pages))?).ok(),
    }
}

/// Tests in `compact` that `blocks` has one entry, and something of that entry.
pub fn has_one_block(condition: Expression) -> Expression {
    and(vec![eq(in_lists::size(list_bin(names::BLOCKS), &[]), int_val(1)), condition])
}

/// Returns the block id of the first entry of `blocks`.
pub fn first_id() -> Expression {
    let blocks = list_bin(names::BLOCKS);
    let first = in_lists::get_by_index(ListReturnType::VALUES, ExpType::Blob, int_val(0), blocks, &[]);
    get_int(int_val(32), int_val(32), false, first)
}
