//! The types of settings: reading each from a raw value, with the values that are refused.

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
    address::{AddressError, AddressFormat},
    blob::{BlobUrl, BlobUrlError},
    broker::kafka::{AssignmentStrategy, GroupProtocol, SaslMechanism, SecurityProtocol},
    engine::{OpenError, StoreUrl},
    telemetry::LogFormat,
    text::percent::percent_decode_path,
    tx::Network,
};

/// ValueKind of TOML value that a setting takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// Text in quotes, of any length.
    Text,
    /// A whole number within the range of the setting.
    Integer,
    /// A number with or without a fraction.
    Number,
    /// The value `true` or `false`.
    Boolean,
    /// A table of text by name.
    Table,
}

/// Least and greatest number that a setting accepts.
pub type Range = Option<(u64, u64)>;

/// A type that a setting can have.
pub trait SettingType: Sized {
    /// ValueKind of TOML value that the type is read from.
    const KIND: ValueKind;

    /// Reads a raw value; the error completes the sentence "`key` …".
    fn parse(value: &Value, range: Range) -> Result<Self, String>;

    /// Checks a value that was not read by [`parse`](Self::parse); the error completes the sentence "`key` …".
    fn check(&self, _range: Range) -> Result<(), String> {
        Ok(())
    }

    /// Returns the value of a setting that is not given; `None`: the setting must be given.
    fn absent() -> Option<Self> {
        None
    }
}

/// Formats a value for an error. Never called for [`Properties`], whose values may be secrets.
fn quoted(value: &Value) -> String {
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

fn expect_text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("must be text, not {}", quoted(value)))
}

fn parse_text<T: FromStr<Err = String>>(value: &Value) -> Result<T, String> {
    expect_text(value)?.parse()
}

