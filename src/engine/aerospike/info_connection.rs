//! Info commands over a connection of their own, to one host. A node that is in no cluster answers them, while the
//! client library connects to members only.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Mutex,
};

/// Version and type of an info message.
const HEADER: [u8; 2] = [2, 1];
/// Longest answer that is read; `statistics` has some 15 KB.
const MAX_ANSWER_BYTES: u64 = 1 << 20;

/// A host, with the connection to the host while there is one.
pub struct InfoConnection {
    host: (String, u16),
    stream: Mutex<Option<TcpStream>>,
}

impl InfoConnection {
    pub fn new(host: (String, u16)) -> Self {
        InfoConnection { host, stream: Mutex::new(None) }
    }

    /// Returns the name and the port of the host.
    pub fn host(&self) -> &(String, u16) {
        &self.host
    }

    /// Sends all commands and returns the answers in the order of the commands; an unknown command has an empty answer.
    /// A connection that fails, or does not answer in time, is closed: a late answer belongs to no later question.
    ///
    /// # Errors
    /// The host cannot be reached, does not answer within `timeout`, or answers with something else.
    pub async fn ask(&self, commands: &[String], timeout: Duration) -> io::Result<Vec<String>> {
        let mut kept = self.stream.lock().await;
        let stream = kept.take();
        let exchange = async {
            let mut stream = match stream {
                Some(stream) => stream,
                None => {
                    let stream = TcpStream::connect((self.host.0.as_str(), self.host.1)).await?;
                    stream.set_nodelay(true)?;
                    stream
                }
            };
            stream.write_all(&request(commands)).await?;
            let mut header = [0; 8];
            stream.read_exact(&mut header).await?;
            let mut text = vec![0; answer_length(header)?];
            stream.read_exact(&mut text).await?;
            Ok::<_, io::Error>((stream, text))
        };
        let (stream, text) = tokio::time::timeout(timeout, exchange).await.unwrap_or_else(|_| {
            Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {timeout:?}")))
        })?;
        *kept = Some(stream);
        Ok(answers(commands, &String::from_utf8_lossy(&text)))
    }
}

fn request(commands: &[String]) -> Vec<u8> {
    let text: String = commands.iter().flat_map(|command| [command.as_str(), "\n"]).collect();
    let mut header = (text.len() as u64).to_be_bytes();
    header[..2].copy_from_slice(&HEADER);
    [&header, text.as_bytes()].concat()
}

fn answer_length(mut header: [u8; 8]) -> io::Result<usize> {
    let is_info = header[..2] == HEADER;
    header[..2].fill(0);
    let length = u64::from_be_bytes(header);
    if is_info && length <= MAX_ANSWER_BYTES {
        return Ok(length as usize);
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "the answer is no info message of an Aerospike server"))
}

/// Finds the answer to each command in the lines `command TAB answer`.
fn answers(commands: &[String], text: &str) -> Vec<String> {
    let find = |command: &String| {
        let mut lines = text.lines().filter_map(|line| line.split_once('\t'));
        lines.find(|(asked, _)| asked == command).map(|(_, answer)| answer.to_owned()).unwrap_or_default()
    };
    commands.iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn commands<const N: usize>(commands: [&str; N]) -> Vec<String> {
        commands.map(str::to_owned).into()
    }

    #[test]
    fn requests_and_answers_have_the_form_of_the_info_protocol() {
        assert_eq!(request(&commands(["node", "build"])), b"\x02\x01\0\0\0\0\0\x0bnode\nbuild\n");
        assert_eq!(answer_length([2, 1, 0, 0, 0, 0, 1, 2]).unwrap(), 258);
        for header in [[2, 3, 0, 0, 0, 0, 0, 1], [2, 1, 0, 1, 0, 0, 0, 0], [0; 8]] {
            assert_eq!(answer_length(header).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        assert_eq!(answers(&commands(["b", "c", "a"]), "a\t1\nb\tx=1;y=2\n"), ["x=1;y=2", "", "1"]);
    }

    #[tokio::test]
    async fn a_host_without_an_answer_ends_the_question_and_its_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connection = InfoConnection::new((address.ip().to_string(), address.port()));
        let asked = commands(["node"]);
        let (error, silent) =
            tokio::join!(connection.ask(&asked, Duration::from_millis(50)), async { listener.accept().await.unwrap() });
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(silent);
        let answer = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            // The second question comes over the same connection.
            for _ in 0..2 {
                let mut question = [0; 13];
                stream.read_exact(&mut question).await.unwrap();
                stream.write_all(b"\x02\x01\0\0\0\0\0\x08node\tA1\n").await.unwrap();
            }
            stream
        };
        let (stream, _) = tokio::join!(answer, async {
            for _ in 0..2 {
                assert_eq!(connection.ask(&asked, Duration::from_secs(10)).await.unwrap(), ["A1"]);
            }
        });
        drop(stream);
        assert!(connection.ask(&asked, Duration::from_secs(10)).await.is_err(), "the host closed the connection");
    }
}
