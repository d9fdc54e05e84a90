//! Accepts connections, with or without TLS, and serves them until the shutdown.

use std::{io, sync::Arc, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::{GracefulShutdown, Watcher},
    service::TowerToHyperService,
};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::certificate::ServerCertificate;

/// Longest time for the handshake and for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Time without an acknowledgement of sent bytes after which the peer counts as gone.
const PEER_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause after the operating system refuses a connection, as it does without file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Longest time for which open connections delay a shutdown.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves connections until `shutdown` completes, then finishes open requests for at most 2 s. At most
/// `max_connections` are open at the same time; the next connection waits.
///
/// # Errors
/// The listener fails for another reason than a lack of resources.
pub async fn serve(
    listener: TcpListener,
    certificate: Option<&ServerCertificate>,
    max_connections: usize,
    router: Router,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let slots = Arc::new(Semaphore::new(max_connections));
    let graceful = GracefulShutdown::new();
    // Ends the handshakes and the streams that the server itself does not end.
    let closing = CancellationToken::new();
    let _close = closing.clone().drop_guard();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accept = async {
            let slot = slots.clone().acquire_owned().await;
            (slot, listener.accept().await)
        };
        let (slot, accepted) = tokio::select! {
            accepted = accept => accepted,
            () = &mut shutdown => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) if is_temporary(&error) => {
                tracing::warn!(%error, "http: cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        let (router, tls, watcher, closing) =
            (router.clone(), certificate.map(ServerCertificate::acceptor), graceful.watcher(), closing.clone());
        tokio::spawn(async move {
            let _slot = slot;
            tokio::select! {
                () = serve_connection(stream, tls, router, watcher) => {}
                () = closing.cancelled() => {}
            }
        });
    }
    drop(listener);
    // A client that has sent half of a request, or that reads a stream, must not delay the shutdown for longer.
    drop(tokio::time::timeout(CLOSE_TIMEOUT, graceful.shutdown()).await);
    Ok(())
}

async fn serve_connection(stream: TcpStream, tls: Option<TlsAcceptor>, router: Router, watcher: Watcher) {
    if let Err(error) = watch_peer(&stream) {
        tracing::debug!(%error, "http: cannot set the options of a connection");
    }
    match tls {
        None => serve_http(stream, router, watcher).await,
        Some(tls) => match tokio::time::timeout(HEAD_TIMEOUT, tls.accept(stream)).await {
            Ok(Ok(stream)) => serve_http(stream, router, watcher).await,
            Ok(Err(error)) => tracing::debug!(%error, "http: handshake failed"),
            Err(_) => tracing::debug!("http: no handshake in time"),
        },
    }
}

async fn serve_http<S>(stream: S, router: Router, watcher: Watcher)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "http: connection failed");
    }
}

/// Lets the operating system find peers that are gone: a half-open connection would keep its slot for hours.
fn watch_peer(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(PEER_TIMEOUT).with_interval(PEER_TIMEOUT / 4))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(PEER_TIMEOUT))?;
    Ok(())
}

/// Returns whether the listener may accept the next connection: the peer has gone, or file descriptors are short.
fn is_temporary(error: &io::Error) -> bool {
    let is_lost = matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    );
    is_lost || matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}
