//! A block of the longest chain lists a live master that does not know of it yet.

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
    behind, due, integer, not_after_a_later_stamp,
};
use crate::record::{MinedIn, Reply, Rules, Stamp};

pub struct Templates {
    conditions: Conditions,
    /// One hole: the stamp.
    stamp: Template,
    /// One hole: the block id.
    new: Template,
    due: Option<ServerOperation>,
    block_ids: ServerOperation,
}

impl Templates {
    pub fn new(rules: &Rules) -> Self {
        let ids = || list_bin(names::BLOCK_IDS);
        let listed = in_lists::get_by_value(ListReturnType::COUNT, hole(), ids(), &[]);
        Templates {
            conditions: Conditions::new(&[
                bin_exists(names::UTXOS),
                unset(names::CREATING),
                unset(names::CONFLICTING),
                absent(names::DELETE_AT_HEIGHT),
            ]),
            stamp: not_after_a_later_stamp(),
            new: Template::new(&eq(listed, int_val(0))),
            due: due::write(rules.retention),
            block_ids: read_exp("told", prepacked(&ids()), ExpReadFlags::DEFAULT),
        }
    }

    pub fn compile(&self, stamp: Stamp, mined_in: MinedIn) -> (BatchWritePolicy, Vec<ServerOperation>) {
        let stamp = stamp_number(&stamp);
        let mut filter = self.conditions.and(2, self.stamp.size() + self.new.size());
        self.stamp.fill(&mut filter, &[Fill::Int(stamp)]);
        self.new.fill(&mut filter, &[Fill::Int(mined_in.block_id.into())]);
        let append = |bin, number: u32| lists::append(&ListPolicy::default(), bin, Value::Int(number.into()));
        let put = |bin, value| operations::put(&Bin::new(bin, value));
        let mut operations = vec![
            append(names::BLOCK_IDS, mined_in.block_id),
            append(names::BLOCK_HEIGHTS, mined_in.height),
            append(names::SUBTREE_IDXS, mined_in.subtree),
            put(names::UNMINED_SINCE, Value::Nil),
            put(names::LOCKED, Value::Nil),
            put(names::CHAIN_POS, Value::Int(stamp)),
        ];
        operations.extend(self.due.clone());
        operations.push(self.block_ids.clone());
        operations.push(operations::get_bin(names::TOTAL_EXTRA_RECS));
        (behind(filter), operations)
    }
}

pub fn reply(results: &[Value]) -> Option<Reply> {
    let [.., Value::List(ids), pages] = results else { return None };
    let block_ids = ids.iter().map(|id| u32::try_from(integer(Some(id))?).ok()).collect::<Option<_>>()?;
    Some(Reply::Mined { block_ids, extra_pages: u32::try_from(integer(Some(pages))?).ok()? })
}
