//! Answers of the API in JSON, under the names of the reference document 003.

use std::collections::BTreeSet;

use serde::Serialize;
use strum::IntoStaticStr;
use utoipa::ToSchema;

use crate::{
    api::problem::Problem,
    record::{Body, SpendingData, StoredOutput, TxState, Verdict},
    store::{
        body::{BodyError, ParsedBody},
        outputs::OutputState,
        read::{FROZEN_SPENDER, ReadFields, StoredTransaction, inpoints_of},
        spend_status::SpendStatus,
    },
};

/// A transaction as the store holds it. A field that was not selected is absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TransactionData {
    /// Id of the transaction, 64 hexadecimal digits as block explorers print them.
    pub txid: String,
    /// State of the transaction. `stub`: a verdict without a body.
    pub state: TransactionState,
    /// Version of the transaction.
    pub version: u32,
    /// Lock time of the transaction.
    pub lock_time: u32,
    /// Fee in satoshis; 0 for a coinbase and a partial transaction.
    pub fee: u64,
    /// Size in standard format, bytes; 0 for a partial transaction.
    pub size_in_bytes: u64,
    /// Size in extended format, bytes; 0 for a partial transaction.
    pub extended_size: u64,
    /// The transaction is a coinbase.
    pub is_coinbase: bool,
    /// The outputs are not spendable yet.
    pub locked: bool,
    /// The whole transaction is frozen.
    pub frozen: bool,
    /// The transaction is half created.
    pub creating: bool,
    /// The transaction is conflicting, or contested without a verdict.
    pub conflicting: bool,
    /// Reason of the conflicting verdict; `null`: the transaction has none.
    pub reason: Option<String>,
    /// Txids of the conflicting children.
    pub conflicting_children: Vec<String>,
    /// Local ids of the blocks that list the transaction, parallel to `blockHeights` and `subtreeIdxs`.
    #[serde(rename = "blockIDs")]
    pub block_ids: Vec<u32>,
    /// Heights of the blocks that list the transaction.
    pub block_heights: Vec<u32>,
    /// Index of the subtree in each block that lists the transaction.
    pub subtree_idxs: Vec<u32>,
    /// Height since which the transaction is unmined; `null` while a block of the longest chain lists the transaction.
    pub unmined_since: Option<u32>,
    /// Time of the transaction's event, milliseconds since the epoch.
    pub created_at: u64,
    /// Number of slots of all pages, with those of outputs that can never be spent.
    pub total_utxos: u32,
    /// Height from which the transaction may be pruned; `null`: not known yet.
    pub delete_at_height: Option<u32>,
    /// Height until which the transaction is not pruned; `null`: not set.
    pub preserve_until: Option<u32>,
    /// The body is in the blob store.
    pub external: bool,
    /// Outpoints that the transaction spends. Read from the body, and only if selected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_inpoints: Option<TxInpointsView>,
    /// The transaction in extended format, hexadecimal. Read from the body, and only if selected; `null` for a partial
    /// transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx: Option<Option<String>>,
    /// Spender of each output as `txid:input`; `null`: unspent; `frozen`. Read from all pages, and only if selected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spending_data: Option<Vec<Option<String>>>,
}

/// State of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TransactionState {
    /// The transaction is applied.
    Live,
    /// The transaction is half created.
    Creating,
    /// A verdict has refused the transaction, or there is no verdict yet.
    Conflicting,
    /// A verdict without a body.
    Stub,
    /// The transaction was pruned.
    Pruned,
}

impl From<TxState> for TransactionState {
    fn from(state: TxState) -> Self {
        match state {
            TxState::Live => TransactionState::Live,
            TxState::Creating => TransactionState::Creating,
            TxState::Conflicting(_) => TransactionState::Conflicting,
            TxState::Stub(_) => TransactionState::Stub,
            TxState::Pruned(_) => TransactionState::Pruned,
        }
    }
}

/// Outpoints that a transaction spends: the parents in the order of their first mention, and in parallel the list of
/// output indexes of each parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TxInpointsView {
    /// Txids of the parents.
    pub parent_tx_hashes: Vec<String>,
    /// Indexes of the spent outputs of each parent.
    pub idxs: Vec<Vec<u32>>,
}

