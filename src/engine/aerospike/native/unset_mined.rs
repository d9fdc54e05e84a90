//! `UnsetMined`: removes a block that leaves the longest chain from a live master.

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
        names,
        packed::Packed,
        template::{Fill, PackedConditions, Template, absent, hole, unset},
    },
    AnswerForm, NativeRequest, filtered_policy, set_mined, stamp_template,
};
use crate::record::{Rules, Stamp};

pub struct UnsetMinedTemplates {
    conditions: PackedConditions,
    /// Template with one hole: the stamp.
    stamp: Template,
    /// Condition: the block lists the transaction. One hole: the block id.
    listed: Template,
    /// Heights and subtree indexes without those of the block. One hole: the block id.
    other_blocks: [(&'static str, Template); 2],
    /// The new `unminedSince`. Holes: the height, three times.
    unmined_since: Template,
    /// Without a retention no record is ever due, and `deleteAtHeight` is left to other operations.
    has_no_retention: bool,
}

impl UnsetMinedTemplates {
    pub fn new(rules: &Rules) -> Self {
        let ids = || list_bin(names::BLOCK_IDS);
        let count = in_lists::get_by_value(ListReturnType::COUNT, hole(), ids(), &[]);
        let since = || int_bin(names::UNMINED_SINCE);
        let unmined_since = cond(vec![absent(names::UNMINED_SINCE), hole(), lt(hole(), since()), hole(), since()]);
        UnsetMinedTemplates {
            conditions: PackedConditions::new(&[
                bin_exists(names::UTXOS),
                unset(names::CONFLICTING),
                absent(names::PRESERVE_UNTIL),
                absent(names::CONFLICTING_CHILDREN),
            ]),
            stamp: stamp_template(),
            listed: Template::new(&eq(count, int_val(1))),
            other_blocks: [names::BLOCK_HEIGHTS, names::SUBTREE_IDXS]
                .map(|bin| (bin, Template::new(&without_block(bin)))),
            unmined_since: Template::new(&unmined_since),
            has_no_retention: rules.retention == 0,
        }
    }

    pub fn compile(&self, key: ServerKey, stamp: Stamp, block_id: u32, height: u32) -> NativeRequest {
        let (stamp, id, height) =
            (Fill::Int(stamp_number(&stamp)), Fill::Int(block_id.into()), Fill::Int(height.into()));
        let mut filter = self.conditions.and(2, self.stamp.size() + self.listed.size());
        self.stamp.fill(&mut filter, &[stamp]);
        self.listed.fill(&mut filter, &[id]);
        let write = |bin, template: &Template, fills: &[Fill<'_>]| {
            let mut packed = Packed::with_capacity(template.size());
            template.fill(&mut packed, fills);
            write_exp(bin, from_packed_bytes(packed.0), ExpWriteFlags::DEFAULT)
        };
        // The index of the block in the parallel lists comes from the ids, so the id is removed last.
        let mut operations: Vec<ServerOperation> =
            self.other_blocks.iter().map(|(bin, template)| write(*bin, template, &[id])).collect();
        operations.push(lists::remove_by_value(names::BLOCK_IDS, Value::Int(block_id.into()), ListReturnType::NONE));
        operations.push(write(names::UNMINED_SINCE, &self.unmined_since, &[height; 3]));
        if !self.has_no_retention {
            operations.push(operations::put(&Bin::new(names::DELETE_AT_HEIGHT, Value::Nil)));
        }
        if let Fill::Int(stamp) = stamp {
            operations.push(operations::put(&Bin::new(names::CHAIN_POS, Value::Int(stamp))));
        }
        operations.extend(set_mined::read_reply());
        let operation = BatchOperation::write(&filtered_policy(filter), key, operations);
        NativeRequest { operation: Some(Box::new(operation)), answer: AnswerForm::Blocks }
    }
}

/// Returns a parallel list without the element of a block id (a hole).
fn without_block(bin: &str) -> Expression {
    let index = in_lists::get_by_value(ListReturnType::INDEX, hole(), list_bin(names::BLOCK_IDS), &[]);
    let first = in_lists::get_by_index(ListReturnType::VALUES, ExpType::Int, int_val(0), index, &[]);
    in_lists::remove_by_index(ListReturnType::NONE, first, list_bin(bin), &[])
}
