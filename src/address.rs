//! Addresses in settings: `host:port`, and lists of such addresses.
//!
//! | text | meaning |
//! |---|---|
//! | `host:9092`, `10.0.0.1:9092`, `[::1]:9092` | a host and a port |
//! | `host` | a host with the default port; only where the port is optional |
//! | `host:name:3000`, `host:name` | a host and the name in the host's certificate; only for database nodes |
//!
//! Each error names the text to write instead.

use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr},
};

/// Format of one address of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressFormat {
    /// Port of an entry without a port, and port in the text that an error suggests.
    pub default_port: u16,
    /// `true`: an entry without a port has the default port.
    pub is_port_optional: bool,
    /// `true`: an entry may have the name in the certificate between host and port.
    pub has_certificate_name: bool,
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Host name, IPv4 address, or IPv6 address in brackets.
    pub host: String,
    /// Name in the host's certificate; `None`: the certificate names the host.
    pub certificate: Option<String>,
    /// TCP port, 1 to 65535.
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host)?;
        if let Some(name) = &self.certificate {
            write!(f, ":{name}")?;
        }
        write!(f, ":{}", self.port)
    }
}

/// Reason why a text is no address. Each message completes the sentence "`key` …" and names the text to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// An empty text, or no text between two commas.
    #[error("has an empty entry: write host:{default_port}, several separated by commas")]
    Empty {
        /// Default port that the message suggests.
        default_port: u16,
    },
    /// A user in front of a host. The message does not repeat the text, which may hold a password.
    #[error("has an `@`: an address has no user and password: write host:{default_port}")]
    Login {
        /// Default port that the message suggests.
        default_port: u16,
    },
    /// A URL in place of an address.
    #[error("has {given:?}, which is a URL: write {write}")]
    Url {
        /// The value that was given.
        given: String,
        /// The text to write instead.
        write: String,
    },
    /// Entries separated by semicolons or blanks.
    #[error("has {given:?}, whose entries are not separated by commas: write {write}")]
    Separator {
        /// The value that was given.
        given: String,
        /// The text to write instead.
        write: String,
    },
    /// A path after the address.
    #[error("has {given:?}, which has text after the port: write {write}")]
    Path {
        /// The value that was given.
        given: String,
        /// The text to write instead.
        write: String,
    },
    /// An IPv6 address without brackets: the last group and a port look alike.
    #[error("has {given:?}, an IPv6 address without brackets: write {write}")]
    Brackets {
        /// The value that was given.
        given: String,
        /// The text to write instead.
        write: String,
    },
    /// Brackets around a text that is no IPv6 address, or text after the brackets that is no port.
    #[error("has {given:?}, and only an IPv6 address is in brackets: write [::1]:{default_port}")]
    NoIpv6 {
        /// The value that was given.
        given: String,
        /// Default port that the message suggests.
        default_port: u16,
    },
    /// A host that is neither a name nor an IP address.
    #[error(
        "has {given:?}, whose host is neither a name (letters, digits, `.`, `-`, `_`) nor an IP address: \
         write host:{default_port}"
    )]
    Host {
        /// The value that was given.
        given: String,
        /// Default port that the message suggests.
        default_port: u16,
    },
    /// No port, where the port is required.
    #[error("has {given:?}, which has no port: write {write}")]
    NoPort {
        /// The value that was given.
        given: String,
        /// The text to write instead.
        write: String,
    },
    /// A port that is no number from 1 to 65535.
    #[error("has {given:?}, whose port is no number from 1 to 65535: write {write}")]
    Port {
        /// The value that was given.
        given: String,
        /// The text to write instead.
        write: String,
    },
}

impl AddressFormat {
    /// Reads a list of addresses, separated by commas. Blanks around an entry are ignored.
    ///
    /// # Errors
    /// The first entry that is no address.
    pub fn parse_list(self, text: &str) -> Result<Vec<Address>, AddressError> {
        text.split(',').map(|entry| self.parse_entry(entry.trim())).collect()
    }

