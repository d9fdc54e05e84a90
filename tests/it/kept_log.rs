//! A demo whose directory stays: its log can be looked at afterwards, and no command that prints minds who stops
//! reading.

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

/// The demo's directory, whose name is no text, in one that goes with the test.
struct Kept {
    parent: TempDir,
    report: Value,
}

impl Kept {
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

/// A command between two events, another that is refused, and bytes that are no event.
fn demo() -> Kept {
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
    let kept = Kept { parent, report: Value::Null };
    let directory = kept.directory();
    let demo = ["demo", "--kills", "0", "--externalize-all", "--json", "--events"].map(OsStr::new);
    let places = [events.as_os_str(), OsStr::new("--data-dir"), directory.as_os_str()];
    let Output { status, stdout, stderr } = utxo_store(&[&demo[..], &places].concat()).output().unwrap();
    assert_eq!(status.code(), Some(0), "{}{}", text(&stderr), text(&stdout));
    Kept { report: serde_json::from_slice(&stdout).unwrap(), ..kept }
}

fn files(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// All on one demo: it takes longest.
#[test]
fn a_demo_keeps_what_there_is_to_be_looked_at() {
    let kept = demo();
    placed_in_time(&kept);
    in_its_own_directory(&kept);
    looked_at_afterwards(&kept);
    read_by_nobody(&kept);
}

fn placed_in_time(kept: &Kept) {
    let report = &kept.report;
    for (name, count) in [("live_transactions", 0), ("conflicting", 1), ("dead_letters", 1), ("commands", 2)] {
        assert_eq!(report[name], count, "{name}: {report}");
    }
    let refused = report["refused_commands"].as_array().unwrap();
    assert_eq!((refused.len(), &refused[0]["id"]), (1, &Value::from("22".repeat(16))), "{report}");
    assert_eq!(report["transactions"], report["live_transactions"], "the name that it had before");
}

fn in_its_own_directory(kept: &Kept) {
    assert_eq!(files(&kept.parent.path().join("demo")), [kept.directory()], "no other directory lies beside it");
    for name in ["live", "rebuilt", "blobs", "log.jsonl", "utxo-store.toml", "run-0.log", "run-3.log"] {
        assert!(kept.directory().join(name).exists(), "{name}: {:?}", files(&kept.directory()));
    }
}

fn looked_at_afterwards(kept: &Kept) {
    let history = kept.shown("inspect tx --history", &[CHILD]);
    assert!(history.contains("what input 0 names is frozen"), "{history}");
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
    assert!(kept.shown("inspect decisions", &[]).lines().count() >= 2, "what is kept stays");
    for (words, more, code) in [("run", vec![], 2), ("topics check", vec![], 2), ("command", vec!["freeze", FROZEN], 1)]
    {
        let refused = kept.command(words, &more).output().unwrap();
        let told = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(code), "{words}: {told}");
        let last = told.lines().last().unwrap_or_default();
        assert!(last.contains("saved log") || last.contains("only read"), "{told}");
    }
}

/// The code of a command whose reader has gone before the first byte, and what it says on standard error.
fn unread(mut command: Command) -> (Option<i32>, String) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command.stdout(writer).output().unwrap();
    (output.status.code(), text(&output.stderr))
}

fn read_by_nobody(kept: &Kept) {
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
        assert_eq!(unread(kept.command(words, &more)), quietly, "{words}");
    }
    let golden = format!("{}/schemas/golden/validated.hex", env!("CARGO_MANIFEST_DIR"));
    for words in [&["config", "sample"][..], &["config", "check"], &["events", "decode", &golden], &["--help"]] {
        let words: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
        assert_eq!(unread(utxo_store(&words)), quietly, "{words:?}");
    }
    // What failed is told by the code and on standard error, whoever reads the rest.
    let (code, told) = unread(kept.command("verify", &["--against", "fjall:///nonexistent/store"]));
    assert!(code == Some(1) && told.starts_with("error: --against: "), "{told}");
    let bad = kept.parent.path().join("bad.jsonl");
    fs::write(&bad, "{}\n").unwrap();
    let (code, told) = unread(utxo_store(&["events".as_ref(), "encode".as_ref(), bad.as_os_str()]));
    assert!(code == Some(1) && told.contains("line 1"), "{told}");
    // Nobody reads standard error either.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = kept.command("verify", &["--against", "fjall:///nonexistent/store"]);
    let status = command.stdout(writer.try_clone().unwrap()).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(1));
}
