//! Native operations: one request does the operation without reading the record first.
//!
//! Each native operation is compiled to an `operate` behind a filter. The filter lets it through only where the pure
//! function would have exactly this effect. A refusal by a filter is not final: the record is read and
//! the pure function decides. A filter may therefore be stricter than the rule, and rare cases (reassigned slots,
//! contested slots) are left to the read.

mod clear_creating;
mod delete_at_height;
mod mark_conflicting;
mod mark_contested;
mod respend;
mod set_mined;
mod spend;
mod unset_mined;

use aerospike::{
    BatchOperation, BatchWritePolicy, Expiration, Key as ServerKey, Record as ServerRecord, RecordExistsAction, Value,
    expressions::{from_packed_bytes, int_val, le, or},
    operations::Operation as ServerOperation,
};

use super::{
    layout::Layout,
    names,
    packed::Packed,
    template::{Template, absent, hole},
};
use crate::record::{Key, MinedIn, Operation, Outcome, Reply, Rules, Sequenced, Stamp, TxState, Verdict};

/// The native operations of a store, packed once.
pub struct NativeOperations {
    spend: spend::SpendTemplates,
    set_mined: set_mined::SetMinedTemplates,
    unset_mined: unset_mined::UnsetMinedTemplates,
    clear_creating: clear_creating::ClearCreatingTemplates,
    respend: respend::RespendTemplates,
    mark_conflicting: mark_conflicting::MarkConflictingTemplates,
    mark_contested: mark_contested::MarkContestedTemplates,
}

impl NativeOperations {
    pub fn new(layout: Layout, rules: &Rules) -> Self {
        NativeOperations {
            spend: spend::SpendTemplates::new(layout, rules),
            set_mined: set_mined::SetMinedTemplates::new(layout, rules),
            unset_mined: unset_mined::UnsetMinedTemplates::new(layout, rules),
            clear_creating: clear_creating::ClearCreatingTemplates::new(layout),
            respend: respend::RespendTemplates::new(layout, rules),
            mark_conflicting: mark_conflicting::MarkConflictingTemplates::new(layout, rules),
            mark_contested: mark_contested::MarkContestedTemplates::new(layout),
        }
    }

    /// Returns the request to send after `refused` was refused; `None`: the record must be read.
    pub fn compile_fallback(
        &self,
        refused: &NativeRequest,
        server_key: ServerKey,
        operations: &[&Operation],
    ) -> Option<NativeRequest> {
        let AnswerForm::FirstMined(_) = refused.answer else { return None };
        let [Operation::Sequenced(stamp, Sequenced::SetMined { mined_in, longest_chain })] = operations else {
            return None;
        };
        let (policy, operations) = self.set_mined.compile((*stamp, *mined_in, *longest_chain), AnswerForm::Blocks);
        let operation = BatchOperation::write(&policy, server_key, operations);
        Some(NativeRequest { operation: Some(Box::new(operation)), answer: AnswerForm::Blocks })
    }

    /// Returns a compiler for one call. Rows that differ only in their keys share one compiled form, which the client
    /// then sends once.
    pub fn compiler(&self) -> NativeCompiler<'_> {
        NativeCompiler { natives: self, set_mined: None }
    }
}

/// Compiles the rows of one call.
pub struct NativeCompiler<'a> {
    natives: &'a NativeOperations,
    set_mined: Option<(SetMinedArgs, BatchWritePolicy, Vec<ServerOperation>)>,
}

/// The arguments of `SetMined`: stamp, block, and whether the block is on the longest chain. They are equal for all
/// transactions of a block.
type SetMinedArgs = (Stamp, MinedIn, bool);

/// Operations on one record as one request, and the form of its answer.
pub struct NativeRequest {
    /// The request; `None` while it is being sent. Boxed, because it is large and would be moved with its owner.
    pub operation: Option<Box<BatchOperation>>,
    answer: AnswerForm,
}

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnswerForm {
    /// Spends, this many. The last value is the one that [`delete_at_height::parse_reply`] parses.
    Spends(usize),
    /// Spends, this many, without signals. The answer has no values.
    Silent(usize),
    /// Set mined by the first block, with this id. The answer has no values.
    FirstMined(u32),
    /// Set mined or unset mined. The last values are all block ids and the number of further pages.
    Blocks,
    /// Unset mined of the only block. The last value is the number of further pages.
    LastUnmined,
    /// Creating cleared. The answer has no values.
    Live,
    /// Live before, and stamped. The answer has no values.
    AlreadyLive,
    /// Marked conflicting with this verdict. The answer has no values.
    Conflicting(Verdict),
}

