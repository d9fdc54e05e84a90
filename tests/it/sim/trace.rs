//! What happened, in order: as a hash, so that two runs can be compared, or as lines, so that they can be read.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::coverage::Coverage;

/// Sees every call of a run: keeps the trace, counts, and collects what must not be.
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
    /// `keep`: the lines too.
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

    /// One more line of the trace.
    pub fn trace(&self, line: String) {
        let mut state = self.state();
        state.hasher.update(line.as_bytes()).update(b"\n");
        if let Some(lines) = &mut state.lines {
            lines.push(line);
        }
    }

    /// One more of a kind.
    pub fn count(&self, group: &'static str, kind: &str) {
        self.state().coverage.add(group, kind, 1);
    }

    /// Something that must not be.
    pub fn violation(&self, what: String) {
        self.trace(format!("VIOLATION {what}"));
        self.state().violations.push(what);
    }

    /// The first violations, if there are any.
    pub fn violated(&self) -> Option<String> {
        let state = self.state();
        (!state.violations.is_empty()).then(|| state.violations.iter().take(5).cloned().collect::<Vec<_>>().join("\n"))
    }

    /// Takes what was gathered.
    pub fn finish(&self) -> (String, Vec<String>, Coverage) {
        let mut state = self.state();
        let hash = state.hasher.finalize().to_hex().to_string();
        (hash, state.lines.take().unwrap_or_default(), std::mem::take(&mut state.coverage))
    }
}
