//! Known faults, planted in a copy of the tree. The simulator must find each fault, or the fault says why it cannot.
//!
//! A fault is a file `tests/mutations/NAME.fault`: one sentence, an optional line `unfound: why`, an optional line
//! `held by: scenario`, and for each place a header `=== path`, the text `--- is` and the text that it `--- becomes`. A
//! fault that no seed finds must make the scenario (a test of `tests/it`, by its whole name) fail or not end; without a
//! fault every scenario passes.
//!
//! [`locate`] finds the quoted text also after renames, moves and reformatting: such a commit leaves the faults alone.
//! `UPDATE_FAULTS=1 cargo test --test mutations` writes today's text into the files.
//!
//! All faults are planted at once, each behind a switch: `PLANTED` in a text becomes the condition that the fault is
//! on. One build of the copy thus serves every fault, and a run names its fault.
//!
//! `make mutations` runs all faults. `FAULTS=name,name` selects some, `SEEDS=n` limits the seeds, `MUTATIONS_DIR=path`
//! replaces the directory for temporary files. `tests/it/sim/README.md` keeps the table.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "mutations/locate.rs"]
mod locate;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use locate::locate;

/// Number of seeds after which a fault counts as not found.
const SEEDS: u64 = 2_000;
/// Number of seeds that must pass without a planted fault; otherwise a failure means nothing.
const SOUND_SEEDS: u64 = 300;
/// Time limit for the seeds of one fault.
const PATIENCE: Duration = Duration::from_secs(900);
/// Time limit for one scenario, which takes about a second.
const PATIENCE_WITH_ONE: Duration = Duration::from_secs(60);
/// Faults that are tried at the same time.
const AT_ONCE: usize = 2;
/// Text of a fault that becomes the condition of its switch.
const SWITCH: &str = "PLANTED";

/// Source of the copy's function that tells whether a fault is on.
const PLANTED: &str = r#"

/// Returns whether this fault is planted.
pub(crate) fn planted(name: &str) -> bool {
    static PLANTED: std::sync::LazyLock<Option<String>> = std::sync::LazyLock::new(|| std::env::var("PLANTED").ok());
    PLANTED.as_deref() == Some(name)
}
"#;

struct Fault {
    name: String,
    what: String,
    /// Reason why the simulator cannot find the fault.
    unfound: Option<String>,
    /// Name of the test that fails with the fault.
    held_by: Option<String>,
    places: Vec<Place>,
}

struct Place {
    path: String,
    is: String,
    becomes: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn faults() -> Vec<Fault> {
    let entries = fs::read_dir(root().join("tests/mutations")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|ext| ext == "fault")).collect();
    paths.sort();
    paths.iter().map(|path| read_fault(path)).collect()
}

fn read_fault(path: &Path) -> Fault {
    let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
    let text = fs::read_to_string(path).unwrap();
    let mut parts = text.split("\n=== ");
    let head = parts.next().unwrap();
    let said = |what: &str| head.lines().find_map(|line| line.strip_prefix(what)).map(str::to_owned);
    let (unfound, held_by) = (said("unfound: "), said("held by: "));
    let what = head.lines().next().unwrap_or_default().to_owned();
    let places: Vec<Place> = parts
        .map(|part| {
            let read = || {
                let (path, texts) = part.split_once("\n--- is\n")?;
                let (is, becomes) = texts.split_once("\n--- becomes\n")?;
                let becomes = becomes.trim_end_matches('\n').to_owned();
                Some(Place { path: path.to_owned(), is: is.to_owned(), becomes })
            };
            read().unwrap_or_else(|| panic!("{name}: a place is `=== path`, `--- is`, `--- becomes`:\n{part}"))
        })
        .collect();
    assert!(!places.is_empty() && !what.is_empty(), "{name} plants nothing or has no description");
    assert!(places.iter().any(|place| place.becomes.contains(SWITCH)), "{name} has no switch");
    Fault { name, what, unfound, held_by, places }
}

/// Returns the source files by path.
fn sources() -> BTreeMap<String, String> {
    fn read(directory: &Path, files: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                read(&entry, files);
            } else if entry.extension().is_some_and(|extension| extension == "rs") {
                let path = entry.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
                files.insert(path, fs::read_to_string(&entry).unwrap());
            }
        }
    }
    let mut files = BTreeMap::new();
    read(&root().join("src"), &mut files);
    files
}

