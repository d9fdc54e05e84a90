//! Bearer tokens: a file names tokens with their roles, each route needs a role.
//!
//! ```text
//! # one token a line: role, a space, the token
//! read    3f0c…
//! submit  9b1e…
//! command 77aa…
//! wallet:alice,bob 5d02…
//! ```
//!
//! A role includes the roles before: `submit` may read, `command` may submit and read. A token of the role `wallet` may
//! ask the vault about the outputs of its owners, and nothing else; `command` may ask about all owners.
//!
//! The file is read again when the file changes. A bad line gives no token, and the other lines count: a token whose
//! line was removed ends, whatever else the file has. A file that cannot be read leaves the last tokens in force. The
//! log and the metric `utxo_http_tokens_refused` tell both. The streams of a token end when the file no longer has the
//! token.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use axum::http::{HeaderMap, header};
use base64::{Engine, prelude::BASE64_STANDARD};
use strum::{EnumString, IntoStaticStr};
use tokio::sync::watch;

use super::problem::{Problem, ProblemKind};
use crate::{telemetry::Metrics, text::is_name};

/// Fewest characters of a token: 128 bits as hexadecimal digits.
const SHORTEST_TOKEN: usize = 32;
/// Largest accepted token file, bytes.
const LARGEST_FILE: u64 = 1 << 20;
/// Pause between two looks at the file.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Role of a token, in ascending order of rights. A token of the role `wallet` has none of them.
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

/// Prefix of the role `wallet` in a line, before the owners.
const WALLET: &str = "wallet:";
/// Longest name of an owner, bytes.
pub const LONGEST_OWNER: usize = 64;

/// Rights that a line of the file gives to its token.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Grant {
    /// The role on the store and the log.
    Role(Role),
    /// The outputs of these owners in the vault.
    Wallet(BTreeSet<String>),
}

/// Tokens of one version of the file, by their hashes. A token can have several lines.
#[derive(Default)]
struct Tokens(Vec<(blake3::Hash, Grant)>);

/// Rights of a token.
#[derive(Debug, Default, PartialEq, Eq)]
struct TokenRights<'a> {
    /// The file has the token.
    is_known: bool,
    role: Option<Role>,
    owners: BTreeSet<&'a str>,
}

/// A line of a token file that is no token: its number from 1, and the reason.
type BadLine = (usize, &'static str);

impl Tokens {
    /// Returns the tokens of the good lines, and the first bad line.
    fn parse(text: &str) -> (Self, Option<BadLine>) {
        let (mut tokens, mut bad) = (Vec::new(), None);
        for (number, line) in (1..).zip(text.lines()) {
            match parse_line(line.trim()) {
                Ok(token) => tokens.extend(token),
                Err(reason) => bad = bad.or(Some((number, reason))),
            }
        }
        (Tokens(tokens), bad)
    }

    /// Returns the rights of a token by its hash. The time does not depend on the place of the token in the file: all
    /// hashes are compared, each in constant time.
    fn rights_of(&self, token: &blake3::Hash) -> TokenRights<'_> {
        let mut rights = TokenRights::default();
        for (known, grant) in &self.0 {
            if known != token {
                continue;
            }
            rights.is_known = true;
            match grant {
                Grant::Role(role) => rights.role = rights.role.max(Some(*role)),
                Grant::Wallet(owners) => rights.owners.extend(owners.iter().map(String::as_str)),
            }
        }
        rights
    }

    /// Returns the role of a token by its hash.
    fn role_of(&self, token: &blake3::Hash) -> Option<Role> {
        self.rights_of(token).role
    }
}

/// Parses a line of a token file. `None`: the line is empty or a comment.
fn parse_line(line: &str) -> Result<Option<(blake3::Hash, Grant)>, &'static str> {
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (Some(role), Some(token), None) = (words.next(), words.next(), words.next()) else {
        return Err("write a role, a space and a token");
    };
    let grant = match role.strip_prefix(WALLET) {
        Some(owners) if owners.split(',').all(|owner| is_name(owner, LONGEST_OWNER)) => {
            Grant::Wallet(owners.split(',').map(str::to_owned).collect())
        }
        Some(_) => return Err("write wallet: and the names of owners, with commas between them"),
        None => Grant::Role(Role::from_str(role).map_err(|_| "the role is read, submit, command or wallet:OWNER")?),
    };
    if token.len() < SHORTEST_TOKEN {
        return Err("the token is shorter than 32 characters: `openssl rand -hex 32` makes one");
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("the token has characters besides letters, digits and punctuation of ASCII");
    }
    Ok(Some((blake3::hash(token.as_bytes()), grant)))
}

