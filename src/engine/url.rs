//! Store URLs: the engine, its place and its parameters.
//!
//! | URL | engine |
//! |---|---|
//! | `memory://`, `memory://host:port/splitbyhash` | [`MemoryEngine`]; ends with the process |
//! | `null:///` | [`NullEngine`]; stores nothing |
//! | `fjall:///path?cache_mib=256` | [`FjallEngine`] in that directory |
//! | `aerospike://host:3000,host2/namespace?set=txmeta&externalStore=…` | [`AerospikeEngine`] in that namespace |
//! | `sqlite:///path`, `sqlitememory:///name` | a database of SQLite ([`SqlSettings`]) |
//! | `postgres://user:password@host:5432/database?…` | a database of PostgreSQL ([`SqlSettings`]) |
//!
//! In a path and in a parameter, `%` and two hexadecimal digits stand for a byte (`text::percent`). The crate `url`
//! cannot read these URLs: `docs/decisions/0212-store-urls-without-the-crate-url.md`.

use std::{fmt, os::unix::ffi::OsStrExt, path::PathBuf, str::FromStr, sync::Arc};

use super::{
    RecordEngine,
    aerospike::{Access, AerospikeEngine, AerospikeSettings, OpenAerospikeError},
    fjall::{FjallEngine, FjallOptions, OpenFjallError},
    memory::MemoryEngine,
    null::NullEngine,
    sql::{OpenSqlError, SqlAccess, SqlDatabase, SqlSettings},
};
use crate::{
    address::{Address, AddressError, AddressFormat},
    record::Rules,
    text::percent::{parse_parameters, percent_decode, percent_decode_path, percent_encode, percent_encode_path},
};

