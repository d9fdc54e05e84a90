//! Opening a blob store by its URL.

use std::{
    fs, io,
    path::{Path as FilePath, PathBuf},
    sync::Arc,
};

use object_store::{ObjectStore, local::LocalFileSystem};

use super::{
    BlobError, BlobErrorKind, BlobOptions, BlobStore, BlobUrl, Bucket, SnapshotPlace,
    claim::{BlobLocation, MARK},
    directory::BlobDirectory,
    event_bodies::{BodyWrites, EventBodies, EventBodyLimits},
    objects::Objects,
};

/// Reasons why a blob store could not be opened; each message is one line, without a secret.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum OpenBlobError {
    /// The binary was built without the cargo feature of this scheme.
    #[error(
        "cannot open a blob store `{scheme}://`: this binary was built without it; build with `--features {feature}`"
    )]
    NotBuilt { scheme: &'static str, feature: &'static str },
    #[error("cannot use the blob directory {}: {}", .0.display(), .1)]
    Directory(PathBuf, io::Error),
    #[error("cannot configure the blob store: {0}")]
    Settings(String),
    #[error("cannot open the blob store: {0}")]
    Store(#[from] BlobError),
    /// The place has no mark, and none is written: by a reader, or for a store of records that has a blob store
    /// already.
    #[error(
        "no blob store at {place}: object `{MARK}` is missing; check that the place is mounted and is the right one"
    )]
    Missing { place: String },
    /// The place holds objects that are no blobs, so no blob store is made there.
    #[error("cannot make a blob store at {place}: the place is not empty and has no `{MARK}`; name an empty place")]
    NotEmpty { place: String },
    /// The blob store holds the bodies of another store of records.
    #[error(
        "cannot use the blob store at {place}: the blob store belongs to the store {found}, not to {store}; \
         give each store of records, also a rebuilt one, a blob store of its own"
    )]
    OtherStore { place: String, found: String, store: String },
    /// The server ignores the condition of a request, so that the last writer would win.
    #[error(
        "cannot keep blobs at {place}: a conditional {what} (`If-None-Match: *`) overwrote an existing object; \
         use a server that supports conditional requests"
    )]
    Overwrites { place: String, what: &'static str },
    /// A store that was opened to read is claimed for writing.
    #[error("cannot write to the blob store at {place}: the blob store is read-only or was opened to read")]
    ReadOnly { place: String },
    /// The mark is not one that this version writes.
    #[error("cannot use the blob store at {place}: unknown layout, `{MARK}` reads {found:?}")]
    Layout { place: String, found: String },
    #[error("opening the blob store panicked: {0}")]
    Panicked(String),
}

/// Login and retries for a blob store on the network.
#[derive(Clone, Default)]
pub struct BlobAccess {
    /// Access key id and secret access key. `None`: AWS's own variables (`AWS_*`), read by its client, or the
    /// machine's role.
    pub login: Option<(String, String)>,
    /// Number of times that the client repeats a failed request, with growing pauses, within the request's time limit.
    pub retries: usize,
}

impl std::fmt::Debug for BlobAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let access_key_id = self.login.as_ref().map(|(id, _)| id);
        f.debug_struct("BlobAccess").field("access_key_id", &access_key_id).field("retries", &self.retries).finish()
    }
}

/// Use for which a blob store is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// Writes, after [`BlobStore::claim`]. Creates a directory that does not exist.
    Write,
    /// Only reads: creates nothing, and every write is [`BlobErrorKind::Denied`]. A store behind a web server is always
    /// opened so.
    Read,
    /// Only checks the owner ([`BlobStore::check_claim`]); creates nothing.
    Check,
}

/// Opens the store that `url` names.
pub async fn open(
    url: &BlobUrl,
    intent: Intent,
    access: &BlobAccess,
    options: BlobOptions,
) -> Result<BlobStore, OpenBlobError> {
    match url {
        BlobUrl::Memory => Ok(BlobStore::new(Arc::new(object_store::memory::InMemory::new()), options)),
        BlobUrl::Directory(path) => open_directory(path, intent, options).await,
        BlobUrl::S3(bucket) => open_server(url, intent, web::s3(bucket, access, &options)?, options).await,
        BlobUrl::Web(url_text) => open_server(url, Intent::Read, web::http(url_text, access, &options)?, options).await,
    }
}