    /// Reads one address without blanks.
    ///
    /// # Errors
    /// See [`AddressError`].
    pub fn parse_entry(self, text: &str) -> Result<Address, AddressError> {
        let default_port = self.default_port;
        let given = || text.to_owned();
        if text.is_empty() {
            return Err(AddressError::Empty { default_port });
        }
        if text.contains('@') {
            return Err(AddressError::Login { default_port });
        }
        if let Some((_, rest)) = text.split_once("://") {
            let place = rest.split(['/', '?', '#']).next().unwrap_or_default();
            return Err(AddressError::Url { given: given(), write: self.suggest(place) });
        }
        if text.contains(|c: char| c == ';' || c.is_whitespace()) {
            let entries = text.split(|c: char| c == ';' || c.is_whitespace()).filter(|entry| !entry.is_empty());
            let write = entries.map(|entry| self.suggest(entry)).collect::<Vec<_>>().join(",");
            return Err(AddressError::Separator { given: given(), write });
        }
        if let Some((place, _)) = text.split_once(['/', '?', '#']) {
            return Err(AddressError::Path { given: given(), write: self.suggest(place) });
        }
        if let Some(write) = self.add_brackets(text) {
            return Err(AddressError::Brackets { given: given(), write });
        }
        let (host, rest) = self.split_host(text)?;
        self.parse_rest(text, host, rest)
    }

    /// Returns the text to write instead: the address that `text` holds, or an example.
    fn suggest(self, text: &str) -> String {
        match self.parse_entry(text) {
            Ok(address) => address.to_string(),
            Err(
                AddressError::Brackets { write, .. }
                | AddressError::NoPort { write, .. }
                | AddressError::Port { write, .. },
            ) => write,
            Err(_) => format!("host:{}", self.default_port),
        }
    }

    /// Adds the brackets to an IPv6 address without brackets; `None`: the text is no such address.
    fn add_brackets(self, text: &str) -> Option<String> {
        /// Least port that is taken for a port: a smaller number is more likely the last group of the address.
        const LEAST_PORT: u16 = 1_000;
        if text.starts_with('[') {
            return None;
        }
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse::<u16>().ok().filter(|port| *port >= LEAST_PORT);
        match port {
            Some(port) if is_ipv6(host) => Some(format!("[{host}]:{port}")),
            _ if is_ipv6(text) => Some(format!("[{text}]:{}", self.default_port)),
            _ => None,
        }
    }

    /// Splits an entry into the host and the text after the colon.
    fn split_host(self, text: &str) -> Result<(&str, Option<&str>), AddressError> {
        let default_port = self.default_port;
        if let Some(inside) = text.strip_prefix('[') {
            let wrong = || AddressError::NoIpv6 { given: text.to_owned(), default_port };
            let (address, after) = inside.split_once(']').ok_or_else(wrong)?;
            let rest = after.strip_prefix(':');
            if !is_ipv6(address) || (rest.is_none() && !after.is_empty()) {
                return Err(wrong());
            }
            return Ok((&text[..address.len() + 2], rest));
        }
        let (host, rest) = text.split_once(':').map_or((text, None), |(host, rest)| (host, Some(rest)));
        match is_host(host) {
            true => Ok((host, rest)),
            false => Err(AddressError::Host { given: text.to_owned(), default_port }),
        }
    }

    /// Reads the certificate name and the port from `rest`, the text after the host.
    fn parse_rest(self, text: &str, host: &str, rest: Option<&str>) -> Result<Address, AddressError> {
        let address = |certificate: Option<&str>, port| Address {
            host: host.to_owned(),
            certificate: certificate.map(str::to_owned),
            port,
        };
        let write = format!("{host}:{}", self.default_port);
        let bad_port = || AddressError::Port { given: text.to_owned(), write: write.clone() };
        let port = |port: &str| {
            let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
            port.parse::<u16>().ok().filter(|number| digits && *number > 0).ok_or_else(bad_port)
        };
        match rest {
            None if self.is_port_optional => Ok(address(None, self.default_port)),
            None => Err(AddressError::NoPort { given: text.to_owned(), write }),
            Some(rest) if !self.has_certificate_name => Ok(address(None, port(rest)?)),
            Some(rest) => match rest.split_once(':') {
                Some((name, last)) if is_host(name) => Ok(address(Some(name), port(last)?)),
                Some(_) => Err(bad_port()),
                None if rest.bytes().all(|byte| byte.is_ascii_digit()) => Ok(address(None, port(rest)?)),
                None if is_host(rest) => Ok(address(Some(rest), self.default_port)),
                None => Err(bad_port()),
            },
        }
    }
}

