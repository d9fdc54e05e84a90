//! `ClearCreating`: makes a page live that is not contested, once every page of its transaction exists.

use aerospike::{
    BatchOperation, BatchWritePolicy, Bin, Key as ServerKey, Value,
    expressions::{bin_exists, bool_bin, eq, int_bin, int_val, or},
    operations::{self, Operation as ServerOperation},
};

use super::{
    super::{
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
    pub fn new() -> Self {
        let accepted = eq(int_bin(names::VERDICT), int_val(1));
        let conditions = PackedConditions::new(&[
            bin_exists(names::CREATING),
            bool_bin(names::CREATING),
            bin_exists(names::UTXOS),
            unset(names::CONFLICTING),
            or(vec![absent(names::VERDICT), accepted]),
        ]);
        let gone = |bin| operations::put(&Bin::new(bin, Value::Nil));
        ClearCreatingTemplates {
            policy: filtered_policy(conditions.and(0, 0)),
            operations: vec![gone(names::CREATING), gone(names::CREATING_AT)],
        }
    }

    pub fn compile(&self, key: ServerKey) -> NativeRequest {
        let operation = BatchOperation::write(&self.policy, key, self.operations.clone());
        NativeRequest { operation: Some(Box::new(operation)), answer: AnswerForm::Live }
    }
}
