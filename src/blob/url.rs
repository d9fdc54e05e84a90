//! Blob store URLs: the values of `externalStore` in the reference document.
//!
//! | URL | store |
//! |---|---|
//! | `memory://` | memory of the process |
//! | `file:///absolute/path` | a directory |
//! | `s3://bucket/prefix?region=…&endpoint=…` | S3 or a compatible server (cargo feature `aws`) |
//! | `http://host/prefix`, `https://…` | directory or bucket of a web server, read-only (cargo feature `http`) |
//!
//! In a path and in a parameter, `%` and two hexadecimal digits stand for a byte.

use std::{fmt, os::unix::ffi::OsStrExt, path::PathBuf, str::FromStr};

use url::{Host, Url};

use crate::text::percent::{
    parse_parameters, percent_decode, percent_decode_path, percent_encode, percent_encode_path,
};

/// Reasons why a URL names no blob store. No message repeats a whole URL, because a URL may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum BlobUrlError {
    #[error("cannot read a blob store URL without `://`; write `file:///path` or `s3://bucket/prefix`")]
    NotAUrl,
    #[error("unknown blob store `{}://`; known are memory, file, s3, http, https", .0.escape_debug())]
    UnknownScheme(String),
    #[error(
        "`blob://` is a server of the reference system, with a protocol of its own; name an object store, \
         for example `s3://bucket/prefix` or `file:///path`"
    )]
    ReferenceServer,
    /// The text after the scheme does not name a place of this store.
    #[error("blob store `{scheme}` {problem}")]
    Place { scheme: &'static str, problem: &'static str },
    #[error("blob store `{scheme}` needs a server such as `http://host:port` or `http://[::1]:port`: {error}")]
    Server { scheme: &'static str, error: url::ParseError },
    /// The store does not have this parameter, or the parameter is empty.
    #[error("blob store `{scheme}` has no parameter `{}`, or the parameter needs a value", key.escape_debug())]
    Parameter { scheme: &'static str, key: String },
    /// A `%` is not followed by two hexadecimal digits, or the decoded bytes are not UTF-8.
    #[error("a `%` in the blob store URL does not stand for a character; write `%25` for a percent sign")]
    Percent,
}

/// Place of a blob store. `Display` writes a URL that parses to an equal value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlobUrl {
    /// Blobs are in memory and end with the process.
    Memory,
    /// Blobs are files in this directory.
    Directory(PathBuf),
    /// Blobs are objects in a bucket.
    S3(Bucket),
    /// Blobs are behind a web server, read-only: the whole URL, without `/` at its end.
    Web(String),
}

/// A bucket of S3 or of a compatible server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// Name of the bucket.
    pub name: String,
    /// Prefix of the names of all blobs; may be empty.
    pub prefix: String,
    /// Region of the bucket; `None`: the region of AWS's own variables, or us-east-1.
    pub region: Option<String>,
    /// Server if it is not AWS's: `http://host:port` (not encrypted) or `https://host:port`.
    pub endpoint: Option<String>,
}

impl FromStr for BlobUrl {
    type Err = BlobUrlError;

    fn from_str(url: &str) -> Result<Self, BlobUrlError> {
        let (scheme, rest) = url.split_once("://").ok_or(BlobUrlError::NotAUrl)?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        match scheme {
            "memory" if matches!(place, "" | "/") => refuse_parameters("memory", query).map(|()| BlobUrl::Memory),
            "memory" => Err(BlobUrlError::Place { scheme: "memory", problem: "takes no path" }),
            "file" => parse_directory(place, query),
            "s3" => parse_bucket(place, query).map(BlobUrl::S3),
            "http" | "https" => parse_web(url, place, query),
            "blob" => Err(BlobUrlError::ReferenceServer),
            _ => Err(BlobUrlError::UnknownScheme(scheme.into())),
        }
    }
}

