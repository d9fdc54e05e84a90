//! [`Problem`]: the answer to a request that failed, as a problem document (RFC 9457).

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use strum::IntoStaticStr;
use utoipa::ToSchema;

/// Media type of a problem document.
pub const PROBLEM_JSON: &str = "application/problem+json";
/// Pause that a client is asked to make before the next attempt, seconds.
const RETRY_AFTER_S: u16 = 1;

/// Kinds of problems, each with its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum ProblemKind {
    /// The request is malformed: a parameter, a field or the body. Status 400.
    BadRequest,
    /// The request has no token, or a token that is not known. Status 401.
    Unauthorized,
    /// The role of the token does not permit the request. Status 403.
    Forbidden,
    /// The path, the transaction, the block or the command does not exist. Status 404.
    NotFound,
    /// The path does not take this method. Status 405.
    MethodNotAllowed,
    /// The client sends its request too slowly. Status 408.
    RequestTimeout,
    /// The request contradicts the state. Status 409.
    Conflict,
    /// Outputs that a request to the vault names cannot be reserved. Status 409.
    StatesNotAvailable,
    /// The free outputs of an owner do not fund an amount and its fee. Status 409.
    InsufficientBalance,
    /// A soft lock has ended, and its outputs are free for others. Status 409.
    LockEnded,
    /// The body or the batch is above its limit. Status 413.
    TooLarge,
    /// The body has another media type than the path takes. Status 415.
    UnsupportedMediaType,
    /// More requests or streams are open than permitted. Status 429.
    TooManyRequests,
    /// The server has met a fault: a damaged record or body. Status 500.
    Internal,
    /// The store, the blob store or the log does not answer. Status 503.
    Unavailable,
}

impl ProblemKind {
    /// Returns the status of the answer.
    pub fn status(self) -> StatusCode {
        match self {
            ProblemKind::BadRequest => StatusCode::BAD_REQUEST,
            ProblemKind::Unauthorized => StatusCode::UNAUTHORIZED,
            ProblemKind::Forbidden => StatusCode::FORBIDDEN,
            ProblemKind::NotFound => StatusCode::NOT_FOUND,
            ProblemKind::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            ProblemKind::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            ProblemKind::Conflict
            | ProblemKind::StatesNotAvailable
            | ProblemKind::InsufficientBalance
            | ProblemKind::LockEnded => StatusCode::CONFLICT,
            ProblemKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            ProblemKind::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            ProblemKind::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
            ProblemKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            ProblemKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns whether the same request may succeed after a pause.
    fn may_be_retried(self) -> bool {
        matches!(self, ProblemKind::TooManyRequests | ProblemKind::Unavailable)
    }
}

/// Problem document: why a request failed, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Problem {
    /// URI of the kind of the problem.
    #[serde(rename = "type")]
    #[schema(example = "urn:utxo-store:bad-request")]
    pub uri: String,
    /// Name of the status.
    pub title: String,
    /// HTTP status of the answer.
    pub status: u16,
    /// Cause of the problem, in one line.
    pub detail: String,
}

impl Problem {
    /// Makes the document of a problem. `detail`: the cause in one line.
    pub fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        let name: &'static str = kind.into();
        Problem {
            uri: format!("urn:utxo-store:{name}"),
            title: kind.status().canonical_reason().unwrap_or(name).to_owned(),
            status: kind.status().as_u16(),
            detail: detail.into(),
        }
    }

    /// Makes the document for a malformed request.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Problem::new(ProblemKind::BadRequest, detail)
    }

    /// Makes the document for an object that does not exist.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Problem::new(ProblemKind::NotFound, detail)
    }

    /// Returns whether the store or the log did not answer.
    pub fn is_unavailable(&self) -> bool {
        self.status == ProblemKind::Unavailable.status().as_u16()
    }

    /// Makes the document for a store or a log that does not answer.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        Problem::new(ProblemKind::Unavailable, detail)
    }
}

/// Problem document with further members (RFC 9457, section 3.2): a request of which a part was done.
#[derive(Debug, Serialize)]
pub struct ExtendedProblem<T> {
    /// The problem, with the first reason.
    #[serde(flatten)]
    pub problem: Problem,
    /// Members for each item: done, or not done with the reason.
    #[serde(flatten)]
    pub members: T,
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        respond(&self, &self)
    }
}

impl<T: Serialize> IntoResponse for ExtendedProblem<T> {
    fn into_response(self) -> Response {
        respond(&self.problem, &self)
    }
}

/// Reason of a failed request, for the log.
#[derive(Clone)]
pub struct FailureReason(pub String);

fn respond(Problem { status, detail, .. }: &Problem, document: &impl Serialize) -> Response {
    let status = *status;
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let json = serde_json::to_string(document).unwrap_or_default();
    let mut response = (status, [(header::CONTENT_TYPE, PROBLEM_JSON)], json).into_response();
    response.extensions_mut().insert(FailureReason(detail.clone()));
    let headers = response.headers_mut();
    if ProblemKind::ALL.iter().any(|kind| kind.status() == status && kind.may_be_retried()) {
        headers.insert(header::RETRY_AFTER, RETRY_AFTER_S.into());
    }
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

impl ProblemKind {
    /// All kinds, in the order of their statuses.
    pub const ALL: [ProblemKind; 15] = [
        ProblemKind::BadRequest,
        ProblemKind::Unauthorized,
        ProblemKind::Forbidden,
        ProblemKind::NotFound,
        ProblemKind::MethodNotAllowed,
        ProblemKind::RequestTimeout,
        ProblemKind::Conflict,
        ProblemKind::StatesNotAvailable,
        ProblemKind::InsufficientBalance,
        ProblemKind::LockEnded,
        ProblemKind::TooLarge,
        ProblemKind::UnsupportedMediaType,
        ProblemKind::TooManyRequests,
        ProblemKind::Internal,
        ProblemKind::Unavailable,
    ];
}
