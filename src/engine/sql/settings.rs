//! Place and parameters of a store in a database, as its URL gives them. Built without the feature `sql`, too, so that
//! every build reads every URL.

use std::{fmt, os::unix::ffi::OsStrExt, path::PathBuf, time::Duration};

use crate::{
    address::{Address, AddressFormat},
    engine::url::OpenError,
    text::{
        duration::parse_duration,
        percent::{parse_parameters, percent_decode, percent_decode_path, percent_encode, percent_encode_path},
    },
};

/// Form of the address of a PostgreSQL server.
const SERVER: AddressFormat =
    AddressFormat { default_port: 5_432, is_port_optional: true, has_certificate_name: false };
/// Reserved characters of user, password and database, besides those of every parameter.
const RESERVED: [(char, &str); 5] = [('/', "%2F"), ('@', "%40"), (':', "%3A"), ('#', "%23"), (' ', "%20")];

/// Location of a store in a database, with its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlSettings {
    /// Database that holds the store.
    pub database: SqlDatabase,
    /// Log each statement at level debug (`logging`).
    pub logging: bool,
    /// URL of the blob store with the external bodies (`externalStore`). The engine does not use it.
    pub external_store: Option<String>,
    /// Time after which the reference removes spent outputs (`expiration`). The engine does not use it: pruning goes by
    /// heights.
    pub expiration: Option<String>,
}

/// A database that can hold a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SqlDatabase {
    /// A file of SQLite.
    SqliteFile(PathBuf),
    /// A database of SQLite in memory, with a name for messages; ends with the process.
    SqliteMemory(String),
    /// A database of a PostgreSQL server.
    Postgres(PostgresServer),
}

/// A database of a PostgreSQL server, with its login.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresServer {
    /// Host name, IPv4 address, IPv6 address in brackets, or the absolute path of the folder with a Unix socket.
    pub host: String,
    /// TCP port, also the number in the name of the socket.
    pub port: u16,
    /// Name of the database.
    pub database: String,
    /// User of the login; `None`: the name of the user of the process.
    pub user: Option<String>,
    /// Password of the login. No message, log or `Display` shows the password.
    pub password: Option<String>,
    /// Encryption: `disable`, `prefer`, `require`, `verify-ca` or `verify-full` (`sslmode`).
    pub ssl_mode: Option<String>,
    /// File with the certificates of the authorities (`sslrootcert`).
    pub ssl_root_cert: Option<PathBuf>,
    /// Most open connections (`PostgresMaxOpenConns`); `None`: the setting decides.
    pub max_open: Option<u32>,
    /// Most idle connections (`PostgresMaxIdleConns`); `None`: the setting decides.
    pub max_idle: Option<u32>,
}

impl fmt::Debug for PostgresServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresServer")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("database", &self.database)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// Access to a database that is not part of its URL.
#[derive(Clone, PartialEq, Eq)]
pub struct SqlAccess {
    /// Password of the login, where the URL has none.
    pub password: Option<String>,
    /// Most open connections to a server.
    pub max_open: u32,
    /// Most connections that stay open while no request uses them.
    pub max_idle: u32,
    /// Time of one transaction of the database, with the wait for a connection.
    pub timeout: Duration,
    /// Slots of a page; `None`: a reader takes the number of the database.
    pub utxo_batch_size: Option<u32>,
}

impl Default for SqlAccess {
    fn default() -> Self {
        SqlAccess {
            password: None,
            max_open: 100,
            max_idle: 10,
            timeout: Duration::from_secs(30),
            utxo_batch_size: None,
        }
    }
}