/// Opens the place that `url` names to read objects that other programs put there. Checks nothing: the place may still
/// be empty.
pub async fn open_objects(url: &BlobUrl, access: &BlobAccess, options: &BlobOptions) -> Result<Objects, OpenBlobError> {
    let store: Arc<dyn ObjectStore> = match url {
        BlobUrl::Memory => Arc::new(object_store::memory::InMemory::new()),
        BlobUrl::Directory(path) => Arc::new(open_files(path, Intent::Read).await?),
        BlobUrl::S3(bucket) => web::s3(bucket, access, options)?,
        BlobUrl::Web(url_text) => web::http(url_text, access, options)?,
    };
    Ok(Objects::new(store, options))
}

/// Opens the place that `url` names for the bodies of events, which producers write and instances read. To write, a
/// directory is created; nothing else is checked.
pub async fn open_event_bodies(
    url: &BlobUrl,
    intent: Intent,
    access: &BlobAccess,
    options: &BlobOptions,
    limits: EventBodyLimits,
) -> Result<EventBodies, OpenBlobError> {
    let (store, writes): (Arc<dyn ObjectStore>, _) = match url {
        BlobUrl::Memory => (Arc::new(object_store::memory::InMemory::new()), BodyWrites::Objects),
        BlobUrl::Directory(path) => {
            let files = open_files(path, intent).await?.with_fsync(true);
            (Arc::new(files), BodyWrites::Directory(path.clone()))
        }
        BlobUrl::S3(bucket) => (web::s3(bucket, access, options)?, BodyWrites::Objects),
        BlobUrl::Web(url_text) => (web::http(url_text, access, options)?, BodyWrites::ReadOnly),
    };
    Ok(EventBodies::with_writes(store, options, limits, writes))
}

/// Opens the place that `url` names for snapshots. To write, a directory is created; nothing else is checked.
pub async fn open_snapshots(
    url: &BlobUrl,
    intent: Intent,
    access: &BlobAccess,
    options: &BlobOptions,
) -> Result<SnapshotPlace, OpenBlobError> {
    let store: Arc<dyn ObjectStore> = match url {
        BlobUrl::Memory => Arc::new(object_store::memory::InMemory::new()),
        BlobUrl::Directory(path) if intent != Intent::Write && !path.is_dir() => {
            return Err(OpenBlobError::Missing { place: path.display().to_string() });
        }
        BlobUrl::Directory(path) => Arc::new(open_files(path, intent).await?.with_fsync(true)),
        BlobUrl::S3(bucket) => web::s3(bucket, access, options)?,
        BlobUrl::Web(url_text) => web::http(url_text, access, options)?,
    };
    Ok(SnapshotPlace::new(store, options))
}

/// Opens a directory of objects, and creates the directory to write.
async fn open_files(root: &FilePath, intent: Intent) -> Result<LocalFileSystem, OpenBlobError> {
    let root = root.to_owned();
    let opened = tokio::task::spawn_blocking(move || {
        if intent == Intent::Write {
            fs::create_dir_all(&root).map_err(|error| OpenBlobError::Directory(root.clone(), error))?;
        }
        LocalFileSystem::new_with_prefix(root).map_err(|error| OpenBlobError::Settings(error.to_string()))
    });
    opened.await.map_err(|panic| OpenBlobError::Panicked(panic.to_string()))?
}

async fn open_directory(root: &FilePath, intent: Intent, options: BlobOptions) -> Result<BlobStore, OpenBlobError> {
    let location = BlobLocation {
        url: Some(root.display().to_string()),
        directory: Some(BlobDirectory::at(root)),
        is_read_only: intent != Intent::Write,
    };
    let root = root.to_owned();
    let opened = tokio::task::spawn_blocking(move || {
        match intent {
            Intent::Write => {
                fs::create_dir_all(&root).map_err(|error| OpenBlobError::Directory(root.clone(), error))?
            }
            Intent::Read | Intent::Check if root.is_dir() => {}
            Intent::Read | Intent::Check => return Err(OpenBlobError::Missing { place: root.display().to_string() }),
        }
        LocalFileSystem::new_with_prefix(&root).map_err(|error| OpenBlobError::Settings(error.to_string()))
    });
    let files = opened.await.map_err(|panic| OpenBlobError::Panicked(panic.to_string()))??.with_fsync(true);
    // A file is written by one request and needs no parts.
    let options = BlobOptions { part_bytes: None, ..options };
    finish_opening(intent, BlobStore::at(Arc::new(files), options, location)).await
}

async fn open_server(
    url: &BlobUrl,
    intent: Intent,
    server: Arc<dyn ObjectStore>,
    options: BlobOptions,
) -> Result<BlobStore, OpenBlobError> {
    let location = BlobLocation { url: Some(url.to_string()), directory: None, is_read_only: intent != Intent::Write };
    finish_opening(intent, BlobStore::at(server, options, location)).await
}

