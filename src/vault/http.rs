//! [`JsonServer`]: a server of this program as a client asks: JSON over HTTP with a bearer token.

use std::{
    fs,
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use reqwest::{Client, Method, StatusCode, header};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use url::Url;

use crate::text::{causes, one_line};

/// Longest time to connect, and to wait for an answer besides the wait that the request asks for.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of an answer that is no problem document, in an error.
const SHOWN_BYTES: usize = 200;

/// Error of a request to a server.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ClientError {
    /// The URL or the token file cannot be used.
    #[error("{0}")]
    Settings(String),
    /// The server did not answer. A request that changes something may have been done: repeat the request.
    #[error("{server} does not answer: {message}; check that the server runs, and its address")]
    NoAnswer {
        /// URL of the server.
        server: String,
        /// Error of the connection.
        message: String,
    },
    /// The server refuses the request.
    #[error("{}", .0.detail)]
    Refused(Box<RefusedRequest>),
    /// The answer is not as described: the server is another one, or of another version.
    #[error("the answer of {server} is not as described: {message}")]
    Malformed {
        /// URL of the server.
        server: String,
        /// Difference from the description.
        message: String,
    },
}

/// Refusal of a request, as the server's problem document tells (RFC 9457).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RefusedRequest {
    /// URI of the kind of the problem, such as `urn:utxo-store:insufficient-balance`.
    #[serde(rename = "type")]
    pub uri: String,
    /// HTTP status of the answer.
    pub status: u16,
    /// Cause in one line.
    pub detail: String,
    /// Further members of the document.
    #[serde(flatten)]
    pub members: serde_json::Map<String, serde_json::Value>,
}

impl ClientError {
    /// Returns the refusal, if the server has refused the request.
    pub fn refused(&self) -> Option<&RefusedRequest> {
        match self {
            ClientError::Refused(refused) => Some(refused),
            _ => None,
        }
    }

    /// Returns whether a repeat of the same request can succeed.
    pub fn may_be_retried(&self) -> bool {
        match self {
            ClientError::NoAnswer { .. } => true,
            ClientError::Refused(refused) => matches!(refused.status, 408 | 429 | 503),
            ClientError::Settings(_) | ClientError::Malformed { .. } => false,
        }
    }
}

impl RefusedRequest {
    /// Returns the name of the kind: the last part of its URI.
    pub fn kind(&self) -> &str {
        self.uri.rsplit(':').next().unwrap_or(&self.uri)
    }
}

/// A server, and the token for it.
pub(super) struct JsonServer {
    client: Client,
    base: Url,
    token_file: Option<PathBuf>,
    token: Mutex<Option<String>>,
}

impl JsonServer {
    /// Names a server by its URL (`http://host:port`), with a file that has the token; `None`: the server needs none.
    ///
    /// # Errors
    /// The URL is none, or the file cannot be read.
    pub fn open(url: &str, token_file: Option<PathBuf>) -> Result<Self, ClientError> {
        let base = Url::parse(url).ok().filter(|url| ["http", "https"].contains(&url.scheme()));
        let base = base.ok_or_else(|| ClientError::Settings(format!("`{}` is no URL of a server", one_line(url))))?;
        // `reqwest` is built without a crypto provider of its own; a provider that is already installed serves as well.
        drop(rustls::crypto::ring::default_provider().install_default());
        let client = Client::builder().connect_timeout(CONNECT_TIMEOUT).build();
        let client = client.map_err(|error| ClientError::Settings(format!("cannot make an HTTP client: {error}")))?;
        let server = JsonServer { client, base, token_file, token: Mutex::default() };
        server.read_token()?;
        Ok(server)
    }

    /// Reads the token file; returns whether the token has changed.
    fn read_token(&self) -> Result<bool, ClientError> {
        let Some(path) = &self.token_file else { return Ok(false) };
        let failed = |error| ClientError::Settings(format!("cannot read the token file {}: {error}", path.display()));
        let token = fs::read_to_string(path).map_err(failed)?.trim().to_owned();
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            let problem = format!("the file {} has not one token: write the token alone", path.display());
            return Err(ClientError::Settings(problem));
        }
        let mut known = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = known.as_ref() != Some(&token);
        *known = Some(token);
        Ok(is_new)
    }

    /// Asks for an answer.
    ///
    /// # Errors
    /// The server does not answer, refuses the request, or gives another answer.
    pub async fn get<A: DeserializeOwned>(&self, path: &str) -> Result<A, ClientError> {
        self.ask(Method::GET, path, None, Duration::ZERO).await
    }

    /// Sends a body, and returns the answer. `wait`: time for which the request lets the server wait.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn post<A: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        wait: Duration,
    ) -> Result<A, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| self.malformed(&error))?;
        self.ask(Method::POST, path, Some(body), wait).await
    }

    async fn ask<A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        wait: Duration,
    ) -> Result<A, ClientError> {
        let (mut status, mut answer) = self.send(&method, path, body.as_ref(), wait).await?;
        // A token that was replaced in its file is read again.
        if status == StatusCode::UNAUTHORIZED && self.read_token()? {
            (status, answer) = self.send(&method, path, body.as_ref(), wait).await?;
        }
        if status.is_success() {
            return serde_json::from_slice(&answer).map_err(|error| self.malformed(&error));
        }
        match serde_json::from_slice(&answer) {
            Ok(refused) => Err(ClientError::Refused(Box::new(refused))),
            Err(_) => {
                let text = String::from_utf8_lossy(&answer[..answer.len().min(SHOWN_BYTES)]).into_owned();
                Err(self.malformed(&format!("status {status}, `{}`", one_line(&text))))
            }
        }
    }

    async fn send(
        &self,
        method: &Method,
        path: &str,
        body: Option<&Vec<u8>>,
        wait: Duration,
    ) -> Result<(StatusCode, Vec<u8>), ClientError> {
        let url = format!("{}{path}", self.base.as_str().trim_end_matches('/'));
        let mut request = self.client.request(method.clone(), url).timeout(TIMEOUT + wait);
        if let Some(token) = &*self.token.lock().unwrap_or_else(PoisonError::into_inner) {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.header(header::CONTENT_TYPE, "application/json").body(body.clone());
        }
        let no_answer = |error: reqwest::Error| ClientError::NoAnswer {
            server: self.base.to_string(),
            message: causes(&error.without_url()),
        };
        let answer = request.send().await.map_err(no_answer)?;
        let status = answer.status();
        Ok((status, answer.bytes().await.map_err(no_answer)?.to_vec()))
    }

    fn malformed(&self, message: &dyn std::fmt::Display) -> ClientError {
        ClientError::Malformed { server: self.base.to_string(), message: message.to_string() }
    }
}
