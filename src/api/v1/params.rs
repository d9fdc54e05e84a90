//! Parameters of requests: an unknown or malformed one is refused by its name.

use std::{fmt::Display, str::FromStr};

use axum::{
    extract::{FromRequestParts, Path, Query, rejection::PathRejection},
    http::{HeaderMap, header, request::Parts},
};
use serde::de::DeserializeOwned;

pub use crate::text::bounded_list::BoundedList;
use crate::{
    api::problem::{Problem, ProblemKind},
    engine::{EngineError, ErrorKind},
    store::read::ReadError,
    text::{one_line, parse_decimal},
    tx::Txid,
};

/// Media type of binary bodies.
pub const OCTET_STREAM: &str = "application/octet-stream";
/// Media type of JSON bodies.
pub const JSON: &str = "application/json";

/// Query parameters of a request. The type refuses unknown names.
pub struct Params<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let parsed = Query::<T>::try_from_uri(&parts.uri);
        parsed.map(|Query(params)| Params(params)).map_err(|error| bad_parameter(error.body_text()))
    }
}

/// Parts of the path of a request.
pub struct PathParts<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for PathParts<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let parsed = Path::<T>::from_request_parts(parts, state).await;
        let refuse = |error: PathRejection| Problem::bad_request(one_line(&error.body_text()).to_string());
        parsed.map(|Path(parsed)| PathParts(parsed)).map_err(refuse)
    }
}

/// Parameters of a path that takes none.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoParams {}

/// Parses a body in JSON.
///
/// # Errors
/// 400 with the path of the field.
pub fn parse_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let parsed = serde_path_to_error::deserialize(&mut reader);
    let refuse = |error: &dyn Display| Problem::bad_request(format!("the body is not as described: {error}"));
    let parsed = parsed.map_err(|error| refuse(&error))?;
    reader.end().map_err(|error| refuse(&error))?;
    Ok(parsed)
}

/// Refuses a body of another media type.
///
/// # Errors
/// 415
pub fn require_media_type(headers: &HeaderMap, wanted: &str) -> Result<(), Problem> {
    match media_type(headers) {
        Some(given) if given == wanted => Ok(()),
        _ => Err(Problem::new(ProblemKind::UnsupportedMediaType, format!("send the body as `Content-Type: {wanted}`"))),
    }
}

/// Returns the media type of the body, without its parameters, in lower case.
pub fn media_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    Some(value.split(';').next().unwrap_or(value).trim().to_ascii_lowercase())
}

/// Parses a part of the path.
///
/// # Errors
/// 400 with the text and what it should be.
pub fn parse<T: FromStr<Err: Display>>(text: &str) -> Result<T, Problem> {
    text.parse().map_err(|error: T::Err| Problem::bad_request(one_line(&error.to_string()).to_string()))
}

/// Parses a number of the path. `what`: its meaning.
///
/// # Errors
/// 400 for a text that is no number below 2^32.
pub fn parse_number(what: &str, text: &str) -> Result<u32, Problem> {
    let problem = || Problem::bad_request(format!("{what}: `{}` is no number from 0 to 4294967295", one_line(text)));
    parse_decimal(text).ok_or_else(problem)
}

fn bad_parameter(error: impl Display) -> Problem {
    Problem::bad_request(one_line(&format!("bad query parameter: {error}")).to_string())
}

/// Makes the problem of a transaction that does not exist.
pub fn unknown_transaction(txid: Txid) -> Problem {
    Problem::not_found(format!("the store has no transaction {txid}"))
}

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Self {
        match &error {
            ReadError::Engine(engine) => Problem::from(engine.clone()),
            ReadError::NoPreviousTransaction { .. } | ReadError::NoPreviousOutput { .. } => {
                Problem::new(ProblemKind::Conflict, error.to_string())
            }
            ReadError::Body(_) | ReadError::MissingPage { .. } => {
                Problem::new(ProblemKind::Internal, error.to_string())
            }
        }
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        match error.kind {
            ErrorKind::Retryable | ErrorKind::Unknown | ErrorKind::Storage => {
                Problem::unavailable(format!("the store does not answer: {error}"))
            }
            ErrorKind::NoIndex => Problem::unavailable(format!("the store has no index for the list yet: {error}")),
            ErrorKind::TooBig | ErrorKind::Fatal => Problem::new(ProblemKind::Internal, error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_index_is_a_number_below_2_to_the_32() {
        assert_eq!(parse_number("vout", "4294967295").unwrap(), u32::MAX);
        for text in ["4294967296", "-1", "+1", "0x1", "", "1 "] {
            assert_eq!(parse_number("vout", text).unwrap_err().status, 400, "{text}");
        }
    }

    #[test]
    fn a_missing_index_is_no_fault_of_the_server() {
        let problem = |kind| {
            let message = "IndexNotFound".to_owned();
            Problem::from(EngineError { kind, operation: "query", key: "verdict".to_owned(), message })
        };
        assert_eq!(problem(ErrorKind::Fatal).status, 500);
        let missing = problem(ErrorKind::NoIndex);
        assert!(missing.status == 503 && missing.detail.contains("no index for the list"), "{missing:?}");
    }

    #[test]
    fn bytes_after_a_json_body_are_refused() {
        assert_eq!(parse_json::<Vec<u32>>(b"[1]").unwrap(), [1]);
        assert_eq!(parse_json::<Vec<u32>>(b"[1] 2").unwrap_err().status, 400);
    }
}
