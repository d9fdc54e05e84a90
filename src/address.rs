//! Addresses that operators write: `host:port`, and lists of them.
//!
//! | written | read as |
//! |---|---|
//! | `host:9092`, `10.0.0.1:9092`, `[::1]:9092` | a host and a port |
//! | `host` | a host; only where there is a default port |
//! | `host:name:3000`, `host:name` | a host and the name in its certificate; only where nodes have one |
//!
//! A refusal says what to write instead.

use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr},
};

/// The form of an entry of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// The usual port, for what a refusal advises to write.
    pub usual_port: u16,
    /// Whether an entry without a port has the usual one.
    pub port_is_optional: bool,
    /// Whether an entry may have the name of its certificate between host and port.
    pub names_certificates: bool,
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// A name, an IPv4 address, or an IPv6 address in brackets.
    pub host: String,
    /// The name that its certificate bears, where it is another.
    pub certificate: Option<String>,
    /// The port.
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

/// Why text is no address. Each completes the sentence "`key` …", and says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Nothing between two commas, or nothing at all.
    #[error("has an empty entry: write host:{usual_port}, several separated by commas")]
    Empty {
        /// The usual port.
        usual_port: u16,
    },
    /// A user in front of a host. What was given is not repeated: it may hold a password.
    #[error("has an `@`, and no user and password belong there: write host:{usual_port}")]
    Login {
        /// The usual port.
        usual_port: u16,
    },
    /// A URL instead of an address.
    #[error("has {given:?}, which is a URL: write {write}")]
    Url {
        /// The value that was given.
        given: String,
        /// The text to write instead.
        write: String,
    },
    /// Entries that are not separated by commas.
    #[error("has {given:?}, whose entries are not separated by commas: write {write}")]
    Separator {
        /// The value that was given.
        given: String,
        /// The text to write instead.
        write: String,
    },
    /// A path behind an address.
    #[error("has {given:?}, which goes on behind the port: write {write}")]
    Path {
        /// The value that was given.
        given: String,
        /// The text to write instead.
        write: String,
    },
    /// An IPv6 address whose end cannot be told from a port.
    #[error("has {given:?}, an IPv6 address without brackets: write {write}")]
    Brackets {
        /// The value that was given.
        given: String,
        /// The text to write instead.
        write: String,
    },
    /// Brackets around what is no IPv6 address, or something behind them that is no port.
    #[error("has {given:?}, and only an IPv6 address is in brackets: write [::1]:{usual_port}")]
    NoIpv6 {
        /// The value that was given.
        given: String,
        /// The usual port.
        usual_port: u16,
    },
    /// A host that can be none.
    #[error(
        "has {given:?}, whose host is neither a name (letters, digits, `.`, `-`, `_`) nor an IP address: write host:{usual_port}"
    )]
    Host {
        /// The value that was given.
        given: String,
        /// The usual port.
        usual_port: u16,
    },
    /// No port.
    #[error("has {given:?}, which has no port: write {write}")]
    NoPort {
        /// The value that was given.
        given: String,
        /// The text to write instead.
        write: String,
    },
    /// A port that is none.
    #[error("has {given:?}, whose port is no number from 1 to 65535: write {write}")]
    Port {
        /// The value that was given.
        given: String,
        /// The text to write instead.
        write: String,
    },
}

impl Form {
    /// Reads a list of addresses, separated by commas; blanks around an entry do not count.
    ///
    /// # Errors
    /// The first entry that is none.
    pub fn list(self, text: &str) -> Result<Vec<Address>, AddressError> {
        text.split(',').map(|entry| self.entry(entry.trim())).collect()
    }

    /// Reads one address.
    ///
    /// # Errors
    /// See [`AddressError`].
    pub fn entry(self, text: &str) -> Result<Address, AddressError> {
        let usual_port = self.usual_port;
        let given = || text.to_owned();
        if text.is_empty() {
            return Err(AddressError::Empty { usual_port });
        }
        if text.contains('@') {
            return Err(AddressError::Login { usual_port });
        }
        if let Some((_, rest)) = text.split_once("://") {
            let place = rest.split(['/', '?', '#']).next().unwrap_or_default();
            return Err(AddressError::Url { given: given(), write: self.advice(place) });
        }
        if text.contains(|c: char| c == ';' || c.is_whitespace()) {
            let entries = text.split(|c: char| c == ';' || c.is_whitespace()).filter(|entry| !entry.is_empty());
            let write = entries.map(|entry| self.advice(entry)).collect::<Vec<_>>().join(",");
            return Err(AddressError::Separator { given: given(), write });
        }
        if let Some((place, _)) = text.split_once(['/', '?', '#']) {
            return Err(AddressError::Path { given: given(), write: self.advice(place) });
        }
        if let Some(write) = self.bracketed(text) {
            return Err(AddressError::Brackets { given: given(), write });
        }
        let (host, rest) = self.host(text)?;
        self.behind(text, host, rest)
    }

