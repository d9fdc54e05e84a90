//! `/v1/vault/{owner}/scripts` and `/v1/vault/{owner}/rescans`: watched scripts, and the search for earlier outputs.

use axum::{Json, extract::State, http::HeaderMap};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{ForAllOwners, PermittedOwner, VaultContext, refusal::VaultProblem};
use crate::{
    api::{
        byte_budget::RequestBytes,
        limits::LimitedBody,
        problem::Problem,
        v1::params::{JSON, NoParams, Params, parse_json, require_media_type},
    },
    vault::{
        FollowError, NewScript, VaultError,
        model::{
            RescanList, RescanRequest, RescanSource, RescanView, ScriptList, ScriptName, ScriptView, UnwatchAnswer,
            UnwatchRequest, WatchAnswer, WatchRequest,
        },
    },
};

/// Scripts of one answer, at most.
const MOST_SCRIPTS: u64 = 1_000;
/// Memory of a script in an answer, besides its bytes, and copies of these.
const SCRIPT_BYTES: u64 = 256;
const SCRIPT_COPIES: u64 = 5;

/// Part of a list of scripts.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ScriptParams {
    /// Number of scripts to pass over. Default: 0.
    skip: Option<u64>,
    /// Most scripts of the answer: at most 1,000, which is the default.
    limit: Option<u64>,
}

/// Watch scripts or addresses under the name of the owner.
///
/// A script that the owner watches already stays as it is, so that a repeat changes nothing.
#[utoipa::path(
    post,
    path = "/v1/vault/{owner}/scripts",
    tag = "vault",
    params(("owner" = String, Path, description = "Name of the owner")),
    request_body(content((WatchRequest = "application/json"))),
    responses(
        (status = 200, description = "The scripts are watched", body = WatchAnswer),
        (status = 400, description = "A malformed script, or an address of another network", body = Problem),
        (status = 404, description = "The topics that a rescan reads do not exist", body = Problem),
        (status = 409, description = "A script is watched for another owner", body = Problem),
    )
)]
pub async fn post_vault_scripts(
    State(context): State<VaultContext>,
    ForAllOwners(permitted): ForAllOwners,
    Params(NoParams {}): Params<NoParams>,
    headers: HeaderMap,
    LimitedBody(body): LimitedBody,
) -> Result<Json<WatchAnswer>, VaultProblem> {
    require_media_type(&headers, JSON)?;
    let WatchRequest { scripts, rescan } = parse_json(&body)?;
    let scripts = read_scripts(&context, &scripts.0)?;
    match rescan {
        Some(RescanSource::Store) => context.rescan.check_store()?,
        Some(RescanSource::Snapshot) => context.ask(context.rescan.check_snapshot()).await?,
        Some(RescanSource::Log) | None => {}
    }
    let watched = context.ask(context.vault.watch(&permitted.owner, &scripts)).await?;
    if let Some(source) = rescan {
        begin_rescan(&context, source, watched.version - 1).await?;
    }
    Ok(Json(watched.into()))
}

/// Read the watched scripts of the owner.
#[utoipa::path(
    get,
    path = "/v1/vault/{owner}/scripts",
    tag = "vault",
    params(("owner" = String, Path, description = "Name of the owner"), ScriptParams),
    responses(
        (status = 200, description = "The scripts", body = ScriptList),
        (status = 404, description = "The owner has no script", body = Problem),
    )
)]
pub async fn get_vault_scripts(
    State(context): State<VaultContext>,
    permitted: PermittedOwner,
    Params(params): Params<ScriptParams>,
    memory: RequestBytes,
) -> Result<Json<ScriptList>, VaultProblem> {
    let limit = params.limit.unwrap_or(MOST_SCRIPTS).min(MOST_SCRIPTS);
    memory.reserve(limit * SCRIPT_BYTES)?;
    let read = context.vault.scripts(&permitted.owner, params.skip.unwrap_or(0), limit);
    let scripts = context.ask(read).await?;
    let bytes: usize = scripts.iter().map(|script| script.script.len()).sum();
    memory.reserve(bytes as u64 * SCRIPT_COPIES)?;
    Ok(Json(ScriptList { scripts: scripts.into_iter().map(ScriptView::from).collect() }))
}