/// Reasons why a store could not be opened. No message repeats a whole URL, because a URL may hold a password.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum OpenError {
    #[error("cannot read a store URL without `://`; write for example `fjall:///path`")]
    NotAUrl,
    #[error(
        "unknown store `{}://`; known are memory, null, fjall, aerospike, postgres, sqlite, sqlitememory",
        .0.escape_debug()
    )]
    UnknownScheme(String),
    /// The store cannot have this path.
    #[error("store `{scheme}` {problem}")]
    Path { scheme: &'static str, problem: &'static str },
    #[error("store `{scheme}` has no parameter `{}`", key.escape_debug())]
    UnknownParameter { scheme: &'static str, key: String },
    /// A parameter of other stores of the reference document.
    #[error("store `{scheme}` has no parameter `{key}`: {reason}")]
    OtherStoresParameter { scheme: &'static str, key: String, reason: &'static str },
    #[error("parameter `{key}` of a store URL must be {expected}")]
    BadParameter { key: &'static str, expected: &'static str },
    /// A `%` is not followed by two hexadecimal digits, or the decoded bytes are not UTF-8.
    #[error("a `%` in the store URL does not stand for a character; write `%25` for a percent sign")]
    Percent,
    #[error("store `aerospike` {0}")]
    Address(AddressError),
    #[error("store `postgres` {0}")]
    ServerAddress(AddressError),
    /// A value of a parameter that no setting of this program stands for.
    #[error("cannot take {parameter} from a store URL: {reason}")]
    RefusedParameter { parameter: &'static str, reason: &'static str },
    /// The URL contains user and password. A URL appears in logs and in process lists.
    #[error("cannot take user and password from a store URL; set store.aerospike.user and store.aerospike.password")]
    Login,
    #[error(transparent)]
    Fjall(#[from] OpenFjallError),
    #[error(transparent)]
    Aerospike(#[from] OpenAerospikeError),
    #[error(transparent)]
    Sql(#[from] OpenSqlError),
    #[error("opening the store panicked: {0}")]
    Panicked(String),
}

/// Options for opening a store that are not part of its URL.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Rules that decide the effect of operations.
    pub rules: Rules,
    /// Login, encryption and limits for a store in a cluster.
    pub access: Access,
    /// Password and limits for a store in a database.
    #[cfg_attr(not(feature = "sql"), allow(dead_code, reason = "only the SQL engines read the field"))]
    pub sql: SqlAccess,
}

#[cfg(feature = "testkit")]
impl OpenOptions {
    /// Creates options without login or encryption, with default limits.
    pub fn new(rules: Rules) -> Self {
        OpenOptions { rules, access: Access::default(), sql: SqlAccess::default() }
    }
}

/// Opens the store that `url` names, as [`open_url`] does.
///
/// # Errors
/// See [`OpenError`]; each is one line.
#[cfg(feature = "testkit")]
pub async fn open(url: &str, options: &OpenOptions) -> Result<Arc<dyn RecordEngine>, OpenError> {
    open_url(url.parse()?, options).await
}

/// Opens the store that `url` names. A store on disk is created if none exists. Opening includes the recovery of the
/// store, which may take long.
///
/// # Errors
/// See [`OpenError`]; each is one line.
pub async fn open_url(url: StoreUrl, options: &OpenOptions) -> Result<Arc<dyn RecordEngine>, OpenError> {
    for notice in url.notices() {
        tracing::warn!("store: {notice}");
    }
    let rules = options.rules;
    Ok(match url {
        StoreUrl::Memory(_) => Arc::new(MemoryEngine::new(rules)),
        StoreUrl::Null => Arc::new(NullEngine::new(rules)),
        StoreUrl::Fjall(directory, options) => {
            let opened = tokio::task::spawn_blocking(move || FjallEngine::open(&directory, rules, options)).await;
            Arc::new(opened.map_err(|panic| OpenError::Panicked(panic.to_string()))??)
        }
        StoreUrl::Aerospike(settings) => {
            let connections = settings.connection_queue_size.unwrap_or(options.access.connections);
            let access = Access { connections, ..options.access.clone() };
            let settings = AerospikeSettings { access, ..settings };
            Arc::new(AerospikeEngine::open(&settings, rules).await?)
        }
        StoreUrl::Sql(settings) => open_sql(&settings, options, false).await?,
    })
}

#[cfg(feature = "sql")]
async fn open_sql(
    settings: &SqlSettings,
    OpenOptions { rules, sql, .. }: &OpenOptions,
    must_exist: bool,
) -> Result<Arc<dyn RecordEngine>, OpenError> {
    use super::sql::SqlEngine;
    Ok(Arc::new(match must_exist {
        true => SqlEngine::open_existing(settings, *rules, sql).await?,
        false => SqlEngine::open(settings, *rules, sql).await?,
    }))
}

#[cfg(not(feature = "sql"))]
async fn open_sql(settings: &SqlSettings, _: &OpenOptions, _: bool) -> Result<Arc<dyn RecordEngine>, OpenError> {
    Err(OpenSqlError::NotBuilt { database: settings.describe() }.into())
}

/// Opens the existing store that `url` names, as [`open_existing_url`] does.
///
/// # Errors
/// As [`open_existing_url`].
#[cfg(feature = "testkit")]
pub async fn open_existing(url: &str, options: &OpenOptions) -> Result<Arc<dyn RecordEngine>, OpenError> {
    open_existing_url(url.parse()?, options).await
}

/// Opens the existing store that `url` names, for a reader. Creates and changes nothing if the store does not exist.
///
/// # Errors
/// As [`open_url`]; and the store does not exist.
pub async fn open_existing_url(url: StoreUrl, options: &OpenOptions) -> Result<Arc<dyn RecordEngine>, OpenError> {
    match &url {
        StoreUrl::Fjall(directory, _) => FjallEngine::must_exist(directory)?,
        // A database in memory never exists before its process.
        StoreUrl::Sql(settings) if !matches!(settings.database, SqlDatabase::SqliteMemory(_)) => {
            return open_sql(settings, options, true).await;
        }
        _ => {}
    }
    let access = Access { manages_cluster: false, ..options.access.clone() };
    open_url(url, &OpenOptions { access, ..options.clone() }).await
}

/// Engine, place and parameters of a store. `Display` writes a URL that parses to an equal value, except for a
/// password, which is written as `***`; [`reveal`](Self::reveal) writes the password, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// Records are in memory and end with the process; holds the place that the reference writes, which has no effect.
    Memory(Option<String>),
    /// Every operation is accepted and nothing is stored; for benchmarks.
    Null,
    /// Records are in the embedded durable engine, in this directory.
    Fjall(PathBuf, FjallOptions),
    /// Records are in an Aerospike cluster; login and encryption are not part of the URL.
    Aerospike(AerospikeSettings),
    /// Records are rows of a database.
    Sql(SqlSettings),
}

/// Name of the set in the reference document.
const DEFAULT_SET: &str = "txmeta";
/// Form of the addresses of nodes.
const NODES: AddressFormat = AddressFormat { default_port: 3_000, is_port_optional: true, has_certificate_name: true };

impl StoreUrl {
    /// Names the embedded durable engine in a directory, with default options.
    pub fn fjall(directory: impl Into<PathBuf>) -> Self {
        StoreUrl::Fjall(directory.into(), FjallOptions::default())
    }

    /// Returns whether the store limits the size of a record ([`ErrorKind::TooBig`](super::ErrorKind::TooBig)). A
    /// writer to such a store needs a blob store for large bodies.
    pub fn bounds_records(&self) -> bool {
        matches!(self, StoreUrl::Aerospike(_))
    }

    /// Returns whether the records end with the process.
    pub fn is_volatile(&self) -> bool {
        let is_in_memory = |settings: &SqlSettings| matches!(settings.database, SqlDatabase::SqliteMemory(_));
        match self {
            StoreUrl::Memory(_) | StoreUrl::Null => true,
            StoreUrl::Fjall(..) | StoreUrl::Aerospike(_) => false,
            StoreUrl::Sql(settings) => is_in_memory(settings),
        }
    }

    /// Returns the parameter `externalStore`: the URL of the blob store.
    pub fn external_store(&self) -> Option<&str> {
        match self {
            StoreUrl::Aerospike(settings) => settings.external_store.as_deref(),
            StoreUrl::Sql(settings) => settings.external_store.as_deref(),
            StoreUrl::Memory(_) | StoreUrl::Null | StoreUrl::Fjall(..) => None,
        }
    }

    /// Returns the URL with its password, for a file that only the owner reads. The text must not be logged.
    pub fn reveal(&self) -> String {
        match self {
            StoreUrl::Sql(settings) => settings.format(true),
            url => url.to_string(),
        }
    }

    /// Returns a sentence for each parameter of the reference that a setting stands for, or that has no effect.
    pub fn notices(&self) -> Vec<String> {
        let mut notices = Vec::new();
        match self {
            StoreUrl::Memory(Some(_)) => notices.push(
                "store.url has an address and a mode, which have no effect: records in memory are always spread by \
                 hash, and no port is opened"
                    .to_owned(),
            ),
            StoreUrl::Aerospike(settings) => {
                if let Some(size) = settings.connection_queue_size {
                    notices.push(format!(
                        "store.url has ConnectionQueueSize={size}, which stands for store.aerospike.connections and \
                         overrides that setting"
                    ));
                }
            }
            StoreUrl::Sql(settings) => notices.extend(settings.notices()),
            StoreUrl::Memory(None) | StoreUrl::Null | StoreUrl::Fjall(..) => {}
        }
        notices
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Memory(place) => write!(f, "memory://{}", place.as_deref().unwrap_or_default()),
            StoreUrl::Null => f.write_str("null:///"),
            StoreUrl::Fjall(directory, options) => {
                write!(f, "fjall://{}", percent_encode_path(directory))?;
                if *options == FjallOptions::default() {
                    return Ok(());
                }
                write!(f, "?cache_mib={}", options.cache_bytes >> 20)
            }
            StoreUrl::Aerospike(settings) => {
                let AerospikeSettings { hosts, namespace, set, external_store, connection_queue_size, layout, .. } =
                    settings;
                write!(f, "aerospike://{hosts}/{}?set={}", percent_encode(namespace), percent_encode(set))?;
                if let Some(store) = external_store {
                    write!(f, "&externalStore={}", percent_encode(store))?;
                }
                if let Some(layout) = layout {
                    write!(f, "&layout={layout}")?;
                }
                connection_queue_size.map_or(Ok(()), |size| write!(f, "&ConnectionQueueSize={size}"))
            }
            StoreUrl::Sql(settings) => f.write_str(&settings.describe()),
        }
    }
}