/// Tokens of a file, read again when the file changes.
struct TokenFile {
    path: PathBuf,
    /// Tokens of the newest version of the file that could be read.
    tokens: watch::Sender<Tokens>,
    /// Time and size of the file that was read or refused last.
    version: Mutex<Option<FileVersion>>,
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
        // A file that changes while it is read has another version at the next look.
        let version = Mutex::new(version_of(path).ok());
        let (tokens, refused) = load(path)?;
        if let Some(refused) = refused {
            return Err(refused);
        }
        let tokens = watch::Sender::new(tokens);
        Ok(AccessControl(Some(Arc::new(TokenFile { path: path.to_owned(), tokens, version }))))
    }

    /// Looks at the token file every second, for the life of the server.
    pub async fn watch(&self, metrics: &Metrics) -> Infallible {
        let Some(file) = &self.0 else { return std::future::pending().await };
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let looking = file.clone();
            // The file can be on a slow file system.
            let looked = tokio::task::spawn_blocking(move || looking.look()).await;
            match looked.unwrap_or_else(|panic| {
                tracing::error!(error = %panic, "http: the look at the token file failed");
                None
            }) {
                None => {}
                Some(Ok(tokens)) => {
                    metrics.http_tokens_refused.set(0);
                    tracing::info!(path = %file.path.display(), tokens, "http: tokens read again");
                }
                Some(Err(error)) => {
                    metrics.http_tokens_refused.set(1);
                    match &error {
                        TokenFileError::Read { .. } => {
                            tracing::error!(%error, "http: the last tokens stay in force");
                        }
                        TokenFileError::Line { .. } | TokenFileError::Empty { .. } => {
                            tracing::error!(%error, "http: only the tokens of the other lines are in force");
                        }
                    }
                }
            }
        }
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
        let tokens = file.tokens.borrow();
        let rights = known_rights(&tokens, headers)?;
        if rights.role >= Some(needed) {
            return Ok(());
        }
        let needed: &'static str = needed.into();
        Err(Problem::new(ProblemKind::Forbidden, format!("the request needs a token with the role {needed}")))
    }

    /// Permits a request about the outputs of an owner in the vault, or returns the refusal. A refusal does not tell
    /// which owners exist.
    ///
    /// # Errors
    /// 401 without a known token, 403 with a token that is neither of the owner nor of the role `command`.
    #[cfg(any(feature = "vault", test))]
    pub fn permit_owner(&self, headers: &HeaderMap, owner: &str) -> Result<OwnerAccess, Problem> {
        let Some(file) = &self.0 else { return Ok(OwnerAccess::All) };
        let tokens = file.tokens.borrow();
        let rights = known_rights(&tokens, headers)?;
        if rights.role >= Some(Role::Command) {
            return Ok(OwnerAccess::All);
        }
        if rights.owners.contains(owner) {
            return Ok(OwnerAccess::Own);
        }
        let detail = "the request needs a token with the role wallet and this owner, or with the role command";
        Err(Problem::new(ProblemKind::Forbidden, detail))
    }

    /// Permits a stream that needs a role, for as long as its token has the role.
    ///
    /// # Errors
    /// As [`permit`](Self::permit).
    pub fn permit_stream(&self, headers: &HeaderMap, needed: Role) -> Result<StreamPermission, Problem> {
        let file = self.0.as_ref().zip(given_token(headers));
        // Subscribed before the check, so that no change is missed.
        let watched = file.map(|(file, token)| WatchedToken { token, needed, tokens: file.tokens.subscribe() });
        self.permit(headers, needed)?;
        Ok(StreamPermission(watched))
    }
}

/// Permission of a request about an owner's outputs.
#[cfg(any(feature = "vault", test))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerAccess {
    /// The token is one of all owners, or the server needs no token.
    All,
    /// The token is one of this owner: its transactions may spend the owner's outputs only.
    Own,
}

/// Returns the rights of the token of a request.
///
/// # Errors
/// 401 without a known token.
fn known_rights<'a>(tokens: &'a Tokens, headers: &HeaderMap) -> Result<TokenRights<'a>, Problem> {
    let rights = given_token(headers).map(|token| tokens.rights_of(&token)).unwrap_or_default();
    match rights.is_known {
        true => Ok(rights),
        false => Err(Problem::new(ProblemKind::Unauthorized, "the request needs a known bearer token")),
    }
}

