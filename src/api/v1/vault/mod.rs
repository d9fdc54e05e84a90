//! `/v1/vault`: outputs of owners, soft locks and coin selection (`docs/operating/vault.md`).
//!
//! | file | routes |
//! |---|---|
//! | `scripts` | watched scripts, rescans |
//! | `outputs` | balances and outputs; reserve, release and select outputs |
//! | `locks` | locks and sessions |
//! | `spend` | transactions that spend reserved outputs |
//! | `refusal` | the problem of each error of the vault |

mod locks;
mod outputs;
mod refusal;
mod scripts;
mod spend;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{FromRef, FromRequestParts, Path, Request, State},
    http::{Method, header, request::Parts},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use serde::Deserialize;
use utoipa::openapi;
use utoipa_axum::{router::OpenApiRouter, routes};

use refusal::VaultProblem;

use super::{ApiDocument, NoParams, OpenApi, Params, description, document_text, log::LogAccess, refuse_web_pages};
use crate::{
    api::{
        access::{AccessControl, OwnerAccess, Role},
        limits::HttpLimits,
        problem::{Problem, ProblemKind},
    },
    telemetry::VaultMetrics,
    tx::Network,
    vault::{Owner, Rescan, Vault, VaultError},
};

/// Role of the tokens that the routes need.
const WALLET: &str = "wallet";

/// Parts that the routes of the vault use. Cheap to clone.
#[derive(Clone)]
pub struct VaultContext {
    pub(in crate::api) limits: HttpLimits,
    pub(in crate::api) access: AccessControl,
    pub(in crate::api) vault: Vault,
    rescan: Arc<Rescan>,
    log: Arc<LogAccess>,
    pub(in crate::api) network: Network,
    metrics: VaultMetrics,
}

impl VaultContext {
    /// Makes the context of a server. `rescan`: what begins rescans; `log`: the log to which transactions are
    /// published.
    pub fn new(
        limits: HttpLimits,
        access: AccessControl,
        rescan: Arc<Rescan>,
        log: LogAccess,
        metrics: VaultMetrics,
    ) -> Self {
        let vault = rescan.vault.clone();
        let network = vault.settings.network;
        VaultContext { limits, access, vault, rescan, log: Arc::new(log), network, metrics }
    }

    /// Asks the vault, within the time limit of a request.
    fn ask<'a, T>(
        &'a self,
        answer: impl Future<Output = Result<T, VaultError>> + Send + 'a,
    ) -> impl Future<Output = Result<T, VaultProblem>> + Send + 'a {
        self.ask_waiting(Duration::ZERO, answer)
    }

    /// Asks the vault a question that waits itself. `wait`: its longest wait.
    fn ask_waiting<'a, T>(
        &'a self,
        wait: Duration,
        answer: impl Future<Output = Result<T, VaultError>> + Send + 'a,
    ) -> impl Future<Output = Result<T, VaultProblem>> + Send + 'a {
        // The work of a transaction of the database is large.
        let answer = Box::pin(answer);
        async move { Ok(self.limits.bound_wait("the vault", wait, answer).await??) }
    }

    /// Counts the result of a request that locks outputs.
    fn count<T>(&self, operation: &str, result: Result<T, VaultProblem>) -> Result<T, VaultProblem> {
        let name = result.as_ref().map_or_else(VaultProblem::kind, |_| "ok");
        self.metrics.requests.with_label_values(&[operation, name]).inc();
        result
    }
}

impl FromRef<VaultContext> for HttpLimits {
    fn from_ref(context: &VaultContext) -> Self {
        context.limits.clone()
    }
}

/// Owner of a path, to whose outputs the token of the request has access.
pub struct PermittedOwner {
    owner: Owner,
    access: OwnerAccess,
}

/// Parts of the path of every route.
#[derive(Deserialize)]
struct OwnerPath {
    owner: String,
}

impl FromRequestParts<VaultContext> for PermittedOwner {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, context: &VaultContext) -> Result<Self, Problem> {
        let path = Path::<OwnerPath>::from_request_parts(parts, context).await;
        let Path(OwnerPath { owner }) = path.map_err(|error| Problem::bad_request(error.body_text()))?;
        // The token is checked first: a refusal does not tell which names are malformed.
        let access = context.access.permit_owner(&parts.headers, &owner)?;
        let owner = owner.parse().map_err(|error| Problem::bad_request(format!("{error}")))?;
        Ok(PermittedOwner { owner, access })
    }
}

/// Owner of a path, for a token of all owners. A wallet that may watch any script could spend the outputs of everybody
/// whose scripts are not watched yet.
pub struct ForAllOwners(PermittedOwner);

impl FromRequestParts<VaultContext> for ForAllOwners {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, context: &VaultContext) -> Result<Self, Problem> {
        let permitted = PermittedOwner::from_request_parts(parts, context).await?;
        match permitted.access {
            OwnerAccess::All => Ok(ForAllOwners(permitted)),
            OwnerAccess::Own => {
                let detail = "the request needs a token with the role command: a wallet does not choose its scripts";
                Err(Problem::new(ProblemKind::Forbidden, detail))
            }
        }
    }
}

fn routes() -> (Router<VaultContext>, openapi::OpenApi) {
    let mut watch = OpenApiRouter::new()
        .routes(routes!(scripts::post_vault_scripts))
        .routes(routes!(scripts::post_vault_scripts_unwatch))
        .routes(routes!(scripts::post_vault_rescans));
    description::require_role(watch.get_openapi_mut(), Role::Command.into());
    let mut vault = OpenApiRouter::new()
        .routes(routes!(scripts::get_vault_scripts))
        .routes(routes!(scripts::get_vault_rescans))
        .routes(routes!(outputs::get_vault_balance))
        .routes(routes!(outputs::get_vault_outputs))
        .routes(routes!(outputs::post_vault_outputs_reserve))
        .routes(routes!(outputs::post_vault_outputs_release))
        .routes(routes!(outputs::post_vault_outputs_select))
        .routes(routes!(locks::get_vault_locks))
        .routes(routes!(locks::post_vault_sessions))
        .routes(routes!(locks::post_vault_sessions_heartbeat))
        .routes(routes!(spend::post_vault_transactions));
    description::require_role(vault.get_openapi_mut(), WALLET);
    OpenApiRouter::with_openapi(ApiDocument::openapi()).merge(vault).merge(watch).split_for_parts()
}

/// Builds the router of the vault, with its description at `/openapi.json`.
pub fn router(context: VaultContext) -> Router {
    let (router, _) = routes();
    let json = document_text(&document());
    let content_type = (header::CONTENT_TYPE, "application/json");
    router
        .route_layer(middleware::from_fn_with_state(context.clone(), guard))
        .route("/openapi.json", get(move |Params(NoParams {}): Params<NoParams>| async move { ([content_type], json) }))
        .with_state(context)
}

/// Returns the description of the routes of the vault.
pub fn document() -> serde_json::Value {
    description::complete(&routes().1)
}

/// Refuses a request without access to its owner before anything of the request is read, and a request of a web page
/// that would change something where the server has no tokens.
async fn guard(
    State(context): State<VaultContext>,
    PermittedOwner { .. }: PermittedOwner,
    request: Request,
    next: Next,
) -> Response {
    if request.method() != Method::GET
        && let Err(problem) = refuse_web_pages(&context.access, request.headers())
    {
        return problem.into_response();
    }
    next.run(request).await
}