/// Implements [`SettingType`] for types that are read from text by their own [`FromStr`].
macro_rules! text_types {
    ($($type:ty),*) => {$(
        impl SettingType for $type {
            const KIND: ValueKind = ValueKind::Text;
            fn parse(value: &Value, _: Range) -> Result<Self, String> {
                parse_text(value)
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
    const KIND: ValueKind = ValueKind::Text;
    fn parse(value: &Value, _: Range) -> Result<Self, String> {
        expect_text(value)?.parse().map_err(|error: OpenError| format!("names no store: {error}"))
    }
}

impl SettingType for BlobUrl {
    const KIND: ValueKind = ValueKind::Text;
    fn parse(value: &Value, _: Range) -> Result<Self, String> {
        expect_text(value)?.parse().map_err(|error: BlobUrlError| format!("names no blob store: {error}"))
    }
}

impl SettingType for Network {
    const KIND: ValueKind = ValueKind::Text;
    fn parse(value: &Value, _: Range) -> Result<Self, String> {
        let text = expect_text(value)?;
        text.parse().map_err(|_| format!("must be one of main, test, regtest, not {text:?}"))
    }
}

impl SettingType for String {
    const KIND: ValueKind = ValueKind::Text;
    fn parse(value: &Value, _: Range) -> Result<Self, String> {
        let text = expect_text(value)?.to_owned();
        text.check(None).map(|()| text)
    }
    fn check(&self, _: Range) -> Result<(), String> {
        if self.is_empty() { Err("must not be empty".to_owned()) } else { Ok(()) }
    }
}

impl SettingType for SocketAddr {
    const KIND: ValueKind = ValueKind::Text;
    fn parse(value: &Value, _: Range) -> Result<Self, String> {
        listen_address(expect_text(value)?)
    }
}

/// Reads an address to listen on.
///
/// # Errors
/// The text is no IP address with a port. The error completes the sentence "`key` …", and names a correct value.
pub fn listen_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| match LISTEN.parse_entry(text) {
        Ok(address) => format!("must be an IP address and a port, not {text:?}: write 127.0.0.1:{}", address.port),
        Err(AddressError::Host { .. } | AddressError::Empty { .. }) => {
            format!("must be an IP address and a port, not {text:?}: write 127.0.0.1:9464")
        }
        Err(error) => error.to_string(),
    })
}

impl SettingType for bool {
    const KIND: ValueKind = ValueKind::Boolean;
    fn parse(value: &Value, _: Range) -> Result<Self, String> {
        value.to_bool().ok_or_else(|| format!("must be true or false, not {}", quoted(value)))
    }
}

fn out_of_range((low, high): (u64, u64), value: impl fmt::Display) -> String {
    format!("must be a whole number from {low} to {high}, not {value}")
}

macro_rules! whole_range {
    ($type:ty) => {
        (<$type>::MIN.into(), <$type>::MAX.into())
    };
}

macro_rules! integer_types {
    ($($type:ty),*) => {$(
        impl SettingType for $type {
            const KIND: ValueKind = ValueKind::Integer;
            fn parse(value: &Value, range: Range) -> Result<Self, String> {
                let number = value.to_i128().and_then(|number| <$type>::try_from(number).ok());
                number
                    .filter(|number| number.check(range).is_ok())
                    .ok_or_else(|| out_of_range(range.unwrap_or(whole_range!($type)), quoted(value)))
            }
            fn check(&self, range: Range) -> Result<(), String> {
                let (low, high) = range.unwrap_or(whole_range!($type));
                if (low..=high).contains(&(*self).into()) { Ok(()) } else { Err(out_of_range((low, high), self)) }
            }
        }
    )*};
}

integer_types!(u32, u64);

/// A share, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Ratio(pub f64);

impl SettingType for Ratio {
    const KIND: ValueKind = ValueKind::Number;
    fn parse(value: &Value, _: Range) -> Result<Self, String> {
        let number = value.to_f64().or_else(|| value.to_i128().map(|number| number as f64));
        let ratio = number.map(Ratio).filter(|ratio| ratio.check(None).is_ok());
        ratio.ok_or_else(|| format!("must be a number from 0 to 1, not {}", quoted(value)))
    }
    fn check(&self, _: Range) -> Result<(), String> {
        let Ratio(number) = self;
        if (0.0..=1.0).contains(number) { Ok(()) } else { Err(format!("must be a number from 0 to 1, not {number}")) }
    }
}

impl<T: SettingType> SettingType for Option<T> {
    const KIND: ValueKind = T::KIND;
    fn parse(value: &Value, range: Range) -> Result<Self, String> {
        T::parse(value, range).map(Some)
    }
    fn check(&self, range: Range) -> Result<(), String> {
        self.as_ref().map_or(Ok(()), |value| value.check(range))
    }
    fn absent() -> Option<Self> {
        Some(None)
    }
}

/// Format of an entry in the list of brokers.
const BROKERS: AddressFormat =
    AddressFormat { default_port: 9_092, is_port_optional: false, has_certificate_name: false };
/// Format of an address to listen on.
const LISTEN: AddressFormat = AddressFormat { default_port: 9_464, ..BROKERS };

/// Scheme of the URL of a saved log.
const SAVED_LOG_SCHEME: &str = "file://";

/// A list of brokers, `host:port` separated by commas; or a saved log, `file:///path`, which is only read. As for
/// librdkafka, an entry may begin with the protocol of the connection (`SSL://host:9093`).
/// [`check_protocol`](Brokers::check_protocol) refuses an entry whose protocol is not the configured one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Brokers {
    list: String,
    /// Protocol and address of each entry that begins with a protocol.
    protocols: Vec<(SecurityProtocol, String)>,
    saved: Option<PathBuf>,
}

impl Brokers {
    /// Returns the list as `bootstrap.servers` of librdkafka takes it.
    pub fn as_str(&self) -> &str {
        &self.list
    }

    /// Returns the file of a saved log; `None`: the value is a list of brokers.
    pub fn saved_log(&self) -> Option<&Path> {
        self.saved.as_deref()
    }

    /// Checks that every entry with a protocol names `protocol`, the configured one.
    ///
    /// # Errors
    /// An entry names another protocol. The error completes the sentence "`key` …".
    pub fn check_protocol(&self, protocol: SecurityProtocol) -> Result<(), String> {
        match self.protocols.iter().find(|(named, _)| *named != protocol) {
            None => Ok(()),
            Some((named, address)) => Err(format!(
                "has \"{}://{address}\", but kafka.security.protocol is {protocol}: write {address}, and set \
                 kafka.security.protocol to {named} if the brokers use that protocol",
                named.to_string().to_ascii_uppercase()
            )),
        }
    }
}

impl FromStr for Brokers {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix(SAVED_LOG_SCHEME) {
            let path = percent_decode_path(path).filter(|path| path.is_absolute());
            let path = path.ok_or("has a saved log without an absolute path: write file:///path/log.jsonl")?;
            return Ok(Brokers { list: text.to_owned(), protocols: Vec::new(), saved: Some(path) });
        }
        let (mut list, mut protocols) = (Vec::new(), Vec::new());
        for entry in text.split(',').map(str::trim) {
            let protocol = entry.split_once("://").and_then(|(protocol, address)| {
                Some((protocol.to_ascii_lowercase().parse::<SecurityProtocol>().ok()?, address))
            });
            let address = BROKERS.parse_entry(protocol.map_or(entry, |(_, address)| address));
            let address = address.map_err(|error| error.to_string())?.to_string();
            protocols.extend(protocol.map(|(protocol, _)| (protocol, address.clone())));
            list.push(address);
        }
        Ok(Brokers { list: list.join(","), protocols, saved: None })
    }
}

