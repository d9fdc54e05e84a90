//! A demo directory that stays: commands can inspect its log afterwards, and a printing command succeeds when its
//! reader closes the pipe.

use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

const CHILD: &str = "f4184fc596403b9d638783cf57adfe4c75c605f6356fbc91338530e9831e9e16";
const FROZEN: &str = "0437cd7f8525ceed2324359c2d0ba26006d92d856a9c20fa0241106ee5a597c9:0";

fn utxo_store(arguments: &[&OsStr]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_utxo-store"));
    command.args(arguments).env_clear().stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The demo's directory, whose name is not UTF-8, in a temporary one, and the report.
struct DemoDirectory {
    parent: TempDir,
    report: Value,
}

impl DemoDirectory {
    fn directory(&self) -> PathBuf {
        self.parent.path().join("demo").join(OsStr::from_bytes(b"data\xff"))
    }

    fn config(&self) -> PathBuf {
        self.directory().join("utxo-store.toml")
    }

    fn command(&self, words: &str, more: &[&str]) -> Command {
        let config = self.config();
        let words = words.split_whitespace().map(OsStr::new);
        let arguments = words.chain([OsStr::new("--config"), config.as_os_str()]).chain(more.iter().map(OsStr::new));
        utxo_store(&arguments.collect::<Vec<_>>())
    }

    fn shown(&self, words: &str, more: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.command(words, more).output().unwrap();
        assert_eq!(status.code(), Some(0), "{words}: {}{}", text(&stderr), text(&stdout));
        text(&stdout)
    }
}

/// Runs a demo with a command between two events, a refused command, and bytes that are no event.
fn demo() -> DemoDirectory {
    let parent = tempfile::tempdir().unwrap();
    let golden = |name: &str| {
        let path = format!("{}/schemas/golden/{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
        fs::read_to_string(path).unwrap().trim().to_owned()
    };
    let freeze = |id: &str, outpoint: &str| {
        format!(r#"{{"event":"command","id":"{}","action":{{"freeze":{{"outpoint":"{outpoint}"}}}}}}"#, id.repeat(16))
    };
    let nowhere = format!("{}:0", "ab".repeat(32));
    let settle = r#"{"demo":"settle"}"#.to_owned();
    let poison = format!(r#"{{"demo":"raw","topic":"utxo.validated-txs","key":"{CHILD}","payload":"ff"}}"#);
    let lines = [
        golden("seeded").replace(&u64::MAX.to_string(), "1"),
        settle.clone(),
        freeze("11", FROZEN),
        settle.clone(),
        golden("validated"),
        poison,
        settle,
        freeze("22", &nowhere),
    ];
    let events = parent.path().join("events.jsonl");
    fs::write(&events, format!("\u{feff}{}\n", lines.join("\n"))).unwrap();
    let kept = DemoDirectory { parent, report: Value::Null };
    let directory = kept.directory();
    let demo = ["demo", "--kills", "0", "--externalize-all", "--json", "--events"].map(OsStr::new);
    let places = [events.as_os_str(), OsStr::new("--data-dir"), directory.as_os_str()];
    let Output { status, stdout, stderr } = utxo_store(&[&demo[..], &places].concat()).output().unwrap();
    assert_eq!(status.code(), Some(0), "{}{}", text(&stderr), text(&stdout));
    DemoDirectory { report: serde_json::from_slice(&stdout).unwrap(), ..kept }
}

fn files(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// All checks use one demo, because the demo takes longest.
#[test]
fn a_demo_directory_can_be_inspected_afterwards() {
    let kept = demo();
    check_report(&kept);
    check_files(&kept);
    check_commands(&kept);
    check_closed_pipes(&kept);
}

fn check_report(kept: &DemoDirectory) {
    let report = &kept.report;
    for (name, count) in [("live_transactions", 0), ("conflicting", 1), ("dead_letters", 1), ("commands", 2)] {
        assert_eq!(report[name], count, "{name}: {report}");
    }
    let refused = report["refused_commands"].as_array().unwrap();
    assert_eq!((refused.len(), &refused[0]["id"]), (1, &Value::from("22".repeat(16))), "{report}");
    assert_eq!(report["transactions"], report["live_transactions"], "the name that it had before");
}

fn check_files(kept: &DemoDirectory) {
    assert_eq!(files(&kept.parent.path().join("demo")), [kept.directory()], "no other directory lies beside it");
    for name in ["live", "rebuilt", "blobs", "log.jsonl", "utxo-store.toml", "run-0.log", "run-3.log"] {
        assert!(kept.directory().join(name).exists(), "{name}: {:?}", files(&kept.directory()));
    }
}

fn check_commands(kept: &DemoDirectory) {
    let history = kept.shown("inspect tx --history", &[CHILD]);
    assert!(history.contains("the output that input 0 spends is frozen"), "{history}");
    let history: Value = serde_json::from_str(&kept.shown("inspect tx --history --json", &[CHILD])).unwrap();
    assert!(!history["history"].as_array().unwrap().is_empty(), "{history}");
    assert!(kept.shown("inspect decisions", &[]).lines().count() >= 2);
    let letters = kept.shown("dead-letters list", &[]);
    assert!(letters.lines().count() == 1 && letters.contains(CHILD), "{letters}");
    let commands = kept.shown("command", &["list", "--all"]);
    assert!(commands.contains(&"11".repeat(16)) && commands.contains(&"22".repeat(16)), "{commands}");
    assert!(kept.shown("inspect offsets", &[]).contains("utxo.chain"));
    assert!(kept.shown("dump", &[]).contains(CHILD));
    let stats: Value = serde_json::from_str(&kept.shown("stats --json", &[])).unwrap();
    assert_eq!(stats["digest"], kept.report["digest_live"]);
    assert!(kept.shown("verify", &[]).contains("0 violations"));
    let directory = kept.directory();
    let again = [OsStr::new("demo"), OsStr::new("--data-dir"), directory.as_os_str()];
    let again = utxo_store(&again).output().unwrap();
    assert!(again.status.code() == Some(1) && text(&again.stderr).contains("the store is not empty"));
    assert!(kept.shown("inspect decisions", &[]).lines().count() >= 2, "the refused demo changes nothing");
    for (words, more, code) in [("run", vec![], 2), ("topics check", vec![], 2), ("command", vec!["freeze", FROZEN], 1)]
    {
        let refused = kept.command(words, &more).output().unwrap();
        let printed = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(code), "{words}: {printed}");
        let last = printed.lines().last().unwrap_or_default();
        assert!(last.contains("saved log"), "{printed}");
    }
}

/// Returns the exit code and standard error of a command whose reader closed the pipe before the first byte.
fn run_unread(mut command: Command) -> (Option<i32>, String) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command.stdout(writer).output().unwrap();
    (output.status.code(), text(&output.stderr))
}

fn check_closed_pipes(kept: &DemoDirectory) {
    let quietly = (Some(0), String::new());
    for (words, more) in [
        ("inspect tx", vec![CHILD]),
        ("inspect tx --history --json", vec![CHILD]),
        ("inspect outpoint", vec![FROZEN]),
        ("inspect outpoint --json", vec![FROZEN]),
        ("inspect unmined", vec![]),
        ("inspect conflicts", vec![CHILD]),
        ("inspect lock-records", vec![]),
        ("inspect offsets", vec![]),
        ("inspect decisions", vec![]),
        ("inspect decisions --json", vec![]),
        ("dead-letters list", vec![]),
        ("dead-letters list --json", vec![]),
        ("command", vec!["list", "--all"]),
        ("dump", vec![]),
        ("stats", vec![]),
        ("stats --json", vec![]),
        ("verify", vec![]),
        ("recover --dry-run", vec![]),
    ] {
        assert_eq!(run_unread(kept.command(words, &more)), quietly, "{words}");
    }
    let golden = format!("{}/schemas/golden/validated.hex", env!("CARGO_MANIFEST_DIR"));
    for words in [&["config", "sample"][..], &["config", "check"], &["events", "decode", &golden], &["--help"]] {
        let words: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
        assert_eq!(run_unread(utxo_store(&words)), quietly, "{words:?}");
    }
    // A failure shows in the exit code and on standard error, whether standard output is read or not.
    let (code, printed) = run_unread(kept.command("verify", &["--against", "fjall:///nonexistent/store"]));
    assert!(code == Some(1) && printed.starts_with("error: --against: "), "{printed}");
    let bad = kept.parent.path().join("bad.jsonl");
    fs::write(&bad, "{}\n").unwrap();
    let (code, printed) = run_unread(utxo_store(&["events".as_ref(), "encode".as_ref(), bad.as_os_str()]));
    assert!(code == Some(1) && printed.contains("line 1"), "{printed}");
    // Standard error is closed as well.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = kept.command("verify", &["--against", "fjall:///nonexistent/store"]);
    let status = command.stdout(writer.try_clone().unwrap()).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(1));
}
