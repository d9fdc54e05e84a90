//! How a command that works for long is watched: metrics, health and state over HTTP, and the watchdog.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use tokio_util::sync::CancellationToken;

use super::{Failure, opening::Watched, watchdog};
use crate::api::{ApiError, Server};

/// Where a command is watched.
#[derive(Debug, Default)]
pub struct Place {
    /// Where metrics, health and state are served; `None`: nowhere.
    pub listen: Option<SocketAddr>,
    /// Whether operators may ask something of the loops there.
    pub control: bool,
    /// The address is written there, once it is known.
    pub address_file: Option<PathBuf>,
    /// What to do where the address cannot be had, if the setting is not all that says where.
    pub otherwise: Option<&'static str>,
}

/// Works, and answers over HTTP until that has ended; the watchdog looks at its loops.
///
/// # Errors
/// Those of the work, which come first; or the address cannot be had.
pub async fn serve<T>(
    place: &Place,
    watched: &Watched,
    shutdown: CancellationToken,
    work: impl Future<Output = Result<T, Failure>> + Unpin,
) -> Result<T, Failure> {
    watchdog::start(watched.health.liveness())?;
    let Some(listen) = place.listen else { return work.await };
    let server = Server::bind(listen, watched.metrics.clone(), watched.health.clone()).await;
    let server = server.map_err(|error| place.is_not_had(error))?.controls(place.control);
    tracing::info!(address = %server.address(), "metrics and health are served");
    if let Some(path) = &place.address_file {
        write_address(path, server.address())
            .map_err(|error| Failure::new(format!("cannot write {}: {error}", path.display())))?;
    }
    let closing = CancellationToken::new();
    let serving = tokio::spawn({
        let closing = closing.clone();
        async move {
            let served = server.serve(closing.cancelled_owned()).await;
            // What nobody can watch does not go on.
            shutdown.cancel();
            served
        }
    });
    let worked = work.await;
    closing.cancel();
    let served = serving.await;
    let worked = worked?;
    served??;
    Ok(worked)
}

impl Place {
    fn is_not_had(&self, error: ApiError) -> Failure {
        match self.otherwise {
            None => error.into(),
            Some(otherwise) => Failure::new(format!("{}: {otherwise}", Failure::from(error).told())),
        }
    }
}

/// Whoever reads the file finds a whole address or none.
fn write_address(path: &Path, address: SocketAddr) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, format!("{address}\n"))?;
    fs::rename(new, path)
}