    /// The text to write instead: the entry if it is one, and an example if it is none.
    fn advice(self, text: &str) -> String {
        match self.entry(text) {
            Ok(address) => address.to_string(),
            Err(
                AddressError::Brackets { write, .. }
                | AddressError::NoPort { write, .. }
                | AddressError::Port { write, .. },
            ) => write,
            Err(_) => format!("host:{}", self.usual_port),
        }
    }

    /// An IPv6 address as it has to be written, where the text is one without brackets.
    fn bracketed(self, text: &str) -> Option<String> {
        /// A last group of an address looks like a port, too.
        const LEAST_USUAL: u16 = 1_000;
        if text.starts_with('[') {
            return None;
        }
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse::<u16>().ok().filter(|port| *port >= LEAST_USUAL);
        match port {
            Some(port) if is_ipv6(host) => Some(format!("[{host}]:{port}")),
            _ if is_ipv6(text) => Some(format!("[{text}]:{}", self.usual_port)),
            _ => None,
        }
    }

    /// The host at the beginning of an entry, and what is behind it.
    fn host(self, text: &str) -> Result<(&str, Option<&str>), AddressError> {
        let usual_port = self.usual_port;
        if let Some(inside) = text.strip_prefix('[') {
            let wrong = || AddressError::NoIpv6 { given: text.to_owned(), usual_port };
            let (address, behind) = inside.split_once(']').ok_or_else(wrong)?;
            let rest = behind.strip_prefix(':');
            if !is_ipv6(address) || (rest.is_none() && !behind.is_empty()) {
                return Err(wrong());
            }
            return Ok((&text[..address.len() + 2], rest));
        }
        let (host, rest) = text.split_once(':').map_or((text, None), |(host, rest)| (host, Some(rest)));
        match is_host(host) {
            true => Ok((host, rest)),
            false => Err(AddressError::Host { given: text.to_owned(), usual_port }),
        }
    }

    fn behind(self, text: &str, host: &str, rest: Option<&str>) -> Result<Address, AddressError> {
        let address = |certificate: Option<&str>, port| Address {
            host: host.to_owned(),
            certificate: certificate.map(str::to_owned),
            port,
        };
        let write = format!("{host}:{}", self.usual_port);
        let bad_port = || AddressError::Port { given: text.to_owned(), write: write.clone() };
        let port = |port: &str| {
            let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
            port.parse::<u16>().ok().filter(|number| digits && *number > 0).ok_or_else(bad_port)
        };
        match rest {
            None if self.port_is_optional => Ok(address(None, self.usual_port)),
            None => Err(AddressError::NoPort { given: text.to_owned(), write }),
            Some(rest) if !self.names_certificates => Ok(address(None, port(rest)?)),
            Some(rest) => match rest.split_once(':') {
                Some((name, last)) if is_host(name) => Ok(address(Some(name), port(last)?)),
                Some(_) => Err(bad_port()),
                None if rest.bytes().all(|byte| byte.is_ascii_digit()) => Ok(address(None, port(rest)?)),
                None if is_host(rest) => Ok(address(Some(rest), self.usual_port)),
                None => Err(bad_port()),
            },
        }
    }
}

/// An IPv6 address, with or without the zone of a link-local one.
fn is_ipv6(text: &str) -> bool {
    let (address, zone) = text.split_once('%').map_or((text, None), |(address, zone)| (address, Some(zone)));
    address.parse::<Ipv6Addr>().is_ok() && zone.is_none_or(is_host)
}

/// A name as resolvers take it, or an IPv4 address; four numbers that are no address are neither.
fn is_host(text: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let numbers = text.split('.').filter(|part| part.bytes().all(|byte| byte.is_ascii_digit())).count();
    let is_address = text.parse::<Ipv4Addr>().is_ok();
    !text.is_empty() && text.bytes().all(legal) && (is_address || numbers != 4 || text.split('.').count() != 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BROKERS: Form = Form { usual_port: 9_092, port_is_optional: false, names_certificates: false };
    const NODES: Form = Form { usual_port: 3_000, port_is_optional: true, names_certificates: true };

    fn read(form: Form, text: &str) -> Result<String, String> {
        let list = form.list(text).map_err(|error| error.to_string())?;
        Ok(list.iter().map(Address::to_string).collect::<Vec<_>>().join(","))
    }

    #[test]
    fn hosts_with_ports_are_read_as_they_are() {
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
    fn each_refusal_says_what_to_write() {
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
            ("h:1/topic", "goes on behind the port: write h:1"),
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
