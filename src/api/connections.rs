//! Accepts connections, with or without TLS, and serves them until the shutdown.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

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

use super::{
    certificate::ServerCertificate,
    watched_stream::{READ_INTERVAL, WatchedStream},
};

/// Longest time for the handshake and for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a request's head that a connection reads at a time, and of an answer that wait in the connection besides
/// its last part. A head of twice as many bytes is refused.
const BUFFER_BYTES: usize = 32 << 10;
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

/// Places of the connections: as many as permitted, and a reserve for probes. Clients that keep connections open, or
/// open one after the other, and need no token for that, thus keep no probe out.
struct Places {
    usual: Arc<Semaphore>,
    reserve: Arc<Reserve>,
}

/// Place of one connection; the drop gives the place back.
enum Place {
    Usual { _permit: OwnedSemaphorePermit },
    Reserved(ReservedPlace),
}

impl Places {
    fn new(max_connections: usize) -> Self {
        Places { usual: Arc::new(Semaphore::new(max_connections)), reserve: Arc::default() }
    }

    /// Returns a usual place if one is free, or else a place of the reserve.
    fn take(&self) -> Place {
        match self.usual.clone().try_acquire_owned() {
            Ok(permit) => Place::Usual { _permit: permit },
            Err(_) => Place::Reserved(self.reserve.take()),
        }
    }
}

/// Connections of the reserve, in the order in which they were accepted.
#[derive(Default)]
struct Reserve(Mutex<ReservedConnections>);

#[derive(Default)]
struct ReservedConnections {
    accepted: u64,
    open: BTreeMap<u64, CancellationToken>,
}

/// Place of the reserve.
struct ReservedPlace {
    reserve: Arc<Reserve>,
    number: u64,
    /// Cancelled once a newer connection has taken the place.
    taken: CancellationToken,
}

impl Reserve {
    /// Returns a place. A full reserve closes its oldest connection. A probe sends its request at once, so that a
    /// connection that is older than 32 others has most likely sent none.
    fn take(self: &Arc<Self>) -> ReservedPlace {
        let mut connections = self.connections();
        if connections.open.len() >= RESERVE
            && let Some((_, oldest)) = connections.open.pop_first()
        {
            oldest.cancel();
        }
        let (number, taken) = (connections.accepted, CancellationToken::new());
        connections.accepted += 1;
        connections.open.insert(number, taken.clone());
        ReservedPlace { reserve: self.clone(), number, taken }
    }

    fn connections(&self) -> MutexGuard<'_, ReservedConnections> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ReservedPlace {
    fn drop(&mut self) {
        self.reserve.connections().open.remove(&self.number);
    }
}

/// Serves connections until `shutdown` completes, then finishes open requests for at most 2 s. At most
/// `max_connections` are open at the same time, and a few more that answer one request of a probe each; the next
/// connection takes the place of the oldest of these.
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
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
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
            place: places.take(),
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
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).max_buf_size(BUFFER_BYTES);
        match place {
            Place::Usual { .. } => {
                builder.header_read_timeout(HEAD_TIMEOUT);
                serve_stream(stream, (tls, HEAD_TIMEOUT), &builder, all, watcher).await;
            }
            Place::Reserved(place) => {
                builder.header_read_timeout(RESERVED_HEAD_TIMEOUT).keep_alive(false);
                let served = serve_stream(stream, (tls, RESERVED_HEAD_TIMEOUT), &builder, probes, watcher);
                tokio::select! {
                    served = tokio::time::timeout(RESERVED_TIMEOUT, served) => if served.is_err() {
                        tracing::debug!("http: connection beyond the limit not served in time");
                    },
                    () = place.taken.cancelled() => {
                        tracing::debug!("http: connection beyond the limit closed for a newer one");
                    }
                }
            }
        }
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
    let stream = WatchedStream::new(stream, READ_INTERVAL);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn is_taken(place: &Place) -> Option<bool> {
        match place {
            Place::Usual { .. } => None,
            Place::Reserved(place) => Some(place.taken.is_cancelled()),
        }
    }

    #[test]
    fn a_connection_beyond_the_reserve_takes_the_place_of_the_oldest() {
        let places = Places::new(1);
        let usual = places.take();
        let mut reserved: Vec<Place> = (0..RESERVE).map(|_| places.take()).collect();
        assert!(is_taken(&usual).is_none() && reserved.iter().all(|place| is_taken(place) == Some(false)));
        // A probe was answered: its place is free, and no other connection is closed.
        drop(reserved.pop());
        reserved.push(places.take());
        assert!(reserved.iter().all(|place| is_taken(place) == Some(false)));
        for closed in 0..reserved.len() {
            let newest = places.take();
            let taken = reserved.iter().map(is_taken).take_while(|taken| *taken == Some(true)).count();
            assert_eq!((taken, is_taken(&newest)), (closed + 1, Some(false)));
            reserved.push(newest);
        }
        drop((usual, reserved));
        assert!(is_taken(&places.take()).is_none() && places.reserve.connections().open.is_empty());
    }
}
