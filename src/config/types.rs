//! The types of settings: how each is read from a value, and what it refuses.

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use figment::value::Value;
use tracing_subscriber::EnvFilter;

use crate::{
    address::{self, AddressError},
    blob::{BlobUrl, BlobUrlError},
    broker::kafka::{AssignmentStrategy, GroupProtocol, SaslMechanism, SecurityProtocol},
    engine::{OpenError, StoreUrl, decoded_path},
    telemetry::LogFormat,
    tx::Network,
};

/// What sort of TOML value a setting takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Text in quotes.
    Text,
    /// A whole number.
    Integer,
    /// A number.
    Number,
    /// `true` or `false`.
    Boolean,
    /// A table of text by name.
    Table,
}

/// Least and greatest number that a setting accepts.
pub type Range = Option<(u64, u64)>;

/// A type that a setting can have.
pub trait SettingType: Sized {
    /// What sort of value it is read from.
    const KIND: Kind;

    /// Reads it; the error completes the sentence "`key` …".
    fn parse(value: &Value, range: Range) -> Result<Self, String>;

    /// What it is when nobody gives it; `None`: it must be given.
    fn absent() -> Option<Self> {
        None
    }
}

/// How a value is shown in an error. Never called for [`Properties`], which may be secrets.
fn shown(value: &Value) -> String {
    if let Some(text) = value.as_str() {
        format!("{text:?}")
    } else if let Some(number) = value.to_i128() {
        number.to_string()
    } else if let Some(number) = value.to_f64() {
        number.to_string()
    } else if let Some(flag) = value.to_bool() {
        flag.to_string()
    } else {
        "a table or a list".to_owned()
    }
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("must be text, not {}", shown(value)))
}

fn parsed<T: FromStr<Err = String>>(value: &Value) -> Result<T, String> {
    text(value)?.parse()
}

/// Types that are read from text by their own [`FromStr`].
macro_rules! text_types {
    ($($type:ty),*) => {$(
        impl SettingType for $type {
            const KIND: Kind = Kind::Text;
            fn parse(value: &Value, _: Range) -> Result<Self, String> {
                parsed(value)
            }
        }
    )*};
}

text_types!(
    AssignmentStrategy,
    Brokers,
    GroupProtocol,
    LogFilter,
    LogFormat,
    SaslMechanism,
    SecurityProtocol,
    TopicName
);

impl SettingType for StoreUrl {
    const KIND: Kind = Kind::Text;
    fn parse(value: &Value, _: Range) -> Result<Self, String> {
        text(value)?.parse().map_err(|error: OpenError| format!("names no store: {error}"))
    }
}

impl SettingType for BlobUrl {
    const KIND: Kind = Kind::Text;
    fn parse(value: &Value, _: Range) -> Result<Self, String> {
        text(value)?.parse().map_err(|error: BlobUrlError| format!("names no blob store: {error}"))
    }
}

impl SettingType for Network {
    const KIND: Kind = Kind::Text;
    fn parse(value: &Value, _: Range) -> Result<Self, String> {
        let text = text(value)?;
        text.parse().map_err(|_| format!("must be one of main, test, regtest, not {text:?}"))
    }
}

impl SettingType for String {
    const KIND: Kind = Kind::Text;
    fn parse(value: &Value, _: Range) -> Result<Self, String> {
        match text(value)? {
            "" => Err("must not be empty".to_owned()),
            text => Ok(text.to_owned()),
        }
    }
}

impl SettingType for SocketAddr {
    const KIND: Kind = Kind::Text;
    fn parse(value: &Value, _: Range) -> Result<Self, String> {
        listen_address(text(value)?)
    }
}

/// Reads an address to listen on.
///
/// # Errors
/// The text is none; the error completes the sentence "`key` …", and says what to write instead.
pub fn listen_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| match LISTEN.entry(text) {
        Ok(address) => format!("must be an IP address and a port, not {text:?}: write 127.0.0.1:{}", address.port),
        Err(AddressError::Host { .. } | AddressError::Empty { .. }) => {
            format!("must be an IP address and a port, not {text:?}: write 127.0.0.1:9464")
        }
        Err(error) => error.to_string(),
    })
}

impl SettingType for bool {
    const KIND: Kind = Kind::Boolean;
    fn parse(value: &Value, _: Range) -> Result<Self, String> {
        value.to_bool().ok_or_else(|| format!("must be true or false, not {}", shown(value)))
    }
}

macro_rules! integer_types {
    ($($type:ty),*) => {$(
        impl SettingType for $type {
            const KIND: Kind = Kind::Integer;
            fn parse(value: &Value, range: Range) -> Result<Self, String> {
                let (low, high) = range.unwrap_or((<$type>::MIN.into(), <$type>::MAX.into()));
                value
                    .to_i128()
                    .filter(|number| (i128::from(low)..=i128::from(high)).contains(number))
                    .and_then(|number| <$type>::try_from(number).ok())
                    .ok_or_else(|| format!("must be a whole number from {low} to {high}, not {}", shown(value)))
            }
        }
    )*};
}