/// Fields of a [`TransactionData`] that are read only if selected.
const ON_REQUEST: [&str; 3] = ["txInpoints", "tx", "spendingData"];
/// Fields of a [`TransactionData`] that are read by default.
const DEFAULT: [&str; 23] = [
    "txid",
    "state",
    "version",
    "lockTime",
    "fee",
    "sizeInBytes",
    "extendedSize",
    "isCoinbase",
    "locked",
    "frozen",
    "creating",
    "conflicting",
    "reason",
    "conflictingChildren",
    "blockIDs",
    "blockHeights",
    "subtreeIdxs",
    "unminedSince",
    "createdAt",
    "totalUtxos",
    "deleteAtHeight",
    "preserveUntil",
    "external",
];

/// Fields that a request selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectedFields {
    /// Names of the fields; `None`: the fields that need neither body nor pages.
    names: Option<BTreeSet<&'static str>>,
}

impl SelectedFields {
    /// Parses the parameter `fields`: names joined by commas, or `*` for all.
    ///
    /// # Errors
    /// 400 with the name of an unknown field.
    pub fn parse(text: Option<&str>) -> Result<Self, Problem> {
        let known = || DEFAULT.iter().chain(&ON_REQUEST).copied();
        let names = match text {
            None => None,
            Some("*") => Some(known().collect()),
            Some(text) => {
                let find = |name: &str| {
                    known().find(|known| *known == name).ok_or_else(|| {
                        let known: Vec<&str> = known().collect();
                        Problem::bad_request(format!("fields: unknown field `{name}`; known: {}", known.join(", ")))
                    })
                };
                Some(text.split(',').map(find).collect::<Result<_, _>>()?)
            }
        };
        Ok(SelectedFields { names })
    }

    /// Returns whether a field is selected.
    pub fn has(&self, name: &str) -> bool {
        match &self.names {
            None => !ON_REQUEST.contains(&name),
            Some(names) => names.contains(name),
        }
    }

    /// Returns the parts of the store that the fields need.
    pub fn parts(&self) -> ReadFields {
        ReadFields { slots: self.has("spendingData"), body: self.has("tx") || self.has("txInpoints") }
    }

    /// Returns the selected fields of a transaction.
    ///
    /// # Errors
    /// The body is damaged.
    pub fn view(&self, stored: &StoredTransaction) -> Result<serde_json::Value, BodyError> {
        let view = TransactionData::of(stored, self)?;
        let mut value = serde_json::to_value(view).unwrap_or_else(|error| unreachable!("a view is JSON: {error}"));
        if let (Some(names), Some(fields)) = (&self.names, value.as_object_mut()) {
            fields.retain(|name, _| names.contains(name.as_str()));
        }
        Ok(value)
    }
}

impl TransactionData {
    fn of(stored: &StoredTransaction, fields: &SelectedFields) -> Result<Self, BodyError> {
        let page = &*stored.master;
        let bins = page.master.as_deref();
        let mined = bins.map(|bins| &*bins.mined).unwrap_or_default();
        let tx_inpoints = match (&stored.body, fields.has("txInpoints")) {
            (Some(body), true) => {
                let inpoints = ParsedBody::parse(page.txid, body)?.transaction().map(inpoints_of).unwrap_or_default();
                let parent_tx_hashes = inpoints.parent_txids.iter().map(ToString::to_string).collect();
                Some(TxInpointsView { parent_tx_hashes, idxs: inpoints.indexes })
            }
            _ => None,
        };
        let tx = match &stored.body {
            Some(Body::Transaction(bytes)) if fields.has("tx") => Some(hex::encode(bytes)),
            _ => None,
        };
        let reason = match page.verdict() {
            Some(Verdict::Conflicting(reason)) => Some(reason.to_string()),
            _ => None,
        };
        let spender = |slot: &crate::record::Slot| match slot {
            crate::record::Slot::Frozen(_) => Some("frozen".to_owned()),
            slot => slot.spender().as_ref().map(spender_text),
        };
        Ok(TransactionData {
            txid: page.txid.to_string(),
            state: page.state().into(),
            version: page.version,
            lock_time: page.lock_time,
            fee: page.fee,
            size_in_bytes: page.size_in_bytes,
            extended_size: page.extended_size,
            is_coinbase: page.is_coinbase,
            locked: page.locked,
            frozen: page.frozen,
            creating: page.creating_at.is_some(),
            conflicting: page.conflicting,
            reason,
            conflicting_children: bins
                .iter()
                .flat_map(|bins| &bins.conflicting_children)
                .map(ToString::to_string)
                .collect(),
            block_ids: mined.iter().map(|mined| mined.block_id).collect(),
            block_heights: mined.iter().map(|mined| mined.height).collect(),
            subtree_idxs: mined.iter().map(|mined| mined.subtree).collect(),
            unmined_since: page.unmined_since(),
            created_at: bins.map_or(0, |bins| bins.created_at),
            total_utxos: bins.map_or(0, |bins| bins.total_utxos),
            delete_at_height: page.delete_at_height,
            preserve_until: bins.and_then(|bins| bins.preserve_until),
            external: matches!(page.body(), Some(Body::External(_))),
            tx_inpoints,
            tx: fields.has("tx").then_some(tx),
            spending_data: fields.has("spendingData").then(|| stored.slots.iter().map(spender).collect()),
        })
    }
}

