//! Tasks whose end other tasks wait for: a panic of such a task is reported.

use std::{any::Any, panic::AssertUnwindSafe};

use futures_util::FutureExt;
use tokio::task::JoinHandle;

/// Runs `work` as a task of its own. If the task panics, `on_panic` gets one line with `name` and the panic's message.
///
/// A caller that waits for the result of a panicked task would wait for ever. `on_panic` therefore has to end the
/// instance: the next start reads every event again that was not committed. The process is not aborted, because other
/// programs may embed the library.
pub fn spawn(
    name: &'static str,
    work: impl Future<Output = ()> + Send + 'static,
    on_panic: impl FnOnce(String) + Send + 'static,
) -> JoinHandle<()> {
    // The panic drops the state of `work`, so that no other task sees the state half changed.
    let work = AssertUnwindSafe(work).catch_unwind();
    tokio::spawn(async move {
        if let Err(panic) = work.await {
            on_panic(format!("{name} panicked: {}", panic_message(panic.as_ref())));
        }
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let owned = || panic.downcast_ref::<String>().map(String::as_str);
    panic.downcast_ref::<&str>().copied().or_else(owned).unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    async fn reported_panic(work: fn()) -> Option<String> {
        let (report, reported) = oneshot::channel();
        let task = spawn("a test", async move { work() }, |why| report.send(why).unwrap());
        task.await.unwrap();
        reported.await.ok()
    }

    #[tokio::test]
    async fn a_panic_is_reported_and_a_normal_end_is_not() {
        assert_eq!(reported_panic(|| panic!("all over")).await.as_deref(), Some("a test panicked: all over"));
        assert_eq!(reported_panic(|| panic!("offset {}", 7)).await.as_deref(), Some("a test panicked: offset 7"));
        let strange = reported_panic(|| std::panic::panic_any(7)).await;
        assert_eq!(strange.as_deref(), Some("a test panicked: without a message"));
        assert_eq!(reported_panic(|| ()).await, None);
    }
}
