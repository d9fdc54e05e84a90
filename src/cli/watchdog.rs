//! The watchdog ends a process with a stalled loop. The watchdog has its own thread, which runs even if the runtime is
//! blocked.
//!
//! A stalled loop (a blocked thread, a mutex that is never released, a standard error that nobody reads) would keep its
//! partitions, since librdkafka's threads continue to send heartbeats, and no other instance could take them over. A
//! supervisor starts the ended process again. As after a kill, no data is lost.

use std::{io, sync::mpsc, thread, time::Duration};

use crate::liveness::{LivenessMonitor, LoopStatus, StallDetector};

/// Exit code of a process that the watchdog has ended.
pub const STALLED_EXIT_CODE: i32 = 4;

/// Longest wait for the log line, since writing the log can be the operation that is blocked.
const LOG_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest pause between two checks.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Number of checks within the stall limit.
const CHECKS_PER_LIMIT: u32 = 8;

/// Checks the loops from now on, and ends the process with [`STALLED_EXIT_CODE`] when a loop has not iterated for the
/// limit (`run.watchdog_ms`). Without a limit nothing is checked.
///
/// # Errors
/// The thread cannot be started.
pub fn start(liveness: &LivenessMonitor) -> io::Result<()> {
    watch(liveness, |stalled| {
        log_stalled_loops(stalled);
        // SAFETY: `_exit` takes a number and does not return. `exit` would run handlers, which can wait for the loop.
        unsafe { libc::_exit(STALLED_EXIT_CODE) }
    })
}

/// Calls `act` once, with the loops that have stalled.
fn watch(liveness: &LivenessMonitor, act: impl FnOnce(Vec<LoopStatus>) + Send + 'static) -> io::Result<()> {
    let Some(limit) = liveness.limits().beat else { return Ok(()) };
    let pause = (limit / CHECKS_PER_LIMIT).min(MAX_CHECK_INTERVAL);
    let mut detector = StallDetector::new(liveness, pause);
    let check = move || {
        let stalled = loop {
            thread::sleep(pause);
            let stalled = detector.check();
            if !stalled.is_empty() {
                break stalled;
            }
        };
        act(stalled);
    };
    thread::Builder::new().name("watchdog".to_owned()).spawn(check).map(drop)
}

fn log_stalled_loops(stalled: Vec<LoopStatus>) {
    let (sender, receiver) = mpsc::channel();
    let write_log = move || {
        for LoopStatus { name, waits_for, since } in stalled {
            let seconds = since.as_secs();
            let waits_for = waits_for.unwrap_or("no named wait");
            tracing::error!(
                stalled_loop = %name,
                waits_for,
                seconds,
                exit_code = STALLED_EXIT_CODE,
                "watchdog: loop stalled, ending the process"
            );
        }
        // Without a receiver the timeout has passed.
        let _ = sender.send(());
    };
    if thread::Builder::new().name("last-words".to_owned()).spawn(write_log).is_ok() {
        // The process ends even if the log cannot be written.
        let _ = receiver.recv_timeout(LOG_TIMEOUT);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::{clock::Clock, liveness::LivenessLimits};

    /// Returns the loops that stalled within a second, while `live` is called every 5 ms.
    fn stalled_within_a_second(limit: Duration, mut live: impl FnMut(&LivenessMonitor)) -> Option<Vec<LoopStatus>> {
        let limits = LivenessLimits { beat: Some(limit), progress: limit };
        let liveness = LivenessMonitor::new(Clock::System, limits);
        let (sender, receiver) = mpsc::channel();
        watch(&liveness, move |stalled| drop(sender.send(stalled))).unwrap();
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(1) {
            live(&liveness);
            if let Ok(stalled) = receiver.recv_timeout(Duration::from_millis(5)) {
                return Some(stalled);
            }
        }
        None
    }

    #[test]
    fn the_watchdog_acts_on_a_stalled_loop_and_not_before() {
        let mut monitor = None;
        let limit = Duration::from_millis(200);
        let stalled =
            stalled_within_a_second(limit, |liveness| _ = monitor.get_or_insert_with(|| liveness.watch_loop("a loop")))
                .unwrap();
        assert!(stalled[0].name == "a loop" && stalled[0].since >= limit, "{stalled:?}");
        let mut monitor = None;
        // The limit is far above the delays of a busy machine.
        let limit = Duration::from_millis(900);
        let beat = |liveness: &LivenessMonitor| monitor.get_or_insert_with(|| liveness.watch_loop("a loop")).beat();
        assert_eq!(stalled_within_a_second(limit, beat), None);
        assert_eq!(stalled_within_a_second(limit, |_| ()), None, "there is no loop");
    }

    /// All threads of the runtime are blocked, as by a mutex that is never released: a loop cannot beat, whatever it
    /// waits for.
    #[test]
    fn a_loop_of_a_blocked_runtime_is_stalled() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut blocked = None;
        let stalled = stalled_within_a_second(Duration::from_millis(200), |liveness| {
            blocked.get_or_insert_with(|| {
                let monitor = liveness.watch_loop("a loop");
                runtime.spawn(async move { monitor.enter("the store", std::future::pending::<()>()).await });
                thread::sleep(Duration::from_millis(300));
                runtime.spawn(async { thread::sleep(Duration::from_secs(3)) });
            });
        });
        let stalled = stalled.unwrap();
        assert_eq!((stalled.len(), stalled[0].waits_for), (1, Some("the store")), "{stalled:?}");
    }
}
