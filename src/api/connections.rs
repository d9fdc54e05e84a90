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
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::certificate::ServerCertificate;

/// Longest time for the handshake and for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections beyond the limit, which answer one request of a probe each.
const RESERVE: usize = 32;
/// Longest time for the handshake, and for the head, of a connection of the reserve.
const RESERVED_HEAD_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest time for a whole connection of the reserve.
const RESERVED_TIMEOUT: Duration = Duration::from_secs(10);
/// Time without an acknowledgement of sent bytes after which the peer counts as gone.
const PEER_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause after the operating system refuses a connection, as it does without file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Longest time for which open connections delay a shutdown.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Routes of a server.
pub struct Routers {
    /// All routes of the server.
    pub all: Router,
    /// Probes and metrics, on connections of the reserve. Every other request is told that too many connections are
    /// open.
    pub probes: Router,
}

/// Places of the connections: as many as permitted, and a reserve for probes. Clients that keep connections open, and
/// need no token for that, thus keep no probe out.
struct Places {
    usual: Arc<Semaphore>,
    reserve: Arc<Semaphore>,
}

/// Place of one connection; the drop gives the place back.
struct Place {
    is_reserved: bool,
    permit: Option<OwnedSemaphorePermit>,
}

impl Places {
    fn new(max_connections: usize) -> Self {
        Places { usual: Arc::new(Semaphore::new(max_connections)), reserve: Arc::new(Semaphore::new(RESERVE)) }
    }

    /// Waits for a place.
    async fn take(&self) -> Place {
        tokio::select! {
            biased;
            permit = self.usual.clone().acquire_owned() => Place { is_reserved: false, permit: permit.ok() },
            permit = self.reserve.clone().acquire_owned() => Place { is_reserved: true, permit: permit.ok() },
        }
    }

    /// Exchanges a place of the reserve for a usual place that has become free.
    fn exchange(&self, place: Place) -> Place {
        match self.usual.clone().try_acquire_owned() {
            Ok(permit) if place.is_reserved => Place { is_reserved: false, permit: Some(permit) },
            _ => place,
        }
    }
}

/// Serves connections until `shutdown` completes, then finishes open requests for at most 2 s. At most
/// `max_connections` are open at the same time, and a few more that answer one request of a probe each; the next
/// connection waits.
///
/// # Errors
/// The listener fails for another reason than a lack of resources.
pub async fn serve(
    listener: TcpListener,
    certificate: Option<&ServerCertificate>,
    max_connections: usize,
    routers: Routers,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let places = Places::new(max_connections);
    let graceful = GracefulShutdown::new();
    // Ends the handshakes and the streams that the server itself does not end.
    let closing = CancellationToken::new();
    let _close = closing.clone().drop_guard();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accept = async {
            let place = places.take().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
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
        let connection = Connection {
            stream,
            tls: certificate.map(ServerCertificate::acceptor),
            watcher: graceful.watcher(),
            place: places.exchange(place),
        };
        let routers = (routers.all.clone(), routers.probes.clone());
        let closing = closing.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = connection.serve(routers) => {}
                () = closing.cancelled() => {}
            }
        });
    }
    drop(listener);
    // A client that has sent half of a request, or that reads a stream, must not delay the shutdown for longer.
    drop(tokio::time::timeout(CLOSE_TIMEOUT, graceful.shutdown()).await);
    Ok(())
}

/// A connection that was accepted.
struct Connection {
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    watcher: Watcher,
    place: Place,
}

impl Connection {
    async fn serve(self, (all, probes): (Router, Router)) {
        let Connection { stream, tls, watcher, place } = self;
        if place.is_reserved {
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(RESERVED_HEAD_TIMEOUT).keep_alive(false);
            let served = serve_stream(stream, (tls, RESERVED_HEAD_TIMEOUT), &builder, probes, watcher);
            if tokio::time::timeout(RESERVED_TIMEOUT, served).await.is_err() {
                tracing::debug!("http: connection beyond the limit not served in time");
            }
        } else {
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
            serve_stream(stream, (tls, HEAD_TIMEOUT), &builder, all, watcher).await;
        }
        drop(place.permit);
    }
}

/// Serves a stream, after the handshake where the server has a certificate.
async fn serve_stream(
    stream: TcpStream,
    (tls, handshake_timeout): (Option<TlsAcceptor>, Duration),
    builder: &http1::Builder,
    router: Router,
    watcher: Watcher,
) {
    if let Err(error) = watch_peer(&stream) {
        tracing::debug!(%error, "http: cannot set the options of a connection");
    }
    match tls {
        None => serve_http(stream, builder, router, watcher).await,
        Some(tls) => match tokio::time::timeout(handshake_timeout, tls.accept(stream)).await {
            Ok(Ok(stream)) => serve_http(stream, builder, router, watcher).await,
            Ok(Err(error)) => tracing::debug!(%error, "http: handshake failed"),
            Err(_) => tracing::debug!("http: no handshake in time"),
        },
    }
}

async fn serve_http<S>(stream: S, builder: &http1::Builder, router: Router, watcher: Watcher)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
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
