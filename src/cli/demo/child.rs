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
    time::{Instant, sleep, timeout},
};

use super::directory::DemoDirectory;
use crate::cli::Failure;

/// Longest wait for the end of a child, above the limit that the child sets for its drain.
const STOP_PATIENCE: Duration = Duration::from_secs(60);
const HTTP_PATIENCE: Duration = Duration::from_secs(2);
const LISTENING_POLL: Duration = Duration::from_millis(10);

/// A running child process of `utxo-store run`.
pub struct ChildInstance {
    child: Child,
    /// Kept open: waiting for the child would close standard input, and the child would end without a drain.
    _stdin: Option<ChildStdin>,
    address_file: PathBuf,
    log_file: PathBuf,
    address: Option<String>,
}

/// Text of the metrics of an instance at one moment.
#[derive(Debug, Clone, Default)]
pub struct Scrape(String);

impl ChildInstance {
    /// Starts a process whose files in the directory have `name`; `settings` are environment variables that override
    /// the configuration. The child ends with this process, whatever ends this process, because its standard input ends
    /// then.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start(directory: &DemoDirectory, name: &str, settings: &[(&str, &str)]) -> Result<Self, Failure> {
        Self::start_command(directory, (name, &["run"]), settings)
    }

    /// Starts a process of another command.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start_command(
        directory: &DemoDirectory,
        (name, subcommand): (&str, &[&str]),
        settings: &[(&str, &str)],
    ) -> Result<Self, Failure> {
        let failed =
            |error: io::Error| Failure::new(format!("cannot start `utxo-store {}`: {error}", subcommand.join(" ")));
        let (address_file, log_file) = (directory.address_file(name), directory.log_file(name));
        // A directory that is used again has an address file of the last demo.
        match fs::remove_file(&address_file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(subcommand).args(["--exit-with-stdin", "--http-address-file"]).arg(&address_file);
        command.arg("--config").arg(directory.config_file());
        // The environment overrides the file: settings of another instance must not reach the child.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("UTXO_STORE__")) {
            command.env_remove(name);
        }
        // Ctrl-C in a terminal signals the whole process group: only this process stops the child.
        command.envs(settings.iter().copied()).process_group(0);
        let log = File::create(&log_file).map_err(failed)?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        Ok(ChildInstance { _stdin: child.stdin.take(), child, address_file, log_file, address: None })
    }

    /// Returns the process id of the instance; 0 after its end.
    pub fn process_id(&self) -> u32 {
        self.child.id().unwrap_or(0)
    }

    /// Reads the metrics of the instance; `None` while the instance does not answer.
    pub async fn scrape(&mut self) -> Option<Scrape> {
        self.get("/metrics").await.map(Scrape)
    }

    /// Returns the HTTP address of the instance; `None` unless the instance says that it is ready.
    pub async fn find_ready_address(&mut self) -> Option<String> {
        let answer = self.get_answer("/health/ready").await?;
        if answer.split_whitespace().nth(1) == Some("200") { self.address.clone() } else { None }
    }

    /// Reads the reasons why the instance is not ready; empty if the instance is ready or does not answer.
    pub async fn readiness_reasons(&mut self) -> String {
        self.get("/health/ready").await.map(|body| body.trim().to_owned()).unwrap_or_default()
    }

    /// Checks that the instance has not ended by itself.
    ///
    /// # Errors
    /// The instance has ended; the error has the last line of its log.
    pub fn check_running(&mut self) -> Result<(), Failure> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                Err(Failure::new(format!("`utxo-store run` has ended with {status}: {}", self.last_log_line())))
            }
        }
    }

    /// Sends SIGKILL: the instance cannot finish anything.
    ///
    /// # Errors
    /// The signal cannot be sent.
    pub async fn kill(mut self) -> io::Result<()> {
        self.child.kill().await
    }

    /// Sends SIGTERM: the instance drains, commits, and must exit with code 0.
    ///
    /// # Errors
    /// The exit code is another, or the instance does not end within [`STOP_PATIENCE`].
    pub async fn stop(mut self) -> Result<(), Failure> {
        self.wait_until_listening().await?;
        if let Some(id) = self.child.id().and_then(|id| i32::try_from(id).ok()) {
            // SAFETY: no memory is involved. The process is a child that has not been waited for, so that no other
            // process can have its id.
            if unsafe { libc::kill(id, libc::SIGTERM) } != 0 {
                return Err(io::Error::last_os_error().into());
            }
        }
        match timeout(STOP_PATIENCE, self.child.wait()).await {
            Ok(status) if status.as_ref().is_ok_and(|status| status.success()) => Ok(()),
            Ok(status) => {
                let (status, line) = (status?, self.last_log_line());
                Err(Failure::new(format!("`utxo-store run` did not stop gracefully: {status}: {line}")))
            }
            Err(_) => Err(Failure::new("`utxo-store run` does not stop at SIGTERM")),
        }
    }

    /// Waits for the address file. SIGTERM ends a process that has not installed its signal handlers at once, and an
    /// instance writes the file after that.
    async fn wait_until_listening(&mut self) -> Result<(), Failure> {
        let begun = Instant::now();
        while !self.address_file.exists() && begun.elapsed() < STOP_PATIENCE {
            self.check_running()?;
            sleep(LISTENING_POLL).await;
        }
        Ok(())
    }

    fn last_log_line(&self) -> String {
        let log = fs::read_to_string(&self.log_file).unwrap_or_default();
        log.lines().last().unwrap_or("its log is empty").trim_start_matches("error: ").to_owned()
    }

    async fn get(&mut self, path: &str) -> Option<String> {
        let answer = self.get_answer(path).await?;
        answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
    }

    async fn get_answer(&mut self, path: &str) -> Option<String> {
        if self.address.is_none() {
            self.address = Some(fs::read_to_string(&self.address_file).ok()?.trim().to_owned());
        }
        timeout(HTTP_PATIENCE, get(self.address.as_deref()?, path)).await.ok()?.ok()
    }
}

/// Reads the whole answer. The server of an instance sends the length of a body and no chunks.
async fn get(address: &str, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

impl Scrape {
    /// Sums a metric over all its labels; 0 without the metric.
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
    fn a_metric_is_summed_over_its_labels_only() {
        let text = "# HELP a b\n# TYPE a counter\na{x=\"}\"} 3\na{x=\"2\"} 4\na_total 100\nab 9\nb 7\n";
        let scrape = Scrape(text.to_owned());
        assert_eq!((scrape.sum("a"), scrape.sum("b"), scrape.sum("c")), (7, 7, 0));
    }

    /// Starts a shell that handles SIGTERM only once it has written the address file, after a second.
    fn start_slowly(directory: &std::path::Path) -> ChildInstance {
        let (address_file, log_file) = (directory.join("address"), directory.join("log"));
        let script = "sleep 1; trap 'exit 0' TERM; echo ready > \"$0\"; while :; do sleep 0.01; done";
        let child = Command::new("sh").arg("-c").arg(script).arg(&address_file).kill_on_drop(true).spawn().unwrap();
        ChildInstance { child, _stdin: None, address_file, log_file, address: None }
    }

    #[tokio::test]
    async fn an_instance_is_stopped_only_once_it_handles_signals() {
        let directory = tempfile::tempdir().unwrap();
        start_slowly(directory.path()).stop().await.unwrap();
    }
}
