//! [`WatchedStream`]: a connection that ends when its client receives an answer too slowly.
//!
//! The operating system takes megabytes of an answer at once, and only the acknowledged bytes show what a client reads.
//! An answer keeps its memory and its permits until its last byte is sent, so that a client that reads byte by byte
//! would keep them for days.

use std::{
    io,
    os::fd::AsRawFd,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::Sleep,
};

/// Time in which a client has to receive [`LEAST_BYTES`], while the connection waits for the client.
pub const READ_INTERVAL: Duration = Duration::from_secs(30);
/// Least bytes that a client receives in each interval. A receiver tells of free room in steps of a segment, which has
/// 64 KiB on a loopback device.
const LEAST_BYTES: u64 = 4 << 10;

/// A stream whose writes fail when the peer receives too little in an interval.
pub struct WatchedStream {
    stream: TcpStream,
    /// Bytes that the operating system has taken.
    written: u64,
    interval: Duration,
    /// Present interval; `None`: no byte waits for the peer.
    open: Option<OpenInterval>,
}

struct OpenInterval {
    /// Bytes that the peer had received at the beginning.
    received: u64,
    end: Pin<Box<Sleep>>,
}

impl WatchedStream {
    /// Takes a stream whose peer receives at least 4 KiB in each `interval` in which bytes wait for the peer.
    pub fn new(stream: TcpStream, interval: Duration) -> Self {
        WatchedStream { stream, written: 0, interval, open: None }
    }

    /// Takes the result of a write, and lets a write wait no longer than the peer receives enough bytes.
    fn watch(&mut self, context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(written)) => self.written += written as u64,
            Poll::Ready(Err(_)) => {}
            Poll::Pending => loop {
                let received = self.written.saturating_sub(unreceived_bytes(&self.stream));
                let open = self
                    .open
                    .get_or_insert_with(|| OpenInterval { received, end: Box::pin(tokio::time::sleep(self.interval)) });
                ready!(open.end.as_mut().poll(context));
                if received.saturating_sub(open.received) < LEAST_BYTES {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads too slowly")));
                }
                self.open = None;
            },
        }
        written
    }
}

/// Returns the bytes that the peer has not acknowledged; 0 where the operating system does not tell.
#[cfg(target_os = "linux")]
fn unreceived_bytes(stream: &TcpStream) -> u64 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open as long as the stream, and `TIOCOUTQ` writes one `int`.
    let told = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if told == 0 { u64::try_from(bytes).unwrap_or(0) } else { 0 }
}

/// Returns the bytes that the peer has not acknowledged; 0 where the operating system does not tell.
#[cfg(not(target_os = "linux"))]
fn unreceived_bytes(_: &TcpStream) -> u64 {
    0
}

impl AsyncRead for WatchedStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// The operating system has taken every byte: nothing waits for the peer.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.open = None;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    const INTERVAL: Duration = Duration::from_millis(200);

    /// Writes without an end to a client that reads `piece` bytes every 10 ms, for at most `limit`. Returns the error.
    async fn write_to(piece: usize, limit: Duration) -> Option<io::Error> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut server = WatchedStream::new(listener.accept().await.unwrap().0, INTERVAL);
        let reading = tokio::spawn(async move {
            let mut bytes = vec![0; piece];
            while client.read_exact(&mut bytes).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        let writing = async {
            loop {
                if let Err(error) = server.write_all(&[7; 1 << 16]).await {
                    return error;
                }
            }
        };
        let failed = tokio::time::timeout(limit, writing).await;
        reading.abort();
        failed.ok()
    }

    #[tokio::test]
    async fn a_client_that_reads_byte_by_byte_is_disconnected_and_a_slow_one_is_not() {
        let begun = Instant::now();
        let failed = write_to(1, Duration::from_secs(30)).await.expect("the connection ends");
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= INTERVAL);
        let failed = write_to(64 << 10, INTERVAL * 10).await;
        assert!(failed.is_none(), "{failed:?}");
    }

    /// A stream of outcomes waits for hours for the next event.
    #[tokio::test]
    async fn a_connection_without_a_byte_to_send_stays() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut server = WatchedStream::new(listener.accept().await.unwrap().0, INTERVAL);
        for _ in 0..2 {
            let written = async {
                server.write_all(&vec![7; 16 << 20]).await.unwrap();
                server.flush().await.unwrap();
                tokio::time::sleep(INTERVAL * 2).await;
            };
            let read = async { client.read_exact(&mut vec![0; 16 << 20]).await.unwrap() };
            tokio::join!(written, read);
        }
    }
}