integer_types!(u32, u64);

/// A share, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Ratio(pub f64);

impl SettingType for Ratio {
    const KIND: Kind = Kind::Number;
    fn parse(value: &Value, _: Range) -> Result<Self, String> {
        let number = value.to_f64().or_else(|| value.to_i128().map(|number| number as f64));
        number
            .filter(|number| (0.0..=1.0).contains(number))
            .map(Ratio)
            .ok_or_else(|| format!("must be a number from 0 to 1, not {}", shown(value)))
    }
}

impl<T: SettingType> SettingType for Option<T> {
    const KIND: Kind = T::KIND;
    fn parse(value: &Value, range: Range) -> Result<Self, String> {
        T::parse(value, range).map(Some)
    }
    fn absent() -> Option<Self> {
        Some(None)
    }
}

/// How brokers are written.
const BROKERS: address::Form = address::Form { usual_port: 9_092, port_is_optional: false, names_certificates: false };
/// How an address to listen on is written.
const LISTEN: address::Form = address::Form { usual_port: 9_464, ..BROKERS };

/// The scheme of a saved log's name.
const SAVED: &str = "file://";

/// A list of brokers, `host:port` separated by commas; or a saved log, `file:///path`, which is only read. As
/// librdkafka has it, an entry may begin with the protocol by which the brokers are talked to (`SSL://host:9093`); it
/// says nothing that [`check_protocol`](Brokers::check_protocol) does not hold it to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Brokers {
    list: String,
    /// Entries with the protocol that they begin with, and without it.
    protocols: Vec<(SecurityProtocol, String)>,
    saved: Option<PathBuf>,
}

impl Brokers {
    /// As librdkafka's `bootstrap.servers` takes it.
    pub fn as_str(&self) -> &str {
        &self.list
    }

    /// The file of a saved log; `None`: there are brokers.
    pub fn saved_log(&self) -> Option<&Path> {
        self.saved.as_deref()
    }

    /// Whether what entries begin with is the protocol by which the brokers are talked to.
    ///
    /// # Errors
    /// Another one; the error completes the sentence "`key` …".
    pub fn check_protocol(&self, protocol: SecurityProtocol) -> Result<(), String> {
        match self.protocols.iter().find(|(said, _)| *said != protocol) {
            None => Ok(()),
            Some((said, address)) => Err(format!(
                "has \"{}://{address}\", but kafka.security.protocol is {protocol}: write {address}, and set kafka.security.protocol \
                 to {said} if the brokers are talked to by that",
                said.as_str().to_ascii_uppercase()
            )),
        }
    }
}

impl FromStr for Brokers {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix(SAVED) {
            let path = decoded_path(path).ok().filter(|path| path.is_absolute());
            let path = path.ok_or("has a saved log without an absolute path: write file:///path/log.jsonl")?;
            return Ok(Brokers { list: text.to_owned(), protocols: Vec::new(), saved: Some(path) });
        }
        let (mut list, mut protocols) = (Vec::new(), Vec::new());
        for entry in text.split(',').map(str::trim) {
            let protocol = entry.split_once("://").and_then(|(protocol, address)| {
                Some((protocol.to_ascii_lowercase().parse::<SecurityProtocol>().ok()?, address))
            });
            let address = BROKERS.entry(protocol.map_or(entry, |(_, address)| address));
            let address = address.map_err(|error| error.to_string())?.to_string();
            protocols.extend(protocol.map(|(protocol, _)| (protocol, address.clone())));
            list.push(address);
        }
        Ok(Brokers { list: list.join(","), protocols, saved: None })
    }
}

/// The name of a topic, as Kafka allows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TopicName(String);

impl TopicName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for TopicName {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if (1..=249).contains(&text.len()) && text.chars().all(legal) && text != "." && text != ".." {
            Ok(TopicName(text.to_owned()))
        } else {
            Err(format!("must be a topic name (at most 249 letters, digits, '.', '_', '-'), not {text:?}"))
        }
    }
}

/// Text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Refuses what can be none: nothing, and several lines (a file that was meant for something else).
    ///
    /// # Errors
    /// What is wrong, without the text.
    pub(super) fn new(text: &str) -> Result<Self, &'static str> {
        match text {
            "" => Err("is empty"),
            text if text.contains(char::is_control) => Err("is not one line of plain text"),
            text => Ok(Secret(text.to_owned())),
        }
    }

    /// What it is.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(redacted)")
    }
}

impl SettingType for Secret {
    const KIND: Kind = Kind::Text;
    fn parse(value: &Value, _: Range) -> Result<Self, String> {
        let text = value.as_str().ok_or("must be text, and not empty")?;
        Secret::new(text).map_err(|problem| format!("must be text, but {problem}"))
    }
}

/// A filter of log records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilter(String);

