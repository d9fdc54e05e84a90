//! Gate between one instance and its broker, engine and blob store. A gate can kill the instance at any await, freeze
//! it, or block the polls of its consumers.
//!
//! Every call of an instance passes its gate, also from spawned tasks that outlive the instance in this process (in a
//! real one they could not). After the kill no call completes.

use std::{
    future::{Future, pending},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use tokio::sync::Notify;

#[derive(Debug, Default)]
struct State {
    dead: bool,
    paused: bool,
    polls_blocked: bool,
    /// Ticks (polls and calls) until the kill.
    ticks_left: Option<u64>,
    /// Memberships as (group, member).
    members: Vec<(String, u64)>,
}

/// The gate of one instance.
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Notify,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_waiters();
    }

    /// Kills the instance after this many more polls and calls.
    pub fn kill_after_ticks(&self, ticks: u64) {
        self.change(|state| state.ticks_left = Some(ticks));
    }

    /// Freezes the instance: none of its futures is polled, and no call completes.
    pub fn pause(&self) {
        self.change(|state| state.paused = true);
    }

    /// Blocks the polls of the instance's consumers: it misses revocations.
    pub fn block_polls(&self) {
        self.change(|state| state.polls_blocked = true);
    }

    /// Resumes a frozen instance while its polls stay blocked: it does not know yet what it has lost.
    pub fn resume_without_polls(&self) {
        self.change(|state| (state.paused, state.polls_blocked) = (false, true));
    }

    /// Unblocks the polls.
    pub fn allow_polls(&self) {
        self.change(|state| state.polls_blocked = false);
    }

    /// Resumes the instance and unblocks its polls.
    pub fn resume_fully(&self) {
        self.change(|state| (state.paused, state.polls_blocked) = (false, false));
    }

    /// Resumes the instance, unblocks its polls and cancels a pending kill.
    pub fn clear_faults(&self) {
        self.change(|state| (state.paused, state.polls_blocked, state.ticks_left) = (false, false, None));
    }

    /// Whether the instance was killed.
    pub fn is_dead(&self) -> bool {
        self.state().dead
    }

    /// Records that the instance has joined a group.
    pub fn record_membership(&self, group: &str, member: u64) {
        self.state().members.push((group.to_owned(), member));
    }

    /// Returns the memberships as (group, member).
    pub fn members(&self) -> Vec<(String, u64)> {
        self.state().members.clone()
    }

    fn tick(&self) -> bool {
        let mut state = self.state();
        let is_due = match &mut state.ticks_left {
            Some(0) => true,
            Some(ticks) => {
                *ticks -= 1;
                false
            }
            None => false,
        };
        state.dead |= is_due;
        drop(state);
        if is_due {
            self.changed.notify_waiters();
        }
        is_due
    }

    /// Waits until a call may proceed; never returns once the instance is killed.
    pub async fn pass(&self) {
        self.tick();
        self.wait_while(|state| state.paused).await;
    }

    /// Waits until a poll may proceed; never returns once the instance is killed.
    pub async fn pass_poll(&self) {
        self.tick();
        self.wait_while(|state| state.paused || state.polls_blocked).await;
    }

    async fn wait_while(&self, shut: impl Fn(&State) -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let (dead, shut) = {
                let state = self.state();
                (state.dead, shut(&state))
            };
            if dead {
                return pending().await;
            }
            if !shut {
                return;
            }
            changed.await;
        }
    }

    /// Runs `future` behind the gate; `None` means that the instance was killed.
    pub async fn guard<F: Future>(self: Arc<Self>, future: F) -> Option<F::Output> {
        let mut future = Box::pin(future);
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let once = GatedPoll { gate: &self, future: future.as_mut() };
            let polled = tokio::select! {
                biased;
                () = changed => None,
                output = once => Some(output),
            };
            match polled {
                Some(output) => return output,
                None if self.is_dead() => return None,
                None => {}
            }
        }
    }
}

/// One poll of a future, if its gate is open.
struct GatedPoll<'a, F> {
    gate: &'a Gate,
    future: Pin<&'a mut F>,
}

impl<F: Future> Future for GatedPoll<'_, F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.gate.tick() || self.gate.is_dead() {
            return Poll::Ready(None);
        }
        if self.gate.state().paused {
            // `resume` notifies, and the future is polled again.
            return Poll::Pending;
        }
        self.future.as_mut().poll(context).map(Some)
    }
}
