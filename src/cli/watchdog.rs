//! Ends a process whose loops stand still. A thread of its own, so that it goes on where the runtime does not.
//!
//! A loop that stands (a thread that is blocked, a lock that is never released, a log that nobody reads) goes on holding its partitions, as
//! librdkafka's own threads go on with the heartbeats: nobody else takes them over. A process that has ended is started again by whoever
//! looks after it, and loses nothing: it is as after a kill.

use std::{io, sync::mpsc, thread, time::Duration};

use crate::heartbeats::{Heartbeats, Standing, Watch};

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
pub fn start(beats: &Heartbeats) -> io::Result<()> {
    watch(beats, |standing| {
        tell(standing);
        // SAFETY: it takes a number and does not return. What `exit` does besides may wait for whoever stands.
        unsafe { libc::_exit(STOOD_STILL) }
    })
}

/// Does `act` once something stands.
fn watch(beats: &Heartbeats, act: impl FnOnce(Vec<Standing>) + Send + 'static) -> io::Result<()> {
    let Some(limit) = beats.limit() else { return Ok(()) };
    let pause = (limit / LOOKS_A_LIMIT).min(LONGEST_PAUSE);
    let (beats, mut watch) = (beats.clone(), Watch::new(beats, pause));
    let looking = move || {
        let standing = loop {
            thread::sleep(pause);
            let standing = watch.check(beats.now_ms());
            if !standing.is_empty() {
                break standing;
            }
        };
        act(standing);
    };
    thread::Builder::new().name("watchdog".to_owned()).spawn(looking).map(drop)
}

fn tell(standing: Vec<Standing>) {
    let (told, done) = mpsc::channel();
    let telling = move || {
        for Standing { name, doing, since } in standing {
            let seconds = since.as_secs();
            let doing = doing.unwrap_or("nothing that it has named");
            tracing::error!(
                "{name} has stood still for {seconds} s (it waited for {doing}): the process is ended, with exit code {STOOD_STILL}; \
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
    fn found(limit: Duration, mut live: impl FnMut(&Heartbeats)) -> Option<Vec<Standing>> {
        let beats = Heartbeats::new(Clock::System, Some(limit));
        let (found, finding) = mpsc::channel();
        watch(&beats, move |standing| drop(found.send(standing))).unwrap();
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(1) {
            live(&beats);
            if let Ok(standing) = finding.recv_timeout(Duration::from_millis(5)) {
                return Some(standing);
            }
        }
        None
    }

    #[test]
    fn it_acts_once_something_stands_and_not_before() {
        let mut heart = None;
        let limit = Duration::from_millis(200);
        let standing = found(limit, |beats| _ = heart.get_or_insert_with(|| beats.heart("a loop"))).unwrap();
        assert!(standing[0].name == "a loop" && standing[0].since >= limit, "{standing:?}");
        let mut heart = None;
        // Far more patience than a machine with other work needs.
        let limit = Duration::from_millis(900);
        assert_eq!(found(limit, |beats| heart.get_or_insert_with(|| beats.heart("a loop")).beat()), None);
        assert_eq!(found(limit, |_| ()), None, "there is no loop");
    }

    /// Threads of a runtime that are blocked, as by a lock that is never released: its loops cannot beat, whatever they wait for.
    #[test]
    fn a_runtime_that_is_blocked_stands() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut blocked = None;
        let standing = found(Duration::from_millis(200), |beats| {
            blocked.get_or_insert_with(|| {
                let heart = beats.heart("a loop");
                runtime.spawn(async move { heart.through("the store", std::future::pending::<()>()).await });
                thread::sleep(Duration::from_millis(300));
                runtime.spawn(async { thread::sleep(Duration::from_secs(3)) });
            });
        });
        let standing = standing.unwrap();
        assert_eq!((standing.len(), standing[0].doing), (1, Some("the store")), "{standing:?}");
    }
}
