//! Runs long commands with metrics, health and state over HTTP, and with the watchdog.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio_util::sync::CancellationToken;

use super::{Failure, opening::Monitoring, watchdog};
#[cfg(feature = "vault")]
use crate::{
    api::v1::{LogAccess, VaultContext},
    telemetry::VaultMetrics,
    vault::Rescan,
};
use crate::{
    api::{
        ApiError, Server, ServerSettings,
        v1::{ApiContext, StoreSource},
    },
    broker::Broker,
    config::{Config, Http},
};

/// HTTP options of a long command.
pub struct HttpOptions {
    /// Address of metrics, health and state; `None`: no HTTP server.
    pub listen: Option<SocketAddr>,
    /// Settings of the server (`http.*`).
    pub settings: Http,
    /// Store of the deep health check; `None`: the process has none.
    pub store: Option<StoreSource>,
    /// Parts of the API; `None`: the API is not served.
    pub api: Option<ApiSource>,
    /// Parts of the vault; `None`: the process has no vault.
    #[cfg(feature = "vault")]
    pub vault: Option<VaultSource>,
    /// File for the bound address, written once the server listens.
    pub address_file: Option<PathBuf>,
    /// Remedy for an address that cannot be bound, where options override the setting.
    pub bind_hint: Option<&'static str>,
}

/// Store and log of the API.
pub struct ApiSource {
    /// Configuration of the process.
    pub config: Config,
    /// Source of the store.
    pub store: StoreSource,
    /// The log; `None`: only questions about the store are answered.
    pub broker: Option<Arc<dyn Broker>>,
}

/// Vault and log of the routes under `/v1/vault`.
#[cfg(feature = "vault")]
pub struct VaultSource {
    /// Configuration of the process.
    pub config: Config,
    /// The vault, and what begins rescans.
    pub rescan: Arc<Rescan>,
    /// The log to which transactions are published.
    pub broker: Arc<dyn Broker>,
    /// Metrics of the vault.
    pub metrics: VaultMetrics,
}

/// Runs `work` to its end, with the HTTP server and the watchdog of the process.
///
/// # Errors
/// `work` fails, or the server cannot bind or fails; an error of `work` has precedence.
pub async fn serve<T>(
    http: &HttpOptions,
    monitoring: &Monitoring,
    shutdown: CancellationToken,
    work: impl Future<Output = Result<T, Failure>> + Unpin,
) -> Result<T, Failure> {
    watchdog::start(monitoring.health.liveness())?;
    let Some(listen) = http.listen else { return work.await };
    let settings = ServerSettings::load(&http.settings)?;
    let (access, limits) = (settings.access.clone(), settings.limits.clone());
    #[cfg(feature = "vault")]
    let vault_settings = settings.clone();
    let server = Server::bind(listen, settings, monitoring.metrics.clone(), monitoring.health.clone()).await;
    let mut server = server.map_err(|error| http.bind_error(error))?;
    if let Some(store) = &http.store {
        server = server.with_store(store.clone());
    }
    if let Some(ApiSource { config, store, broker }) = &http.api {
        server = server.with_api(ApiContext::new(config, limits, access, store.clone(), broker.clone()));
    }
    #[cfg(feature = "vault")]
    if let Some(VaultSource { config, rescan, broker, metrics }) = &http.vault {
        let log = LogAccess::new(broker.clone(), config);
        let (access, limits) = (vault_settings.access.clone(), vault_settings.limits.clone());
        server = server.with_vault(VaultContext::new(limits, access, rescan.clone(), log, metrics.clone()));
    }
    tracing::info!(address = %server.address(), "http: serving metrics and health");
    if let Some(path) = &http.address_file {
        write_address(path, server.address())
            .map_err(|error| Failure::new(format!("cannot write {}: {error}", path.display())))?;
    }
    let closing = CancellationToken::new();
    let serving = tokio::spawn({
        let closing = closing.clone();
        async move {
            let served = server.serve(closing.cancelled_owned()).await;
            // A command without metrics and health cannot be monitored, so it stops.
            shutdown.cancel();
            served
        }
    });
    let result = work.await;
    closing.cancel();
    let served = serving.await;
    let result = result?;
    served??;
    Ok(result)
}

impl HttpOptions {
    /// Serves metrics, health and state with these settings, and nothing else.
    pub fn of(settings: Http) -> Self {
        HttpOptions {
            listen: Some(settings.listen),
            settings,
            store: None,
            api: None,
            #[cfg(feature = "vault")]
            vault: None,
            address_file: None,
            bind_hint: None,
        }
    }

    fn bind_error(&self, error: ApiError) -> Failure {
        match self.bind_hint {
            None => error.into(),
            Some(bind_hint) => Failure::new(format!("{}: {bind_hint}", Failure::from(error).message())),
        }
    }
}

/// Writes the address atomically: readers of the file see a complete address or no file.
fn write_address(path: &Path, address: SocketAddr) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, format!("{address}\n"))?;
    fs::rename(new, path)
}
