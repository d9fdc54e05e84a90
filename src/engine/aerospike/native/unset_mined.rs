//! A block that lists a live master leaves the longest chain.

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
        template::{Conditions, Fill, Template, absent, hole, unset},
    },
    Form, Native, behind, not_after_a_later_stamp, set_mined,
};
use crate::record::{Rules, Stamp};

pub struct Templates {
    conditions: Conditions,
    /// One hole: the stamp.
    stamp: Template,
    /// One hole: the block id.
    listed: Template,
    /// The heights, and the subtree indexes, without those of the block; one hole: its id.
    others: [(&'static str, Template); 2],
    /// Holes: the height, three times.
    earliest: Template,
    /// Nothing is ever due: then `deleteAtHeight` is not this operation's.
    never_due: bool,
}

impl Templates {
    pub fn new(rules: &Rules) -> Self {
        let ids = || list_bin(names::BLOCK_IDS);
        let count = in_lists::get_by_value(ListReturnType::COUNT, hole(), ids(), &[]);
        let since = || int_bin(names::UNMINED_SINCE);
        let earliest = cond(vec![absent(names::UNMINED_SINCE), hole(), lt(hole(), since()), hole(), since()]);
        Templates {
            conditions: Conditions::new(&[
                bin_exists(names::UTXOS),
                unset(names::CONFLICTING),
                absent(names::PRESERVE_UNTIL),
                absent(names::CONFLICTING_CHILDREN),
            ]),
            stamp: not_after_a_later_stamp(),
            listed: Template::new(&eq(count, int_val(1))),
            others: [names::BLOCK_HEIGHTS, names::SUBTREE_IDXS].map(|bin| (bin, Template::new(&without(bin)))),
            earliest: Template::new(&earliest),
            never_due: rules.retention == 0,
        }
    }

    pub fn compile(&self, key: ServerKey, stamp: Stamp, block_id: u32, height: u32) -> Native {
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
        // The place of the block in its lists is told by the ids, so they go last.
        let mut operations: Vec<ServerOperation> =
            self.others.iter().map(|(bin, template)| write(*bin, template, &[id])).collect();
        operations.push(lists::remove_by_value(names::BLOCK_IDS, Value::Int(block_id.into()), ListReturnType::NONE));
        operations.push(write(names::UNMINED_SINCE, &self.earliest, &[height; 3]));
        if !self.never_due {
            operations.push(operations::put(&Bin::new(names::DELETE_AT_HEIGHT, Value::Nil)));
        }
        if let Fill::Int(stamp) = stamp {
            operations.push(operations::put(&Bin::new(names::CHAIN_POS, Value::Int(stamp))));
        }
        operations.extend(set_mined::read_mined());
        let operation = BatchOperation::write(&behind(filter), key, operations);
        Native { operation: Some(Box::new(operation)), answer: Form::Blocks }
    }
}

/// A parallel list without what belongs to a block id (a hole).
fn without(bin: &str) -> Expression {
    let index = in_lists::get_by_value(ListReturnType::INDEX, hole(), list_bin(names::BLOCK_IDS), &[]);
    let first = in_lists::get_by_index(ListReturnType::VALUES, ExpType::Int, int_val(0), index, &[]);
    in_lists::remove_by_index(ListReturnType::NONE, first, list_bin(bin), &[])
}
