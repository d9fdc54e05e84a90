//! Every page of a transaction is there: a page that is not contested becomes live.

use aerospike::{
    BatchOperation, BatchWritePolicy, Bin, Key as ServerKey, Value,
    expressions::{bin_exists, bool_bin, eq, int_bin, int_val, or},
    operations::{self, Operation as ServerOperation},
};

use super::{
    super::{
        names,
        template::{Conditions, absent, unset},
    },
    Form, Native, behind,
};

pub struct Templates {
    policy: BatchWritePolicy,
    operations: Vec<ServerOperation>,
}

impl Templates {
    pub fn new() -> Self {
        let accepted = eq(int_bin(names::VERDICT), int_val(1));
        let conditions = Conditions::new(&[
            bin_exists(names::CREATING),
            bool_bin(names::CREATING),
            bin_exists(names::UTXOS),
            unset(names::CONFLICTING),
            or(vec![absent(names::VERDICT), accepted]),
        ]);
        let gone = |bin| operations::put(&Bin::new(bin, Value::Nil));
        Templates {
            policy: behind(conditions.and(0, 0)),
            operations: vec![gone(names::CREATING), gone(names::CREATING_AT)],
        }
    }

    pub fn compile(&self, key: ServerKey) -> Native {
        let operation = BatchOperation::write(&self.policy, key, self.operations.clone());
        Native { operation: Some(Box::new(operation)), answer: Form::Live }
    }
}
