//! Names and numbers of the vault: owners, lock ids, outputs with their facts.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use strum::{FromRepr, IntoStaticStr};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{
    record::SpendingData,
    text::is_name,
    tx::{Outpoint, Txid},
};

/// Longest name of an owner, bytes.
const MAX_OWNER_BYTES: usize = 64;
/// Longest id of a request, bytes.
const MAX_REQUEST_BYTES: usize = 64;

/// Number of an owner in the database.
pub(super) type OwnerId = i64;
/// Number of a watched script in the database.
pub(super) type ScriptId = i64;

/// Name of an owner of outputs: 1 to 64 letters, digits, `-`, `_` and `.`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Owner(String);

/// Id that a client gives to a request, so that a repeat has the same answer: 1 to 64 letters, digits, `-`, `_` and
/// `.`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RequestId(String);

/// A text that is no name of an owner, or no id of a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} has 1 to {most} letters, digits, `-`, `_` and `.`")]
pub struct NameError {
    what: &'static str,
    most: usize,
}

fn check_name(text: &str, what: &'static str, most: usize) -> Result<String, NameError> {
    match is_name(text, most) {
        true => Ok(text.to_owned()),
        false => Err(NameError { what, most }),
    }
}

macro_rules! name {
    ($name:ident, $what:literal, $most:ident) => {
        impl $name {
            /// Returns the text of the name.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                check_name(text, $what, $most).map($name)
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name!(Owner, "the name of an owner", MAX_OWNER_BYTES);
name!(RequestId, "the id of a request", MAX_REQUEST_BYTES);

/// Id of a soft lock, a UUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = String, example = "f81d4fae-7dec-4d00-a765-00a0c91e6bf6")]
pub struct LockId(pub Uuid);

impl LockId {
    /// Makes an id that no other request has.
    pub fn random() -> Self {
        LockId(Uuid::new_v4())
    }
}

impl FromStr for LockId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, uuid::Error> {
        text.parse().map(LockId)
    }
}

impl fmt::Display for LockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// State of an output as the store has answered last.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Serialize,
    Deserialize,
    ToSchema,
    FromRepr,
    IntoStaticStr,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
#[repr(i64)]
pub enum Standing {
    /// The store has not answered, or had no such transaction.
    #[default]
    Unknown = 0,
    /// The output is unspent. It may be immature, or spendable from a later height on.
    Unspent = 1,
    /// The output is spent.
    Spent = 2,
    /// The output or its transaction is frozen or locked by a command.
    Frozen = 3,
    /// The transaction is conflicting or contested.
    Conflicting = 4,
    /// The transaction has no such output of the watched script: the output was reassigned, or its transaction was
    /// pruned.
    Absent = 5,
}

/// Facts about an output from one answer of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Facts {
    /// State of the output.
    pub standing: Standing,
    /// Height of the block of the longest chain that lists the transaction; `None`: unconfirmed.
    pub height: Option<u32>,
    /// Height of the first block that can list a spender, where the store named such a height: a coinbase, or an output
    /// that is frozen until a height.
    pub spendable_from: Option<u32>,
    /// Input that spends the output.
    pub spender: Option<SpendingData>,
}

/// An output of a watched script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedOutput {
    /// Outpoint of the output.
    pub outpoint: Outpoint,
    pub(super) owner: OwnerId,
    pub(super) script: ScriptId,
    /// Amount of the output.
    pub satoshis: u64,
    /// Every input of the transaction spends an output of the same owner.
    pub own_change: bool,
    /// Facts from the last answer of the store.
    pub facts: Facts,
    /// Time of that answer, milliseconds since the epoch; `None`: the store was not asked yet.
    pub asked_at: Option<i64>,
    /// Number of events that have named the output. An answer is about the events that came before the question.
    pub(super) changes: i64,
    /// Soft lock of the output. The lock may have expired.
    pub lock: Option<LockId>,
}

impl WatchedOutput {
    /// Makes an output of which only an event is known.
    #[cfg(test)]
    pub(super) fn unasked(outpoint: Outpoint, owner: OwnerId, script: ScriptId, satoshis: u64) -> Self {
        let facts = Facts::default();
        WatchedOutput {
            outpoint,
            owner,
            script,
            satoshis,
            own_change: false,
            facts,
            asked_at: None,
            changes: 0,
            lock: None,
        }
    }

    /// Returns the number of blocks that confirm the output under a tip; 0: unconfirmed.
    pub fn confirmations(&self, tip: u32) -> u32 {
        self.facts.height.map_or(0, |height| tip.saturating_sub(height) + 1)
    }

    /// Returns whether the block after the tip can list a spender.
    pub fn is_mature(&self, tip: u32) -> bool {
        self.facts.spendable_from.is_none_or(|from| from <= tip.saturating_add(1))
    }
}

/// Returns an outpoint of a txid in internal order, as the database has it; `None`: the bytes are no txid.
pub(super) fn outpoint_of(txid: &[u8], vout: i64) -> Option<Outpoint> {
    Some(Outpoint { txid: Txid(txid.try_into().ok()?), vout: vout.try_into().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_letters_digits_and_three_marks() {
        for good in ["a", "Alice-2_x.y", &"o".repeat(64)] {
            assert_eq!(good.parse::<Owner>().unwrap().as_str(), good);
        }
        for bad in ["", "..", "a b", "a/b", "é", "a%", &"o".repeat(65)] {
            let error = bad.parse::<Owner>().unwrap_err().to_string();
            assert_eq!(error, "the name of an owner has 1 to 64 letters, digits, `-`, `_` and `.`");
        }
    }

    #[test]
    fn an_output_matures_when_the_next_block_can_list_its_spender() {
        let outpoint = Outpoint { txid: Txid([1; 32]), vout: 0 };
        let mut output = WatchedOutput::unasked(outpoint, 1, 1, 5);
        assert_eq!((output.confirmations(9), output.is_mature(9)), (0, true));
        output.facts = Facts { height: Some(4), spendable_from: Some(11), ..Facts::default() };
        assert_eq!((output.confirmations(4), output.confirmations(9), output.confirmations(3)), (1, 6, 1));
        assert_eq!((output.is_mature(9), output.is_mature(10)), (false, true));
    }
}
