//! Fuzz targets: properties that hold for any bytes. Both runners share this file: `cargo fuzz` (`fuzz_targets/`), and
//! the smoke test of the stable toolchain (`tests/fuzz.rs`), which includes this file by its path.

mod api_batch;
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
mod utxo_set;

/// One format that other programs write and this store reads.
pub struct Target {
    /// Name of the target and of its directories in `seeds/` and `regressions/`.
    pub name: &'static str,
    /// Check that panics if a property does not hold.
    pub check: fn(&[u8]),
    /// Allowed memory of a run, in bytes: a fixed part, and a part for each byte of the input. Memory of the checks
    /// counts, memory of the oracle does not.
    pub memory: (usize, usize),
}

/// Allowed memory of most targets: fixed buffers, and a small multiple of the input.
const USUAL_MEMORY: (usize, usize) = (64 << 10, 64);

/// All fuzz targets.
pub const TARGETS: [Target; 11] = [
    Target { name: "transaction", check: transaction::check, memory: USUAL_MEMORY },
    Target { name: "extended", check: extended::check, memory: USUAL_MEMORY },
    Target { name: "event", check: event::binary, memory: USUAL_MEMORY },
    Target { name: "json_event", check: event::json, memory: USUAL_MEMORY },
    Target { name: "dead_letter", check: dead_letter::check, memory: USUAL_MEMORY },
    Target { name: "block_file", check: block_file::check, memory: USUAL_MEMORY },
    Target { name: "api_batch", check: api_batch::check, memory: USUAL_MEMORY },
    Target { name: "utxo_set", check: utxo_set::check, memory: USUAL_MEMORY },
    // The defaults are TOML, too, and are parsed in each run.
    Target { name: "configuration", check: configuration::check, memory: (4 << 20, 256) },
    Target { name: "store_url", check: store_url::check, memory: USUAL_MEMORY },
    // The first run creates the metrics of the process.
    Target { name: "commit_metadata", check: commit_metadata::check, memory: (1 << 20, 64) },
];

impl Target {
    /// Runs the target on one input.
    ///
    /// # Panics
    /// Panics if a property does not hold, or if the run holds more memory than the input allows.
    pub fn run(&self, data: &[u8]) {
        let (spare, each) = self.memory;
        let held = budget::most_held(|| (self.check)(data));
        let allowed = spare + each * data.len();
        assert!(
            held <= allowed,
            "the run held {held} bytes at once for {} bytes of input; {allowed} are allowed",
            data.len()
        );
    }
}

/// Runs the target with this name.
///
/// # Panics
/// Panics as [`Target::run`] does, or if there is no such target.
pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    target.expect("every program in fuzz_targets/ names one").run(data);
}

/// Checks that an error is one line: errors go into terminals, headers and logs.
fn assert_one_line(error: &impl std::fmt::Display) {
    let text = error.to_string();
    assert!(!text.is_empty() && !text.contains(char::is_control), "the error is not one line: {text:?}");
}
