//! `utxo-store run` as a child process: started, watched over HTTP, killed or stopped.

use std::{
    fs::{self, File},
    io,
    path::PathBuf,
    process::Stdio,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::{Child, ChildStdin, Command},
    time::timeout,
};

use super::directory::Directory;
use crate::cli::Failure;

/// Longer than any drain: the child bounds its own.
const STOP_PATIENCE: Duration = Duration::from_secs(60);
const HTTP_PATIENCE: Duration = Duration::from_secs(2);

/// A running instance.
pub struct Instance {
    child: Child,
    /// Held open: waiting for a child would close it first, and the child would stop at once instead of in order.
    _stdin: Option<ChildStdin>,
    address_file: PathBuf,
    log_file: PathBuf,
    address: Option<String>,
}

/// Metrics as they were at one moment.
#[derive(Debug, Clone, Default)]
pub struct Scrape(String);

impl Instance {
    /// Starts process `number`. It ends when this one does, however this one ends: its standard input ends with it.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(directory: &Directory, number: u32) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::new(format!("cannot start `utxo-store run`: {error}"));
        let (address_file, log_file) = (directory.address_file(number), directory.log_file(number));
        // A directory that is used again has one from last time.
        match fs::remove_file(&address_file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["run", "--exit-with-stdin", "--http-address-file"]).arg(&address_file);
        command.arg("--config").arg(directory.config_file());
        // The environment goes before the file: what is configured for another instance must not reach this one.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("UTXO_STORE__")) {
            command.env_remove(name);
        }
        let log = File::create(&log_file).map_err(failed)?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        Ok(Instance { _stdin: child.stdin.take(), child, address_file, log_file, address: None })
    }

    /// Process id of the instance; 0 after its end.
    pub fn process_id(&self) -> u32 {
        self.child.id().unwrap_or(0)
    }

    /// Its metrics; `None` while it does not answer.
    pub async fn scrape(&mut self) -> Option<Scrape> {
        self.get("/metrics").await.map(Scrape)
    }

    /// Why it is not ready; empty when it is, or does not answer.
    pub async fn complaints(&mut self) -> String {
        self.get("/health/ready").await.map(|body| body.trim().to_owned()).unwrap_or_default()
    }

    /// Fails if it has ended by itself.
    ///
    /// # Errors
    /// That, with its last words.
    pub fn check_running(&mut self) -> Result<(), Failure> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                Err(Failure::new(format!("`utxo-store run` has ended with {status}: {}", self.last_words())))
            }
        }
    }

    /// SIGKILL: it has no chance to do anything more.
    ///
    /// # Errors
    /// It cannot be killed.
    pub async fn kill(mut self) -> io::Result<()> {
        self.child.kill().await
    }

    /// SIGTERM: it drains, commits, and must exit with 0.
    ///
    /// # Errors
    /// It does not.
    pub async fn stop(mut self) -> Result<(), Failure> {
        if let Some(id) = self.child.id().and_then(|id| i32::try_from(id).ok()) {
            // SAFETY: no memory is involved. The process is our child and has not been waited for, so that the id cannot
            // be anybody else's.
            if unsafe { libc::kill(id, libc::SIGTERM) } != 0 {
                return Err(io::Error::last_os_error().into());
            }
        }
        match timeout(STOP_PATIENCE, self.child.wait()).await {
            Ok(status) if status.as_ref().is_ok_and(|status| status.success()) => Ok(()),
            Ok(status) => {
                Err(Failure::new(format!("`utxo-store run` did not stop in order: {}: {}", status?, self.last_words())))
            }
            Err(_) => Err(Failure::new("`utxo-store run` does not stop at SIGTERM")),
        }
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(&self.log_file).unwrap_or_default();
        log.lines().last().unwrap_or("it said nothing").trim_start_matches("error: ").to_owned()
    }

    async fn get(&mut self, path: &str) -> Option<String> {
        if self.address.is_none() {
            self.address = Some(fs::read_to_string(&self.address_file).ok()?.trim().to_owned());
        }
        let answer = timeout(HTTP_PATIENCE, get(self.address.as_deref()?, path)).await.ok()?.ok()?;
        answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
    }
}

/// The whole answer. Our own server says how long a body is and never sends it in chunks.
async fn get(address: &str, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

impl Scrape {
    /// Sum over all labels of a metric; 0 where there is none.
    pub fn sum(&self, name: &str) -> u64 {
        let values = self.0.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let value = match rest.strip_prefix('{') {
                Some(labels) => labels.rsplit_once('}')?.1,
                None => rest.strip_prefix(' ')?,
            };
            value.trim().parse::<f64>().ok()
        });
        values.sum::<f64>() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_summed_over_its_labels_and_not_with_its_neighbours() {
        let text = "# HELP a b\n# TYPE a counter\na{x=\"}\"} 3\na{x=\"2\"} 4\na_total 100\nab 9\nb 7\n";
        let scrape = Scrape(text.to_owned());
        assert_eq!((scrape.sum("a"), scrape.sum("b"), scrape.sum("c")), (7, 7, 0));
    }
}
