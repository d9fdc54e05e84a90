//! Opening a blob store by its URL.

use std::{
    fs, io,
    path::{Path as FilePath, PathBuf},
    sync::Arc,
};

use object_store::{ObjectStore, local::LocalFileSystem};

use super::{
    BlobError, BlobErrorKind, BlobOptions, BlobStore, BlobUrl, Bucket, claim::MARK, directory::Directory,
    objects::Objects, store::Place,
};

/// Why a blob store could not be opened; each is one line, without a secret.
#[derive(Debug, thiserror::Error)]
pub enum OpenBlobError {
    /// This binary was built without it.
    #[error("blob store `{scheme}://` is not in this binary: build it with `--features {feature}`")]
    NotBuilt {
        /// Which store.
        scheme: &'static str,
        /// The cargo feature.
        feature: &'static str,
    },
    /// A directory that the system does not let us use.
    #[error("blob store: {}: {}", .0.display(), .1)]
    Directory(PathBuf, io::Error),
    /// Settings that cannot be.
    #[error("blob store: {0}")]
    Settings(String),
    /// The store does not answer, or not well.
    #[error("blob store: {0}")]
    Store(#[from] BlobError),
    /// There is no blob store, and none is made: by who only reads, or for a store of records that has had one before.
    #[error("there is no blob store at {place}: `{MARK}` is not there; is the place mounted, and the right one?")]
    Missing {
        /// Where.
        place: String,
    },
    /// No blob store is made where there is something else.
    #[error("{place} is neither empty nor a blob store (there is no `{MARK}` in it)")]
    NotEmpty {
        /// Where.
        place: String,
    },
    /// It holds the bodies of other records.
    #[error(
        "the blob store at {place} is that of the store {found}, not of {store}: each store of records, a rebuilt one too, needs \
         a blob store of its own"
    )]
    OtherStore {
        /// Where.
        place: String,
        /// Whose it is, in hex.
        found: String,
        /// Who wants it, in hex.
        store: String,
    },
    /// The server does not look at the condition of a request, and would let the last one win.
    #[error(
        "{place} cannot hold blobs: asked to {what} only if there is no such object (`If-None-Match: *`), it overwrites what is there"
    )]
    Overwrites {
        /// Where.
        place: String,
        /// What it was asked for.
        what: &'static str,
    },
    /// Opened to read, and now to be written.
    #[error("the blob store at {place} was opened to read, or can only be read")]
    ReadOnly {
        /// Where.
        place: String,
    },
    /// Another layout.
    #[error("the blob store at {place} is of another layout: its `{MARK}` says {found:?}")]
    Layout {
        /// Where.
        place: String,
        /// What its mark says.
        found: String,
    },
    /// Opening ended with a panic.
    #[error("opening the blob store ended unexpectedly: {0}")]
    Panicked(String),
}

/// How a store on the network is reached.
#[derive(Clone, Default)]
pub struct BlobAccess {
    /// Access key id and secret access key. `None`: AWS's own variables (`AWS_*`), read by its client, or the machine's role.
    pub login: Option<(String, String)>,
    /// So often a request is repeated by itself, with growing pauses, within the time that it may take.
    pub retries: usize,
}

impl std::fmt::Debug for BlobAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let access_key_id = self.login.as_ref().map(|(id, _)| id);
        f.debug_struct("BlobAccess").field("access_key_id", &access_key_id).field("retries", &self.retries).finish()
    }
}

/// Who opens it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// Somebody who writes, once it is his by [`BlobStore::claim`]. A directory is made where there is none.
    Write,
    /// Somebody who only reads: creates nothing, and every write is [`BlobErrorKind::Denied`]. So is every store behind a web server
    /// opened.
    Read,
    /// Somebody who looks whose it is ([`BlobStore::look`]), and creates nothing either.
    Look,
}

/// Opens the store that `url` names.
///
/// # Errors
/// See [`OpenBlobError`].
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

