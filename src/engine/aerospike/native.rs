//! The operations that are done by one request, without reading the record first.
//!
//! Each is compiled to an `operate` whose filter lets it through only where the pure function would say `Applied` with
//! exactly this effect. What a filter refuses is not refused yet: the record is read and the pure function asked. So a
//! filter may be stricter than the rule, and rare cases (reassigned slots, contested ones) are left to the reader.

mod clear_creating;
mod due;
mod mark_conflicting;
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
    names,
    packed::Packed,
    template::{Template, absent, hole},
};
use crate::record::{Key, MinedIn, Operation, Outcome, Reply, Rules, Sequenced, Stamp, TxState, Verdict};

/// Everything that is packed once.
pub struct Natives {
    spend: spend::Templates,
    set_mined: set_mined::Templates,
    unset_mined: unset_mined::Templates,
    clear_creating: clear_creating::Templates,
    respend: respend::Templates,
    mark_conflicting: mark_conflicting::Templates,
}

impl Natives {
    pub fn new(rules: &Rules) -> Self {
        Natives {
            spend: spend::Templates::new(rules),
            set_mined: set_mined::Templates::new(rules),
            unset_mined: unset_mined::Templates::new(rules),
            clear_creating: clear_creating::Templates::new(),
            respend: respend::Templates::new(rules),
            mark_conflicting: mark_conflicting::Templates::new(rules),
        }
    }

    /// What to send where `refused` took too much for granted; `None`: the record has to be read.
    pub fn second_try(&self, refused: &Native, server_key: ServerKey, operations: &[&Operation]) -> Option<Native> {
        let (Form::FirstMined(_), [Operation::Sequenced(stamp, Sequenced::SetMined { mined_in, longest_chain })]) =
            (refused.answer, operations)
        else {
            return None;
        };
        let (policy, operations) = self.set_mined.compile((*stamp, *mined_in, *longest_chain), Form::Blocks);
        let operation = BatchOperation::write(&policy, server_key, operations);
        Some(Native { operation: Some(Box::new(operation)), answer: Form::Blocks })
    }

    /// For one call: rows that differ only in their keys share what they are compiled to, and then the client sends it
    /// once.
    pub fn compiler(&self) -> Compiler<'_> {
        Compiler { natives: self, set_mined: None }
    }
}

/// Compiles the rows of one call.
pub struct Compiler<'a> {
    natives: &'a Natives,
    set_mined: Option<(Listing, BatchWritePolicy, Vec<ServerOperation>)>,
}

/// What a block says of each transaction that it lists.
type Listing = (Stamp, MinedIn, bool);

/// Operations on one record as one request, and how its answer reads.
pub struct Native {
    /// Lent while it is on its way. Boxed: it is large, and would be moved with everything that holds it.
    pub operation: Option<Box<BatchOperation>>,
    answer: Form,
}

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// So many spends; the last value is what [`due::reply`] makes.
    Spends(usize),
    /// So many spends that ask for no signals: nothing to read.
    Silent(usize),
    /// Nothing to read: in this block, and in no other.
    FirstMined(u32),
    /// The last values are all block ids and the number of further pages.
    Blocks,
    /// Nothing to read.
    Live,
    /// Nothing to read.
    Conflicting(Verdict),
}

impl Native {
    /// An outcome for each operation; `None`: the answer is not of the form that was asked for.
    pub fn outcomes(&self, record: Option<&ServerRecord>) -> Option<Vec<Outcome>> {
        let results = record.and_then(|record| record.results.as_deref()).unwrap_or_default();
        Some(match self.answer {
            Form::Spends(count) => spend::outcomes(count, results)?,
            Form::Silent(count) => vec![Outcome::Applied(Reply::None); count],
            Form::FirstMined(block_id) => vec![Outcome::Applied(set_mined::first_reply(block_id))],
            Form::Blocks => vec![Outcome::Applied(set_mined::reply(results)?)],
            Form::Live => vec![Outcome::Applied(Reply::State(TxState::Live))],
            Form::Conflicting(verdict) => vec![Outcome::Applied(Reply::State(TxState::Conflicting(verdict)))],
        })
    }
}

impl Compiler<'_> {
    /// The native form of these operations on one record, where they have one.
    pub fn compile(&mut self, key: &Key, server_key: ServerKey, operations: &[&Operation]) -> Option<Native> {
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
    ) -> Option<Native> {
        match operation {
            Sequenced::SetMined { mined_in, longest_chain } if is_master => {
                Some(self.set_mined((stamp, *mined_in, *longest_chain), server_key))
            }
            Sequenced::UnsetMined { block_id, height } if is_master => {
                Some(self.natives.unset_mined.compile(server_key, stamp, *block_id, *height))
            }
            Sequenced::Respend(respend) => self.natives.respend.compile(is_master, server_key, stamp, respend),
            Sequenced::MarkConflicting { reason, height } => {
                Some(self.natives.mark_conflicting.compile(is_master, server_key, stamp, *reason, *height))
            }
            _ => None,
        }
    }

    fn set_mined(&mut self, listing: Listing, server_key: ServerKey) -> Native {
        let shared = self.set_mined.take().filter(|(there, ..)| *there == listing);
        let answer = Form::FirstMined(listing.1.block_id);
        let (_, policy, operations) = self.set_mined.insert(shared.unwrap_or_else(|| {
            let (policy, operations) = self.natives.set_mined.compile(listing, answer);
            (listing, policy, operations)
        }));
        let operation = BatchOperation::write(policy, server_key, operations.clone());
        Native { operation: Some(Box::new(operation)), answer }
    }
}

/// Whether an operation joins others on its record: but for more spends than one request takes, all do.
pub fn go_together(before: &[&Operation], next: &Operation) -> bool {
    spend::leave_room(before, next)
}

/// Only what is there is changed, behind a filter; a TTL stays as it is.
fn behind(filter: Packed) -> BatchWritePolicy {
    BatchWritePolicy {
        record_exists_action: RecordExistsAction::UpdateOnly,
        expiration: Expiration::DontUpdate,
        filter_expression: Some(from_packed_bytes(filter.0)),
        ..BatchWritePolicy::default()
    }
}

/// The stamp rule: nothing later was there. One hole: the stamp.
fn not_after_a_later_stamp() -> Template {
    use aerospike::expressions::int_bin;
    Template::new(&or(vec![absent(names::CHAIN_POS), le(int_bin(names::CHAIN_POS), hole())]))
}

fn integer(value: Option<&Value>) -> Option<u64> {
    match value {
        Some(Value::Int(number)) => u64::try_from(*number).ok(),
        _ => None,
    }
}

/// The height of a number that an expression added up.
fn add_height(expression: aerospike::expressions::Expression, more: u32) -> aerospike::expressions::Expression {
    aerospike::expressions::num_add(vec![expression, int_val(more.into())])
}
