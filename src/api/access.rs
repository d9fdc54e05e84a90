//! Bearer tokens: a file names tokens with their roles, each route needs a role.
//!
//! ```text
//! # one token a line: role, a space, the token
//! read    3f0c…
//! submit  9b1e…
//! command 77aa…
//! ```
//!
//! A role includes the roles before: `submit` may read, `command` may submit and read. The file is read again when the
//! file changes; a file that cannot be read or parsed leaves the last tokens in force, and the log says so.

use std::{
    fs, io,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use axum::http::{HeaderMap, header};
use base64::{Engine, prelude::BASE64_STANDARD};
use strum::{EnumString, IntoStaticStr};

use super::problem::{Problem, ProblemKind};

/// Fewest characters of a token: 128 bits as hexadecimal digits.
const SHORTEST_TOKEN: usize = 32;
/// Largest accepted token file, bytes.
const LARGEST_FILE: u64 = 1 << 20;
/// Pause between two looks at the file.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Role of a token, in ascending order of rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, EnumString, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Role {
    /// Reads the store, the outcomes and the chain.
    Read,
    /// Publishes transactions, and reads.
    Submit,
    /// Publishes commands, clears halts and pauses partitions.
    Command,
}

/// Reasons why a token file is refused.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// The file cannot be read.
    #[error("cannot read the token file {path} (http.tokens_file): {error}")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// A line is not a role and a token.
    #[error("cannot use the token file {path} (http.tokens_file): line {line}: {reason}")]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// Reason without the token.
        reason: &'static str,
    },
    /// The file names no token.
    #[error("the token file {path} (http.tokens_file) has no token; write `read`, a space and a token")]
    Empty {
        /// Path of the file.
        path: PathBuf,
    },
}

/// Tokens of one version of the file, by their hashes.
#[derive(Default)]
struct Tokens(Vec<(blake3::Hash, Role)>);

impl Tokens {
    fn parse(text: &str) -> Result<Self, (usize, &'static str)> {
        let mut tokens = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut words = line.split_whitespace();
            let (Some(role), Some(token), None) = (words.next(), words.next(), words.next()) else {
                return Err((number, "write a role, a space and a token"));
            };
            let role = Role::from_str(role).map_err(|_| (number, "the role is read, submit or command"))?;
            if token.len() < SHORTEST_TOKEN {
                return Err((number, "the token is shorter than 32 characters: `openssl rand -hex 32` makes one"));
            }
            if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err((number, "the token has characters besides letters, digits and punctuation of ASCII"));
            }
            tokens.push((blake3::hash(token.as_bytes()), role));
        }
        Ok(Tokens(tokens))
    }

    /// Returns the role of a token. The time does not depend on the tokens of the file: hashes are compared, each in
    /// constant time, and all of them.
    fn role_of(&self, token: &str) -> Option<Role> {
        let hash = blake3::hash(token.as_bytes());
        self.0.iter().fold(None, |found, (known, role)| if *known == hash { found.max(Some(*role)) } else { found })
    }
}

/// Tokens of a file, read again when the file changes.
struct TokenFile {
    path: PathBuf,
    state: Mutex<LoadedTokens>,
}

struct LoadedTokens {
    tokens: Arc<Tokens>,
    /// Time and size of the file that was read or refused last.
    version: Option<FileVersion>,
    looked_at: Instant,
}

/// Decides who may send which request.
#[derive(Clone, Default)]
pub struct AccessControl(Option<Arc<TokenFile>>);

impl AccessControl {
    /// Permits every request: the server listens on loopback only.
    pub fn open() -> Self {
        AccessControl(None)
    }

    /// Reads the tokens of a file.
    ///
    /// # Errors
    /// The file cannot be read or has a line that is no token.
    pub fn from_file(path: &Path) -> Result<Self, TokenFileError> {
        let version = version_of(path).ok();
        let tokens = Arc::new(load(path)?);
        let state = Mutex::new(LoadedTokens { tokens, version, looked_at: Instant::now() });
        Ok(AccessControl(Some(Arc::new(TokenFile { path: path.to_owned(), state }))))
    }

    /// Returns whether requests need a token.
    pub fn needs_token(&self) -> bool {
        self.0.is_some()
    }

    /// Permits a request that needs a role, or returns the refusal. A refusal does not tell which objects exist.
    ///
    /// # Errors
    /// 401 without a known token, 403 with a token of a lesser role.
    pub fn permit(&self, headers: &HeaderMap, needed: Role) -> Result<(), Problem> {
        let Some(file) = &self.0 else { return Ok(()) };
        let Some(role) = given_token(headers).and_then(|token| file.tokens().role_of(&token)) else {
            return Err(Problem::new(ProblemKind::Unauthorized, "the request needs a known bearer token"));
        };
        if role >= needed {
            return Ok(());
        }
        let needed: &'static str = needed.into();
        Err(Problem::new(ProblemKind::Forbidden, format!("the request needs a token with the role {needed}")))
    }
}