/// Returns the files with all faults planted, and the quotes that are not found.
fn plant(faults: &[Fault]) -> (BTreeMap<String, String>, Vec<String>) {
    let mut files = sources();
    let mut wrong = Vec::new();
    for (fault, place) in faults.iter().flat_map(|fault| fault.places.iter().map(move |place| (fault, place))) {
        match locate(&files, &place.path, &place.is) {
            Err(problem) => wrong.push(format!("{}: {problem}:\n{}", fault.name, place.is)),
            Ok(location) => {
                let switch = format!("crate::planted(\"{}\")", fault.name);
                let becomes = location.rename(&place.becomes).replace(SWITCH, &switch);
                files.get_mut(&location.path).unwrap().replace_range(location.range, becomes.trim());
            }
        }
    }
    (files, wrong)
}

/// Writes the text and the path that a quote has today into the file of the fault.
fn update(fault: &Fault, files: &BTreeMap<String, String>) {
    let path = root().join(format!("tests/mutations/{}.fault", fault.name));
    let old = fs::read_to_string(&path).unwrap();
    let mut new = old.split("\n=== ").next().unwrap().to_owned();
    for place in &fault.places {
        let (path, is, becomes) = match locate(files, &place.path, &place.is) {
            Ok(location) if !files[&location.path].contains(&place.is) || location.path != place.path => {
                let text = &files[&location.path];
                let line = text[..location.range.start].rfind('\n').map_or(0, |end| end + 1);
                let indent = &text[line..location.range.start];
                let indent = if indent.trim().is_empty() { indent } else { "" };
                let becomes = location.rename(&place.becomes);
                let is = format!("{indent}{}", &text[location.range.clone()]);
                (location.path, is, format!("{indent}{}", becomes.trim_start()))
            }
            _ => (place.path.clone(), place.is.clone(), place.becomes.clone()),
        };
        new += &format!("\n=== {path}\n--- is\n{is}\n--- becomes\n{becomes}\n");
    }
    if new != old {
        fs::write(path, new).unwrap();
    }
}