async fn finish_opening(intent: Intent, store: BlobStore) -> Result<BlobStore, OpenBlobError> {
    if intent == Intent::Read {
        store.adopt_owner().await?;
    }
    Ok(store)
}

impl BlobUrl {
    /// Returns the cargo feature that this binary lacks to open the store; `None`: the binary can open the store.
    pub fn missing_feature(&self) -> Option<&'static str> {
        match self {
            BlobUrl::S3(_) if !cfg!(feature = "aws") => Some("aws"),
            BlobUrl::Web(_) if !cfg!(feature = "http") => Some("http"),
            BlobUrl::S3(_) | BlobUrl::Web(_) | BlobUrl::Memory | BlobUrl::Directory(_) => None,
        }
    }
}

impl OpenBlobError {
    /// Returns whether opening again can succeed although nothing was changed.
    pub fn may_be_retried(&self) -> bool {
        matches!(self, OpenBlobError::Store(error) if error.kind != BlobErrorKind::Denied && error.may_be_retried())
    }
}

#[cfg(any(feature = "aws", feature = "http"))]
mod client {
    use std::time::Duration;

    use object_store::{BackoffConfig, ClientOptions, RetryConfig};

    use super::{BlobAccess, BlobOptions};

    /// Longer than a server on the same continent takes to accept a connection.
    const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

    pub fn options(options: &BlobOptions, allow_http: bool) -> ClientOptions {
        // `reqwest` is built without a crypto provider of its own; a provider that is already installed serves as well.
        drop(rustls::crypto::ring::default_provider().install_default());
        // `Requests` limits the time of a request by its size and the time between two bytes of an answer. The
        // client's own read limit would also run while a body is sent.
        ClientOptions::new()
            .with_timeout_disabled()
            .with_connect_timeout(CONNECT_TIMEOUT.min(options.timeout))
            .with_allow_http(allow_http)
    }

    pub fn retries(access: &BlobAccess, options: &BlobOptions) -> RetryConfig {
        RetryConfig { backoff: BackoffConfig::default(), max_retries: access.retries, retry_timeout: options.timeout }
    }
}

mod web {
    use super::*;

    #[cfg(feature = "aws")]
    pub fn s3(
        bucket: &Bucket,
        access: &BlobAccess,
        options: &BlobOptions,
    ) -> Result<Arc<dyn ObjectStore>, OpenBlobError> {
        use object_store::{
            aws::{AmazonS3Builder, Checksum, S3ConditionalPut, S3CopyIfNotExists},
            prefix::PrefixStore,
        };
        let plain = bucket.endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
        // The one place besides `config` that reads the environment: AWS passes the roles of machines and of pods in
        // environment variables.
        let mut builder = match &access.login {
            Some((id, secret)) => AmazonS3Builder::new().with_access_key_id(id).with_secret_access_key(secret),
            None => AmazonS3Builder::from_env(),
        };
        if let Some(region) = &bucket.region {
            builder = builder.with_region(region);
        }
        if let Some(endpoint) = &bucket.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        let store = builder
            .with_bucket_name(&bucket.name)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_copy_if_not_exists(S3CopyIfNotExists::Multipart)
            .with_checksum_algorithm(Checksum::SHA256)
            .with_client_options(client::options(options, plain))
            .with_retry(client::retries(access, options))
            .build()
            .map_err(|error| OpenBlobError::Settings(error.to_string()))?;
        if bucket.prefix.is_empty() {
            return Ok(Arc::new(store));
        }
        Ok(Arc::new(PrefixStore::new(store, object_store::path::Path::from(bucket.prefix.as_str()))))
    }

    #[cfg(not(feature = "aws"))]
    pub fn s3(_: &Bucket, _: &BlobAccess, _: &BlobOptions) -> Result<Arc<dyn ObjectStore>, OpenBlobError> {
        Err(OpenBlobError::NotBuilt { scheme: "s3", feature: "aws" })
    }

    #[cfg(feature = "http")]
    pub fn http(url: &str, access: &BlobAccess, options: &BlobOptions) -> Result<Arc<dyn ObjectStore>, OpenBlobError> {
        let store = object_store::http::HttpBuilder::new()
            .with_url(url)
            .with_client_options(client::options(options, url.starts_with("http://")))
            .with_retry(client::retries(access, options))
            .build()
            .map_err(|error| OpenBlobError::Settings(error.to_string()))?;
        Ok(Arc::new(store))
    }

    #[cfg(not(feature = "http"))]
    pub fn http(_: &str, _: &BlobAccess, _: &BlobOptions) -> Result<Arc<dyn ObjectStore>, OpenBlobError> {
        Err(OpenBlobError::NotBuilt { scheme: "http", feature: "http" })
    }
}