impl NativeRequest {
    /// Returns an outcome for each operation; `None` where the answer has another form than the request asks for.
    pub fn outcomes(&self, record: Option<&ServerRecord>) -> Option<Vec<Outcome>> {
        let results = record.and_then(|record| record.results.as_deref()).unwrap_or_default();
        Some(match self.answer {
            AnswerForm::Spends(count) => spend::outcomes(count, results)?,
            AnswerForm::Silent(count) => vec![Outcome::Applied(Reply::None); count],
            AnswerForm::FirstMined(block_id) => vec![Outcome::Applied(set_mined::first_block_reply(block_id))],
            AnswerForm::Blocks => vec![Outcome::Applied(set_mined::parse_reply(results)?)],
            AnswerForm::LastUnmined => vec![Outcome::Applied(unset_mined::parse_reply(results)?)],
            AnswerForm::Live => vec![Outcome::Applied(Reply::State(TxState::Live))],
            AnswerForm::AlreadyLive => vec![Outcome::AlreadyApplied(Reply::State(TxState::Live))],
            AnswerForm::Conflicting(verdict) => vec![Outcome::Applied(Reply::State(TxState::Conflicting(verdict)))],
        })
    }
}

impl NativeCompiler<'_> {
    /// Compiles operations on one record to a native request; `None` where they have no native form.
    pub fn compile(&mut self, key: &Key, server_key: ServerKey, operations: &[&Operation]) -> Option<NativeRequest> {
        let Key::Page(_, page) = key else { return None };
        let is_master = *page == 0;
        match operations {
            [Operation::Spend(_), ..] => self.natives.spend.compile(is_master, server_key, operations),
            [Operation::ClearCreating] => Some(self.natives.clear_creating.compile(server_key)),
            [Operation::Sequenced(stamp, operation)] => self.sequenced(is_master, server_key, *stamp, operation),
            _ => None,
        }
    }

    fn sequenced(
        &mut self,
        is_master: bool,
        server_key: ServerKey,
        stamp: Stamp,
        operation: &Sequenced,
    ) -> Option<NativeRequest> {
        match operation {
            Sequenced::SetMined { mined_in, longest_chain } if is_master => {
                Some(self.set_mined((stamp, *mined_in, *longest_chain), server_key))
            }
            Sequenced::UnsetMined { block_id, height } if is_master => {
                Some(self.natives.unset_mined.compile(server_key, stamp, *block_id, *height))
            }
            Sequenced::Respend(respend) => self.natives.respend.compile(is_master, server_key, stamp, respend),
            Sequenced::MarkContested => Some(self.natives.mark_contested.compile(server_key, stamp)),
            Sequenced::MarkConflicting { reason, height } => {
                Some(self.natives.mark_conflicting.compile(is_master, server_key, stamp, *reason, *height))
            }
            _ => None,
        }
    }

    fn set_mined(&mut self, args: SetMinedArgs, server_key: ServerKey) -> NativeRequest {
        let cached = self.set_mined.take().filter(|(cached_args, ..)| *cached_args == args);
        let answer = AnswerForm::FirstMined(args.1.block_id);
        let (_, policy, operations) = self.set_mined.insert(cached.unwrap_or_else(|| {
            let (policy, operations) = self.natives.set_mined.compile(args, answer);
            (args, policy, operations)
        }));
        let operation = BatchOperation::write(policy, server_key, operations.clone());
        NativeRequest { operation: Some(Box::new(operation)), answer }
    }
}

/// Returns whether an operation joins the others on its record. All operations do, except spends beyond the slots of
/// one request.
pub fn can_join(before: &[&Operation], next: &Operation) -> bool {
    spend::has_room_for(before, next)
}

/// Makes the policy of a filtered write: it changes only an existing record and leaves its TTL.
fn filtered_policy(filter: Packed) -> BatchWritePolicy {
    BatchWritePolicy {
        record_exists_action: RecordExistsAction::UpdateOnly,
        expiration: Expiration::DontUpdate,
        filter_expression: Some(from_packed_bytes(filter.0)),
        ..BatchWritePolicy::default()
    }
}

/// Packs the stamp rule: the record has no later stamp. One hole: the stamp.
fn stamp_template() -> Template {
    use aerospike::expressions::int_bin;
    Template::new(&or(vec![absent(names::CHAIN_POS), le(int_bin(names::CHAIN_POS), hole())]))
}

fn as_integer(value: Option<&Value>) -> Option<u64> {
    match value {
        Some(Value::Int(number)) => u64::try_from(*number).ok(),
        _ => None,
    }
}

/// Adds a constant to an expression that gives a height.
fn add_height(expression: aerospike::expressions::Expression, more: u32) -> aerospike::expressions::Expression {
    aerospike::expressions::num_add(vec![expression, int_val(more.into())])
}
