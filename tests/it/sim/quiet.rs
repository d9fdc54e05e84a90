//! Panics as values: a check that fails inside a run is a result, and shrinking makes it fail hundreds of times.

use std::{
    cell::{Cell, RefCell},
    panic::{self, AssertUnwindSafe},
    sync::Once,
};

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
    static TOLD: RefCell<Option<String>> = const { RefCell::new(None) };
}

static HOOK: Once = Once::new();

/// Runs `run`; a panic is its message. Other threads panic as they always did.
pub fn catch<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if QUIET.get() {
                TOLD.set(Some(info.to_string()));
            } else {
                before(info);
            }
        }));
    });
    QUIET.set(true);
    let ended = panic::catch_unwind(AssertUnwindSafe(run));
    QUIET.set(false);
    ended.map_err(|_| TOLD.take().unwrap_or_default())
}
