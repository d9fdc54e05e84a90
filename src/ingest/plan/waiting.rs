//! Transactions that wait: for a parent in flight here, or parked until their next try.

use super::{Action, EventRef, PlanSettings, Planner, pace::Pace};
use crate::{
    ingest::{
        flight::{Flight, FlightId, Kept, Stage, decided},
        parked::{Due, Lane, wide},
    },
    record::Reason,
    replay::Mode,
    telemetry::Completion,
    tx::Txid,
};

/// Those that wait may be as many as a partition's bound allows; the next look is for the others.
const LOOKS_AT_ONCE: usize = 1_024;

/// Tries in a second of those that stand behind the front, all together, where they are of use ([`Pace`](super::pace::Pace)). As long as few
/// are parked each is tried again soon, however long it has waited …
const TRIES_A_SECOND: u64 = super::pace::USUAL;

/// … which is this part of the longest pause: shorter, they would try more than they wait.
const SOON: u64 = 8;

/// And who is in the first class of the front after this part of it, however many are parked: of a chain whose links lie with several
/// instances each takes one such pause, and a block waits for such chains.
const AT_ONCE: u64 = 32;

/// Tries that may be unanswered at once, and their rows. A store that is slow would otherwise be given the more the slower it is, before
/// everything that those who try wait for.
const TRIES_AT_ONCE: usize = 64;
const ROWS_AT_ONCE: usize = 1_024;

/// The longest pause of who asks for many rows at each try, however many of that kind there are, ms.
const LONGEST_WIDE_PAUSE_MS: u64 = 60_000;

/// Who has been tried so often is no longer new: a parent that is on its way has come by then.
const NEW: u32 = 5;

/// Who pauses for much longer than that tries at a multiple of it: those of a moment share a batch, and the loop wakes for them once.
const TOGETHER_MS: u64 = super::pace::TOGETHER_MS;

/// When a pause ends, ms.
fn end_of_pause(now_ms: u64, pause: u64) -> u64 {
    let end_ms = now_ms.saturating_add(pause);
    if pause < 8 * TOGETHER_MS { end_ms } else { end_ms.checked_next_multiple_of(TOGETHER_MS).unwrap_or(end_ms) }
}

/// The longest pause, in ms, of those behind the front, where so many are parked.
fn pause_behind(settings: &PlanSettings, parked: usize) -> u64 {
    let soon = (settings.retry_max_ms / SOON).max(settings.retry_min_ms);
    ((parked as u64).saturating_mul(1_000) / TRIES_A_SECOND).max(soon)
}

/// The longest pause, in ms, of those who are [`wide`], where one try of each of them comes to so many rows: all together they may ask for
/// [`TRIES_A_SECOND`] rows, as those behind the front may.
fn pause_of_wide(rows: usize) -> u64 {
    ((rows as u64).saturating_mul(1_000) / TRIES_A_SECOND).min(LONGEST_WIDE_PAUSE_MS)
}

/// The longest pause, in ms, of who is in a class of the front.
fn pause_of_class(settings: &PlanSettings, class: u32) -> u64 {
    (settings.retry_max_ms / AT_ONCE).max(settings.retry_min_ms) << class
}

/// Who was parked and tries again now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trying {
    due: Due,
    rows: usize,
}

/// Whether so many try that nobody else does before there is an answer.
fn is_full(trying: &[Trying]) -> bool {
    trying.len() >= TRIES_AT_ONCE || trying.iter().map(|one| one.rows).sum::<usize>() >= ROWS_AT_ONCE
}

impl Planner {
    pub(super) fn await_parents(&mut self, id: FlightId, remaining: u32) {
        if let Some(flight) = self.get(id) {
            flight.stage = Stage::AwaitingParents { remaining };
            self.begins_to_wait(id);
        }
    }

    /// A parked flight waits for a parent that has just arrived instead.
    pub(super) fn unpark(&mut self, id: FlightId) -> bool {
        let Some(flight) = self.get(id) else { return false };
        if let Stage::Parked = flight.stage {
            flight.stage = Stage::AwaitingParents { remaining: 1 };
            self.parked.remove(id);
            return true;
        }
        false
    }

