//! Headless Chromium (Debian's package `chromium`), driven by the DevTools protocol over two pipes.

use std::{
    io::{BufRead, BufReader, Write, pipe},
    os::{fd::AsRawFd, unix::process::CommandExt},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use tempfile::TempDir;

const PROGRAM: &str = "chromium";
/// Time for one answer, long because many processes may share two cores.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// A browser with one page. The process is killed on drop.
pub struct Browser {
    process: Child,
    requests: std::io::PipeWriter,
    messages: Receiver<Value>,
    last_id: u64,
    session: Option<String>,
    events: Vec<Value>,
    _profile: TempDir,
}

impl Browser {
    /// Starts the browser. Prints a line `SKIPPED: …` and returns `None` where Chromium is not installed.
    pub fn start() -> Option<Self> {
        if Command::new(PROGRAM).arg("--version").stderr(Stdio::null()).output().is_err() {
            eprintln!("SKIPPED: tests in a browser: `{PROGRAM}` is not installed");
            return None;
        }
        let profile = tempfile::tempdir().unwrap();
        let (from_test, requests) = pipe().unwrap();
        let (answers, from_browser) = pipe().unwrap();
        let mut command = Command::new(PROGRAM);
        command
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"])
            .args(["--no-first-run", "--disable-background-networking", "--remote-debugging-pipe", "about:blank"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let ends = [from_test.as_raw_fd(), from_browser.as_raw_fd()];
        // SAFETY: the closure calls only functions that are safe after a fork.
        unsafe { command.pre_exec(move || pass_pipes(ends)) };
        let process = command.spawn().unwrap();
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(answers).split(0).map_while(Result::ok) {
                if sender.send(serde_json::from_slice(&message).unwrap()).is_err() {
                    return;
                }
            }
        });
        let (session, events) = (None, Vec::new());
        let mut browser = Browser { process, requests, messages, last_id: 0, session, events, _profile: profile };
        browser.attach();
        Some(browser)
    }

    fn attach(&mut self) {
        let target = self.call("Target.createTarget", json!({"url": "about:blank"}));
        let target = json!({"targetId": target["targetId"], "flatten": true});
        self.session = self.call("Target.attachToTarget", target)["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Network", "Log", "Runtime"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
    }

    /// Calls a method of the protocol, and returns its result.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.last_id += 1;
        let mut request = json!({"id": self.last_id, "method": method, "params": params});
        if let Some(session) = &self.session {
            request["sessionId"] = json!(session);
        }
        self.requests.write_all(format!("{request}\0").as_bytes()).unwrap();
        loop {
            let message = self.next_message(method);
            if message["id"] == self.last_id {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }

    fn next_message(&self, what: &str) -> Value {
        self.messages.recv_timeout(ANSWER_TIMEOUT).unwrap_or_else(|error| panic!("{what}: Chromium: {error}"))
    }

    /// Loads a page.
    pub fn open(&mut self, url: &str) {
        self.events.clear();
        self.call("Page.navigate", json!({"url": url}));
        self.wait_for_load(url);
    }

    /// Clicks on the first element of a selector, which has to load another page.
    pub fn follow(&mut self, selector: &str) {
        self.events.clear();
        self.evaluate(&format!("document.querySelector({}).click()", json!(selector)));
        self.wait_for_load(selector);
    }

    fn wait_for_load(&mut self, what: &str) {
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            let message = self.next_message(what);
            self.events.push(message);
        }
    }

    /// Evaluates an expression in the page, as a debugger does, also where the page permits no script.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let found = self.call("Runtime.evaluate", json!({"expression": expression, "returnByValue": true}));
        assert!(found["exceptionDetails"].is_null(), "{expression}: {found}");
        found["result"]["value"].clone()
    }

    /// Returns the text of the page.
    pub fn text(&mut self) -> String {
        self.evaluate("document.body.innerText").as_str().unwrap().to_owned()
    }

    /// Returns the addresses that the page has asked for since the last [`open`](Self::open) or
    /// [`follow`](Self::follow).
    pub fn addresses(&self) -> Vec<&str> {
        let requests = self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        requests.map(|event| event["params"]["request"]["url"].as_str().unwrap()).collect()
    }

    /// Returns what the console shows: refused resources, errors of scripts.
    pub fn complaints(&self) -> Vec<&Value> {
        let is_complaint = |event: &&Value| {
            let method = event["method"].as_str().unwrap_or_default();
            ["Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"].contains(&method)
        };
        self.events.iter().filter(is_complaint).collect()
    }

    /// Sets the size of the window.
    pub fn resize(&mut self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Returns the visible part of the page as a PNG.
    pub fn picture(&mut self) -> Vec<u8> {
        let picture = self.call("Page.captureScreenshot", json!({"format": "png", "optimizeForSpeed": false}));
        STANDARD.decode(picture["data"].as_str().unwrap()).unwrap()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // SAFETY: no memory is involved; the group has only the browser's processes, and the leader is not waited for.
        unsafe { libc::kill(-i32::try_from(self.process.id()).unwrap(), libc::SIGKILL) };
        let _ = self.process.wait();
    }
}

/// Makes the ends of two pipes the descriptors 3 (requests) and 4 (answers), in a process group of its own.
fn pass_pipes(ends: [i32; 2]) -> std::io::Result<()> {
    let check = |result: i32| if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(result) };
    // SAFETY: the calls involve no memory.
    unsafe {
        check(libc::setpgid(0, 0))?;
        // Neither end may be one of the two numbers.
        let [requests, answers] = ends;
        let requests = check(libc::fcntl(requests, libc::F_DUPFD_CLOEXEC, 10))?;
        let answers = check(libc::fcntl(answers, libc::F_DUPFD_CLOEXEC, 10))?;
        check(libc::dup2(requests, 3))?;
        check(libc::dup2(answers, 4))?;
    }
    Ok(())
}