impl LogFilter {
    /// The filter, as `tracing_subscriber::EnvFilter` takes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for LogFilter {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match EnvFilter::try_new(text) {
            Ok(_) if !text.trim().is_empty() => Ok(LogFilter(text.to_owned())),
            _ => Err(format!("must be a level or a filter such as info,utxo_store::ingest=debug, not {text:?}")),
        }
    }
}

/// librdkafka properties that are passed through. Its `Debug` shows no secret.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Properties(BTreeMap<String, String>);

impl Properties {
    /// A property's value as librdkafka takes it; `None`: it is neither text nor number nor boolean.
    pub(super) fn text(value: &Value) -> Option<String> {
        match value {
            Value::Dict(..) | Value::Array(..) | Value::Empty(..) => None,
            _ => Some(value.as_str().map_or_else(|| shown(value), str::to_owned)),
        }
    }

    /// Name and value of each, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The value of a property.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

impl fmt::Debug for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Which of them is a secret cannot be told by the name: it may be misspelt.
        f.debug_map().entries(self.iter().map(|(name, _)| (name, "(redacted)"))).finish()
    }
}

impl SettingType for Properties {
    const KIND: Kind = Kind::Table;
    fn parse(value: &Value, _: Range) -> Result<Self, String> {
        let table = value.as_dict().ok_or("must be a table of text by name")?;
        let pairs = table.iter().map(|(name, value)| Some((name.clone(), Self::text(value)?)));
        pairs.collect::<Option<_>>().map(Properties).ok_or_else(|| "must be a table of text by name".to_owned())
    }
    fn absent() -> Option<Self> {
        Some(Self::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_url_is_what_can_be_opened_and_errors_hide_what_may_be_a_password() {
        let parse = |url: &str| StoreUrl::parse(&Value::from(url), None);
        assert_eq!(parse("fjall:///data/utxo"), Ok(StoreUrl::fjall("/data/utxo")));
        for bad in ["fjall://relative", "fjall:///", "fjall:///a%2", "fjall:///a?cash_mib=2", "memory://x"] {
            assert!(parse(bad).unwrap_err().starts_with("names no store: "), "{bad}");
        }
        let error = parse("postgres://user:hunter2@host/db").unwrap_err();
        assert!(error.contains("postgres") && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn brokers_are_hosts_with_ports() {
        assert_eq!("a:1, [::1]:9092".parse::<Brokers>().unwrap().as_str(), "a:1,[::1]:9092");
        for bad in ["", "a", "a:", ":1", "a:0", "a:1,", "a:65536", "a b:1"] {
            assert!(bad.parse::<Brokers>().is_err(), "{bad:?}");
        }
        let prefixed: Brokers = "SSL://a:1,b:2".parse().unwrap();
        assert_eq!((prefixed.as_str(), prefixed.check_protocol(SecurityProtocol::Ssl)), ("a:1,b:2", Ok(())));
        let refused = prefixed.check_protocol(SecurityProtocol::Plaintext).unwrap_err();
        assert!(refused.contains("write a:1, and set kafka.security.protocol to ssl"), "{refused}");
        let saved: Brokers = "file:///a%20b/log.jsonl".parse().unwrap();
        assert_eq!(saved.saved_log(), Some(Path::new("/a b/log.jsonl")));
        assert!("file://log.jsonl".parse::<Brokers>().unwrap_err().contains("absolute path"));
        assert!("kafka://a:1".parse::<Brokers>().unwrap_err().contains("write a:1"));
    }

    #[test]
    fn an_address_to_listen_on_is_a_number_with_a_port() {
        let parse = |text: &str| SocketAddr::parse(&Value::from(text), None);
        for good in ["127.0.0.1:0", "[::1]:9464", "0.0.0.0:65535"] {
            assert_eq!(parse(good).map(|address| address.to_string()).as_deref(), Ok(good));
        }
        for (bad, says) in [
            ("localhost:9000", "write 127.0.0.1:9000"),
            (":9464", "write 127.0.0.1:9464"),
            ("", "write 127.0.0.1:9464"),
            ("::1:9464", "write [::1]:9464"),
            ("127.0.0.1", "write 127.0.0.1:9464"),
            ("127.0.0.1:70000", "write 127.0.0.1:9464"),
            ("http://127.0.0.1:80", "write 127.0.0.1:80"),
        ] {
            let error = parse(bad).unwrap_err();
            assert!(error.contains(says), "{bad}: {error}");
        }
    }

    #[test]
    fn topic_names_are_kafkas() {
        assert!("utxo.validated-txs_2".parse::<TopicName>().is_ok());
        for bad in ["", ".", "..", "a/b", "ü", &"x".repeat(250)] {
            assert!(bad.parse::<TopicName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn no_value_of_a_property_is_shown() {
        let properties = Properties(
            [("sasl.password", "hunter2"), ("SSL.KEY.PEM", "hunter2"), ("sasl.pasword", "hunter2")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
        );
        let shown = format!("{properties:?}");
        assert!(!shown.contains("hunter2") && shown.contains("sasl.pasword"), "{shown}");
        assert_eq!(properties.get("sasl.password"), Some("hunter2"));
    }
}
