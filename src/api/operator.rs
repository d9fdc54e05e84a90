//! Routes for operators: `/metrics`, `/health/live`, `/health/ready`, `/state`, and the control requests.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Mutex;

use super::{
    access::{AccessControl, Role},
    limits::HttpLimits,
    v1::{NoParams, Params, PathParts, StoreSource},
};
use crate::{
    status::{
        Health, HealthReport,
        control::{ControlAnswer, PartitionCommand},
    },
    telemetry::Metrics,
};

/// State that the handlers of these routes read.
#[derive(Clone)]
pub struct OperatorState {
    /// Metrics of the process.
    pub metrics: Arc<Metrics>,
    /// Health and state page of the process.
    pub health: Arc<Health>,
    /// True if the control requests are enabled.
    pub is_control_enabled: bool,
    /// Tokens and their roles: the state page needs the role `read`, a control request the role `command`.
    pub access: AccessControl,
    /// Store of the deep check; `None`: the process has no store to check.
    pub store: Option<StoreSource>,
    /// Limits of the server: the time of each step of the deep check, and the bytes that requests hold.
    pub limits: HttpLimits,
    /// The last deep check.
    pub last_check: LastCheck,
}

/// Time and result of the last deep check.
pub type LastCheck = Arc<Mutex<Option<(Instant, Result<(), String>)>>>;

/// Age up to which the result of a deep check answers the next request.
const CHECK_AGE: Duration = Duration::from_secs(1);

/// Query parameters of the path `/health/ready`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadyParams {
    /// `true`: writes and reads a record of the store, too.
    #[serde(default)]
    deep: bool,
}

/// Builds the routes of probes and metrics, which need no token.
pub fn probes(state: OperatorState) -> Router {
    Router::new()
        .route("/metrics", get(metrics_text))
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
        .with_state(state)
}

/// Builds the further routes for operators.
pub fn router(state: OperatorState) -> Router {
    let partition = |command| {
        post(move |state, headers, number, params| command_partition(state, headers, number, params, command))
    };
    Router::new()
        .route("/state", get(state_page))
        .route("/partitions/{number}/retry", partition(PartitionCommand::Retry))
        .route("/partitions/{number}/pause", partition(PartitionCommand::Pause))
        .route("/partitions/{number}/resume", partition(PartitionCommand::Resume))
        .route("/chain/retry", post(retry_chain))
        .with_state(state)
}

async fn command_partition(
    State(state): State<OperatorState>,
    headers: HeaderMap,
    PathParts(number): PathParts<i32>,
    Params(NoParams {}): Params<NoParams>,
    command: PartitionCommand,
) -> Response {
    match state.refuse_control(&headers) {
        Some(refusal) => refusal,
        None => control_response(state.health.control().partitions.ask((number, command)).await),
    }
}

async fn retry_chain(
    State(state): State<OperatorState>,
    headers: HeaderMap,
    Params(NoParams {}): Params<NoParams>,
) -> Response {
    match state.refuse_control(&headers) {
        Some(refusal) => refusal,
        None => control_response(state.health.control().chain.ask(()).await),
    }
}

impl OperatorState {
    /// Writes and reads the meta record of the store. Requests share one check a second: every commit needs the record,
    /// too.
    async fn check_store(&self) -> Result<(), String> {
        let mut last = self.last_check.lock().await;
        if let Some((checked_at, result)) = &*last
            && checked_at.elapsed() < CHECK_AGE
        {
            return result.clone();
        }
        let result = self.check_store_now().await;
        *last = Some((Instant::now(), result.clone()));
        result
    }

    async fn check_store_now(&self) -> Result<(), String> {
        let source = self.store.as_ref().ok_or_else(|| "this process has no store to check".to_owned())?;
        let store = source.get().map_err(|problem| problem.detail)?;
        store.check_deep(self.limits.timeout).await.map_err(|error| error.to_string())
    }

    /// Returns the refusal of a control request; `None`: accepted.
    fn refuse_control(&self, headers: &HeaderMap) -> Option<Response> {
        if let Some(why) = self.control_refusal(headers) {
            return Some(named_text(StatusCode::FORBIDDEN, "refused", why));
        }
        self.access.permit(headers, Role::Command).err().map(IntoResponse::into_response)
    }

    /// Returns the reason why no control request is accepted. Requests of web pages are refused by
    /// their header `Origin`: otherwise any page in a browser could control an instance on loopback.
    fn control_refusal(&self, headers: &HeaderMap) -> Option<&'static str> {
        if !self.is_control_enabled {
            return Some(
                "the control endpoints are disabled: set http.control = true (without http.tokens_file keep the port \
                 on loopback or behind a proxy with a login)",
            );
        }
        headers.contains_key(header::ORIGIN).then_some("requests of web pages are refused")
    }
}

fn control_response(answer: ControlAnswer) -> Response {
    match answer {
        ControlAnswer::Done(text) => named_text(StatusCode::OK, "done", &text),
        ControlAnswer::NotHeld(why) => named_text(StatusCode::NOT_FOUND, "refused", &why),
        ControlAnswer::Refused(why) => named_text(StatusCode::CONFLICT, "refused", &why),
        ControlAnswer::NotNow(why) => named_text(StatusCode::SERVICE_UNAVAILABLE, "refused", &why),
    }
}

fn named_text(status: StatusCode, name: &str, text: &str) -> Response {
    json_response(status, &json!({ name: text }))
}

async fn metrics_text(State(state): State<OperatorState>, Params(NoParams {}): Params<NoParams>) -> Response {
    let conditions = state.health.condition_statuses();
    let conditions = conditions.iter().map(|(name, condition)| (*name, condition.met));
    state.metrics.publish_health(state.health.live().ok, conditions);
    state.metrics.http_bytes_in_flight.set(i64::try_from(state.limits.bytes.held()).unwrap_or(i64::MAX));
    match state.metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn live(State(state): State<OperatorState>, Params(NoParams {}): Params<NoParams>) -> Response {
    health_response(&state.health.live())
}

async fn ready(State(state): State<OperatorState>, Params(ReadyParams { deep }): Params<ReadyParams>) -> Response {
    let mut report = state.health.ready();
    if deep && let Err(why) = state.check_store().await {
        report.ok = false;
        report.reasons.insert("store_check", why);
    }
    health_response(&report)
}

async fn state_page(
    State(state): State<OperatorState>,
    headers: HeaderMap,
    Params(NoParams {}): Params<NoParams>,
) -> Response {
    // The page names transactions, as the API does.
    if let Err(refusal) = state.access.permit(&headers, Role::Read) {
        return refusal.into_response();
    }
    json_response(StatusCode::OK, &state.health.status_registry().page(&state.health))
}

fn health_response(report: &HealthReport) -> Response {
    json_response(if report.ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, report)
}

fn json_response(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_string(body) {
        Ok(json) => (status, [(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
