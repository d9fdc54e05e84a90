//! Tasks that others wait for: they must not end without a word.

use std::{any::Any, panic::AssertUnwindSafe};

use futures_util::FutureExt;
use tokio::task::JoinHandle;

/// Runs `work` as a task of its own. Should it panic, `died` is told so in a line, with `what` it was: whoever waits for the
/// task would wait for ever, so it is to end the instance, and the next start does everything again that was not
/// committed. (Aborting the process would do as well for the program, but not for whoever embeds the library.)
pub fn spawn(
    what: &'static str,
    work: impl Future<Output = ()> + Send + 'static,
    died: impl FnOnce(String) + Send + 'static,
) -> JoinHandle<()> {
    // What it worked on goes with it; nobody sees it half done.
    let work = AssertUnwindSafe(work).catch_unwind();
    tokio::spawn(async move {
        if let Err(panic) = work.await {
            died(format!("{what} panicked: {}", message(panic.as_ref())));
        }
    })
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let owned = || panic.downcast_ref::<String>().map(String::as_str);
    panic.downcast_ref::<&str>().copied().or_else(owned).unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    async fn last_words(panics: fn()) -> Option<String> {
        let (died, dead) = oneshot::channel();
        let task = spawn("a test", async move { panics() }, |why| died.send(why).unwrap());
        task.await.unwrap();
        dead.await.ok()
    }

    #[tokio::test]
    async fn a_panic_is_told_and_an_end_is_not() {
        assert_eq!(last_words(|| panic!("all over")).await.as_deref(), Some("a test panicked: all over"));
        assert_eq!(last_words(|| panic!("offset {}", 7)).await.as_deref(), Some("a test panicked: offset 7"));
        let strange = last_words(|| std::panic::panic_any(7)).await;
        assert_eq!(strange.as_deref(), Some("a test panicked: without a message"));
        assert_eq!(last_words(|| ()).await, None);
    }
}