impl FromStr for StoreUrl {
    type Err = OpenError;

    fn from_str(url: &str) -> Result<Self, OpenError> {
        let (scheme, rest) = url.split_once("://").ok_or(OpenError::NotAUrl)?;
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        match scheme {
            "memory" => parse_memory(path, query),
            "null" => refuse_place("null", path, query).map(|()| StoreUrl::Null),
            "fjall" => Ok(StoreUrl::Fjall(parse_fjall_directory(path)?, parse_fjall_options(query)?)),
            "aerospike" => parse_aerospike(path, query).map(StoreUrl::Aerospike),
            // The names that the clients of PostgreSQL take.
            "postgres" | "postgresql" => SqlSettings::parse_postgres(path, query).map(StoreUrl::Sql),
            "sqlite" => SqlSettings::parse_sqlite(path, query).map(StoreUrl::Sql),
            "sqlitememory" => SqlSettings::parse_memory(path, query).map(StoreUrl::Sql),
            _ => Err(OpenError::UnknownScheme(scheme.into())),
        }
    }
}

/// Reads `memory://`, or `memory://host:port/mode` of the reference, whose modes are `splitbyhash` and `all`.
fn parse_memory(place: &str, query: &str) -> Result<StoreUrl, OpenError> {
    let (address, mode) = place.split_once('/').unwrap_or((place, ""));
    if matches!(mode, "splitbyhash" | "all") && !address.contains('@') {
        return refuse_place("memory", "", query).map(|()| StoreUrl::Memory(Some(place.to_owned())));
    }
    refuse_place("memory", place, query).map(|()| StoreUrl::Memory(None))
}