/// A fault whose text is gone would stay in the table although it cannot be planted.
#[test]
fn every_fault_can_be_planted() {
    let faults = faults();
    let (_, wrong) = plant(&faults);
    if std::env::var_os("UPDATE_FAULTS").is_some() {
        let files = sources();
        faults.iter().for_each(|fault| update(fault, &files));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(faults.len() >= 25, "only {} faults", faults.len());
}

#[test]
fn the_table_has_one_row_for_every_fault() {
    let readme = fs::read_to_string(root().join("tests/it/sim/README.md")).unwrap();
    let (_, table) = readme.split_once("| fault | seeds | how |\n").unwrap();
    let mut rows: Vec<&str> =
        table.lines().filter_map(|row| Some(row.strip_prefix("| `")?.split_once('`')?.0)).collect();
    rows.sort_unstable();
    let faults = faults();
    let mut names: Vec<&str> = faults.iter().map(|fault| fault.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(rows, names);
}

#[test]
#[ignore = "takes many minutes: make mutations"]
fn the_simulator_finds_every_fault() {
    let all = faults();
    let (files, wrong) = plant(&all);
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    let directory = std::env::var_os("MUTATIONS_DIR").map(PathBuf::from);
    let directory = directory.unwrap_or_else(|| std::env::temp_dir().join("utxo-store-mutations"));
    let binary = build(&directory, files);

    let sound = simulate(&binary, &directory, "none", SOUND_SEEDS);
    assert!(matches!(sound, Found::Nothing), "without a fault: {sound:?}");
    for scenario in all.iter().filter_map(|fault| fault.held_by.as_ref()) {
        assert!(!fails(&binary, &directory, "none", scenario), "{scenario} fails without a fault");
    }
    let wanted = std::env::var("FAULTS").ok();
    let is_wanted =
        |fault: &&Fault| wanted.as_ref().is_none_or(|names| names.split(',').any(|name| name == fault.name));
    let seeds = std::env::var("SEEDS").map_or(SEEDS, |text| text.parse().unwrap());
    let (open, rows) = (Mutex::new(all.iter().filter(is_wanted)), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let Some(fault) = open.lock().unwrap().next() else { return };
            let mut found = simulate(&binary, &directory, &fault.name, seeds);
            if let Some(scenario) = fault.held_by.as_ref().filter(|_| found.seeds().is_none())
                && fails(&binary, &directory, &fault.name, scenario)
            {
                found = Found::By(scenario.clone());
            }
            eprintln!("{}", row(fault, &found));
            rows.lock().unwrap().push((fault, found));
        }
    };
    thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
    let mut rows = rows.into_inner().unwrap();
    rows.sort_by_key(|(fault, found)| (found.seeds().unwrap_or(u64::MAX), &fault.name));
    println!("| fault | seeds | how |\n|---|---|---|");
    rows.iter().for_each(|(fault, found)| println!("{}", row(fault, found)));
    let escaped = |(fault, found): &&(&Fault, Found)| match found {
        Found::In(..) | Found::By(_) => false,
        Found::Nothing | Found::Died(_) => fault.unfound.is_none() || fault.held_by.is_some(),
    };
    let escaped: Vec<_> = rows.iter().filter(escaped).map(|(fault, _)| &fault.name).collect();
    assert!(escaped.is_empty(), "neither found nor held by a test, and without a reason: {escaped:?}");
}

#[derive(Debug)]
enum Found {
    /// A check that failed in this seed.
    In(u64, String),
    /// A scenario that failed, while no seed did.
    By(String),
    Nothing,
    /// The run ended without a result.
    Died(String),
}

impl Found {
    /// Returns the number of seeds that were run up to the failure.
    fn seeds(&self) -> Option<u64> {
        match self {
            Found::In(seed, _) => Some(seed + 1),
            Found::By(_) | Found::Nothing | Found::Died(_) => None,
        }
    }
}

fn row(fault: &Fault, found: &Found) -> String {
    let (seeds, how) = match found {
        Found::In(seed, how) => ((seed + 1).to_string(), how.clone()),
        Found::By(scenario) => {
            let why = fault.unfound.as_ref().map(|why| format!("{why}. ")).unwrap_or_default();
            ("-".to_owned(), format!("{why}`{scenario}` fails"))
        }
        Found::Nothing => ("-".to_owned(), fault.unfound.clone().unwrap_or("not found".to_owned())),
        Found::Died(why) => ("-".to_owned(), format!("died: {why}")),
    };
    format!("| `{}`: {} | {seeds} | {} |", fault.name, fault.what, how.replace('|', "/"))
}

/// Runs seed after seed until one fails.
fn simulate(binary: &Path, directory: &Path, fault: &str, seeds: u64) -> Found {
    let log = directory.join(format!("{fault}.log"));
    let output = fs::File::create(&log).unwrap();
    let mut command = Command::new(binary);
    command.args(["sim::histories", "--nocapture"]).current_dir(directory.join("tree"));
    command.envs([("PLANTED", fault), ("ENOUGH", "1"), ("SIM_SHRINK", "0"), ("THREADS", "1"), ("RUST_BACKTRACE", "0")]);
    command.env("SEEDS", seeds.to_string()).stdin(Stdio::null());
    command.stdout(output.try_clone().unwrap()).stderr(output);
    let mut child = command.spawn().unwrap();
    let started = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if started.elapsed() > PATIENCE => {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            None => thread::sleep(Duration::from_millis(100)),
        }
    };
    let text = String::from_utf8_lossy(&fs::read(&log).unwrap()).into_owned();
    if let Some((seed, how)) = failure(&text) {
        return Found::In(seed, how);
    }
    match status {
        Some(status) if status.success() => Found::Nothing,
        Some(status) => Found::Died(format!("{status}, see {}", log.display())),
        None => Found::Died(format!("no end after {} s", PATIENCE.as_secs())),
    }
}

