//! `/v1/vault/{owner}/balance` and `/v1/vault/{owner}/outputs`: what an owner has, reservations and selections.

use std::time::Duration;

use axum::{Json, extract::State, http::HeaderMap};
use serde::Deserialize;
use tokio::sync::oneshot;
use utoipa::IntoParams;

use super::{PermittedOwner, VaultContext, refusal::VaultProblem};
use crate::{
    api::{
        byte_budget::RequestBytes,
        limits::{LimitedBody, RequestPlace},
        problem::Problem,
        v1::params::{JSON, NoParams, Params, parse, parse_json, require_media_type},
    },
    tx::Outpoint,
    vault::{
        LockCondition, LockId, Owner, SelectedOutputs, SelectionRequest, VaultError,
        model::{
            BalanceView, MissingFunds, OwnerOutput, OwnerOutputs, ReleaseAnswer, ReleaseRequest, ReserveAnswer,
            ReserveRequest, SelectAnswer, SelectRequest, UnavailableOutputs,
        },
    },
};

/// Outputs of one answer, unless the request names a number, and at most.
const USUAL_OUTPUTS: u64 = 1_000;
const MOST_OUTPUTS: u64 = 10_000;
/// Memory of an output in an answer, with a script of usual length.
const OUTPUT_BYTES: u64 = 1_024;
/// Longest wait of a selection.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Part of a list of outputs, and a condition on their soft locks.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OwnerOutputParams {
    /// `any` (default), `unlocked-only`, `locked-only`, `specified` (outputs with one of `lockIds`),
    /// `unlocked-and-specified` (outputs without a lock, and those with one of `lockIds`).
    locks: Option<String>,
    /// Lock ids, with commas between them, at most 64.
    #[serde(rename = "lockIds")]
    lock_ids: Option<String>,
    /// Outpoint after which the list begins: `next` of the answer before.
    after: Option<String>,
    /// Most outputs of the answer: at most 10,000, by default 1,000.
    limit: Option<u64>,
}

/// Conditions of a selection.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SelectParams {
    /// Longest wait for outputs that others have locked, where they would suffice, milliseconds: at most 60,000. By
    /// default the answer comes at once.
    wait: Option<u64>,
}

/// Read the balance of the owner, by the last answers of the store.
#[utoipa::path(
    get,
    path = "/v1/vault/{owner}/balance",
    tag = "vault",
    params(("owner" = String, Path, description = "Name of the owner")),
    responses(
        (status = 200, description = "The balance", body = BalanceView),
        (status = 404, description = "The owner has no script", body = Problem),
    )
)]
pub async fn get_vault_balance(
    State(context): State<VaultContext>,
    permitted: PermittedOwner,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<BalanceView>, VaultProblem> {
    let balance = context.ask(context.vault.balance(&permitted.owner)).await?;
    Ok(Json(balance.into()))
}

/// Read the outputs of the owner that are not spent, by the last answers of the store.
///
/// By default the list has locked outputs, too.
#[utoipa::path(
    get,
    path = "/v1/vault/{owner}/outputs",
    tag = "vault",
    params(("owner" = String, Path, description = "Name of the owner"), OwnerOutputParams),
    responses(
        (status = 200, description = "The outputs", body = OwnerOutputs),
        (status = 404, description = "The owner has no script", body = Problem),
    )
)]
pub async fn get_vault_outputs(
    State(context): State<VaultContext>,
    permitted: PermittedOwner,
    Params(params): Params<OwnerOutputParams>,
    memory: RequestBytes,
) -> Result<Json<OwnerOutputs>, VaultProblem> {
    let ids = params.lock_ids.iter().flat_map(|ids| ids.split(',')).map(parse::<LockId>);
    let ids = ids.collect::<Result<Vec<LockId>, Problem>>()?;
    let condition = LockCondition::of_name(params.locks.as_deref().unwrap_or("any"), ids)?;
    let after = params.after.as_deref().map(parse::<Outpoint>).transpose()?;
    let limit = params.limit.unwrap_or(USUAL_OUTPUTS).clamp(1, MOST_OUTPUTS);
    memory.reserve(limit * OUTPUT_BYTES)?;
    let read = context.vault.outputs(&permitted.owner, &condition, after, limit);
    let listed = context.ask(read).await?;
    let scripts: usize = listed.iter().map(|listed| listed.stored.script.len()).sum();
    memory.reserve(scripts as u64 * 3)?;
    let last = listed.last().filter(|_| listed.len() as u64 == limit);
    let next = last.map(|listed| listed.output.outpoint.to_string());
    let outputs = listed.iter().map(|listed| OwnerOutput::of_listed(listed, context.network)).collect();
    Ok(Json(OwnerOutputs { outputs, next }))
}