/// Refuses a path and parameters, for a store that has neither.
fn refuse_place(scheme: &'static str, path: &str, query: &str) -> Result<(), OpenError> {
    if !matches!(path, "" | "/") {
        let problem = match scheme {
            "memory" => "takes no path: write `memory://`, or `memory://host:port/splitbyhash` (or `/all`)",
            _ => "takes no path",
        };
        return Err(OpenError::Path { scheme, problem });
    }
    match parse_parameters(query).ok_or(OpenError::Percent)?.into_iter().next() {
        Some((key, _)) => Err(OpenError::UnknownParameter { scheme, key }),
        None => Ok(()),
    }
}

fn parse_fjall_directory(path: &str) -> Result<PathBuf, OpenError> {
    let path = percent_decode_path(path).ok_or(OpenError::Percent)?;
    // A path of only slashes and dots is the root, which has no file name.
    if !path.is_absolute() || path.file_name().is_none() {
        return Err(OpenError::Path { scheme: "fjall", problem: "needs an absolute path: `fjall:///path`" });
    }
    if path.as_os_str().as_bytes().contains(&0) {
        return Err(OpenError::Path { scheme: "fjall", problem: "has a zero byte in its path" });
    }
    Ok(path)
}

fn parse_fjall_options(query: &str) -> Result<FjallOptions, OpenError> {
    let mut options = FjallOptions::default();
    for (key, value) in parse_parameters(query).ok_or(OpenError::Percent)? {
        match key.as_str() {
            "cache_mib" => options.cache_bytes = parse_cache_bytes(&value)?,
            _ => return Err(OpenError::UnknownParameter { scheme: "fjall", key }),
        }
    }
    Ok(options)
}

