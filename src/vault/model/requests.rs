//! Requests to the vault in JSON.

use std::{str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};
use strum::{EnumString, VariantNames};
use utoipa::ToSchema;

use crate::{
    text::bounded_list::BoundedList,
    tx::Network,
    vault::{Fee, LockId, NewScript, RequestId, ScriptAddressError, SelectionRequest, Strategy, VaultError},
};

/// A script to watch, by its bytes or by an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ScriptName {
    /// Address (P2PKH, P2SH, P2WPKH, P2WSH, P2TR) or public key (P2PK) of the store's network.
    Address(String),
    /// Locking script in hexadecimal digits.
    Script(String),
}

/// Source of earlier outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, EnumString, VariantNames)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum RescanSource {
    /// The topics of validated transactions and of the chain, as far as they reach back.
    Log,
    /// The mined transactions of the store that the server has open.
    Store,
    /// The newest complete snapshot at `snapshot.url` of the server. The log has what happened since.
    Snapshot,
}

/// Scripts that the vault is to watch.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WatchRequest {
    /// Scripts or addresses to watch.
    #[schema(value_type = Vec<ScriptName>)]
    pub scripts: BoundedList<ScriptName>,
    /// Look for earlier outputs of the scripts in this source. By default the vault knows outputs from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rescan: Option<RescanSource>,
}

/// Scripts to watch no longer.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UnwatchRequest {
    /// Scripts or addresses to forget.
    #[schema(value_type = Vec<ScriptName>)]
    pub scripts: BoundedList<ScriptName>,
}

/// Outputs to reserve, all or none.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ReserveRequest {
    /// Lock or session under which the outputs are reserved; a new lock has an id of the client's own, a UUID.
    pub lock_id: LockId,
    /// Outpoints to reserve, each `txid:vout`.
    #[schema(value_type = Vec<String>)]
    pub outpoints: BoundedList<String>,
    /// Time after which the lock ends by itself, milliseconds. By default the lock lasts until released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
}

/// Outputs of a lock that are to be released.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ReleaseRequest {
    /// Lock or session that has the outputs.
    pub lock_id: LockId,
    /// Outpoints, each `txid:vout`. By default the lock or the session ends, with all its outputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub outpoints: Option<BoundedList<String>>,
}

/// Amount to fund, and how.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SelectRequest {
    /// Sum of the payments, satoshis.
    pub amount: u64,
    /// Fee rate, satoshis for 1,000 virtual bytes. A request has either a rate or a fee.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fee_rate: Option<u64>,
    /// Fee of every size of transaction, satoshis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fee: Option<u64>,
    /// Id with which a repeat has the same answer: 1 to 64 letters, digits, `-`, `_` and `.`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub request_id: Option<RequestId>,
    /// Lock or session under which the outputs are reserved. By default the selection has a lock of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_id: Option<LockId>,
    /// Time after which the lock ends by itself, milliseconds. By default a lock of its own ends after
    /// `vault.selection_ttl_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Order in which outputs are taken. Default: `largest-first`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// Fewest blocks that confirm an output; 0: unconfirmed outputs of the owner's own transactions, too. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_confirmations: Option<u32>,
    /// Take unconfirmed outputs of other transactions, too, where `minConfirmations` is 0. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign_unconfirmed: Option<bool>,
    /// Take only outputs of these scripts or addresses, at most 64. By default of all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scripts: Vec<ScriptName>,
    /// Number of payments, without the change. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payments: Option<u32>,
    /// Bytes of the locking script of each payment. Default: 25 (P2PKH).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payment_script_bytes: Option<u32>,
    /// Bytes of the locking script of the change. Default: 25 (P2PKH).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change_script_bytes: Option<u32>,
    /// Least change, satoshis: less is left to the fee. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least_change: Option<u64>,
    /// Most inputs of the transaction. Default: 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_inputs: Option<u32>,
    /// Bytes that unlock a script of an unknown kind. Default: 254.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlocking_bytes: Option<u32>,
}

/// A session to open, or whose lease is to be extended.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SessionRequest {
    /// Id of the session, a UUID. A request to open a session may leave the id to the vault; a repeat with an id finds
    /// the same session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_id: Option<LockId>,
    /// Time without a heartbeat after which the session ends, milliseconds. Default: `vault.lease_ms` for a new
    /// session, the lease of the session for a heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
}

