//! The fuzz targets: what must hold for any bytes. One place for both who runs them: `cargo fuzz` (`fuzz_targets/`), and the
//! smoke test of the stable toolchain (`tests/fuzz.rs`), which takes this file in by its path.

mod block_file;
mod budget;
mod commit_metadata;
mod configuration;
mod dead_letter;
mod event;
mod extended;
mod oracle;
mod store_url;
mod transaction;

/// One format that others write and this store reads.
pub struct Target {
    /// Its name, also that of its directories in `seeds/` and `regressions/`.
    pub name: &'static str,
    /// Panics where something does not hold.
    pub check: fn(&[u8]),
    /// What a run may hold of memory at once, in bytes: so much, and so much for each byte of the input. What the
    /// checks keep is in it, what the oracle reserves is not.
    pub memory: (usize, usize),
}

/// What most targets may hold: their own fixed buffers, and a small multiple of the input.
const USUAL_MEMORY: (usize, usize) = (64 << 10, 64);

/// All of them.
pub const TARGETS: [Target; 9] = [
    Target { name: "transaction", check: transaction::check, memory: USUAL_MEMORY },
    Target { name: "extended", check: extended::check, memory: USUAL_MEMORY },
    Target { name: "event", check: event::binary, memory: USUAL_MEMORY },
    Target { name: "json_event", check: event::json, memory: USUAL_MEMORY },
    Target { name: "dead_letter", check: dead_letter::check, memory: USUAL_MEMORY },
    Target { name: "block_file", check: block_file::check, memory: USUAL_MEMORY },
    // The defaults are TOML too, and are read each time.
    Target { name: "configuration", check: configuration::check, memory: (4 << 20, 256) },
    Target { name: "store_url", check: store_url::check, memory: USUAL_MEMORY },
    // The first run makes the metrics of a process.
    Target { name: "commit_metadata", check: commit_metadata::check, memory: (1 << 20, 64) },
];

impl Target {
    /// Runs it on one input.
    ///
    /// # Panics
    /// Where something does not hold, or more memory was asked for than the input justifies.
    pub fn run(&self, data: &[u8]) {
        let (spare, each) = self.memory;
        let held = budget::most_held(|| (self.check)(data));
        let allowed = spare + each * data.len();
        assert!(held <= allowed, "{held} bytes were held at once for {} of input; {allowed} are allowed", data.len());
    }
}

/// Runs the target of that name.
///
/// # Panics
/// As [`Target::run`]; or where there is none of that name.
pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    target.expect("every program in fuzz_targets/ names one").run(data);
}

/// Errors are shown to people line by line, put into headers, and written to logs.
fn assert_one_line(error: &impl std::fmt::Display) {
    let text = error.to_string();
    assert!(!text.is_empty() && !text.contains(char::is_control), "not one line: {text:?}");
}