fn parse_aerospike(place: &str, query: &str) -> Result<AerospikeSettings, OpenError> {
    const NEEDS: &str = "needs nodes and a namespace: `aerospike://host:3000,host2/namespace`";
    if place.contains('@') {
        return Err(OpenError::Login);
    }
    let (hosts, namespace) = place.split_once('/').unwrap_or((place, ""));
    if hosts.split(',').any(str::is_empty) || namespace.is_empty() || namespace.contains('/') {
        return Err(OpenError::Path { scheme: "aerospike", problem: NEEDS });
    }
    let hosts = NODES.parse_list(hosts).map_err(OpenError::Address)?;
    let hosts = hosts.iter().map(Address::to_string).collect::<Vec<_>>().join(",");
    let mut settings = AerospikeSettings::new(hosts, percent_decode(namespace).ok_or(OpenError::Percent)?, DEFAULT_SET);
    for (key, value) in parse_parameters(query).ok_or(OpenError::Percent)? {
        match key.as_str() {
            "set" if value.is_empty() => {
                return Err(OpenError::BadParameter { key: "set", expected: "the name of a set" });
            }
            "set" => settings.set = value,
            "externalStore" => settings.external_store = Some(value),
            "layout" => {
                let layout = value.parse().ok();
                let expected = "compact or teranode";
                settings.layout = Some(layout.ok_or(OpenError::BadParameter { key: "layout", expected })?);
            }
            "ConnectionQueueSize" => settings.connection_queue_size = Some(parse_queue_size(&value)?),
            "LimitConnectionsToQueueSize" => match value.as_str() {
                "true" => {}
                "false" => {
                    return Err(OpenError::RefusedParameter {
                        parameter: "LimitConnectionsToQueueSize=false",
                        reason: "the connections to a node never exceed store.aerospike.connections; write true",
                    });
                }
                _ => {
                    let key = "LimitConnectionsToQueueSize";
                    return Err(OpenError::BadParameter { key, expected: "true or false" });
                }
            },
            _ => return Err(OpenError::UnknownParameter { scheme: "aerospike", key }),
        }
    }
    Ok(settings)
}

fn parse_queue_size(size: &str) -> Result<usize, OpenError> {
    let size = size.parse().ok().filter(|size| (1..=65_536).contains(size));
    size.ok_or(OpenError::BadParameter { key: "ConnectionQueueSize", expected: "a number of connections above 0" })
}