/// Returns the token of a request: a bearer token, or the password that a browser sends for the page.
fn given_token(headers: &HeaderMap) -> Option<String> {
    let (scheme, value) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let value = value.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(value.to_owned());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let login = String::from_utf8(BASE64_STANDARD.decode(value).ok()?).ok()?;
    login.split_once(':').map(|(_, password)| password.to_owned())
}

impl TokenFile {
    /// Returns the tokens of the newest version of the file that could be read.
    fn tokens(&self) -> Arc<Tokens> {
        // The state is written as a whole, so that a panic of another request cannot leave half of it.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked_at.elapsed() >= LOOK_EVERY {
            state.looked_at = Instant::now();
            let version = version_of(&self.path).ok();
            if version != state.version {
                state.version = version;
                match load(&self.path) {
                    Ok(tokens) => {
                        tracing::info!(path = %self.path.display(), tokens = tokens.0.len(), "http: tokens read again");
                        state.tokens = Arc::new(tokens);
                    }
                    Err(error) => tracing::warn!(%error, "http: token file refused; the last tokens stay in force"),
                }
            }
        }
        state.tokens.clone()
    }
}

/// Time of the last change of a file, and its size: another version is read again.
pub(super) type FileVersion = (SystemTime, u64);

/// Returns the version of a file.
///
/// # Errors
/// The file cannot be looked at.
pub(super) fn version_of(path: &Path) -> io::Result<FileVersion> {
    let metadata = fs::metadata(path)?;
    Ok((metadata.modified()?, metadata.len()))
}

fn load(path: &Path) -> Result<Tokens, TokenFileError> {
    let path = path.to_owned();
    let read = fs::metadata(&path).and_then(|metadata| match metadata.len() {
        ..=LARGEST_FILE => fs::read_to_string(&path),
        size => Err(io::Error::other(format!("{size} bytes; a token file has at most {LARGEST_FILE}"))),
    });
    let text = match read {
        Ok(text) => text,
        Err(error) => return Err(TokenFileError::Read { path, error }),
    };
    match Tokens::parse(&text) {
        Ok(tokens) if tokens.0.is_empty() => Err(TokenFileError::Empty { path }),
        Ok(tokens) => Ok(tokens),
        Err((line, reason)) => Err(TokenFileError::Line { path, line, reason }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READER: &str = "0123456789abcdef0123456789abcdef";
    const COMMANDER: &str = "fedcba9876543210fedcba9876543210";

    fn headers(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        headers
    }

    #[test]
    fn a_role_permits_itself_and_lesser_roles() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        fs::write(&path, format!("# tokens\n\nread {READER}\ncommand  {COMMANDER}\n")).unwrap();
        let access = AccessControl::from_file(&path).unwrap();
        let status = |value: &str, role| access.permit(&headers(value), role).err().map(|problem| problem.status);
        assert_eq!(status(&format!("Bearer {READER}"), Role::Read), None);
        assert_eq!(status(&format!("bearer {READER}"), Role::Submit), Some(403));
        assert_eq!(status(&format!("Bearer {COMMANDER}"), Role::Submit), None);
        let login = BASE64_STANDARD.encode(format!("me:{READER}"));
        assert_eq!(status(&format!("Basic {login}"), Role::Read), None, "a browser sends the token as a password");
        for unknown in ["Bearer x", "Basic abc", &format!("Bearer {READER}0"), READER] {
            assert_eq!(status(unknown, Role::Read), Some(401), "{unknown}");
        }
        assert_eq!(access.permit(&HeaderMap::new(), Role::Read).unwrap_err().status, 401);
        assert!(AccessControl::open().permit(&HeaderMap::new(), Role::Command).is_ok());
    }

    #[test]
    fn a_wrong_line_is_refused_by_its_number_without_the_token() {
        for (text, line) in [
            ("read short", 1),
            (&format!("read {READER}\nadmin {READER}"), 2),
            (&format!("read {READER} more"), 1),
            (&format!("\n{READER}"), 2),
        ] as [(&str, usize); 4]
        {
            let (found, reason) = Tokens::parse(text).err().unwrap();
            assert_eq!(found, line, "{text}");
            assert!(!reason.contains(READER));
        }
    }

    #[test]
    fn a_changed_file_is_read_again_and_a_damaged_one_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        fs::write(&path, format!("read {READER}")).unwrap();
        let access = AccessControl::from_file(&path).unwrap();
        let file = access.0.clone().unwrap();
        let look = || file.state.lock().unwrap().looked_at = Instant::now() - LOOK_EVERY;
        fs::write(&path, format!("command {COMMANDER} and more")).unwrap();
        look();
        assert!(access.permit(&headers(&format!("Bearer {READER}")), Role::Read).is_ok());
        fs::write(&path, format!("command {COMMANDER}")).unwrap();
        look();
        assert!(access.permit(&headers(&format!("Bearer {READER}")), Role::Read).is_err());
        assert!(access.permit(&headers(&format!("Bearer {COMMANDER}")), Role::Command).is_ok());
        assert!(matches!(AccessControl::from_file(&directory.path().join("absent")), Err(TokenFileError::Read { .. })));
        fs::write(&path, "# none").unwrap();
        assert!(matches!(AccessControl::from_file(&path), Err(TokenFileError::Empty { .. })));
    }
}