/// Watch scripts no longer, and forget their outputs.
#[utoipa::path(
    post,
    path = "/v1/vault/{owner}/scripts:unwatch",
    tag = "vault",
    params(("owner" = String, Path, description = "Name of the owner")),
    request_body(content((UnwatchRequest = "application/json"))),
    responses(
        (status = 200, description = "The scripts are no longer watched", body = UnwatchAnswer),
        (status = 404, description = "The owner has no script", body = Problem),
        (status = 409, description = "An output of the scripts has a soft lock", body = Problem),
    )
)]
pub async fn post_vault_scripts_unwatch(
    State(context): State<VaultContext>,
    ForAllOwners(permitted): ForAllOwners,
    Params(NoParams {}): Params<NoParams>,
    headers: HeaderMap,
    LimitedBody(body): LimitedBody,
) -> Result<Json<UnwatchAnswer>, VaultProblem> {
    require_media_type(&headers, JSON)?;
    let UnwatchRequest { scripts } = parse_json(&body)?;
    let scripts: Vec<_> = read_scripts(&context, &scripts.0)?.into_iter().map(|script| script.script).collect();
    let removed = context.ask(context.vault.unwatch(&permitted.owner, &scripts)).await?;
    Ok(Json(UnwatchAnswer { removed }))
}

/// Look for earlier outputs of all scripts of the owner.
///
/// The answer names the rescans that are not at their ends. A rescan goes on after a crash.
#[utoipa::path(
    post,
    path = "/v1/vault/{owner}/rescans",
    tag = "vault",
    params(("owner" = String, Path, description = "Name of the owner")),
    request_body(content((RescanRequest = "application/json"))),
    responses(
        (status = 200, description = "The rescans", body = RescanList),
        (status = 404, description = "The owner has no script", body = Problem),
    )
)]
pub async fn post_vault_rescans(
    State(context): State<VaultContext>,
    ForAllOwners(permitted): ForAllOwners,
    Params(NoParams {}): Params<NoParams>,
    headers: HeaderMap,
    LimitedBody(body): LimitedBody,
) -> Result<Json<RescanList>, VaultProblem> {
    require_media_type(&headers, JSON)?;
    let RescanRequest { source } = parse_json(&body)?;
    let first = context.ask(context.rescan.first_version(&permitted.owner)).await?;
    begin_rescan(&context, source, first - 1).await?;
    list_rescans(&context).await
}

/// Read the rescans that are not at their ends, of all owners.
#[utoipa::path(
    get,
    path = "/v1/vault/{owner}/rescans",
    tag = "vault",
    params(("owner" = String, Path, description = "Name of the owner")),
    responses((status = 200, description = "The rescans", body = RescanList))
)]
pub async fn get_vault_rescans(
    State(context): State<VaultContext>,
    _: PermittedOwner,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<RescanList>, VaultProblem> {
    list_rescans(&context).await
}

async fn list_rescans(context: &VaultContext) -> Result<Json<RescanList>, VaultProblem> {
    let rescans = context.ask(context.rescan.pending()).await?;
    Ok(Json(RescanList { rescans: rescans.into_iter().map(RescanView::from).collect() }))
}

async fn begin_rescan(context: &VaultContext, source: RescanSource, after_version: i64) -> Result<(), VaultProblem> {
    let begin = async {
        match source {
            RescanSource::Log => context.rescan.begin(after_version).await,
            RescanSource::Store => Ok(context.rescan.begin_store(after_version).await?),
            RescanSource::Snapshot => context.rescan.begin_snapshot(after_version).await,
        }
    };
    match context.limits.bound("the source of the rescan", Box::pin(begin)).await? {
        Ok(()) => Ok(()),
        Err(FollowError::Vault(error)) => Err(error.into()),
        Err(FollowError::NoTopic(topic)) => Err(Problem::not_found(format!("topic `{topic}` does not exist")).into()),
        Err(error) => Err(Problem::unavailable(error.to_string()).into()),
    }
}

/// Reads the scripts of a request.
pub fn read_scripts(context: &VaultContext, names: &[ScriptName]) -> Result<Vec<NewScript>, VaultError> {
    names.iter().map(|name| name.to_script(context.network)).collect()
}
