//! The end of a demo that is kept: an instance on the demo's store answers over HTTP until a signal.

use std::{
    io::{self, Write},
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use super::{child::ChildInstance, directory::DemoDirectory};
use crate::{
    cli::{CliResult, Failure, UsageError, output, signals},
    config::Config,
};

/// Name of the instance in the directory.
const NAME: &str = "kept";
const POLL: Duration = Duration::from_millis(100);

/// Checks, before a demo of many seconds, that an instance can serve the API at this address.
///
/// # Errors
/// The address is not a loopback address, or is in use.
pub fn check_address(listen: SocketAddr) -> CliResult {
    let mut settings = Config::default().http;
    (settings.api, settings.listen) = (true, listen);
    settings.check_access().map_err(|problem| UsageError(format!("--keep {listen}: http.api {problem}")))?;
    TcpListener::bind(listen)
        .map_err(|error| Failure::new(format!("--keep {listen}: cannot listen: {error}; give another address")))?;
    Ok(())
}

/// Starts an instance with the API at `listen`, prints what to ask, and stops the instance at SIGINT or SIGTERM.
///
/// # Errors
/// The instance does not start, ends by itself, or does not stop gracefully.
pub async fn serve_until_signal(directory: &DemoDirectory, listen: SocketAddr) -> CliResult {
    let shutdown = CancellationToken::new();
    signals::cancel_on_signals(shutdown.clone())?;
    let listen = listen.to_string();
    let settings = [("UTXO_STORE__HTTP__LISTEN", listen.as_str()), ("UTXO_STORE__HTTP__API", "true")];
    let mut instance = ChildInstance::start(directory, NAME, &settings)?;
    let mut has_shown = false;
    while !shutdown.is_cancelled() {
        instance.check_running()?;
        if !has_shown && let Some(address) = instance.find_ready_address().await {
            show_questions(&address, directory)?;
            has_shown = true;
        }
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            () = shutdown.cancelled() => {}
        }
    }
    instance.stop().await
}

fn show_questions(address: &str, directory: &DemoDirectory) -> io::Result<()> {
    let mut out = output::stdout();
    writeln!(out, "\nAn instance answers until Ctrl-C. docs/operating/ask.md has more to ask.")?;
    writeln!(out, "  page      http://{address}/")?;
    writeln!(out, "  chain     curl http://{address}/v1/chain")?;
    writeln!(out, "  unmined   curl 'http://{address}/v1/transactions?unmined=true'")?;
    writeln!(out, "  outcomes  curl -N 'http://{address}/v1/outcomes?from=earliest'")?;
    writeln!(out, "  log       {}", directory.log_file(NAME).display())
}
