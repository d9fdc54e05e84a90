//! [`ServerCertificate`]: certificate and key of the server, read again when their files change.
//!
//! A connection keeps the certificate with which it began. Files that cannot be used leave the last certificate in use:
//! the log and the metric `utxo_http_certificate_refused` say so.

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio_rustls::TlsAcceptor;

use super::access::{FileVersion, version_of};
use crate::telemetry::Metrics;

/// Pause between two looks at the files.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Reasons why the certificate of the server cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or holds no certificate or key.
    #[error("cannot read {path} ({setting}): {error}")]
    Pem {
        /// Setting that names the file.
        setting: &'static str,
        /// Path of the file.
        path: String,
        /// Reason without a part of the key.
        error: String,
    },
    /// Certificate and key do not belong together.
    #[error("cannot use http.tls_certificate_file with http.tls_key_file: {0}")]
    Pair(#[from] rustls::Error),
}

/// Certificate and key of the server, as their files had them last.
pub struct ServerCertificate {
    certificate_file: PathBuf,
    key_file: PathBuf,
    state: Mutex<LoadedCertificate>,
}

struct LoadedCertificate {
    acceptor: TlsAcceptor,
    /// Versions of the files that were read or refused last.
    versions: [Option<FileVersion>; 2],
}

impl ServerCertificate {
    /// Reads certificate and key.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn load(certificate_file: &Path, key_file: &Path) -> Result<Self, TlsError> {
        // A file that changes while it is read has another version at the next look.
        let versions = versions_of(certificate_file, key_file);
        let acceptor = load_tls(certificate_file, key_file)?;
        let state = Mutex::new(LoadedCertificate { acceptor, versions });
        Ok(ServerCertificate { certificate_file: certificate_file.to_owned(), key_file: key_file.to_owned(), state })
    }

    /// Returns the acceptor of new connections.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).acceptor.clone()
    }

    /// Looks at the files every second, for the life of the server.
    pub async fn watch(self: Arc<Self>, metrics: &Metrics) -> Infallible {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let certificate = self.clone();
            // The files can be on a slow file system.
            let looked = tokio::task::spawn_blocking(move || certificate.look()).await;
            match looked.ok().flatten() {
                None => {}
                Some(Ok(())) => {
                    metrics.http_certificate_refused.set(0);
                    tracing::info!(path = %self.certificate_file.display(), "http: certificate read again");
                }
                Some(Err(error)) => {
                    metrics.http_certificate_refused.set(1);
                    tracing::error!(%error, "http: certificate refused; the last certificate stays in use");
                }
            }
        }
    }

    /// Reads the files again if one has changed. `None`: no change.
    fn look(&self) -> Option<Result<(), TlsError>> {
        let versions = versions_of(&self.certificate_file, &self.key_file);
        if self.state.lock().unwrap_or_else(PoisonError::into_inner).versions == versions {
            return None;
        }
        let loaded = load_tls(&self.certificate_file, &self.key_file);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.versions = versions;
        Some(loaded.map(|acceptor| state.acceptor = acceptor))
    }
}

/// Returns the versions of both files; `None`: the file cannot be looked at.
fn versions_of(certificate_file: &Path, key_file: &Path) -> [Option<FileVersion>; 2] {
    [certificate_file, key_file].map(|path| version_of(path).ok())
}

fn load_tls(certificate_file: &Path, key_file: &Path) -> Result<TlsAcceptor, TlsError> {
    let fail = |setting, path: &Path, error: String| TlsError::Pem { setting, path: path.display().to_string(), error };
    let certificate_error = |error: String| fail("http.tls_certificate_file", certificate_file, error);
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificate_file)
        .and_then(Iterator::collect)
        .map_err(|error| certificate_error(error.to_string()))?;
    if chain.is_empty() {
        return Err(certificate_error("the file holds no certificate".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_file(key_file)
        .map_err(|error| fail("http.tls_key_file", key_file, error.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
