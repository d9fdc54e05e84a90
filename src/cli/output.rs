//! Standard output and standard error of every command: a reader that goes away (`| head`) ends no command.
//!
//! A command that changes the store or the log must finish and exit with the code of its result, even if the output has
//! no reader. So a closed pipe is no error of the command.

use std::io::{self, StderrLock, StdoutLock, Write};

use serde::Serialize;

/// Writes until the reader has closed the pipe, and discards everything after that.
#[derive(Debug)]
pub struct PipeWriter<W> {
    to: W,
    closed: bool,
}

/// Returns standard output, locked.
pub fn stdout() -> PipeWriter<StdoutLock<'static>> {
    PipeWriter::new(io::stdout().lock())
}

/// Returns standard error, locked.
pub fn stderr() -> PipeWriter<StderrLock<'static>> {
    PipeWriter::new(io::stderr().lock())
}

/// Returns whether a write failed because the reader has closed the pipe. A command that only prints may end early
/// then.
pub fn is_closed(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

/// Writes a value as one line of JSON.
pub fn write_json(value: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    writeln!(out)
}

impl<W: Write> PipeWriter<W> {
    /// Wraps a writer whose reader has not closed the pipe.
    pub fn new(to: W) -> Self {
        PipeWriter { to, closed: false }
    }

    fn unless_closed<T>(&mut self, discarded: T, write: impl FnOnce(&mut W) -> io::Result<T>) -> io::Result<T> {
        if self.closed {
            return Ok(discarded);
        }
        match write(&mut self.to) {
            Err(error) if is_closed(&error) => {
                self.closed = true;
                Ok(discarded)
            }
            written => written,
        }
    }
}

impl<W: Write> Write for PipeWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.unless_closed(bytes.len(), |to| to.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.unless_closed((), W::flush)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Writer that fails after a number of bytes: the reader has closed the pipe, or the disk is full.
    pub(crate) struct Failing {
        pub(crate) kind: io::ErrorKind,
        pub(crate) after: usize,
    }

    impl Write for Failing {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.after.min(bytes.len()) {
                0 => Err(self.kind.into()),
                taken => {
                    self.after -= taken;
                    Ok(taken)
                }
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_pipe_discards_and_a_full_disk_is_an_error() {
        let mut closed = PipeWriter::new(Failing { kind: io::ErrorKind::BrokenPipe, after: 3 });
        closed.write_all(b"abcdef").unwrap();
        closed.write_all(b"more").unwrap();
        closed.flush().unwrap();
        assert!(closed.closed && closed.to.after == 0);
        let mut full = PipeWriter::new(Failing { kind: io::ErrorKind::StorageFull, after: 3 });
        assert_eq!(full.write_all(b"abcdef").unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