/// Reserve outputs under a lock id, all or none.
///
/// The store is asked about each output first. An output that has this lock already counts as reserved, so that a
/// repeat has the same answer.
#[utoipa::path(
    post,
    path = "/v1/vault/{owner}/outputs:reserve",
    tag = "vault",
    params(("owner" = String, Path, description = "Name of the owner")),
    request_body(content((ReserveRequest = "application/json"))),
    responses(
        (status = 200, description = "The outputs are reserved", body = ReserveAnswer),
        (status = 404, description = "The owner has no script, or the lock is of another owner", body = Problem),
        (
            status = 409,
            description = "Outputs are not available (`states-not-available`), or the lock has ended (`lock-ended`)",
            body = UnavailableOutputs,
            content_type = "application/problem+json"
        ),
    )
)]
pub async fn post_vault_outputs_reserve(
    State(context): State<VaultContext>,
    permitted: PermittedOwner,
    Params(NoParams {}): Params<NoParams>,
    headers: HeaderMap,
    LimitedBody(body): LimitedBody,
) -> Result<Json<ReserveAnswer>, VaultProblem> {
    require_media_type(&headers, JSON)?;
    let ReserveRequest { lock_id, outpoints, ttl_ms } = parse_json(&body)?;
    let outpoints = read_outpoints(&outpoints.0)?;
    let ttl = ttl_ms.map(Duration::from_millis);
    let reserve = context.vault.soft_lock_reserve(&permitted.owner, lock_id, &outpoints, ttl);
    let reserved = context.ask(reserve);
    Ok(Json(context.count("reserve", reserved.await)?.into()))
}

/// Release outputs of a lock, or end the lock or the session with all its outputs.
#[utoipa::path(
    post,
    path = "/v1/vault/{owner}/outputs:release",
    tag = "vault",
    params(("owner" = String, Path, description = "Name of the owner")),
    request_body(content((ReleaseRequest = "application/json"))),
    responses(
        (status = 200, description = "The outputs are free", body = ReleaseAnswer),
        (status = 404, description = "The owner has no such lock", body = Problem),
    )
)]
pub async fn post_vault_outputs_release(
    State(context): State<VaultContext>,
    permitted: PermittedOwner,
    Params(NoParams {}): Params<NoParams>,
    headers: HeaderMap,
    LimitedBody(body): LimitedBody,
) -> Result<Json<ReleaseAnswer>, VaultProblem> {
    require_media_type(&headers, JSON)?;
    let ReleaseRequest { lock_id, outpoints } = parse_json(&body)?;
    let outpoints = outpoints.map(|outpoints| read_outpoints(&outpoints.0)).transpose()?;
    let release = context.vault.soft_lock_release(&permitted.owner, lock_id, outpoints.as_deref());
    let released = context.ask(release);
    Ok(Json(ReleaseAnswer { released: context.count("release", released.await)? }))
}

/// Choose free outputs that fund an amount and its fee, and reserve them.
///
/// The outputs are asked of the store before they are handed out. A request with `requestId` has one answer, also after
/// a crash of the vault.
#[utoipa::path(
    post,
    path = "/v1/vault/{owner}/outputs:select",
    tag = "vault",
    params(("owner" = String, Path, description = "Name of the owner"), SelectParams),
    request_body(content((SelectRequest = "application/json"))),
    responses(
        (status = 200, description = "The outputs are reserved", body = SelectAnswer),
        (status = 404, description = "The owner has no script, or the lock is of another owner", body = Problem),
        (
            status = 409,
            description = "The balance is insufficient (`insufficient-balance`), the lock has ended (`lock-ended`), \
                           the inputs are too many, or the request id is that of another request",
            body = MissingFunds,
            content_type = "application/problem+json"
        ),
    )
)]
pub async fn post_vault_outputs_select(
    State(context): State<VaultContext>,
    permitted: PermittedOwner,
    Params(SelectParams { wait }): Params<SelectParams>,
    headers: HeaderMap,
    place: RequestPlace,
    LimitedBody(body): LimitedBody,
) -> Result<Json<SelectAnswer>, VaultProblem> {
    require_media_type(&headers, JSON)?;
    let request: SelectRequest = parse_json(&body)?;
    let wait = Duration::from_millis(wait.unwrap_or(0));
    if wait > LONGEST_WAIT {
        return Err(Problem::bad_request(format!("wait: at most {}", LONGEST_WAIT.as_millis())).into());
    }
    let request = request.complete(wait, context.network)?;
    let _permit = match wait.is_zero() {
        true => None,
        false => {
            let permit = context.limits.open_stream()?;
            place.leave();
            Some(permit)
        }
    };
    let selected = context.ask_waiting(wait, select_or_give_back(&context, permitted.owner, request));
    Ok(Json(SelectAnswer::of(&context.count("select", selected.await)?, context.network)))
}

/// Selects in a task of its own. Where the request ends before the selection, because of its time limit or because the
/// client has gone, the outputs are free again, unless a repeat of the request finds them by its id.
async fn select_or_give_back(
    context: &VaultContext,
    owner: Owner,
    request: SelectionRequest,
) -> Result<SelectedOutputs, VaultError> {
    let (vault, (answer, answered)) = (context.vault.clone(), oneshot::channel());
    tokio::spawn(async move {
        let selected = vault.select(&owner, &request).await;
        let Err(Ok(lost)) = answer.send(selected) else { return };
        if request.request_id.is_some() {
            return;
        }
        let outpoints: Vec<Outpoint> = lost.outputs.iter().map(|(output, _)| output.outpoint).collect();
        if let Err(error) = vault.soft_lock_release(&owner, lost.lock_id, Some(&outpoints)).await {
            let lock_id = lost.lock_id;
            tracing::warn!(%lock_id, %error, "vault: outputs that nobody waited for stay locked until the lock ends");
        }
    });
    answered.await.unwrap_or_else(|_| Err(VaultError::Fatal("a selection has ended without a result".to_owned())))
}

fn read_outpoints(texts: &[String]) -> Result<Vec<Outpoint>, Problem> {
    texts.iter().map(|text| parse(text)).collect()
}
