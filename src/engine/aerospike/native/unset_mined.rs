//! `UnsetMined`: removes a block that leaves the longest chain from a live master. In `compact` the block is the only
//! one; a master in several blocks is left to the pure function.

use aerospike::{
    BatchOperation, Bin, Key as ServerKey, ListReturnType, Value,
    expressions::{
        ExpType, Expression, bin_exists, cond, eq, from_packed_bytes, int_bin, int_val, list_bin, lists as in_lists, lt,
    },
    operations::{
        self, Operation as ServerOperation,
        exp::{ExpWriteFlags, write_exp},
        lists,
    },
};

use super::{
    super::{
        bins::stamp_number,
        layout::{Layout, flag, none_of},
        names,
        packed::Packed,
        template::{Fill, PackedConditions, Template, absent, hole, unset},
    },
    AnswerForm, NativeRequest, filtered_policy, set_mined, stamp_template,
};
use crate::record::{Reply, Rules, Stamp};

pub struct UnsetMinedTemplates {
    layout: Layout,
    conditions: PackedConditions,
    /// Template with one hole: the stamp.
    stamp: Template,
    /// Condition: the block lists the transaction, in `compact` as the only block. One hole: the block id.
    listed: Template,
    /// Layout `teranode`: heights and subtree indexes without those of the block. One hole: the block id.
    other_blocks: [(&'static str, Template); 2],
    /// The new `unminedSince`. Holes: the height, three times.
    unmined_since: Template,
    /// Without a retention no record is ever due, and `deleteAtHeight` is left to other operations.
    has_no_retention: bool,
}

impl UnsetMinedTemplates {
    pub fn new(layout: Layout, rules: &Rules) -> Self {
        let (state, listed) = match layout {
            Layout::Teranode => {
                let ids = list_bin(names::BLOCK_IDS);
                let count = in_lists::get_by_value(ListReturnType::COUNT, hole(), ids, &[]);
                let state =
                    vec![bin_exists(names::UTXOS), unset(names::CONFLICTING), absent(names::CONFLICTING_CHILDREN)];
                (state, eq(count, int_val(1)))
            }
            Layout::Compact => {
                let bars = flag::CONFLICTING | flag::NO_SLOTS | flag::CHILDREN | flag::EARLY_DUE;
                (
                    vec![none_of(bars), bin_exists(names::BLOCKS)],
                    set_mined::has_one_block(eq(set_mined::first_id(), hole())),
                )
            }
        };
        let since = || int_bin(names::UNMINED_SINCE);
        let unmined_since = cond(vec![absent(names::UNMINED_SINCE), hole(), lt(hole(), since()), hole(), since()]);
        UnsetMinedTemplates {
            layout,
            conditions: PackedConditions::new(&[&state[..], &[absent(names::PRESERVE_UNTIL)]].concat()),
            stamp: stamp_template(),
            listed: Template::new(&listed),
            other_blocks: [names::BLOCK_HEIGHTS, names::SUBTREE_IDXS]
                .map(|bin| (bin, Template::new(&without_block(bin)))),
            unmined_since: Template::new(&unmined_since),
            has_no_retention: rules.retention == 0,
        }
    }

    pub fn compile(&self, key: ServerKey, stamp: Stamp, block_id: u32, height: u32) -> NativeRequest {
        let (number, id) = (stamp_number(&stamp), Fill::Int(block_id.into()));
        let mut filter = self.conditions.and(2, self.stamp.size() + self.listed.size());
        self.stamp.fill(&mut filter, &[Fill::Int(number)]);
        self.listed.fill(&mut filter, &[id]);
        let write = |bin, template: &Template, fills: &[Fill<'_>]| {
            let mut packed = Packed::with_capacity(template.size());
            template.fill(&mut packed, fills);
            write_exp(bin, from_packed_bytes(packed.0), ExpWriteFlags::DEFAULT)
        };
        let put = |bin, value| operations::put(&Bin::new(bin, value));
        let mut operations: Vec<ServerOperation> = match self.layout {
            // The index of the block in the parallel lists comes from the ids, so the id is removed last.
            Layout::Teranode => {
                let others = self.other_blocks.iter().map(|(bin, template)| write(*bin, template, &[id]));
                let ids = lists::remove_by_value(names::BLOCK_IDS, Value::Int(block_id.into()), ListReturnType::NONE);
                others.chain([ids]).collect()
            }
            Layout::Compact => vec![put(names::BLOCKS, Value::Nil)],
        };
        operations.push(write(names::UNMINED_SINCE, &self.unmined_since, &[Fill::Int(height.into()); 3]));
        if !self.has_no_retention {
            operations.push(put(names::DELETE_AT_HEIGHT, Value::Nil));
        }
        operations.push(put(names::CHAIN_POS, Value::Int(number)));
        let answer = match self.layout {
            Layout::Teranode => {
                operations.extend(set_mined::read_reply(self.layout));
                AnswerForm::Blocks
            }
            Layout::Compact => {
                operations.push(operations::get_bin(names::TOTAL_EXTRA_RECS));
                AnswerForm::LastUnmined
            }
        };
        let operation = BatchOperation::write(&filtered_policy(filter), key, operations);
        NativeRequest { operation: Some(Box::new(operation)), answer }
    }
}

/// Parses the reply of a master that no block lists any more: the number of further pages.
pub fn parse_reply(results: &[Value]) -> Option<Reply> {
    let extra_pages = set_mined::parse_extra_pages(results.last()?)?;
    Some(Reply::Mined { block_ids: Vec::new(), extra_pages, conflicting_children: false })
}

/// Returns a parallel list without the element of a block id (a hole).
fn without_block(bin: &str) -> Expression {
    let index = in_lists::get_by_value(ListReturnType::INDEX, hole(), list_bin(names::BLOCK_IDS), &[]);
    let first = in_lists::get_by_index(ListReturnType::VALUES, ExpType::Int, int_val(0), index, &[]);
    in_lists::remove_by_index(ListReturnType::NONE, first, list_bin(bin), &[])
}
