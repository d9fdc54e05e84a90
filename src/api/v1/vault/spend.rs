//! `POST /v1/vault/{owner}/transactions`: publishes a transaction that spends reserved outputs.

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use serde::Deserialize;
use tokio::time::Instant;
use utoipa::IntoParams;

use super::{PermittedOwner, VaultContext, refusal::VaultProblem};
use crate::{
    api::{
        access::OwnerAccess,
        limits::{LimitedBody, RequestPlace},
        problem::Problem,
        v1::{
            params::{JSON, Params, parse_json, require_media_type},
            submit::{
                SubmittedTransaction, TransactionLookup, WaitFor, check_transactions, publish, read_wait,
                wait_for_outcomes,
            },
        },
    },
    client::submitted::SubmitOutcome,
    record::Verdict,
    store::spend_status::SpendStatus,
    tx::{Outpoint, Txid},
    vault::{
        PermittedInputs, Vault,
        model::{SpendAnswer, SpendRequest, UnavailableOutputs},
    },
};

/// Conditions of a transaction that spends reserved outputs.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SpendParams {
    /// `live`: the answer waits until the transaction is live, conflicting or refused. By default the answer comes when
    /// the log has the event.
    #[param(value_type = Option<String>)]
    wait: Option<WaitFor>,
    /// Longest wait for the outcome, milliseconds: at most 60,000, by default 10,000.
    timeout_ms: Option<u64>,
}

/// Publish a transaction that spends outputs which a lock has.
///
/// The new outputs of the owner's scripts have the lock before the log has the transaction. With a token of the role
/// `wallet` each input spends an output of the owner that the lock has. A repeat changes nothing. The service verifies
/// no signature.
#[utoipa::path(
    post,
    path = "/v1/vault/{owner}/transactions",
    tag = "vault",
    params(("owner" = String, Path, description = "Name of the owner"), SpendParams),
    request_body(content((SpendRequest = "application/json"))),
    responses(
        (status = 200, description = "The transaction is published, and its outcome is known", body = SpendAnswer),
        (status = 202, description = "The transaction is published", body = SpendAnswer),
        (status = 400, description = "A transaction that is malformed or overspends", body = Problem),
        (status = 404, description = "The owner has no script, or no such lock", body = Problem),
        (
            status = 409,
            description = "The transaction spends other outputs (`states-not-available`), or the lock has ended \
                           (`lock-ended`)",
            body = UnavailableOutputs,
            content_type = "application/problem+json"
        ),
    )
)]
pub async fn post_vault_transactions(
    State(context): State<VaultContext>,
    permitted: PermittedOwner,
    Params(params): Params<SpendParams>,
    headers: HeaderMap,
    place: RequestPlace,
    LimitedBody(body): LimitedBody,
) -> Result<(StatusCode, Json<SpendAnswer>), VaultProblem> {
    require_media_type(&headers, JSON)?;
    let wait = read_wait(params.wait, params.timeout_ms)?;
    let SpendRequest { lock_id, transaction } = parse_json(&body)?;
    let malformed = |error| Problem::bad_request(format!("the transaction is no hexadecimal text: {error}"));
    let transactions = [hex::decode(transaction).map_err(malformed)?];
    let txids = check_transactions(&transactions)?;
    let [extended] = &transactions;
    let vault = &context.vault;
    let permitted_inputs = match permitted.access {
        OwnerAccess::Own => PermittedInputs::Reserved,
        OwnerAccess::All => PermittedInputs::Any,
    };
    // Whatever can fail without the transaction fails before the transaction is recorded.
    let tip = context.ask(vault.tip()).await?;
    context.log.publisher(&context.limits).await?;
    // Opened before the event is published, so that no outcome is missed.
    let outcomes = match params.wait {
        Some(WaitFor::Live) => Some((context.log.follow(&context.limits).await?, context.limits.open_stream()?)),
        None => None,
    };
    let height = tip.height.saturating_add(1);
    let recorded = async {
        let record = async { vault.submission(&permitted.owner, lock_id, extended)?.record(permitted_inputs).await };
        let locked_outputs = context.ask(record).await?;
        let published = publish((&context.log, &context.limits), &transactions, &txids, height, false).await?;
        Ok((locked_outputs, published.map_err(|partly| partly.problem)?))
    };
    let (locked_outputs, submitted) = context.count("spend", Box::pin(recorded).await)?;
    let mut outcome = None;
    if let Some((outcomes, _permit)) = outcomes {
        place.leave();
        let found = wait_for_outcomes(vault, &submitted, &txids, outcomes, Instant::now() + wait).await;
        outcome = found.into_iter().next();
    }
    let is_known = outcome.as_ref().is_some_and(|outcome| *outcome != SubmitOutcome::Pending);
    let status = if is_known { StatusCode::OK } else { StatusCode::ACCEPTED };
    let Some(SubmittedTransaction { txid, topic, partition, offset, .. }) = submitted.into_iter().next() else {
        unreachable!("one answer for one transaction")
    };
    Ok((status, Json(SpendAnswer { txid, topic, partition, offset, locked_outputs, outcome })))
}

impl TransactionLookup for Vault {
    async fn look(&self, txids: &[Txid], is_last: bool) -> Vec<Option<SubmitOutcome>> {
        let first_outputs: Vec<Outpoint> = txids.iter().map(|txid| Outpoint { txid: *txid, vout: 0 }).collect();
        let outcome = |status: SpendStatus| match status {
            // A pruned transaction was live, or was conflicting.
            SpendStatus::NotFound | SpendStatus::Creating | SpendStatus::Pruned(_) => None,
            // The event itself may open the verdict again until the last look.
            SpendStatus::Conflicting(Verdict::Conflicting(reason)) if is_last => {
                Some(SubmitOutcome::Conflicting { reason: reason.to_string() })
            }
            SpendStatus::Conflicting(_) => None,
            _ => Some(SubmitOutcome::Live),
        };
        let states = self.statuses(&first_outputs).await.into_iter();
        states.map(|status| status.ok().and_then(outcome)).collect()
    }
}
