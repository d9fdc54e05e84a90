//! `docs/operating/ask.md` as a newcomer runs it: every command on an instance that the demo leaves.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

const DOCUMENT: &str = "docs/operating/ask.md";
/// Address in the document.
const ADDRESS: &str = "127.0.0.1:8080";

/// Commands of the document, with the answer that follows them.
pub struct Session {
    pub commands: String,
    pub answer: Option<String>,
}

/// Reads the fenced blocks of the document: `sh` begins a session, and a block right after it is the answer.
pub fn read_sessions(text: &str) -> Vec<Session> {
    let mut sessions: Vec<Session> = Vec::new();
    let (mut block, mut language, mut is_answer) = (String::new(), None, false);
    let mut last = "";
    for line in text.lines() {
        match (line.strip_prefix("```"), language) {
            (Some(begun), None) => {
                is_answer = last == "```";
                (block, language) = (String::new(), Some(begun));
            }
            (Some(_), Some("sh")) => {
                sessions.push(Session { commands: std::mem::take(&mut block), answer: None });
                language = None;
            }
            (Some(_), Some(_)) => {
                if let Some(session) = sessions.last_mut().filter(|_| is_answer) {
                    session.answer = Some(std::mem::take(&mut block));
                }
                language = None;
            }
            (None, Some(_)) => block += &format!("{line}\n"),
            (None, None) => {}
        }
        last = line;
    }
    sessions
}

/// Returns the first part between two `…` of the expected answer that the answer lacks.
pub fn find_missing<'a>(expected: &'a str, answer: &str) -> Option<&'a str> {
    let mut rest = answer;
    for part in expected.split(['…', '\n']).filter(|part| !part.is_empty()) {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return Some(part),
        }
    }
    None
}

/// A demo that has left an instance; the demo ends with this value.
pub struct KeptDemo(Child);

impl KeptDemo {
    /// Starts the demo, and waits for the instance. Returns the demo and the address.
    pub fn start() -> (Self, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_utxo-store"));
        command.args(["demo", "--contended", "--kills", "0", "--keep", "127.0.0.1:0"]);
        let mut demo = KeptDemo(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
        let mut lines = BufReader::new(demo.0.stdout.take().unwrap()).lines().map(Result::unwrap);
        let page = lines.find_map(|line| Some(line.trim().strip_prefix("page")?.trim().to_owned()));
        let address = page.expect("the demo leaves an instance");
        let address = address.trim_start_matches("http://").trim_end_matches('/').to_owned();
        // The demo writes no more than fits into the pipe.
        (demo, address)
    }

    /// Stops the demo as Ctrl-C does; returns whether the demo ended with success.
    pub fn stop(&mut self) -> bool {
        // SAFETY: no memory is involved, and the process has not been waited for.
        unsafe { libc::kill(i32::try_from(self.0.id()).unwrap(), libc::SIGINT) };
        self.0.wait().unwrap().success()
    }
}

impl Drop for KeptDemo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn every_command_of_the_walk_answers_as_the_document_says() {
    let missing =
        ["bash", "curl", "xxd"].into_iter().find(|tool| Command::new(tool).arg("--version").output().is_err());
    if let Some(tool) = missing {
        eprintln!("SKIPPED: the commands of {DOCUMENT}: `{tool}` is not installed");
        return;
    }
    let text = fs::read_to_string(format!("{}/{DOCUMENT}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let sessions = read_sessions(&text);
    assert!(sessions.len() > 15, "{}", sessions.len());
    let paths = crate::openapi::DESCRIPTION["paths"].as_object().unwrap().keys();
    for path in paths.filter(|path| !path.starts_with("/v1/vault")) {
        // The literal parts of the path, in their order in one line of a session.
        let parts: Vec<&str> = path.split(['{', '}']).step_by(2).filter(|part| part.len() > 1).collect();
        let is_asked = sessions.iter().flat_map(|session| session.commands.lines()).any(|line| {
            parts.iter().try_fold(line, |rest, part| rest.split_once(part).map(|(_, rest)| rest)).is_some()
        });
        assert!(is_asked, "{DOCUMENT} has no session for {path}");
    }
    let (mut demo, address) = KeptDemo::start();
    let script: String =
        sessions.iter().map(|session| format!("{}\nprintf '\\n=====\\n'\n", session.commands)).collect();
    let output = Command::new("bash")
        .arg("-uec")
        .arg(script.replace(ADDRESS, &address))
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let answers = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}: {answers}", output.status);
    for (session, answer) in sessions.iter().zip(answers.split("\n=====\n")) {
        let expected = session.answer.as_deref().unwrap_or_default();
        if let Some(part) = find_missing(expected, answer) {
            panic!("{}\nlacks `{part}` of the document's answer:\n{answer}", session.commands);
        }
    }
    assert!(demo.stop(), "the demo stops at SIGINT");
}
