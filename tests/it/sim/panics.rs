//! Panics as values: shrinking lets a check fail hundreds of times, and each failure is a result.

use std::{
    cell::{Cell, RefCell},
    panic::{self, AssertUnwindSafe},
    sync::Once,
};

thread_local! {
    static IS_CAPTURING: Cell<bool> = const { Cell::new(false) };
    static PANIC_MESSAGE: RefCell<Option<String>> = const { RefCell::new(None) };
}

static HOOK: Once = Once::new();

/// Runs `run` and returns the message of a panic as the error. Panics of other threads are printed as usual.
pub fn catch_panic<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if IS_CAPTURING.get() {
                PANIC_MESSAGE.set(Some(info.to_string()));
            } else {
                before(info);
            }
        }));
    });
    IS_CAPTURING.set(true);
    let ended = panic::catch_unwind(AssertUnwindSafe(run));
    IS_CAPTURING.set(false);
    ended.map_err(|_| PANIC_MESSAGE.take().unwrap_or_default())
}