impl fmt::Debug for SqlAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlAccess")
            .field("max_open", &self.max_open)
            .field("max_idle", &self.max_idle)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl SqlSettings {
    /// Names a database, without parameters.
    pub fn new(database: SqlDatabase) -> Self {
        SqlSettings { database, logging: false, external_store: None, expiration: None }
    }

    /// Returns a sentence for each parameter of the reference that a setting stands for.
    pub(crate) fn notices(&self) -> Vec<String> {
        let mut notices = Vec::new();
        if let Some(time) = &self.expiration {
            notices.push(format!(
                "store.url has expiration={time}, which has no effect: spent transactions are pruned by heights, as \
                 store.block_height_retention and the section [prune] say"
            ));
        }
        if let SqlDatabase::Postgres(server) = &self.database {
            for (parameter, setting, count) in [
                ("PostgresMaxOpenConns", "max_open_connections", server.max_open),
                ("PostgresMaxIdleConns", "max_idle_connections", server.max_idle),
            ] {
                if let Some(count) = count {
                    notices.push(format!(
                        "store.url has {parameter}={count}, which stands for store.sql.{setting} and overrides that \
                         setting"
                    ));
                }
            }
        }
        notices
    }

    /// Returns the database in a text for messages: a URL without the password.
    pub fn describe(&self) -> String {
        self.format(false)
    }

    /// Returns the URL. `with_password`: the URL parses to an equal value, and must not be logged.
    pub(crate) fn format(&self, with_password: bool) -> String {
        let mut parameters: Vec<String> = Vec::new();
        let mut push = |key: &str, value: String| parameters.push(format!("{key}={value}"));
        let mut url = match &self.database {
            SqlDatabase::SqliteFile(path) => format!("sqlite://{}", percent_encode_path(path)),
            SqlDatabase::SqliteMemory(name) => format!("sqlitememory:///{}", percent_encode(name)),
            SqlDatabase::Postgres(server) => {
                if server.host.starts_with('/') {
                    push("host", percent_encode(&server.host).to_string());
                }
                server.ssl_mode.iter().for_each(|mode| push("sslmode", percent_encode(mode).to_string()));
                server.ssl_root_cert.iter().for_each(|path| push("sslrootcert", percent_encode_path(path).to_string()));
                server.max_open.iter().for_each(|count| push("PostgresMaxOpenConns", count.to_string()));
                server.max_idle.iter().for_each(|count| push("PostgresMaxIdleConns", count.to_string()));
                server.format(with_password)
            }
        };
        if self.logging {
            push("logging", "true".to_owned());
        }
        self.external_store.iter().for_each(|store| push("externalStore", percent_encode(store).to_string()));
        self.expiration.iter().for_each(|time| push("expiration", percent_encode(time).to_string()));
        if !parameters.is_empty() {
            url += &format!("?{}", parameters.join("&"));
        }
        url
    }

    /// Reads the text after `sqlite://`.
    pub(crate) fn parse_sqlite(path: &str, query: &str) -> Result<Self, OpenError> {
        let path = percent_decode_path(path).ok_or(OpenError::Percent)?;
        if !path.is_absolute() || path.file_name().is_none() {
            return Err(OpenError::Path { scheme: "sqlite", problem: "needs an absolute path: `sqlite:///path`" });
        }
        if path.as_os_str().as_bytes().contains(&0) {
            return Err(OpenError::Path { scheme: "sqlite", problem: "has a zero byte in its path" });
        }
        Self::with_parameters(SqlDatabase::SqliteFile(path), "sqlite", query)
    }

    /// Reads the text after `sqlitememory://`.
    pub(crate) fn parse_memory(place: &str, query: &str) -> Result<Self, OpenError> {
        let name = place.strip_prefix('/').filter(|name| !name.is_empty() && !name.contains('/'));
        let problem = "needs a name: `sqlitememory:///name`";
        let name = name.ok_or(OpenError::Path { scheme: "sqlitememory", problem })?;
        let name = percent_decode(name).ok_or(OpenError::Percent)?;
        Self::with_parameters(SqlDatabase::SqliteMemory(name), "sqlitememory", query)
    }

    /// Reads the text after `postgres://`.
    pub(crate) fn parse_postgres(place: &str, query: &str) -> Result<Self, OpenError> {
        // The part behind may be the rest of a password, which no message may show.
        if query.contains('@') {
            let problem = "has `@` behind `?`; write `%3F` for `?` in a login, and `%40` for `@` in a parameter";
            return Err(OpenError::Path { scheme: "postgres", problem });
        }
        let server = PostgresServer::parse(place)?;
        let settings = Self::with_parameters(SqlDatabase::Postgres(server), "postgres", query)?;
        match &settings.database {
            SqlDatabase::Postgres(server) if server.host.is_empty() => Err(OpenError::Path {
                scheme: "postgres",
                problem: "needs a host and a database: `postgres://user:password@host:5432/database`",
            }),
            _ => Ok(settings),
        }
    }

    fn with_parameters(database: SqlDatabase, scheme: &'static str, query: &str) -> Result<Self, OpenError> {
        let mut settings = SqlSettings::new(database);
        for (key, value) in parse_parameters(query).ok_or(OpenError::Percent)? {
            match (key.as_str(), &mut settings.database) {
                ("logging", _) => settings.logging = parse_bool("logging", &value)?,
                ("externalStore", _) => settings.external_store = Some(value),
                ("expiration", _) => settings.expiration = Some(check_duration(value)?),
                ("host", SqlDatabase::Postgres(server)) if value.starts_with('/') => server.host = value,
                ("host", SqlDatabase::Postgres(_)) => {
                    let expected = "the absolute path of the folder with the socket";
                    return Err(OpenError::BadParameter { key: "host", expected });
                }
                ("sslmode", SqlDatabase::Postgres(server)) => server.ssl_mode = Some(parse_ssl_mode(value)?),
                ("sslrootcert", SqlDatabase::Postgres(server)) => server.ssl_root_cert = Some(value.into()),
                ("PostgresMaxOpenConns", SqlDatabase::Postgres(server)) => {
                    server.max_open = Some(parse_count("PostgresMaxOpenConns", &value, 2)?);
                }
                ("PostgresMaxIdleConns", SqlDatabase::Postgres(server)) => {
                    server.max_idle = Some(parse_count("PostgresMaxIdleConns", &value, 0)?);
                }
                _ => return Err(refuse_parameter(scheme, key)),
            }
        }
        Ok(settings)
    }
}

