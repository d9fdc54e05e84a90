//! Contests, dead letters and outcomes that are being published.

use tokio::{
    sync::mpsc,
    time::{Duration, Instant},
};

use crate::{
    broker::Message,
    group::outcomes::GatheredTxids,
    ingest::{
        dispatch::{LiveEvent, Publication, TaskMessage},
        plan::{EventRef, Planner},
        publish::{FlightContest, Publisher},
    },
    prepare::Poison,
    telemetry::Completion,
    tx::Txid,
};

/// Pause after each message with live transactions, before the next messages leave: at most 500 messages a second, so
/// that the messages cost little beside the events. A lone transaction leaves at once: its child may wait for its
/// outcome in another instance.
const PAUSE_PER_MESSAGE: Duration = Duration::from_millis(2);

/// Publishes the messages of the pipeline and counts those without an acknowledgement.
pub(super) struct Publications {
    publisher: Publisher,
    sender: mpsc::UnboundedSender<TaskMessage>,
    /// Contests and dead letters without an acknowledgement.
    pending: usize,
    /// Messages about live transactions without an acknowledgement.
    pending_live: usize,
    live: Option<LiveOutcomes>,
    /// Contests that leave together once the planner has no more actions.
    gathered_contests: Vec<FlightContest>,
    contests: u64,
    dead_letters: u64,
}

/// Live transactions that wait for their message.
struct LiveOutcomes {
    gathered: GatheredTxids<LiveEvent>,
    /// Time before which no messages leave, unless one is full.
    next_flush: Instant,
    /// Longest pause between two flushes.
    max_pause: Duration,
}

/// Returns the pause after a flush of so many messages.
fn pause_after(messages: usize, longest: Duration) -> Duration {
    (PAUSE_PER_MESSAGE.saturating_mul(u32::try_from(messages).unwrap_or(u32::MAX))).min(longest)
}

impl Publications {
    /// Creates publications without a message. `live`: longest pause between two flushes of live transactions; `None`:
    /// they are not published.
    pub(super) fn new(
        publisher: Publisher,
        sender: mpsc::UnboundedSender<TaskMessage>,
        live: Option<Duration>,
    ) -> Self {
        let live = live.map(|max_pause| LiveOutcomes {
            gathered: GatheredTxids::new(publisher.outcomes.partitions),
            // An instance that starts reads a backlog: its first messages are worth the longest pause.
            next_flush: Instant::now() + max_pause,
            max_pause,
        });
        Publications {
            publisher,
            sender,
            pending: 0,
            pending_live: 0,
            live,
            gathered_contests: Vec::new(),
            contests: 0,
            dead_letters: 0,
        }
    }

    /// Gathers a contest for the next [`flush_contests`](Self::flush_contests).
    pub(super) fn gather_contest(&mut self, contest: FlightContest) {
        self.contests += 1;
        self.gathered_contests.push(contest);
    }

    /// Publishes the gathered contests.
    pub(super) fn flush_contests(&mut self) {
        self.pending += self.gathered_contests.len();
        self.publisher.publish_contests(std::mem::take(&mut self.gathered_contests), self.sender.clone());
    }

    pub(super) fn publish_dead_letter(&mut self, event: EventRef, message: Message, poison: Poison) {
        self.dead_letters += 1;
        self.pending += 1;
        self.publisher.publish_dead_letter(event, message, poison, self.sender.clone());
    }

    /// Gathers a live transaction for its outcome, whose acknowledgement completes the event. Returns `false` where the
    /// event has no such outcome and completes now.
    pub(super) fn gather_live(&mut self, event: EventRef, txid: Txid, how: Completion) -> bool {
        let Some(live) = self.live.as_mut().filter(|_| how.is_live()) else { return false };
        if let Some(full) = live.gathered.add(txid, (event, how)) {
            self.pending_live += 1;
            self.publisher.publish_live(full, self.sender.clone());
        }
        true
    }

    /// Publishes the gathered live transactions, unless the pause after the last messages lasts.
    pub(super) fn flush_live(&mut self) {
        let Some(live) = self.live.as_mut().filter(|live| live.gathered.count() > 0) else { return };
        let now = Instant::now();
        if now < live.next_flush {
            return;
        }
        let mut messages = 0;
        for gathered in live.gathered.take_all() {
            messages += 1;
            self.publisher.publish_live(gathered, self.sender.clone());
        }
        self.pending_live += messages;
        live.next_flush = now + pause_after(messages, live.max_pause);
    }

    /// Returns the time at which [`flush_live`](Self::flush_live) has work.
    pub(super) fn live_deadline(&self) -> Option<Instant> {
        self.live.as_ref().filter(|live| live.gathered.count() > 0).map(|live| live.next_flush)
    }

    /// Drops the gathered live transactions: their events are read again.
    pub(super) fn discard_live(&mut self) {
        if let Some(live) = &mut self.live {
            live.gathered.take_all().for_each(drop);
        }
    }

    /// Notes that a message is acknowledged, or refused for good.
    pub(super) fn end(&mut self, publication: &Publication) {
        match publication {
            Publication::Contests(flights) => self.pending -= flights.len(),
            Publication::DeadLetter(_) => self.pending -= 1,
            Publication::Live(_) => self.pending_live -= 1,
        }
    }

    /// Notes that a message is refused for good. Returns its events, which cannot complete.
    pub(super) fn fail(&mut self, publication: Publication, planner: &mut Planner, now_ms: u64) -> Vec<EventRef> {
        self.end(&publication);
        match publication {
            Publication::Contests(flights) => {
                let halted = flights.into_iter().filter_map(|flight| planner.halt(flight, now_ms));
                halted.flat_map(|(_, events)| events).collect()
            }
            Publication::DeadLetter(event) => vec![event],
            Publication::Live(events) => events.into_iter().map(|(event, _)| event).collect(),
        }
    }

    /// Returns the number of contests and dead letters without an acknowledgement.
    pub(super) fn pending(&self) -> usize {
        self.pending
    }

    /// Returns the number of all messages without an acknowledgement, and of gathered live transactions.
    pub(super) fn unfinished(&self) -> usize {
        self.pending + self.pending_live + self.live.as_ref().map_or(0, |live| live.gathered.count())
    }

    /// Returns the number of contests, and of dead letters.
    pub(super) fn totals(&self) -> (u64, u64) {
        (self.contests, self.dead_letters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_pauses_by_its_messages() {
        let ms = Duration::from_millis;
        let after = |messages| pause_after(messages, ms(50));
        assert_eq!([1, 12, 25, 1_000, usize::MAX].map(after), [2, 24, 50, 50, 50].map(ms));
    }
}