/// Permission of an open stream, which ends when the token file no longer has the token with the role.
pub struct StreamPermission(Option<WatchedToken>);

struct WatchedToken {
    token: blake3::Hash,
    needed: Role,
    tokens: watch::Receiver<Tokens>,
}

impl StreamPermission {
    /// Returns whether the token was revoked.
    pub fn is_revoked(&self) -> bool {
        let is_revoked =
            |watched: &WatchedToken| watched.tokens.borrow().role_of(&watched.token) < Some(watched.needed);
        self.0.as_ref().is_some_and(is_revoked)
    }

    /// Completes when the token is revoked; never where the server needs no token.
    pub async fn until_revoked(&mut self) {
        while let Some(watched) = &mut self.0 {
            if watched.tokens.changed().await.is_err() {
                break;
            }
            if self.is_revoked() {
                return;
            }
        }
        std::future::pending().await
    }
}

/// Returns the hash of the token of a request: a bearer token, or the password that a browser sends for the page.
fn given_token(headers: &HeaderMap) -> Option<blake3::Hash> {
    let (scheme, value) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let value = value.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(blake3::hash(value.as_bytes()));
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let login = String::from_utf8(BASE64_STANDARD.decode(value).ok()?).ok()?;
    login.split_once(':').map(|(_, password)| blake3::hash(password.as_bytes()))
}

impl TokenFile {
    /// Reads the file again if the file has changed, and returns the number of tokens. `None`: no change.
    ///
    /// # Errors
    /// The file cannot be read, and the last tokens stay. After another error the tokens of the good lines are in
    /// force.
    fn look(&self) -> Option<Result<usize, TokenFileError>> {
        let version = version_of(&self.path).ok();
        let mut last = self.version.lock().unwrap_or_else(PoisonError::into_inner);
        if version == *last {
            return None;
        }
        // A file that could not be read is read again at the next look: a token may be revoked in it.
        Some(load(&self.path).and_then(|(tokens, refused)| {
            *last = version;
            let count = tokens.0.len();
            self.tokens.send_replace(tokens);
            refused.map_or(Ok(count), Err)
        }))
    }
}

/// Time of the last change of a file, its size, and the time of the last change of its rights: another version is read
/// again.
pub(super) type FileVersion = (SystemTime, u64, (i64, i64));

/// Returns the version of a file.
///
/// # Errors
/// The file cannot be looked at.
pub(super) fn version_of(path: &Path) -> io::Result<FileVersion> {
    let metadata = fs::metadata(path)?;
    Ok((metadata.modified()?, metadata.len(), (metadata.ctime(), metadata.ctime_nsec())))
}

