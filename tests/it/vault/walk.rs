//! The demo of wallets, and `docs/operating/vault.md` as a newcomer runs it: an instance, a vault and a log as
//! processes.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
};

use crate::{ask, openapi::DESCRIPTION};

const DOCUMENT: &str = "docs/operating/vault.md";
/// Address in the document.
const ADDRESS: &str = "127.0.0.1:8080";

/// A demo that is killed at the end of the test, whatever ends the test.
struct Demo(Child);

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn two_clerks_share_outputs_and_every_command_of_the_walk_answers() {
    let text = fs::read_to_string(format!("{}/{DOCUMENT}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let sessions: Vec<_> =
        ask::read_sessions(&text).into_iter().filter(|session| session.commands.contains(ADDRESS)).collect();
    assert!(sessions.len() > 3, "{}", sessions.len());
    for path in DESCRIPTION["paths"].as_object().unwrap().keys().filter(|path| path.starts_with("/v1/vault")) {
        let end = path.rsplit('}').next().unwrap();
        let is_asked = sessions.iter().any(|session| {
            session
                .commands
                .split(|c: char| c.is_whitespace() || "\"?".contains(c))
                .any(|word| word.starts_with("http://") && word.ends_with(end))
        });
        assert!(is_asked, "{DOCUMENT} has no session for {path}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_utxo-store"));
    command.args(["demo", "--scenario", "wallets", "--keep", "127.0.0.1:0"]);
    let mut demo = Demo(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(demo.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut story = String::new();
    let address = lines.by_ref().find_map(|line| {
        story += &format!("{line}\n");
        Some(line.trim().strip_prefix("balance  curl http://")?.split('/').next()?.to_owned())
    });
    let Some(address) = address else {
        let mut error = String::new();
        demo.0.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        panic!("the demo ended: {story}{error}");
    };
    for part in [
        " gets 2 outputs: sum 900,000, fee 374, change 199,626",
        "700000 satoshis are asked for, 90000 are available, and 900000 are locked by others",
        "waits until the lease of the session is over.",
        ": live",
        "300000 satoshis are asked for, 289626 are available, and 0 are locked by others",
    ] {
        assert!(story.contains(part), "{part}: {story}");
    }
    let missing = ["bash", "curl"].into_iter().find(|tool| Command::new(tool).arg("--version").output().is_err());
    if let Some(tool) = missing {
        eprintln!("SKIPPED: the commands of {DOCUMENT}: `{tool}` is not installed");
        return;
    }
    let script: String =
        sessions.iter().map(|session| format!("{}\nprintf '\\n=====\\n'\n", session.commands)).collect();
    let output =
        Command::new("bash").arg("-uec").arg(script.replace(ADDRESS, &address)).stderr(Stdio::inherit()).output();
    let output = output.unwrap();
    let answers = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}: {answers}", output.status);
    for (session, answer) in sessions.iter().zip(answers.split("\n=====\n")) {
        let expected = session.answer.as_deref().unwrap_or_default();
        if let Some(part) = ask::find_missing(expected, answer) {
            panic!("{}\nlacks `{part}` of the document's answer:\n{answer}", session.commands);
        }
    }
    // The commands ask the same vault.
    let ask = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_utxo-store"));
        command.arg("vault").arg(arguments[0]).args(["--url", &format!("http://{address}"), "--owner", "shop"]);
        let output = command.args(&arguments[1..]).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let key = "0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
    for (arguments, code, part) in [
        (&["balance"][..], 0, "289,626 satoshis in        2 outputs  available"),
        (&["balance", "--json"], 0, r#""available":{"outputs":2,"satoshis":289626}"#),
        (&["watch", key, "hex:51"], 0, "2 scripts added"),
        (&["scripts"], 0, "hex:51  watched since"),
        (&["unwatch", key, "hex:51"], 0, "2 scripts removed"),
        (&["outputs", "--locks", "unlocked-only"], 0, "unspent, height"),
        (&["outputs", "--locks", "some"], 2, "the condition on locks is"),
        (&["select", "--amount", "1000", "--fee-rate", "1000", "--request-id", "one"], 0, "change"),
        (&["select", "--amount", "1000", "--fee-rate", "1000", "--request-id", "one"], 0, "change"),
        (
            &["select", "--amount", "9000000", "--fee", "1", "--strategy", "lowest-fee"],
            1,
            "the balance is insufficient",
        ),
        (&["select", "--amount", "1", "--fee", "1", "--strategy", "best"], 2, "must be one of largest-first"),
        (&["sessions", "--open", "--lease", "60s"], 0, "session "),
        (&["sessions"], 0, "lock "),
        (&["rescan", "--from", "log", "--wait"], 0, "no rescan is left"),
        (&["rescan", "--from", "store"], 1, "has no store open"),
        (&["reserve", "12:0"], 2, "12:0"),
        (&["release", "--lock-id", "f81d4fae-7dec-4d00-a765-00a0c91e6bf6"], 1, "there is no lock"),
    ] {
        let (found, out, error) = ask(arguments);
        assert_eq!(found, Some(code), "{arguments:?}: {out}{error}");
        assert!(format!("{out}{error}").contains(part), "{arguments:?}: {out}{error}");
    }
    // SAFETY: no memory is involved, and the process has not been waited for.
    unsafe { libc::kill(i32::try_from(demo.0.id()).unwrap(), libc::SIGINT) };
    let end: Vec<String> = lines.collect();
    assert!(demo.0.wait().unwrap().success(), "{end:?}");
    assert!(end.iter().any(|line| line.starts_with("A rebuild from the log has the same digest")), "{end:?}");
}