/// The name of a topic: at most 249 letters, digits, `.`, `_` and `-`, as Kafka allows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TopicName(String);

impl TopicName {
    /// Returns the name of the topic.
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

/// A secret text; its `Debug` output is `(redacted)`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Checks that the text can be a secret: not empty, and one line (several lines are a file for another purpose).
    ///
    /// # Errors
    /// Names the problem without the text.
    pub(super) fn new(text: &str) -> Result<Self, &'static str> {
        match text {
            "" => Err("is empty"),
            text if text.contains(char::is_control) => Err("is not one line of plain text"),
            text => Ok(Secret(text.to_owned())),
        }
    }

    /// Returns the secret text, for the client that logs in.
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
    const KIND: ValueKind = ValueKind::Text;
    fn parse(value: &Value, _: Range) -> Result<Self, String> {
        let text = value.as_str().ok_or("must be text, and not empty")?;
        Secret::new(text).map_err(|problem| format!("must be text, but {problem}"))
    }
}

/// A filter of log records: a level, or levels by module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilter(String);

impl LogFilter {
    /// Returns the filter as `tracing_subscriber::EnvFilter` takes it.
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

/// Properties that are passed through to librdkafka. The `Debug` output shows no value.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Properties(BTreeMap<String, String>);

impl Properties {
    /// Formats the value of a property as librdkafka takes it; `None`: not a text, a number or a boolean.
    pub(super) fn value_text(value: &Value) -> Option<String> {
        match value {
            Value::Dict(..) | Value::Array(..) | Value::Empty(..) => None,
            _ => Some(value.as_str().map_or_else(|| quoted(value), str::to_owned)),
        }
    }

    /// Returns the name and the value of each property, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns the value of a property.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

impl fmt::Debug for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Every value is hidden: a misspelt name does not show that its value is a secret.
        f.debug_map().entries(self.iter().map(|(name, _)| (name, "(redacted)"))).finish()
    }
}

impl SettingType for Properties {
    const KIND: ValueKind = ValueKind::Table;
    fn parse(value: &Value, _: Range) -> Result<Self, String> {
        let table = value.as_dict().ok_or("must be a table of text by name")?;
        let pairs = table.iter().map(|(name, value)| Some((name.clone(), Self::value_text(value)?)));
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
    fn a_bad_store_url_is_refused_without_showing_a_password() {
        let parse = |url: &str| StoreUrl::parse(&Value::from(url), None);
        assert_eq!(parse("fjall:///data/utxo"), Ok(StoreUrl::fjall("/data/utxo")));
        for bad in ["fjall://relative", "fjall:///", "fjall:///a%2", "fjall:///a?cash_mib=2", "memory://x"] {
            assert!(parse(bad).unwrap_err().starts_with("names no store: "), "{bad}");
        }
        let error = parse("mysql://user:hunter2@host/db").unwrap_err();
        assert!(error.contains("mysql") && !error.contains("hunter2"), "{error}");
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
    fn an_address_to_listen_on_is_an_ip_address_with_a_port() {
        let parse = |text: &str| SocketAddr::parse(&Value::from(text), None);
        for good in ["127.0.0.1:0", "[::1]:9464", "0.0.0.0:65535"] {
            assert_eq!(parse(good).map(|address| address.to_string()).as_deref(), Ok(good));
        }
        for (bad, expected) in [
            ("localhost:9000", "write 127.0.0.1:9000"),
            (":9464", "write 127.0.0.1:9464"),
            ("", "write 127.0.0.1:9464"),
            ("::1:9464", "write [::1]:9464"),
            ("127.0.0.1", "write 127.0.0.1:9464"),
            ("127.0.0.1:70000", "write 127.0.0.1:9464"),
            ("http://127.0.0.1:80", "write 127.0.0.1:80"),
        ] {
            let error = parse(bad).unwrap_err();
            assert!(error.contains(expected), "{bad}: {error}");
        }
    }

    #[test]
    fn topic_names_follow_the_rules_of_kafka() {
        assert!("utxo.validated-txs_2".parse::<TopicName>().is_ok());
        for bad in ["", ".", "..", "a/b", "ü", &"x".repeat(250)] {
            assert!(bad.parse::<TopicName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn debug_output_hides_the_values_of_properties() {
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