/// Returns the tokens of the good lines, and why the file is refused otherwise.
fn load(path: &Path) -> Result<(Tokens, Option<TokenFileError>), TokenFileError> {
    let path = path.to_owned();
    let read = fs::metadata(&path).and_then(|metadata| match metadata.len() {
        ..=LARGEST_FILE => fs::read_to_string(&path),
        size => Err(io::Error::other(format!("{size} bytes; a token file has at most {LARGEST_FILE}"))),
    });
    let text = match read {
        Ok(text) => text,
        Err(error) => return Err(TokenFileError::Read { path, error }),
    };
    let (tokens, bad) = Tokens::parse(&text);
    let refused = match bad {
        Some((line, reason)) => Some(TokenFileError::Line { path, line, reason }),
        None => tokens.0.is_empty().then_some(TokenFileError::Empty { path }),
    };
    Ok((tokens, refused))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

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
    fn a_wallet_sees_its_owners_and_nothing_of_the_store() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        let wallet = "abcdef0123456789abcdef0123456789";
        let lines = format!("wallet:alice,bob {wallet}\nwallet:carol {wallet}\nsubmit {READER}\ncommand {COMMANDER}");
        fs::write(&path, lines).unwrap();
        let access = AccessControl::from_file(&path).unwrap();
        let of_owner = |token: &str, owner| {
            let permitted = access.permit_owner(&headers(&format!("Bearer {token}")), owner);
            permitted.map_err(|problem| problem.status)
        };
        for owner in ["alice", "bob", "carol"] {
            assert_eq!(of_owner(wallet, owner), Ok(OwnerAccess::Own));
            assert_eq!(of_owner(COMMANDER, owner), Ok(OwnerAccess::All));
        }
        for (token, status) in [(wallet, 403), (READER, 403), ("unknown", 401)] {
            assert_eq!(of_owner(token, "dave"), Err(status), "{token}");
        }
        let of_store = access.permit(&headers(&format!("Bearer {wallet}")), Role::Read);
        assert_eq!(of_store.unwrap_err().status, 403, "a wallet does not read the store");
        assert_eq!(AccessControl::open().permit_owner(&HeaderMap::new(), "dave"), Ok(OwnerAccess::All));
    }

    #[test]
    fn a_wrong_line_is_refused_by_its_number_without_the_token() {
        for (text, line) in [
            ("read short", 1),
            (&format!("read {READER}\nadmin {READER}"), 2),
            (&format!("read {READER} more"), 1),
            (&format!("\n{READER}"), 2),
            (&format!("wallet: {READER}"), 1),
            (&format!("wallet:alice,b/b {READER}"), 1),
        ] as [(&str, usize); 6]
        {
            let (found, reason) = Tokens::parse(text).1.unwrap();
            assert_eq!(found, line, "{text}");
            assert!(!reason.contains(READER));
        }
    }

    #[test]
    fn a_changed_file_is_read_again_and_a_bad_line_keeps_no_other_token_in_force() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        fs::write(&path, format!("read {READER}")).unwrap();
        let access = AccessControl::from_file(&path).unwrap();
        let file = access.0.clone().unwrap();
        assert!(file.look().is_none());
        fs::write(&path, format!("command {COMMANDER} and more\nread {READER}")).unwrap();
        assert!(file.look().unwrap().is_err() && file.look().is_none());
        assert!(access.permit(&headers(&format!("Bearer {READER}")), Role::Read).is_ok());
        assert!(access.permit(&headers(&format!("Bearer {COMMANDER}")), Role::Read).is_err());
        fs::write(&path, format!("command {COMMANDER} and more")).unwrap();
        assert!(file.look().unwrap().is_err());
        let revoked = access.permit(&headers(&format!("Bearer {READER}")), Role::Read);
        assert!(revoked.is_err(), "the line of the token was removed");
        fs::remove_file(&path).unwrap();
        assert!(matches!(file.look(), Some(Err(TokenFileError::Read { .. }))));
        fs::write(&path, format!("command {COMMANDER}")).unwrap();
        assert_eq!(file.look().unwrap().unwrap(), 1);
        assert!(access.permit(&headers(&format!("Bearer {READER}")), Role::Read).is_err());
        assert!(access.permit(&headers(&format!("Bearer {COMMANDER}")), Role::Command).is_ok());
        assert!(matches!(AccessControl::from_file(&directory.path().join("absent")), Err(TokenFileError::Read { .. })));
        // The rights of a file change without its time and its size.
        let mut rights = fs::metadata(&path).unwrap().permissions();
        rights.set_mode(0o600);
        let version = version_of(&path).unwrap();
        fs::set_permissions(&path, rights).unwrap();
        assert_ne!(version_of(&path).unwrap(), version);
        fs::write(&path, "# none").unwrap();
        assert!(matches!(AccessControl::from_file(&path), Err(TokenFileError::Empty { .. })));
    }

    #[tokio::test]
    async fn the_permission_of_a_stream_ends_with_its_token_or_its_role() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        fs::write(&path, format!("submit {READER}\ncommand {COMMANDER}")).unwrap();
        let access = AccessControl::from_file(&path).unwrap();
        let file = access.0.clone().unwrap();
        let permit = |token: &str, role| access.permit_stream(&headers(&format!("Bearer {token}")), role);
        let mut lowered = permit(READER, Role::Submit).unwrap();
        let (mut lesser, mut removed) = (permit(READER, Role::Read).unwrap(), permit(COMMANDER, Role::Read).unwrap());
        assert!(access.permit_stream(&HeaderMap::new(), Role::Read).is_err());
        fs::write(&path, format!("read {READER}")).unwrap();
        file.look().unwrap().unwrap();
        lowered.until_revoked().await;
        removed.until_revoked().await;
        assert!(lowered.is_revoked() && removed.is_revoked() && !lesser.is_revoked());
        let open = AccessControl::open().permit_stream(&HeaderMap::new(), Role::Command);
        let mut open = open.ok().unwrap();
        tokio::select! {
            biased;
            () = lesser.until_revoked() => panic!("the token may still read"),
            () = open.until_revoked() => panic!("no token is needed"),
            () = std::future::ready(()) => {}
        }
    }
}
