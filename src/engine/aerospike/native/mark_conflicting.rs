//! `MarkConflicting`: marks an existing transaction without a verdict as conflicting.

use aerospike::{
    BatchOperation, Bin, Key as ServerKey, Value,
    expressions::{bin_exists, eq, int_bin, int_val, or},
    operations::{self, Operation as ServerOperation},
};

use super::{
    super::{
        bins::stamp_number,
        layout::{Layout, PageMark},
        names,
        template::{Fill, PackedConditions, Template, absent},
    },
    AnswerForm, NativeRequest, filtered_policy, stamp_template,
};
use crate::{
    event::encode_reason,
    record::{Reason, Rules, Stamp, Verdict},
};

pub struct MarkConflictingTemplates {
    layout: Layout,
    of_master: PackedConditions,
    of_page: PackedConditions,
    /// Template with one hole: the stamp.
    stamp: Template,
    retention: u32,
}

impl MarkConflictingTemplates {
    pub fn new(layout: Layout, rules: &Rules) -> Self {
        let undecided = or(vec![layout.unset(PageMark::Conflicting), eq(int_bin(names::VERDICT), int_val(0))]);
        MarkConflictingTemplates {
            layout,
            of_master: PackedConditions::new(&[
                bin_exists(names::UTXOS),
                layout.unset(PageMark::Creating),
                undecided,
                absent(names::DELETE_AT_HEIGHT),
                absent(names::PRESERVE_UNTIL),
            ]),
            of_page: PackedConditions::new(&[
                bin_exists(names::UTXOS),
                layout.unset(PageMark::Creating),
                layout.unset(PageMark::Conflicting),
            ]),
            stamp: stamp_template(),
            retention: rules.retention,
        }
    }

    pub fn compile(&self, is_master: bool, key: ServerKey, stamp: Stamp, reason: Reason, height: u32) -> NativeRequest {
        let stamp = stamp_number(&stamp);
        let conditions = if is_master { &self.of_master } else { &self.of_page };
        let mut filter = conditions.and(1, self.stamp.size());
        self.stamp.fill(&mut filter, &[Fill::Int(stamp)]);
        let put = |bin, value| operations::put(&Bin::new(bin, value));
        let mut operations: Vec<ServerOperation> =
            vec![self.layout.set(PageMark::Conflicting), put(names::CHAIN_POS, Value::Int(stamp))];
        // Only the master has a verdict, and only the master is found by `deleteAtHeight`.
        let verdict = if is_master {
            operations.push(put(names::VERDICT, Value::Int(2)));
            operations.push(put(names::REASON, Value::Blob(encode_reason(&reason))));
            if self.retention > 0 {
                let due = height.saturating_add(self.retention);
                operations.push(put(names::DELETE_AT_HEIGHT, Value::Int(due.into())));
            }
            Verdict::Conflicting(reason)
        } else {
            Verdict::Pending
        };
        let operation = BatchOperation::write(&filtered_policy(filter), key, operations);
        NativeRequest { operation: Some(Box::new(operation)), answer: AnswerForm::Conflicting(verdict) }
    }
}
