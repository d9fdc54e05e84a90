//! `MarkContested`: stamps a live page, which keeps everything else.

use aerospike::{BatchOperation, Bin, Key as ServerKey, Value, expressions::bin_exists, operations};

use super::{
    super::{
        bins::stamp_number,
        layout::{Layout, PageMark},
        names,
        template::{Fill, PackedConditions, Template, absent},
    },
    AnswerForm, NativeRequest, filtered_policy, stamp_template,
};
use crate::record::Stamp;

pub struct MarkContestedTemplates {
    live: PackedConditions,
    /// Template with one hole: the stamp.
    stamp: Template,
}

impl MarkContestedTemplates {
    pub fn new(layout: Layout) -> Self {
        MarkContestedTemplates {
            live: PackedConditions::new(&[
                bin_exists(names::UTXOS),
                layout.unset(PageMark::Creating),
                layout.unset(PageMark::Conflicting),
                absent(names::PRUNED),
            ]),
            stamp: stamp_template(),
        }
    }

    pub fn compile(&self, key: ServerKey, stamp: Stamp) -> NativeRequest {
        let stamp = stamp_number(&stamp);
        let mut filter = self.live.and(1, self.stamp.size());
        self.stamp.fill(&mut filter, &[Fill::Int(stamp)]);
        let put = operations::put(&Bin::new(names::CHAIN_POS, Value::Int(stamp)));
        let operation = BatchOperation::write(&filtered_policy(filter), key, vec![put]);
        NativeRequest { operation: Some(Box::new(operation)), answer: AnswerForm::AlreadyLive }
    }
}