/// Returns `true` for an IPv6 address, with or without the zone of a link-local address.
fn is_ipv6(text: &str) -> bool {
    let (address, zone) = text.split_once('%').map_or((text, None), |(address, zone)| (address, Some(zone)));
    address.parse::<Ipv6Addr>().is_ok() && zone.is_none_or(is_host)
}

/// Returns `true` for a name that resolvers accept and for an IPv4 address. Four numbers that are no IPv4 address are
/// not a name.
fn is_host(text: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let numbers = text.split('.').filter(|part| part.bytes().all(|byte| byte.is_ascii_digit())).count();
    let is_address = text.parse::<Ipv4Addr>().is_ok();
    !text.is_empty() && text.bytes().all(legal) && (is_address || numbers != 4 || text.split('.').count() != 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BROKERS: AddressFormat =
        AddressFormat { default_port: 9_092, is_port_optional: false, has_certificate_name: false };
    const NODES: AddressFormat =
        AddressFormat { default_port: 3_000, is_port_optional: true, has_certificate_name: true };

    fn read(format: AddressFormat, text: &str) -> Result<String, String> {
        let addresses = format.parse_list(text).map_err(|error| error.to_string())?;
        Ok(addresses.iter().map(Address::to_string).collect::<Vec<_>>().join(","))
    }

    #[test]
    fn a_list_of_hosts_with_ports_is_read() {
        for text in ["a:1", "a.b-c_d:65535,10.0.0.1:2", "[::1]:9092", "[fe80::1%eth0]:9092", "1.2.3.4.example:9092"] {
            assert_eq!(read(BROKERS, text).as_deref(), Ok(text));
        }
        assert_eq!(read(BROKERS, " a:1 , b:2").as_deref(), Ok("a:1,b:2"));
        assert_eq!(
            read(NODES, "a,b:1,[::1],c:name:2,d:name,e:999:3").as_deref(),
            Ok("a:3000,b:1,[::1]:3000,c:name:2,d:name:3000,e:999:3")
        );
    }

    #[test]
    fn each_error_suggests_the_text_to_write() {
        for (text, write) in [
            ("", "has an empty entry: write host:9092"),
            ("a:1,", "has an empty entry"),
            (",", "has an empty entry"),
            ("::1:9092", "without brackets: write [::1]:9092"),
            ("::1", "without brackets: write [::1]:9092"),
            ("fe80::1:2", "without brackets: write [fe80::1:2]:9092"),
            ("kafka://host:9092", "is a URL: write host:9092"),
            ("http://host/", "is a URL: write host:9092"),
            ("http://::1:9093/x", "is a URL: write [::1]:9093"),
            ("h:1;h2:2", "not separated by commas: write h:1,h2:2"),
            ("h:1 h2:2", "not separated by commas: write h:1,h2:2"),
            ("h:1/topic", "has text after the port: write h:1"),
            ("h", "has no port: write h:9092"),
            ("[::1]", "has no port: write [::1]:9092"),
            ("h:", "is no number from 1 to 65535: write h:9092"),
            ("h:0", "is no number from 1 to 65535: write h:9092"),
            ("h:65536", "is no number from 1 to 65535: write h:9092"),
            ("h:+1", "is no number from 1 to 65535: write h:9092"),
            ("h:1:2", "is no number from 1 to 65535: write h:9092"),
            ("[::1]9092", "only an IPv6 address is in brackets"),
            ("[host]:9092", "only an IPv6 address is in brackets"),
            ("[::1:9092", "only an IPv6 address is in brackets"),
            ("h!:9092", "whose host is neither a name"),
            (":9092", "whose host is neither a name"),
            ("256.0.0.1:9092", "whose host is neither a name"),
            ("höst:9092", "whose host is neither a name"),
        ] {
            let error = read(BROKERS, text).unwrap_err();
            assert!(error.contains(write), "{text}: {error}");
        }
        for (text, write) in [
            ("127.0.0.1:70000", "from 1 to 65535: write 127.0.0.1:3000"),
            ("::1", "write [::1]:3000"),
            ("a:name:b", "from 1 to 65535: write a:3000"),
            ("a:b:c:1", "from 1 to 65535"),
        ] {
            let error = read(NODES, text).unwrap_err();
            assert!(error.contains(write), "{text}: {error}");
        }
        let secret = read(BROKERS, "user:hunter2@host:9092").unwrap_err();
        assert!(secret.contains("no user and password") && !secret.contains("hunter2"), "{secret}");
    }
}
