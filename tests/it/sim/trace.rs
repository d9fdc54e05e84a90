//! Trace of a run in order: as a hash, to compare two runs, or as lines, to be read.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::coverage::Coverage;

/// Observer of every call of a run: records the trace, counts, and collects violations.
pub struct Observer {
    state: Mutex<State>,
}

struct State {
    hasher: blake3::Hasher,
    lines: Option<Vec<String>>,
    coverage: Coverage,
    violations: Vec<String>,
}

impl Observer {
    /// Creates an observer; `keep` stores the lines of the trace, too.
    pub fn new(keep: bool) -> Self {
        let state = State {
            hasher: blake3::Hasher::new(),
            lines: keep.then(Vec::new),
            coverage: Coverage::default(),
            violations: Vec::new(),
        };
        Observer { state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a line to the trace.
    pub fn trace(&self, line: String) {
        let mut state = self.state();
        state.hasher.update(line.as_bytes()).update(b"\n");
        if let Some(lines) = &mut state.lines {
            lines.push(line);
        }
    }

    /// Counts one occurrence of a kind.
    pub fn count(&self, group: &'static str, kind: &str) {
        self.state().coverage.add(group, kind, 1);
    }

    /// Records the violation of a rule.
    pub fn record_violation(&self, what: String) {
        self.trace(format!("VIOLATION {what}"));
        self.state().violations.push(what);
    }

    /// Returns the first five violations, if there are any.
    pub fn first_violations(&self) -> Option<String> {
        let state = self.state();
        (!state.violations.is_empty()).then(|| state.violations.iter().take(5).cloned().collect::<Vec<_>>().join("\n"))
    }

    /// Returns the hash, the lines and the coverage.
    pub fn finish(&self) -> (String, Vec<String>, Coverage) {
        let mut state = self.state();
        let hash = state.hasher.finalize().to_hex().to_string();
        (hash, state.lines.take().unwrap_or_default(), std::mem::take(&mut state.coverage))
    }
}