/// Opens the place that `url` names to read what others put there. Nothing is looked for: it may be empty yet.
///
/// # Errors
/// See [`OpenBlobError`].
pub async fn open_objects(url: &BlobUrl, access: &BlobAccess, options: &BlobOptions) -> Result<Objects, OpenBlobError> {
    let store: Arc<dyn ObjectStore> = match url {
        BlobUrl::Memory => Arc::new(object_store::memory::InMemory::new()),
        BlobUrl::Directory(path) => {
            let root = path.clone();
            let opened = tokio::task::spawn_blocking(move || LocalFileSystem::new_with_prefix(root));
            let opened = opened.await.map_err(|panic| OpenBlobError::Panicked(panic.to_string()))?;
            Arc::new(opened.map_err(|error| OpenBlobError::Settings(error.to_string()))?)
        }
        BlobUrl::S3(bucket) => web::s3(bucket, access, options)?,
        BlobUrl::Web(url_text) => web::http(url_text, access, options)?,
    };
    Ok(Objects::new(store, options))
}

async fn open_directory(root: &FilePath, intent: Intent, options: BlobOptions) -> Result<BlobStore, OpenBlobError> {
    let place = Place {
        url: Some(root.display().to_string()),
        directory: Some(Directory::at(root)),
        read_only: intent != Intent::Write,
    };
    let root = root.to_owned();
    let opened = tokio::task::spawn_blocking(move || {
        match intent {
            Intent::Write => {
                fs::create_dir_all(&root).map_err(|error| OpenBlobError::Directory(root.clone(), error))?
            }
            Intent::Read | Intent::Look if root.is_dir() => {}
            Intent::Read | Intent::Look => return Err(OpenBlobError::Missing { place: root.display().to_string() }),
        }
        LocalFileSystem::new_with_prefix(&root).map_err(|error| OpenBlobError::Settings(error.to_string()))
    });
    let files = opened.await.map_err(|panic| OpenBlobError::Panicked(panic.to_string()))??.with_fsync(true);
    // One request: a file needs no parts.
    let options = BlobOptions { part_bytes: None, ..options };
    opened_for(intent, BlobStore::at(Arc::new(files), options, place)).await
}

async fn open_server(
    url: &BlobUrl,
    intent: Intent,
    server: Arc<dyn ObjectStore>,
    options: BlobOptions,
) -> Result<BlobStore, OpenBlobError> {
    let place = Place { url: Some(url.to_string()), directory: None, read_only: intent != Intent::Write };
    opened_for(intent, BlobStore::at(server, options, place)).await
}

async fn opened_for(intent: Intent, store: BlobStore) -> Result<BlobStore, OpenBlobError> {
    if intent == Intent::Read {
        store.adopt().await?;
    }
    Ok(store)
}

impl BlobUrl {
    /// The cargo feature without which this binary cannot open the store; `None`: it can.
    pub fn missing_feature(&self) -> Option<&'static str> {
        match self {
            BlobUrl::S3(_) if !cfg!(feature = "aws") => Some("aws"),
            BlobUrl::Web(_) if !cfg!(feature = "http") => Some("http"),
            BlobUrl::S3(_) | BlobUrl::Web(_) | BlobUrl::Memory | BlobUrl::Directory(_) => None,
        }
    }
}

impl OpenBlobError {
    /// Whether opening it again can help without anybody's doing.
    pub fn may_be_repeated(&self) -> bool {
        matches!(self, OpenBlobError::Store(error) if error.kind != BlobErrorKind::Denied && error.may_be_repeated())
    }
}

#[cfg(any(feature = "aws", feature = "http"))]
mod client {
    use std::time::Duration;

    use object_store::{BackoffConfig, ClientOptions, RetryConfig};

    use super::{BlobAccess, BlobOptions};

    /// Longer than any server on the same continent takes.
    const CONNECT: Duration = Duration::from_secs(5);

    pub fn options(options: &BlobOptions, allow_http: bool) -> ClientOptions {
        // `reqwest` is built without a provider of its own; whoever came first is fine.
        drop(rustls::crypto::ring::default_provider().install_default());
        // How long a request may take depends on its size, and between the bytes of an answer: `Requests` sees to both. The client's own
        // limit on reads runs while a body is sent, too.
        ClientOptions::new()
            .with_timeout_disabled()
            .with_connect_timeout(CONNECT.min(options.timeout))
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
        // The one place besides `config` that reads the environment: roles of machines and of pods are told in variables of AWS's own.
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