/// Returns whether this test fails or does not end.
fn fails(binary: &Path, directory: &Path, fault: &str, scenario: &str) -> bool {
    let log = fs::File::create(directory.join(format!("{fault}.scenario.log"))).unwrap();
    let mut command = Command::new(binary);
    command.args([scenario, "--exact"]).current_dir(directory.join("tree"));
    command.envs([("PLANTED", fault), ("RUST_BACKTRACE", "0")]).stdin(Stdio::null()).stderr(log.try_clone().unwrap());
    let mut child = command.stdout(log).spawn().unwrap();
    let started = Instant::now();
    loop {
        match child.try_wait().unwrap() {
            Some(status) => break !status.success(),
            None if started.elapsed() > PATIENCE_WITH_ONE => {
                child.kill().unwrap();
                child.wait().unwrap();
                break true;
            }
            None => thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Returns the seed and the reason of the first line `seed-7 fails: reason`, with ids cut short. The reason of a panic
/// stands in the lines after its first, which names the place.
fn failure(log: &str) -> Option<(u64, String)> {
    let (seed, how) = log.lines().find_map(|line| line.strip_prefix("seed-")?.split_once(" fails: "))?;
    let how = match log.split_once("which fails: panicked at ") {
        Some((_, whole)) if how.starts_with("panicked at ") => {
            whole.lines().skip(1).take(2).map(str::trim).collect::<Vec<_>>().join(" ")
        }
        _ => how.to_owned(),
    };
    let short = |word: &str| {
        let is_id = word.len() >= 64 && word.bytes().take(64).all(|byte| byte.is_ascii_hexdigit());
        if is_id { format!("{}{}", &word[..8], &word[64..]) } else { word.to_owned() }
    };
    let how: Vec<String> = how.split(' ').map(short).collect();
    Some((seed.parse().ok()?, how.join(" ").chars().take(160).collect()))
}

/// Copies the tree, plants all faults, and builds the integration tests there.
fn build(directory: &Path, mut files: BTreeMap<String, String>) -> PathBuf {
    let tree = directory.join("tree");
    let lib =
        files.entry("src/lib.rs".to_owned()).or_insert_with(|| fs::read_to_string(root().join("src/lib.rs")).unwrap());
    lib.push_str(PLANTED);
    copy(root(), &tree, Path::new(""), &files);
    let target = directory.join("target");
    borrow_dependencies(&target);
    let mut command = Command::new(std::env::var("CARGO").unwrap_or("cargo".to_owned()));
    command
        .args(["test", "--locked", "--no-run", "--test", "it", "--message-format", "json-render-diagnostics"])
        .current_dir(&tree);
    command.env("CARGO_TARGET_DIR", &target).env("CARGO_PROFILE_DEV_OPT_LEVEL", "1").stderr(Stdio::inherit());
    let output = command.output().unwrap();
    assert!(output.status.success(), "the copy in {} does not build", tree.display());
    let text = String::from_utf8(output.stdout).unwrap();
    let artifacts = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut binaries =
        artifacts.filter(|artifact| artifact["target"]["name"] == "it" && artifact["executable"].is_string());
    PathBuf::from(binaries.next_back().expect("cargo names what it has built")["executable"].as_str().unwrap())
}

/// Copies only files that differ, so that a second run builds only the changes, and removes files that no longer exist.
fn copy(from: &Path, to: &Path, under: &Path, planted: &BTreeMap<String, String>) {
    fs::create_dir_all(to.join(under)).unwrap();
    for entry in fs::read_dir(to.join(under)).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() && !from.join(under).join(path.file_name().unwrap()).exists() {
            fs::remove_file(path).unwrap();
        }
    }
    for entry in fs::read_dir(from.join(under)).unwrap() {
        let entry = entry.unwrap();
        let path = under.join(entry.file_name());
        let name = entry.file_name();
        if entry.file_type().unwrap().is_dir() {
            // A directory with a dot holds what `make test` has fetched, or the repository.
            let is_left_out = name.as_encoded_bytes().starts_with(b".") || name == "target" || name == "corpus";
            if !is_left_out {
                copy(from, to, &path, planted);
            }
            continue;
        }
        let content = match planted.get(path.to_str().unwrap_or_default()) {
            Some(content) => content.clone().into_bytes(),
            None => fs::read(entry.path()).unwrap(),
        };
        if fs::read(to.join(&path)).ok().as_ref() != Some(&content) {
            fs::write(to.join(&path), content).unwrap();
        }
    }
}

/// Links the dependencies of this build instead of compiling them again. Where that fails they are compiled.
fn borrow_dependencies(target: &Path) {
    let ours = std::env::var_os("CARGO_TARGET_DIR").map_or(root().join("target"), PathBuf::from).join("debug");
    let debug = target.join("debug");
    if debug.exists() || !ours.exists() {
        return;
    }
    fs::create_dir_all(&debug).unwrap();
    for (how, name) in [("-al", "deps"), ("-a", "build"), ("-a", ".fingerprint")] {
        let copied = Command::new("cp").arg(how).arg(ours.join(name)).arg(&debug).status();
        if !copied.is_ok_and(|status| status.success()) {
            eprintln!("{name} is not copied: dependencies are compiled once more");
        }
    }
}