    /// Whoever waited goes on, and those that it waited for must not start it when they end.
    pub(super) fn wait_no_longer(&mut self, id: FlightId) {
        if self.get(id).is_some_and(|flight| flight.stage == Stage::Parked) {
            self.parked.remove(id);
        } else {
            for parent in self.parents_in_flight(id, |_| true) {
                if let Some(parent) = self.get(parent) {
                    parent.children.retain(|child| *child != id);
                }
            }
        }
        self.ends_waiting(id);
    }

    /// One begins to wait; all events of a transaction lie in one partition.
    pub(super) fn begins_to_wait(&mut self, id: FlightId) {
        let place = self.waiting.len() as u32;
        let Some(flight) = self.get(id).filter(|flight| flight.waits_at.is_none()) else { return };
        flight.waits_at = Some(place);
        let partition = flight.origin.partition;
        self.waiting.push(id);
        self.parked_max = self.parked_max.max(self.waiting.len());
        if let Ok(number) = usize::try_from(partition) {
            if self.waiting_of.len() <= number {
                self.waiting_of.resize(number + 1, 0);
            }
            self.waiting_of[number] += 1;
        }
    }

    /// One goes on.
    pub(super) fn ends_waiting(&mut self, id: FlightId) {
        let Some(flight) = self.get(id) else { return };
        let (place, partition) = (flight.waits_at.take(), flight.origin.partition);
        let Some(place) = place else { return };
        self.waiting.swap_remove(place as usize);
        if let Some(moved) = self.waiting.get(place as usize).copied()
            && let Some(moved) = self.get(moved)
        {
            moved.waits_at = Some(place);
        }
        let number = usize::try_from(partition).ok();
        if let Some(waiting) = number.and_then(|number| self.waiting_of.get_mut(number)) {
            *waiting -= 1;
        }
    }

    /// Those that wait, for whatever.
    pub(super) fn those_that_wait(&self) -> impl Iterator<Item = &Flight> {
        self.waiting
            .iter()
            .filter_map(|id| self.flights.get(id.index as usize)?.as_ref().filter(|flight| flight.id == *id))
    }

    pub(super) fn park(&mut self, id: FlightId, now_ms: u64) {
        if self.get(id).is_some_and(|flight| flight.events.is_empty()) {
            // Its partitions were taken away: whoever has them now reads the event again.
            return self.finish(id, Completion::PassedOver);
        }
        if self.get(id).is_some_and(|flight| flight.gives_way()) {
            return self.finish(id, Completion::PassedOver);
        }
        let won = self.get(id).is_some_and(|flight| flight.mode.ends_live());
        let in_flight = self.parents_in_flight(id, |group| match &group.refusal {
            None => false,
            Some(refusal) => won || !decided(refusal),
        });
        if let Some(parent) = self.missing_at_last(id, in_flight.is_empty()) {
            return self.store_contested(id, Reason::MissingParent { parent });
        }
        if !in_flight.is_empty() {
            let remaining = in_flight.len() as u32;
            for parent in in_flight {
                if let Some(parent) = self.get(parent) {
                    parent.children.push(id);
                }
            }
            return self.await_parents(id, remaining);
        }
        let settings = self.settings;
        let at_bound = self.is_at_bound(id);
        let Some(flight) = self.get(id) else { return };
        let since_ms = *flight.parked_since_ms.get_or_insert(now_ms);
        if let Some(parent) = flight.locked_parent()
            && flight.mode == Mode::Normal
            && (at_bound || now_ms.saturating_sub(since_ms) >= settings.flag_grace_ms)
        {
            return self.store_contested(id, Reason::Locked { parent });
        }
        self.pause(id, now_ms);
    }

    /// Waits a while before it tries again, whatever it waits for: what has just been answered may be answered again at once.
    pub(super) fn pause(&mut self, id: FlightId, now_ms: u64) {
        let settings = self.settings;
        let Some(age) = self.get(id).and_then(|flight| flight.first_event()) else {
            // Its partitions were taken away: whoever has them now reads the event again.
            return self.finish(id, Completion::PassedOver);
        };
        let behind = pause_behind(&settings, self.parked.count());
        let longest = self.parked.class_of(age).map_or(behind, |class| pause_of_class(&settings, class).min(behind));
        let all_wide = self.parked.wide_rows();
        let Some(flight) = self.get(id) else { return };
        let rows = flight.rows_of_a_try();
        let longest = if wide(rows) { longest.max(pause_of_wide(all_wide + rows)) } else { longest };
        flight.parked_since_ms.get_or_insert(now_ms);
        let pause = (settings.retry_min_ms << flight.attempts.min(16)).min(longest);
        let is_new = flight.attempts < NEW;
        flight.attempts += 1;
        flight.stage = Stage::Parked;
        let registered = std::mem::replace(&mut flight.awaits_registered, true);
        let absent: Vec<Txid> = if registered { Vec::new() } else { flight.absent_parents().collect() };
        for parent in absent {
            self.awaited.entry(parent).or_default().insert(id);
        }
        self.parked.insert(id, age, rows, end_of_pause(now_ms, pause), is_new);
        self.begins_to_wait(id);
    }