fn parse_cache_bytes(mib: &str) -> Result<u64, OpenError> {
    let bytes = mib.parse::<u64>().ok().filter(|mib| *mib > 0).and_then(|mib| mib.checked_mul(1 << 20));
    bytes.ok_or(OpenError::BadParameter { key: "cache_mib", expected: "a whole number of mebibytes above 0" })
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsString, os::unix::ffi::OsStringExt};

    use super::*;

    /// Reasons for a parser of our own: `docs/decisions/0212-store-urls-without-the-crate-url.md`.
    #[test]
    fn the_crate_url_refuses_several_hosts_and_changes_paths() {
        assert!(url::Url::parse("aerospike://a:3000,b:3000/ns").is_err());
        for (given, path) in [("fjall:///a/../b", "/b"), ("fjall:///a#b", "/a"), ("fjall:///a b", "/a%20b")] {
            assert_eq!(url::Url::parse(given).unwrap().path(), path);
        }
        let pairs = url::form_urlencoded::parse(b"externalStore=file:///a+b%zz");
        assert_eq!(pairs.into_owned().next().unwrap().1, "file:///a b%zz", "a blank for `+`, and no error for `%zz`");
    }

    fn fjall(path: &str, cache_bytes: u64) -> StoreUrl {
        StoreUrl::Fjall(path.into(), FjallOptions { cache_bytes })
    }

    #[test]
    fn urls_parse_to_stores() {
        let default = FjallOptions::default().cache_bytes;
        for (url, store) in [
            ("memory://", StoreUrl::Memory(None)),
            ("memory:///", StoreUrl::Memory(None)),
            ("memory://localhost:8080/all", StoreUrl::Memory(Some("localhost:8080/all".into()))),
            ("null:///", StoreUrl::Null),
            ("fjall:///var/lib/utxo", fjall("/var/lib/utxo", default)),
            ("fjall:///a%20b/%E2%82%BF%3f?", fjall("/a b/₿?", default)),
            ("fjall:///a?cache_mib=2", fjall("/a", 2 << 20)),
            ("aerospike://a:3000,b/ns", StoreUrl::Aerospike(AerospikeSettings::new("a:3000,b:3000", "ns", "txmeta"))),
            ("aerospike://a/ns?set=other&externalStore=file%3A%2F%2F%2Fx%26y", external()),
        ] {
            assert_eq!(url.parse::<StoreUrl>().unwrap(), store, "{url}");
        }
        assert_eq!(external().to_string().parse::<StoreUrl>().unwrap(), external());
    }

    fn external() -> StoreUrl {
        let external_store = Some("file:///x&y".into());
        StoreUrl::Aerospike(AerospikeSettings { external_store, ..AerospikeSettings::new("a:3000", "ns", "other") })
    }

    #[test]
    fn displayed_paths_parse_to_the_same_url() {
        for path in ["/a", "/100%25/?", "/a b/₿", "/a?cache_mib=2", "/a\nb"] {
            for url in [StoreUrl::fjall(path), fjall(path, 3 << 20)] {
                assert_eq!(url.to_string().parse::<StoreUrl>().unwrap(), url, "{url}");
            }
        }
        assert_eq!(StoreUrl::fjall("/50%/a?b").to_string(), "fjall:///50%25/a%3Fb");
    }

    #[test]
    fn paths_that_are_not_utf8_round_trip() {
        let path = PathBuf::from(OsString::from_vec(b"/a\xff/\xe2\x82\xac\xc3".to_vec()));
        let url = StoreUrl::fjall(&path).to_string();
        assert_eq!(url, "fjall:///a%FF/%E2%82%AC%C3");
        assert_eq!(url.parse::<StoreUrl>().unwrap(), StoreUrl::fjall(path));
    }

    #[test]
    fn each_node_of_a_url_needs_an_address() {
        let hosts = |url: &str| match url.parse::<StoreUrl>() {
            Ok(StoreUrl::Aerospike(settings)) => Ok(settings.hosts),
            other => Err(other.unwrap_err().to_string()),
        };
        assert_eq!(hosts("aerospike://[::1],b:tls.name:4333/ns").as_deref(), Ok("[::1]:3000,b:tls.name:4333"));
        for (url, says) in [
            ("aerospike://127.0.0.1:70000/ns", "write 127.0.0.1:3000"),
            ("aerospike://::1/ns", "write [::1]:3000"),
            ("aerospike://a,,b/ns", "`aerospike://host:3000,host2/namespace`"),
            ("aerospike://a;b/ns", "write a:3000,b:3000"),
            ("aerospike://a b/ns", "write a:3000,b:3000"),
        ] {
            let error = hosts(url).unwrap_err();
            assert!(error.contains(says), "{url}: {error}");
        }
    }

    #[test]
    fn invalid_urls_are_refused_in_one_line() {
        for (url, says) in [
            ("/var/lib/utxo", "://"),
            ("", "://"),
            ("mysql://root:secret@host/db", "unknown store `mysql://`"),
            ("aerospike://host:3000", "needs nodes and a namespace"),
            ("aerospike:///ns", "needs nodes and a namespace"),
            ("aerospike://a,,b/ns", "needs nodes and a namespace"),
            ("aerospike://a/ns/more", "needs nodes and a namespace"),
            ("aerospike://root:secret@a/ns", "store.aerospike.password"),
            ("aerospike://a/ns?sets=x", "no parameter `sets`"),
            ("aerospike://a/ns?set=", "the name of a set"),
            ("memory://user:secret@host:80/all", "takes no path"),
            ("memory://host:80/some", "takes no path"),
            ("memory://somewhere", "takes no path"),
            ("memory://?size=3", "no parameter `size`"),
            ("null:///x", "takes no path"),
            ("fjall://relative/path", "absolute path"),
            ("fjall://", "absolute path"),
            ("fjall:///", "absolute path"),
            ("fjall:////", "absolute path"),
            ("fjall:///./", "absolute path"),
            ("fjall:///a/%2e%2e", "absolute path"),
            ("fjall:///a?cash_mib=2", "no parameter `cash_mib`"),
            ("fjall:///a?cache_mib=lots", "whole number of mebibytes"),
            ("fjall:///a?cache_mib=0", "whole number of mebibytes"),
            ("fjall:///a?cache_mib=99999999999999999", "whole number of mebibytes"),
            ("fjall:///a%2", "does not stand for a character"),
            ("fjall:///a%zz", "does not stand for a character"),
            ("fjall:///a%+1", "does not stand for a character"),
            ("fjall:///a%€", "does not stand for a character"),
            ("fjall:///a%00", "zero byte"),
            ("a\nb://", "unknown store `a\\nb://`"),
            ("memory://?%0Asize=3", "no parameter `\\nsize`"),
        ] {
            let error = url.parse::<StoreUrl>().unwrap_err().to_string();
            assert!(error.contains(says), "{url}: {error}");
            assert!(!error.contains('\n') && !error.contains("secret"), "{url}: {error}");
        }
    }

    #[tokio::test]
    async fn open_returns_the_engine_of_the_url() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("fjall://{}/new%20store?cache_mib=1", directory.path().display());
        for (url, name) in [("memory://", "memory"), ("null:///", "null"), (url.as_str(), "fjall")] {
            let engine = open(url, &OpenOptions::new(Rules::main(0))).await.unwrap();
            assert_eq!(engine.name(), name);
            engine.close().await.unwrap();
        }
        assert!(directory.path().join("new store").is_dir());
    }

    #[tokio::test]
    async fn opening_an_absent_store_to_read_creates_nothing() {
        let options = OpenOptions::new(Rules::main(0));
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::create_dir(path("empty")).unwrap();
        std::fs::create_dir(path("letters")).unwrap();
        std::fs::write(path("letters/1.txt"), "dear diary").unwrap();
        // A killed first opening leaves such files.
        std::fs::create_dir(path("unfinished")).unwrap();
        std::fs::write(path("unfinished/0.jnl"), "").unwrap();
        for (name, says) in [
            ("nowhere", "there is no store in"),
            ("empty", "there is no store in"),
            ("unfinished", "there is no store in"),
            ("letters", "neither empty nor a store"),
            ("letters/1.txt", "letters/1.txt"),
        ] {
            let url = format!("fjall://{}", path(name).display());
            let error = open_existing(&url, &options).await.err().unwrap().to_string();
            assert!(error.contains(says) && error.contains(name) && !error.contains('\n'), "{name}: {error}");
        }
        assert!(!path("nowhere").exists());
        assert_eq!(std::fs::read_dir(path("empty")).unwrap().count(), 0);
        assert!(path("unfinished/0.jnl").exists(), "a reader leaves unfinished files alone");

        let url = format!("fjall://{}", path("store").display());
        open(&url, &options).await.unwrap().close().await.unwrap();
        open_existing(&url, &options).await.unwrap().close().await.unwrap();
        open_existing("memory://", &options).await.unwrap();
    }
}
