//! Stops a long command: at signals, or when the parent process ends.

use std::{io, process, thread};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Exit code of a command that was stopped at once, by a second signal or the end of its parent. As after a kill no
/// data is lost: events whose offsets are not committed are read again.
pub const STOPPED_AT_ONCE: i32 = 3;

/// Cancels `shutdown` at the first SIGTERM or SIGINT. The second signal ends the process with [`STOPPED_AT_ONCE`].
///
/// # Errors
/// The signal handlers cannot be installed.
pub fn cancel_on_signals(shutdown: CancellationToken) -> io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        wait_for_either(&mut terminate, &mut interrupt).await;
        tracing::info!("signals: stopping; a second signal exits at once");
        shutdown.cancel();
        wait_for_either(&mut terminate, &mut interrupt).await;
        tracing::warn!(exit_code = STOPPED_AT_ONCE, "signals: second signal, exiting at once");
        process::exit(STOPPED_AT_ONCE);
    });
    Ok(())
}

async fn wait_for_either(first: &mut Signal, second: &mut Signal) {
    tokio::select! {
        _ = first.recv() => {}
        _ = second.recv() => {}
    }
}

/// Ends the process with [`STOPPED_AT_ONCE`] when standard input ends, since the parent process has ended then.
///
/// # Errors
/// The thread that reads standard input cannot be started.
pub fn exit_with_stdin() -> io::Result<()> {
    // A separate thread, since a runtime would wait at its end for a read that cannot be interrupted.
    thread::Builder::new().name("stdin".to_owned()).spawn(|| {
        let ended = io::copy(&mut io::stdin().lock(), &mut io::sink());
        tracing::warn!(?ended, exit_code = STOPPED_AT_ONCE, "signals: end of standard input, exiting at once");
        process::exit(STOPPED_AT_ONCE);
    })?;
    Ok(())
}