impl fmt::Display for BlobUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlobUrl::Memory => f.write_str("memory://"),
            BlobUrl::Directory(path) => write!(f, "file://{}", percent_encode_path(path)),
            BlobUrl::Web(url) => f.write_str(url),
            BlobUrl::S3(Bucket { name, prefix, region, endpoint }) => {
                write!(f, "s3://{name}")?;
                if !prefix.is_empty() {
                    write!(f, "/{}", percent_encode(prefix))?;
                }
                let parameters = [("region", region), ("endpoint", endpoint)];
                let given = parameters.into_iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
                for (number, (key, value)) in given.enumerate() {
                    write!(f, "{}{key}={}", if number == 0 { '?' } else { '&' }, percent_encode(value))?;
                }
                Ok(())
            }
        }
    }
}

fn parse_directory(place: &str, query: &str) -> Result<BlobUrl, BlobUrlError> {
    refuse_parameters("file", query)?;
    let path = percent_decode_path(place).ok_or(BlobUrlError::Percent)?;
    if !path.is_absolute() || path.file_name().is_none() || path.as_os_str().as_bytes().contains(&0) {
        return Err(BlobUrlError::Place { scheme: "file", problem: "needs an absolute path: `file:///path`" });
    }
    Ok(BlobUrl::Directory(path))
}

fn parse_bucket(place: &str, query: &str) -> Result<Bucket, BlobUrlError> {
    let (name, prefix) = place.split_once('/').unwrap_or((place, ""));
    let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if name.is_empty() || !name.chars().all(is_legal) {
        return Err(BlobUrlError::Place { scheme: "s3", problem: "needs a bucket: `s3://bucket/prefix`" });
    }
    let prefix = percent_decode(prefix).ok_or(BlobUrlError::Percent)?;
    let mut bucket =
        Bucket { name: name.into(), prefix: prefix.trim_matches('/').into(), region: None, endpoint: None };
    for (key, value) in parse_parameters(query).ok_or(BlobUrlError::Percent)? {
        match key.as_str() {
            "region" if !value.is_empty() => bucket.region = Some(value),
            "endpoint" if value.starts_with("http://") || value.starts_with("https://") => {
                check_server("s3", &value)?;
                bucket.endpoint = Some(value);
            }
            "endpoint" => {
                let problem = "needs an endpoint of the form `http://host:port`";
                return Err(BlobUrlError::Place { scheme: "s3", problem });
            }
            _ => return Err(BlobUrlError::Parameter { scheme: "s3", key }),
        }
    }
    Ok(bucket)
}

fn parse_web(url: &str, place: &str, query: &str) -> Result<BlobUrl, BlobUrlError> {
    refuse_parameters("http", query)?;
    if place.contains('@') {
        return Err(BlobUrlError::Place { scheme: "http", problem: "takes no user and password in its URL" });
    }
    if place.is_empty() || place.starts_with('/') {
        return Err(BlobUrlError::Place { scheme: "http", problem: "needs a host: `http://host/prefix`" });
    }
    check_server("http", url)?;
    Ok(BlobUrl::Web(url.trim_end_matches(['?', '/']).into()))
}

/// Refuses a server URL whose host or port cannot be connected to, or that carries a login.
fn check_server(scheme: &'static str, url: &str) -> Result<(), BlobUrlError> {
    let parsed = Url::parse(url).map_err(|error| BlobUrlError::Server { scheme, error })?;
    let problem = match parsed.host() {
        _ if !parsed.username().is_empty() || parsed.password().is_some() => {
            "takes no user and password in the URL of its server"
        }
        Some(Host::Domain(name)) if !name.is_ascii() => "needs a host of ASCII letters",
        _ if parsed.port() == Some(0) => "needs a port from 1 to 65535: `http://host:port`",
        _ => return Ok(()),
    };
    Err(BlobUrlError::Place { scheme, problem })
}