/// State of an output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutputView {
    /// Outpoint of the output, `txid:vout`.
    pub outpoint: String,
    /// `OK`: a spend at the height is accepted. Otherwise the first obstacle.
    pub status: OutputStatus,
    /// Obstacle by the name of the reference document, where it has one; `UNSPENT`: none.
    pub code: String,
    /// Status in words, with the reason of a conflict.
    pub detail: String,
    /// Input that spends the output; `null`: unspent.
    pub spender: Option<SpenderView>,
    /// Height from which the output is spendable (`IMMATURE`, `FROZEN_UNTIL`), or at which the transaction was pruned
    /// (`PRUNED`).
    pub height: Option<u32>,
    /// Hash that the slot commits to; `null`: the output has no slot.
    pub utxo_hash: Option<String>,
    /// Amount in satoshis; `null`: not known or not asked for.
    pub satoshis: Option<u64>,
    /// Locking script, hexadecimal; `null`: not known or not asked for.
    pub script: Option<String>,
    /// Height of the block of the longest chain that lists the transaction; `null`: none, or not asked for.
    pub mined_height: Option<u32>,
}

/// Status of an output: the reference document's words for readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema, IntoStaticStr)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum OutputStatus {
    /// A spend is accepted.
    Ok,
    /// The output is spent.
    Spent,
    /// The output, or the whole transaction, is frozen.
    Frozen,
    /// The output is frozen until a height.
    FrozenUntil,
    /// The transaction is locked.
    Locked,
    /// The output is of a coinbase that is not mature.
    Immature,
    /// The transaction is half created.
    Creating,
    /// The transaction is conflicting, or has no verdict yet.
    Conflicting,
    /// The transaction was pruned.
    Pruned,
    /// The store has no such transaction, or the output has no slot.
    NotFound,
}

/// Input that spends an output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct SpenderView {
    /// Txid of the spending transaction.
    pub txid: String,
    /// Index of the input.
    pub input: u32,
}

/// Amount and locking script of an output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct AmountAndScript {
    /// Amount of the output, satoshis.
    pub satoshis: u64,
    /// Locking script of the output, hexadecimal.
    pub script: String,
}

impl From<&StoredOutput> for AmountAndScript {
    fn from(output: &StoredOutput) -> Self {
        AmountAndScript { satoshis: output.satoshis, script: hex::encode(&output.script) }
    }
}

impl From<&OutputState> for OutputView {
    fn from(state: &OutputState) -> Self {
        let spender = |spender: SpendingData| SpenderView { txid: spender.txid.to_string(), input: spender.input };
        let output = state.output.as_ref().map(AmountAndScript::from);
        OutputView {
            outpoint: state.outpoint.to_string(),
            status: OutputStatus::from(&state.status),
            code: state.status.code().to_owned(),
            detail: state.status.to_string(),
            spender: state.spender.filter(|spender| *spender != FROZEN_SPENDER).map(spender),
            height: status_height(&state.status),
            utxo_hash: state.utxo_hash.map(|hash| hash.to_string()),
            satoshis: output.as_ref().map(|output| output.satoshis),
            script: output.map(|output| output.script),
            mined_height: state.mined_height,
        }
    }
}

