//! Ends a process whose loops stand still. A thread of its own, so that it goes on where the runtime does not.
//!
//! A loop that stands (a thread that is blocked, a lock that is never released, a log that nobody reads) goes on holding its partitions, as
//! librdkafka's own threads go on with the heartbeats: nobody else takes them over. A process that has ended is started again by whoever
//! looks after it, and loses nothing: it is as after a kill.

use std::{io, sync::mpsc, thread, time::Duration};

use crate::liveness::{LivenessMonitor, StallDetector, StalledLoop};

/// The exit code of a process that was ended because a loop of it stood still.
pub const STOOD_STILL: i32 = 4;

/// The log may be what everything waits for.
const TELL_WITHIN: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const LOOKS_A_LIMIT: u32 = 8;

/// Looks at the hearts from now on, and ends the process with [`STOOD_STILL`] when one of them stands still for their limit. Without a limit
/// it does nothing.
///
/// # Errors
/// The thread cannot be started.
pub fn start(liveness: &LivenessMonitor) -> io::Result<()> {
    watch(liveness, |standing| {
        tell(standing);
        // SAFETY: it takes a number and does not return. What `exit` does besides may wait for whoever stands.
        unsafe { libc::_exit(STOOD_STILL) }
    })
}

/// Does `act` once something stands.
fn watch(liveness: &LivenessMonitor, act: impl FnOnce(Vec<StalledLoop>) + Send + 'static) -> io::Result<()> {
    let Some(limit) = liveness.limit() else { return Ok(()) };
    let pause = (limit / LOOKS_A_LIMIT).min(LONGEST_PAUSE);
    let (liveness, mut watch) = (liveness.clone(), StallDetector::new(liveness, pause));
    let looking = move || {
        let standing = loop {
            thread::sleep(pause);
            let standing = watch.check(liveness.now_ms());
            if !standing.is_empty() {
                break standing;
            }
        };
        act(standing);
    };
    thread::Builder::new().name("watchdog".to_owned()).spawn(looking).map(drop)
}

fn tell(standing: Vec<StalledLoop>) {
    let (told, done) = mpsc::channel();
    let telling = move || {
        for StalledLoop { name, waits_for, since } in standing {
            let seconds = since.as_secs();
            let waits_for = waits_for.unwrap_or("no named wait");
            tracing::error!(
                "{name} has stood still for {seconds} s (it waited for {waits_for}): the process is ended, with exit code {STOOD_STILL}; \
                 nothing is lost"
            );
        }
        // Whoever listens has run out of patience otherwise.
        let _ = told.send(());
    };
    if thread::Builder::new().name("last-words".to_owned()).spawn(telling).is_ok() {
        // Told or not: it ends.
        let _ = done.recv_timeout(TELL_WITHIN);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::clock::Clock;

    /// What was found to stand, within a second.
    fn found(limit: Duration, mut live: impl FnMut(&LivenessMonitor)) -> Option<Vec<StalledLoop>> {
        let liveness = LivenessMonitor::new(Clock::System, Some(limit));
        let (found, finding) = mpsc::channel();
        watch(&liveness, move |standing| drop(found.send(standing))).unwrap();
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(1) {
            live(&liveness);
            if let Ok(standing) = finding.recv_timeout(Duration::from_millis(5)) {
                return Some(standing);
            }
        }
        None
    }

    #[test]
    fn it_acts_once_something_stands_and_not_before() {
        let mut monitor = None;
        let limit = Duration::from_millis(200);
        let standing =
            found(limit, |liveness| _ = monitor.get_or_insert_with(|| liveness.watch_loop("a loop"))).unwrap();
        assert!(standing[0].name == "a loop" && standing[0].since >= limit, "{standing:?}");
        let mut monitor = None;
        // Far more patience than a machine with other work needs.
        let limit = Duration::from_millis(900);
        assert_eq!(found(limit, |liveness| monitor.get_or_insert_with(|| liveness.watch_loop("a loop")).beat()), None);
        assert_eq!(found(limit, |_| ()), None, "there is no loop");
    }

    /// Threads of a runtime that are blocked, as by a lock that is never released: its loops cannot beat, whatever they wait for.
    #[test]
    fn a_runtime_that_is_blocked_stands() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut blocked = None;
        let standing = found(Duration::from_millis(200), |liveness| {
            blocked.get_or_insert_with(|| {
                let monitor = liveness.watch_loop("a loop");
                runtime.spawn(async move { monitor.enter("the store", std::future::pending::<()>()).await });
                thread::sleep(Duration::from_millis(300));
                runtime.spawn(async { thread::sleep(Duration::from_secs(3)) });
            });
        });
        let standing = standing.unwrap();
        assert_eq!((standing.len(), standing[0].waits_for), (1, Some("the store")), "{standing:?}");
    }
}