/// A transaction to publish, which spends reserved outputs.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SpendRequest {
    /// Lock or session that has the outputs that the transaction spends. The new outputs of the owner's scripts have
    /// the lock from the first moment on, until the lock ends.
    pub lock_id: LockId,
    /// Transaction in extended format, hexadecimal.
    pub transaction: String,
}

/// Earlier outputs to look for.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RescanRequest {
    /// Source of earlier outputs of all scripts of the owner.
    pub source: RescanSource,
}

impl ScriptName {
    /// Makes the script of the name.
    ///
    /// # Errors
    /// The text is no script of hexadecimal digits, or no address of the network.
    pub fn to_script(&self, network: Network) -> Result<NewScript, VaultError> {
        match self {
            ScriptName::Address(text) => {
                NewScript::of_address(text, network).map_err(|error: ScriptAddressError| invalid(&error))
            }
            ScriptName::Script(text) => {
                let refuse = |error| invalid(&format!("a script is no hexadecimal text: {error}"));
                Ok(NewScript { script: hex::decode(text).map_err(refuse)?.into(), address: None })
            }
        }
    }
}

impl FromStr for ScriptName {
    type Err = std::convert::Infallible;

    /// Reads the argument of a command: `hex:` and a script, or an address.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.strip_prefix("hex:") {
            Some(script) => ScriptName::Script(script.to_owned()),
            None => ScriptName::Address(text.to_owned()),
        })
    }
}

fn invalid(problem: &dyn std::fmt::Display) -> VaultError {
    VaultError::Invalid(problem.to_string())
}

impl SelectRequest {
    /// Makes the request for an amount at a fee rate, satoshis for 1,000 virtual bytes.
    pub fn at_rate(amount: u64, fee_rate: u64) -> Self {
        SelectRequest {
            amount,
            fee_rate: Some(fee_rate),
            fee: None,
            request_id: None,
            lock_id: None,
            ttl_ms: None,
            strategy: None,
            min_confirmations: None,
            foreign_unconfirmed: None,
            scripts: Vec::new(),
            payments: None,
            payment_script_bytes: None,
            change_script_bytes: None,
            least_change: None,
            most_inputs: None,
            unlocking_bytes: None,
        }
    }

    /// Returns the request with all its defaults. `wait`: time to wait for outputs that others have locked.
    ///
    /// # Errors
    /// The request has no fee or two, or a script that is none.
    pub(crate) fn complete(&self, wait: Duration, network: Network) -> Result<SelectionRequest, VaultError> {
        let fee = match (self.fee_rate, self.fee) {
            (Some(rate), None) => Fee::Rate(rate),
            (None, Some(fee)) => Fee::Fixed(fee),
            _ => return Err(VaultError::invalid("the request has either `feeRate` or `fee`")),
        };
        let mut request = SelectionRequest::new(self.amount, fee);
        let terms = &mut request.terms;
        terms.strategy = self.strategy.unwrap_or_default();
        terms.payments = self.payments.unwrap_or(terms.payments);
        terms.payment_script_bytes = self.payment_script_bytes.unwrap_or(terms.payment_script_bytes);
        terms.change_script_bytes = self.change_script_bytes.unwrap_or(terms.change_script_bytes);
        terms.least_change = self.least_change.unwrap_or(terms.least_change);
        terms.most_inputs = self.most_inputs.unwrap_or(terms.most_inputs);
        let scripts = self.scripts.iter().map(|name| Ok(name.to_script(network)?.script));
        Ok(SelectionRequest {
            request_id: self.request_id.clone(),
            min_confirmations: self.min_confirmations.unwrap_or(request.min_confirmations),
            foreign_unconfirmed: self.foreign_unconfirmed.unwrap_or(false),
            scripts: scripts.collect::<Result<_, VaultError>>()?,
            unlocking_bytes: self.unlocking_bytes,
            lock_id: self.lock_id,
            ttl: self.ttl_ms.map(Duration::from_millis),
            wait,
            ..request
        })
    }
}