impl From<&SpendStatus> for OutputStatus {
    fn from(status: &SpendStatus) -> Self {
        match status {
            SpendStatus::Unspent => OutputStatus::Ok,
            SpendStatus::Spent(_) => OutputStatus::Spent,
            SpendStatus::Frozen => OutputStatus::Frozen,
            SpendStatus::NotYetSpendable(_) => OutputStatus::FrozenUntil,
            SpendStatus::Locked => OutputStatus::Locked,
            SpendStatus::Immature(_) => OutputStatus::Immature,
            SpendStatus::Creating => OutputStatus::Creating,
            SpendStatus::Conflicting(_) => OutputStatus::Conflicting,
            SpendStatus::Pruned(_) => OutputStatus::Pruned,
            SpendStatus::NotFound | SpendStatus::NoSuchOutput | SpendStatus::HashMismatch(_) => OutputStatus::NotFound,
        }
    }
}

/// Returns the height that a status names.
pub fn status_height(status: &SpendStatus) -> Option<u32> {
    match status {
        SpendStatus::NotYetSpendable(height) | SpendStatus::Immature(height) | SpendStatus::Pruned(height) => {
            Some(*height)
        }
        _ => None,
    }
}

fn spender_text(spender: &SpendingData) -> String {
    format!("{}:{}", spender.txid, spender.input)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_field_is_refused_by_its_name() {
        let problem = SelectedFields::parse(Some("fee,fees")).unwrap_err();
        assert!(problem.detail.contains("`fees`") && problem.detail.contains("sizeInBytes"), "{}", problem.detail);
        let parts = |text| SelectedFields::parse(text).unwrap().parts();
        assert_eq!(parts(None), ReadFields::default());
        assert_eq!(parts(Some("fee,tx")), ReadFields { slots: false, body: true });
        assert_eq!(parts(Some("*")), ReadFields::ALL);
    }

    #[test]
    fn every_field_of_the_view_can_be_selected() {
        let all = SelectedFields::parse(Some("*")).unwrap();
        let stored = StoredTransaction {
            master: crate::record::Page::stub(crate::tx::Txid([1; 32]), Verdict::Pending).into(),
            slots: Vec::new(),
            body: None,
        };
        let view = all.view(&stored).unwrap();
        for name in view.as_object().unwrap().keys() {
            assert!(SelectedFields::parse(Some(name)).is_ok(), "{name}");
        }
        assert_eq!(SelectedFields::parse(Some("fee")).unwrap().view(&stored).unwrap(), serde_json::json!({"fee": 0}));
    }

    #[test]
    fn each_field_of_the_view_is_the_bin_of_its_name() {
        use crate::record::{Master, MinedIn, Page};
        let txid = |byte| crate::tx::Txid([byte; 32]);
        let mined = |block_id| MinedIn { block_id, height: block_id + 100, subtree: block_id + 200 };
        let master = Master {
            total_utxos: 4,
            mined: vec![mined(11), mined(12)],
            created_at: 5,
            unmined_since: Some(6),
            conflicting_children: [txid(7)].into(),
            preserve_until: Some(8),
            ..Master::default()
        };
        let page = Page {
            version: 21,
            lock_time: 22,
            fee: 23,
            size_in_bytes: 24,
            extended_size: 25,
            locked: true,
            utxos: Some(Vec::new()),
            delete_at_height: Some(26),
            master: Some(Box::new(master)),
            ..Page::empty(txid(1))
        };
        let stored = StoredTransaction { master: page.into(), slots: Vec::new(), body: None };
        let expected = serde_json::json!({
            "txid": txid(1).to_string(),
            "state": "live",
            "version": 21,
            "lockTime": 22,
            "fee": 23,
            "sizeInBytes": 24,
            "extendedSize": 25,
            "isCoinbase": false,
            "locked": true,
            "frozen": false,
            "creating": false,
            "conflicting": false,
            "reason": null,
            "conflictingChildren": [txid(7).to_string()],
            "blockIDs": [11, 12],
            "blockHeights": [111, 112],
            "subtreeIdxs": [211, 212],
            "unminedSince": 6,
            "createdAt": 5,
            "totalUtxos": 4,
            "deleteAtHeight": 26,
            "preserveUntil": 8,
            "external": false,
        });
        assert_eq!(SelectedFields::parse(None).unwrap().view(&stored).unwrap(), expected);
    }
}