/// Returns the error for a parameter that a database does not have; names the setting that stands for a parameter of
/// the reference document.
fn refuse_parameter(scheme: &'static str, key: String) -> OpenError {
    let is_server = scheme == "postgres";
    let reason = match key.as_str() {
        "ConnectionQueueSize" | "LimitConnectionsToQueueSize" if is_server => {
            "the parameter belongs to Aerospike; `store.sql.max_open_connections` bounds the connections to \
             PostgreSQL, and a request waits for one of these"
        }
        "ConnectionQueueSize" | "LimitConnectionsToQueueSize" => {
            "the parameter belongs to Aerospike; a file has no connections to bound"
        }
        "set" => "the parameter belongs to Aerospike; a database holds one store",
        _ => return OpenError::UnknownParameter { scheme, key },
    };
    OpenError::OtherStoresParameter { scheme, key, reason }
}

impl PostgresServer {
    fn parse(place: &str) -> Result<Self, OpenError> {
        let problem = "needs a host and a database: `postgres://user:password@host:5432/database`";
        let path_error = OpenError::Path { scheme: "postgres", problem };
        let decode = |text: &str| percent_decode(text).ok_or(OpenError::Percent);
        // The last `@` and the first `/` after it: a password may have either, as the reference writes it.
        let (login, place) = place.rsplit_once('@').map_or((None, place), |(login, place)| (Some(login), place));
        let (host, database) = place.split_once('/').unwrap_or((place, ""));
        if database.is_empty() || database.contains('/') {
            return Err(path_error);
        }
        let address = match host {
            // The parameter `host` names the folder of a socket.
            "" => Address { host: String::new(), certificate: None, port: SERVER.default_port },
            host => match host.strip_prefix(':').map(str::parse::<u16>) {
                Some(port) => Address { host: String::new(), certificate: None, port: port.map_err(|_| path_error)? },
                None => SERVER.parse_entry(host).map_err(OpenError::ServerAddress)?,
            },
        };
        let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
            None => (None, None),
            Some((user, password)) => (Some(decode(user)?), Some(decode(password)?)),
        };
        let some = |text: Option<String>| text.filter(|text| !text.is_empty());
        Ok(PostgresServer {
            host: address.host,
            port: address.port,
            database: decode(database)?,
            user: some(user),
            password: some(password),
            ssl_mode: None,
            ssl_root_cert: None,
            max_open: None,
            max_idle: None,
        })
    }

    fn format(&self, with_password: bool) -> String {
        let encode = |text: &str| {
            let text = percent_encode(text).to_string();
            RESERVED.iter().fold(text, |text, (character, code)| text.replace(*character, code))
        };
        let password = match &self.password {
            Some(password) if with_password => format!(":{}", encode(password)),
            Some(_) => ":***".to_owned(),
            None => String::new(),
        };
        let login = match &self.user {
            None if password.is_empty() => String::new(),
            user => format!("{}{password}@", encode(user.as_deref().unwrap_or_default())),
        };
        // The parameter names the folder of a socket.
        let host = if self.host.starts_with('/') { "" } else { &self.host };
        format!("postgres://{login}{host}:{}/{}", self.port, encode(&self.database))
    }
}

