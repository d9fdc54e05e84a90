//! What ends a long command from outside: signals, or a parent that goes away.

use std::{io, process, thread};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The exit code of a command that was told to stop at once: a second signal, or a parent that is gone. Whatever it was
/// doing is as after a kill: nothing is lost, and what was not committed is done again.
pub const STOPPED_AT_ONCE: i32 = 3;

/// Cancels `shutdown` at the first SIGTERM or SIGINT; at the second the process ends with [`STOPPED_AT_ONCE`].
///
/// # Errors
/// The signals cannot be heard.
pub fn cancel_on_signals(shutdown: CancellationToken) -> io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        either(&mut terminate, &mut interrupt).await;
        tracing::info!("stopping; a second signal stops at once");
        shutdown.cancel();
        either(&mut terminate, &mut interrupt).await;
        tracing::warn!("stopped at once by a second signal");
        process::exit(STOPPED_AT_ONCE);
    });
    Ok(())
}

async fn either(one: &mut Signal, other: &mut Signal) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}

/// Ends the process with [`STOPPED_AT_ONCE`] when standard input ends: whoever holds its other end is gone, however it
/// went.
///
/// # Errors
/// The thread that listens cannot be started.
pub fn exit_with_stdin() -> io::Result<()> {
    // A thread of its own: a runtime would wait at its end for a read that nothing interrupts.
    thread::Builder::new().name("stdin".to_owned()).spawn(|| {
        let ended = io::copy(&mut io::stdin().lock(), &mut io::sink());
        tracing::warn!(?ended, "standard input has ended: stopped at once");
        process::exit(STOPPED_AT_ONCE);
    })?;
    Ok(())
}