    /// What was asked for cannot be stored, and asking again does not help: the transaction stands, and so does whatever waits for it
    /// here. Answers with it and with its events, whose partitions are to be halted: they never end here.
    pub fn halt(&mut self, id: FlightId, now_ms: u64) -> Option<(Txid, Vec<EventRef>)> {
        let flight = self.get(id)?;
        if flight.events.is_empty() {
            // Its partitions were taken away: whoever has them now finds out.
            self.finish(id, Completion::PassedOver);
            self.settle_ready(now_ms);
            return None;
        }
        let was = std::mem::replace(&mut flight.stage, Stage::Halted);
        let halted = (flight.txid, flight.events.clone());
        if was != Stage::Halted {
            self.begins_to_wait(id);
        }
        Some(halted)
    }

    /// Whether anything stands until somebody has looked; what waits for that is tried no more than that itself.
    pub fn has_halted(&self) -> bool {
        self.those_that_wait().any(|flight| flight.stage == Stage::Halted)
    }

    pub(super) fn is_at_bound(&self, id: FlightId) -> bool {
        let flight = self.flights.get(id.index as usize).and_then(Option::as_ref);
        flight.is_some_and(|flight| flight.events.iter().any(|event| self.at_bound.contains(&event.partition)))
    }

    /// A partition was read to its bound and is paused there. What waits on a flag on its behalf is contested at once: the
    /// block that lifts the flag may wait for what is not read.
    pub fn bound_reached(&mut self, partition: i32, now_ms: u64) {
        if !self.at_bound.insert(partition) {
            return;
        }
        let on_flag = |flight: &&Flight| flight.stage == Stage::Parked && flight.locked_parent().is_some();
        let waiting: Vec<FlightId> = self.those_that_wait().filter(on_flag).map(|flight| flight.id).collect();
        for id in waiting {
            if self.is_at_bound(id) {
                self.wait_no_longer(id);
                self.ready.push_back(id);
            }
        }
        self.settle_ready(now_ms);
    }

    /// A partition that was paused at its bound has room again.
    pub fn bound_left(&mut self, partition: i32) {
        self.at_bound.remove(&partition);
    }

    /// Tries again what has been parked long enough: not all at once, where they are many.
    pub fn retry_due(&mut self, now_ms: u64) {
        if now_ms >= self.next_look_at_front_ms {
            let settings = self.settings;
            let behind = pause_behind(&settings, self.parked.count());
            self.next_look_at_front_ms = now_ms.saturating_add(pause_of_class(&settings, 0));
            self.parked.look_at_front(now_ms, |class| pause_of_class(&settings, class).min(behind));
        }
        let mut trying = std::mem::take(&mut self.trying);
        trying.retain(|one| {
            let is_answering = self.is_answering(one.due.id);
            if !is_answering {
                let is_parked = self.get(one.due.id).is_some_and(|flight| flight.stage == Stage::Parked);
                if let Some(pace) = self.pace_of(one.due.lane) {
                    pace.judge(!is_parked);
                }
            }
            is_answering
        });
        while !is_full(&trying) {
            let (behind, new) = (self.pace_behind.allows(now_ms), self.pace_of_new.allows(now_ms));
            let Some(due) = self.parked.pop_due(now_ms, behind, new) else { break };
            if let Some(pace) = self.pace_of(due.lane) {
                pace.spend();
            }
            self.ends_waiting(due.id);
            self.ready.push_back(due.id);
            trying.push(Trying { due, rows: self.get(due.id).map_or(0, |flight| flight.rows_of_a_try()) });
        }
        self.trying = trying;
        self.settle_ready(now_ms);
    }

    fn pace_of(&mut self, lane: Lane) -> Option<&mut Pace> {
        match lane {
            Lane::Front => None,
            Lane::New => Some(&mut self.pace_of_new),
            Lane::Behind => Some(&mut self.pace_behind),
        }
    }

