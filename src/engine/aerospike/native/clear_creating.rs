//! `ClearCreating`: makes a page live that is not contested, once every page of its transaction exists.

use aerospike::{
    BatchOperation, BatchWritePolicy, Bin, Key as ServerKey, Value,
    expressions::{bin_exists, bool_bin, eq, int_bin, int_val, or},
    operations::{self, Operation as ServerOperation},
};

use super::{
    super::{
        layout::{Layout, flag},
        names,
        template::{PackedConditions, absent, unset},
    },
    AnswerForm, NativeRequest, filtered_policy,
};

pub struct ClearCreatingTemplates {
    policy: BatchWritePolicy,
    operations: Vec<ServerOperation>,
}

impl ClearCreatingTemplates {
    pub fn new(layout: Layout) -> Self {
        let accepted = eq(int_bin(names::VERDICT), int_val(1));
        let is_only_creating = match layout {
            Layout::Teranode => {
                vec![bin_exists(names::CREATING), bool_bin(names::CREATING), unset(names::CONFLICTING)]
            }
            // Another mark has to stay: the pure function clears this one beside it.
            Layout::Compact => vec![eq(int_bin(names::FLAGS), int_val(flag::CREATING.into()))],
        };
        let others = [bin_exists(names::UTXOS), or(vec![absent(names::VERDICT), accepted])];
        let conditions = PackedConditions::new(&[&is_only_creating[..], &others].concat());
        let mark = match layout {
            Layout::Teranode => names::CREATING,
            Layout::Compact => names::FLAGS,
        };
        let gone = |bin| operations::put(&Bin::new(bin, Value::Nil));
        ClearCreatingTemplates {
            policy: filtered_policy(conditions.and(0, 0)),
            operations: vec![gone(mark), gone(names::CREATING_AT)],
        }
    }

    pub fn compile(&self, key: ServerKey) -> NativeRequest {
        let operation = BatchOperation::write(&self.policy, key, self.operations.clone());
        NativeRequest { operation: Some(Box::new(operation)), answer: AnswerForm::Live }
    }
}