fn parse_bool(key: &'static str, value: &str) -> Result<bool, OpenError> {
    value.parse().map_err(|_| OpenError::BadParameter { key, expected: "true or false" })
}

fn parse_count(key: &'static str, value: &str, least: u32) -> Result<u32, OpenError> {
    let expected = if least == 0 { "a number of connections" } else { "a number of connections, at least 2" };
    let count = value.parse().ok().filter(|count| (least..=10_000).contains(count));
    count.ok_or(OpenError::BadParameter { key, expected })
}

fn parse_ssl_mode(value: String) -> Result<String, OpenError> {
    let expected = "disable, prefer, require, verify-ca or verify-full";
    let is_known = ["disable", "prefer", "require", "verify-ca", "verify-full"].contains(&value.as_str());
    if is_known { Ok(value) } else { Err(OpenError::BadParameter { key: "sslmode", expected }) }
}

fn check_duration(value: String) -> Result<String, OpenError> {
    let expected = "a duration such as 24h or 7d";
    match parse_duration(&value) {
        Some(_) => Ok(value),
        None => Err(OpenError::BadParameter { key: "expiration", expected }),
    }
}

/// An error that keeps a database from being opened. No message has a password.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum OpenSqlError {
    #[error("cannot open `{database}`: this program was built without it; build with `--features sql`")]
    NotBuilt { database: String },
    #[error("cannot open `{database}`: there is no store in this database; check the URL")]
    Missing { database: String },
    #[error("cannot open `{database}`: the database has tables of another program; name an empty database")]
    NotAStore { database: String },
    /// A version of this program with another schema has written the store.
    #[error(
        "cannot open `{database}`: its schema has version {found}, this program reads version {expected}; {remedy}"
    )]
    Version { database: String, found: i64, expected: i64, remedy: &'static str },
    /// A command that only reads migrates nothing.
    #[error(
        "cannot open `{database}`: its schema has version {found}, this program reads version {expected}; start \
         `utxo-store run`, which migrates the tables"
    )]
    OlderVersion { database: String, found: i64, expected: i64 },
    #[error(
        "cannot open `{database}`: it is a {kind} of network {found}, and store.network is {expected}; name the \
         database of that network"
    )]
    Network { database: String, kind: &'static str, found: String, expected: String },
    #[error(
        "cannot open `{database}`: it has {found} slots a page, and store.utxo_batch_size is {expected}; the number is \
         fixed for the life of a store"
    )]
    BatchSize { database: String, found: i64, expected: u32 },
    #[error("cannot open `{database}`: the server has `{setting}` off, so that a commit is not durable; turn it on")]
    NotDurable { database: String, setting: &'static str },
    #[error("cannot open `{database}`: the database is read-only; check the rights, and that the server is no standby")]
    ReadOnly { database: String },
    #[error("cannot open `{database}`: {message}")]
    Failed { database: String, message: String },
}