fn refuse_parameters(scheme: &'static str, query: &str) -> Result<(), BlobUrlError> {
    match parse_parameters(query).ok_or(BlobUrlError::Percent)?.into_iter().next() {
        Some((key, _)) => Err(BlobUrlError::Parameter { scheme, key }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsString, os::unix::ffi::OsStringExt};

    use super::*;

    fn s3(prefix: &str, region: Option<&str>, endpoint: Option<&str>) -> BlobUrl {
        let [region, endpoint] = [region, endpoint].map(|value| value.map(str::to_owned));
        BlobUrl::S3(Bucket { name: "bucket".into(), prefix: prefix.into(), region, endpoint })
    }

    #[test]
    fn urls_parse_to_stores_and_display_round_trips() {
        for (url, store) in [
            ("memory://", BlobUrl::Memory),
            ("memory:///", BlobUrl::Memory),
            ("file:///var/lib/blobs", BlobUrl::Directory("/var/lib/blobs".into())),
            ("file:///a%20b/%E2%82%BF%3f?", BlobUrl::Directory("/a b/₿?".into())),
            ("s3://bucket", s3("", None, None)),
            ("s3://bucket/", s3("", None, None)),
            ("s3://bucket/a/b%3F/?region=eu-1", s3("a/b?", Some("eu-1"), None)),
            ("s3://bucket?endpoint=http://127.0.0.1:9000", s3("", None, Some("http://127.0.0.1:9000"))),
            ("s3://bucket/p?region=x&endpoint=https%3A//h", s3("p", Some("x"), Some("https://h"))),
            ("http://host:8080/utxo/", BlobUrl::Web("http://host:8080/utxo".into())),
            ("https://host", BlobUrl::Web("https://host".into())),
            ("https://[::1]:8443/a", BlobUrl::Web("https://[::1]:8443/a".into())),
            ("file:///a%FF", BlobUrl::Directory(OsString::from_vec(b"/a\xff".to_vec()).into())),
        ] {
            assert_eq!(url.parse::<BlobUrl>().unwrap(), store, "{url}");
            assert_eq!(store.to_string().parse::<BlobUrl>().unwrap(), store, "{url}");
        }
    }

    #[test]
    fn invalid_urls_are_refused_in_one_line() {
        for (url, says) in [
            ("/var/lib/blobs", "://"),
            ("", "://"),
            ("blob://server:8080/utxo", "`blob://` is a server of the reference system"),
            ("gs\n://root:secret@bucket", "unknown blob store `gs\\n://`"),
            ("memory://somewhere", "takes no path"),
            ("memory://?size=3", "no parameter `size`"),
            ("file://relative/path", "absolute path"),
            ("file:///", "absolute path"),
            ("file:///a/%2e%2e", "absolute path"),
            ("file:///a%00", "absolute path"),
            ("file:///a?hashPrefix=2", "no parameter `hashPrefix`"),
            ("file:///a%zz", "does not stand for a character"),
            ("s3://", "needs a bucket"),
            ("s3://key:secret@bucket", "needs a bucket"),
            ("s3://bucket?region=", "no parameter `region`, or the parameter needs a value"),
            ("s3://bucket?endpoint=host:9000", "of the form `http://host:port`"),
            ("s3://bucket?secret=x", "no parameter `secret`"),
            ("s3://bucket?endpoint=http://h:70000", "invalid port number"),
            ("s3://bucket?endpoint=http://::1:9000", "needs a server such as `http://host:port` or"),
            ("s3://bucket?endpoint=http://root:secret@h", "no user and password"),
            ("http://host:70000/a", "invalid port number"),
            ("http://host:0/a", "from 1 to 65535"),
            ("http://::1/a", "needs a server such as `http://host:port` or"),
            ("http://[::1/a", "invalid IPv6 address"),
            ("http://ho st/a", "`http://[::1]:port`: "),
            ("http://", "needs a host"),
            ("http:///a", "needs a host"),
            ("https://root:secret@host/a", "no user and password"),
            ("http://host/a?token=x", "no parameter `token`"),
        ] {
            let error = url.parse::<BlobUrl>().unwrap_err().to_string();
            assert!(error.contains(says), "{url}: {error}");
            assert!(!error.contains('\n') && !error.contains("secret@"), "{url}: {error}");
        }
    }
}
