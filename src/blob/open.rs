//! Opening a blob store by its URL.

use std::{path::Path as FilePath, sync::Arc};

use bytes::Bytes;
use object_store::{ObjectStore, local::LocalFileSystem, path::Path};

use super::{
    BlobError, BlobErrorKind, BlobOptions, BlobStore, BlobUrl, Bucket,
    directory::{Directory, DirectoryError, LAYOUT, MARK},
    frame::Framed,
    store::Place,
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
    /// A directory that cannot be used.
    #[error("blob store: {0}")]
    Directory(#[from] DirectoryError),
    /// Settings that cannot be.
    #[error("blob store: {0}")]
    Settings(String),
    /// The store does not answer, or not well.
    #[error("blob store: {0}")]
    Store(#[from] BlobError),
    /// There is no blob store, and whoever only reads makes none.
    #[error("there is no blob store at {place}: `{MARK}` is not there")]
    Missing {
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
    /// Somebody who writes: a directory or prefix that is empty becomes a blob store.
    Write,
    /// Somebody who only reads: creates nothing, and every write is [`BlobErrorKind::Denied`]. So is every store behind a web server
    /// opened.
    Read,
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
        BlobUrl::S3(bucket) => marked(url, intent, web::s3(bucket, access, &options)?, options).await,
        BlobUrl::Web(url_text) => marked(url, Intent::Read, web::http(url_text, access, &options)?, options).await,
    }
}

async fn open_directory(path: &FilePath, intent: Intent, options: BlobOptions) -> Result<BlobStore, OpenBlobError> {
    let place = path.display().to_string();
    let root = path.to_owned();
    let opened = tokio::task::spawn_blocking(move || {
        if intent == Intent::Read && !root.join(MARK).exists() {
            return Err(OpenBlobError::Missing { place: root.display().to_string() });
        }
        let directory = Directory::set_up(&root)?;
        let files = LocalFileSystem::new_with_prefix(&root);
        let files = files.map_err(|error| OpenBlobError::Settings(error.to_string()))?.with_fsync(true);
        Ok((directory, files))
    });
    let (directory, files) = opened.await.map_err(|panic| OpenBlobError::Panicked(panic.to_string()))??;
    // One request: a file needs no parts.
    let options = BlobOptions { part_bytes: None, ..options };
    let place_of =
        Place { mark: Some(Path::from(MARK)), directory: Some(directory), read_only: intent == Intent::Read };
    let store = BlobStore::at(Arc::new(files), options, place_of);
    check_mark(&store, intent, place).await?;
    Ok(store)
}

async fn marked(
    url: &BlobUrl,
    intent: Intent,
    store: Arc<dyn ObjectStore>,
    options: BlobOptions,
) -> Result<BlobStore, OpenBlobError> {
    let place = Place { mark: Some(Path::from(MARK)), directory: None, read_only: intent == Intent::Read };
    let store = BlobStore::at(store, options, place);
    check_mark(&store, intent, url.to_string()).await?;
    Ok(store)
}

async fn check_mark(store: &BlobStore, intent: Intent, place: String) -> Result<(), OpenBlobError> {
    let requests = store.requests();
    let path = Path::from(MARK);
    if intent == Intent::Write && requests.size(&path).await?.is_none() {
        let mark = Framed { content: Bytes::from_static(LAYOUT.as_bytes()), checksum: Bytes::new() };
        requests.create(&path, &mark).await?;
    }
    let Some(mark) = requests.read(&path).await? else { return Err(OpenBlobError::Missing { place }) };
    let found = mark.all().await?;
    if found != LAYOUT.as_bytes() {
        let found = String::from_utf8_lossy(&found[..found.len().min(80)]).into_owned();
        return Err(OpenBlobError::Layout { place, found });
    }
    Ok(())
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
        // How long a request may take depends on its size: the caller sees to it.
        ClientOptions::new()
            .with_timeout_disabled()
            .with_connect_timeout(CONNECT.min(options.timeout))
            .with_read_timeout(options.timeout)
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
        Ok(Arc::new(PrefixStore::new(store, Path::from(bucket.prefix.as_str()))))
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
