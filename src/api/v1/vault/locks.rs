//! `/v1/vault/{owner}/locks` and `/v1/vault/{owner}/sessions`: locks in force, sessions with leases.

use std::time::Duration;

use axum::{Json, extract::State, http::HeaderMap};

use super::{PermittedOwner, VaultContext, refusal::VaultProblem};
use crate::{
    api::{
        limits::LimitedBody,
        problem::Problem,
        v1::params::{JSON, NoParams, Params, parse_json, require_media_type},
    },
    vault::model::{LockList, LockView, SessionRequest, SessionView},
};

/// Read the locks and sessions of the owner that are in force.
#[utoipa::path(
    get,
    path = "/v1/vault/{owner}/locks",
    tag = "vault",
    params(("owner" = String, Path, description = "Name of the owner")),
    responses(
        (status = 200, description = "The locks", body = LockList),
        (status = 404, description = "The owner has no script", body = Problem),
    )
)]
pub async fn get_vault_locks(
    State(context): State<VaultContext>,
    permitted: PermittedOwner,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<LockList>, VaultProblem> {
    let locks = context.ask(context.vault.locks(&permitted.owner)).await?;
    Ok(Json(LockList { locks: locks.into_iter().map(LockView::from).collect() }))
}

/// Open a session: a lock id with a lease, at whose end the outputs of the session are free.
#[utoipa::path(
    post,
    path = "/v1/vault/{owner}/sessions",
    tag = "vault",
    params(("owner" = String, Path, description = "Name of the owner")),
    request_body(content((SessionRequest = "application/json"))),
    responses(
        (status = 200, description = "The session is open", body = SessionView),
        (status = 404, description = "The owner has no script, or the id is of another owner", body = Problem),
        (status = 409, description = "The session with this id has ended (`lock-ended`)", body = Problem),
    )
)]
pub async fn post_vault_sessions(
    State(context): State<VaultContext>,
    permitted: PermittedOwner,
    Params(NoParams {}): Params<NoParams>,
    headers: HeaderMap,
    LimitedBody(body): LimitedBody,
) -> Result<Json<SessionView>, VaultProblem> {
    require_media_type(&headers, JSON)?;
    let SessionRequest { lock_id, lease_ms } = parse_json(&body)?;
    let open = context.vault.open_session(&permitted.owner, lease_ms.map(Duration::from_millis), lock_id);
    Ok(Json(context.ask(open).await?.into()))
}

/// Extend the lease of a session. `outputs:release` without outpoints ends a session.
#[utoipa::path(
    post,
    path = "/v1/vault/{owner}/sessions:heartbeat",
    tag = "vault",
    params(("owner" = String, Path, description = "Name of the owner")),
    request_body(content((SessionRequest = "application/json"))),
    responses(
        (status = 200, description = "The lease is extended", body = SessionView),
        (status = 404, description = "The owner has no such session", body = Problem),
        (status = 409, description = "The session has ended (`lock-ended`)", body = Problem),
    )
)]
pub async fn post_vault_sessions_heartbeat(
    State(context): State<VaultContext>,
    permitted: PermittedOwner,
    Params(NoParams {}): Params<NoParams>,
    headers: HeaderMap,
    LimitedBody(body): LimitedBody,
) -> Result<Json<SessionView>, VaultProblem> {
    require_media_type(&headers, JSON)?;
    let SessionRequest { lock_id, lease_ms } = parse_json(&body)?;
    let lock_id = lock_id.ok_or_else(|| Problem::bad_request("lockId: a heartbeat names its session"))?;
    let beat = context.vault.heartbeat(&permitted.owner, lock_id, lease_ms.map(Duration::from_millis));
    Ok(Json(context.ask(beat).await?.into()))
}