    /// Whether the store has not told one that tries again what it wants to know. Who is being created has been told: that may wait for
    /// the blob store, and the others do not.
    fn is_answering(&self, id: FlightId) -> bool {
        let flight = self.flights.get(id.index as usize).and_then(Option::as_ref).filter(|flight| flight.id == id);
        flight.is_some_and(|flight| match flight.stage {
            Stage::Spending { .. } | Stage::Looking | Stage::ReadingOwn | Stage::ReadingFirst { .. } => true,
            Stage::AwaitingParents { .. } | Stage::Parked | Stage::Halted => false,
            Stage::Creating | Stage::StoringContested { .. } | Stage::PublishingContest { .. } => false,
        })
    }

    /// Gives memory of their own to those that have waited since the last look: one that waits would hold the whole batch that it was
    /// read with.
    pub fn keep_apart(&mut self) {
        for place in 0..self.waiting.len() {
            let id = self.waiting[place];
            let Some(flight) = self.get(id).filter(|flight| flight.waits()) else { continue };
            flight.kept = match flight.kept {
                Kept::WithItsBatch => Kept::SeenToWait,
                Kept::SeenToWait => {
                    flight.work = flight.work.apart();
                    Kept::Apart
                }
                Kept::Apart => Kept::Apart,
            };
        }
    }

    /// A transaction came that no event here brings: those that are parked until it does try again now.
    pub fn on_parent_created(&mut self, parent: &Txid, now_ms: u64) {
        for id in self.awaited.get(parent).cloned().unwrap_or_default() {
            if self.get(id).is_some_and(|flight| flight.stage == Stage::Parked) {
                self.wait_no_longer(id);
                self.ready.push_back(id);
            }
        }
        self.settle_ready(now_ms);
    }

    /// When [`retry_due`](Self::retry_due) has something to do, by the clock of whoever calls it; `None`: not before an answer.
    pub fn next_due_ms(&self) -> Option<u64> {
        let is_full = is_full(&self.trying) && self.trying.iter().all(|one| self.is_answering(one.due.id));
        self.parked.next_due_ms(self.pace_behind.allows_at_ms(), self.pace_of_new.allows_at_ms()).filter(|_| !is_full)
    }

    /// Those that have been seen to wait for so long, or have since they last looked at their own records: not all, where
    /// they are many.
    pub fn waiting_long(&mut self, long_ms: u64, now_ms: u64) -> Vec<FlightId> {
        let mut long = Vec::new();
        for place in 0..self.waiting.len() {
            let id = self.waiting[place];
            let Some(flight) = self.get(id).filter(|flight| flight.waits()) else { continue };
            let since_ms = *flight.waits_since_ms.get_or_insert(now_ms);
            if now_ms.saturating_sub(since_ms) >= long_ms && long.len() < LOOKS_AT_ONCE {
                long.push(id);
            }
        }
        long
    }

    /// Those that have waited long look at their own records once more: it may all be done already, by an earlier event or by
    /// whoever had the partition before, and others wait for it here. And over a store that forgets, or in a rebuild, the sequencer may
    /// want them, while they wait for a verdict that stands behind what it is about.
    pub fn look_at_own(&mut self, long_ms: u64, now_ms: u64) {
        for id in self.waiting_long(long_ms, now_ms) {
            if let Some(flight) = self.get(id) {
                let txid = flight.txid;
                flight.waits_since_ms = Some(now_ms);
                self.actions.push_back(Action::ReadOwn(id, txid));
            }
        }
    }

    /// One of those that wait for a record, with since when, and for what in a line: the one whose event came first.
    pub fn one_that_waits(&self) -> Option<(u64, String)> {
        // Who tries again has not come to its end by that.
        let waits = |flight: &&Flight| match flight.stage {
            Stage::Parked => true,
            _ => flight.parked_since_ms.is_some() && flight.is_barred(),
        };
        let parked = self.flights.iter().flatten().filter(waits);
        let (event, flight) =
            parked.filter_map(|flight| Some((flight.first_event()?, flight))).min_by_key(|(it, _)| *it)?;
        let txid = flight.work.txid();
        let EventRef { partition, offset, .. } = event;
        let what = format!("{txid} (partition {partition}, offset {offset}) waits for {}", flight.what_bars_it());
        Some((flight.parked_since_ms.unwrap_or_default(), what))
    }
}
