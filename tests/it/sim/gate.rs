//! What stands between an instance and the world: there it can be killed at any await, frozen, or kept from hearing.
//!
//! Whatever an instance does passes here, also from tasks of its own that outlive it in this process as they never could
//! in a real one. Behind a gate that is shut for good nothing happens any more.

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
    deaf: bool,
    /// So many more ticks to live.
    fuse: Option<u64>,
    /// Memberships: group and member.
    members: Vec<(String, u64)>,
}

/// One instance's gate.
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

    /// Kills the instance after so many more of its polls and calls.
    pub fn light_fuse(&self, ticks: u64) {
        self.change(|state| state.fuse = Some(ticks));
    }

    /// Freezes it: no future of it is polled, no call goes through.
    pub fn pause(&self) {
        self.change(|state| state.paused = true);
    }

    /// Keeps from it whatever its consumers would hear.
    pub fn deafen(&self) {
        self.change(|state| state.deaf = true);
    }

    /// It goes on, and does not hear yet what has become of it meanwhile.
    pub fn rouse(&self) {
        self.change(|state| (state.paused, state.deaf) = (false, true));
    }

    /// It hears again.
    pub fn listen(&self) {
        self.change(|state| state.deaf = false);
    }

    /// It goes on and hears.
    pub fn wake(&self) {
        self.change(|state| (state.paused, state.deaf) = (false, false));
    }

    /// It goes on, hears, and lives.
    pub fn heal(&self) {
        self.change(|state| (state.paused, state.deaf, state.fuse) = (false, false, None));
    }

    /// Whether it was killed.
    pub fn is_dead(&self) -> bool {
        self.state().dead
    }

    /// It has joined a group.
    pub fn joined(&self, group: &str, member: u64) {
        self.state().members.push((group.to_owned(), member));
    }

    /// Its memberships.
    pub fn members(&self) -> Vec<(String, u64)> {
        self.state().members.clone()
    }

    fn tick(&self) -> bool {
        let mut state = self.state();
        let burnt = match &mut state.fuse {
            Some(0) => true,
            Some(ticks) => {
                *ticks -= 1;
                false
            }
            None => false,
        };
        state.dead |= burnt;
        drop(state);
        if burnt {
            self.changed.notify_waiters();
        }
        burnt
    }

    /// Lets a call through, sooner or later or never.
    pub async fn pass(&self) {
        self.tick();
        self.wait_while(|state| state.paused).await;
    }

    /// Lets the instance hear something, sooner or later or never.
    pub async fn hear(&self) {
        self.tick();
        self.wait_while(|state| state.paused || state.deaf).await;
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

    /// Runs `future` behind the gate; `None`: it was killed.
    pub async fn guard<F: Future>(self: Arc<Self>, future: F) -> Option<F::Output> {
        let mut future = Box::pin(future);
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let once = Once { gate: &self, future: future.as_mut() };
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

/// Polls a future while its gate is open.
struct Once<'a, F> {
    gate: &'a Gate,
    future: Pin<&'a mut F>,
}

impl<F: Future> Future for Once<'_, F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.gate.tick() || self.gate.is_dead() {
            return Poll::Ready(None);
        }
        if self.gate.state().paused {
            // Whoever wakes the instance notifies, and it is polled again.
            return Poll::Pending;
        }
        self.future.as_mut().poll(context).map(Some)
    }
}
