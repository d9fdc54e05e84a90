//! Queue of parked transactions, ordered by the time of the next try and by age. Pure.

use std::collections::{BTreeSet, HashMap};

use crate::ingest::{flight::FlightId, plan::EventRef};

/// Number of classes of the *front*, the oldest parked transactions. The next transaction that can complete is usually
/// one of them. All others are the *backlog*.
const CLASSES: u32 = 4;

/// Size of the first class. The first two classes together hold twice as many, the first three four times as many.
const FIRST_CLASS: usize = 128;

/// Returns the number of flights in a class and in all classes before it.
const fn class_end(class: u32) -> usize {
    FIRST_CLASS << class
}

#[derive(Debug, Clone, Copy)]
struct ParkedEntry {
    age: EventRef,
    due_ms: u64,
    /// The flight is not tried before this time, ms, whatever its class.
    delayed_until_ms: u64,
    /// Rows of the next try.
    rows: usize,
    /// The flight has been tried only a few times.
    is_fresh: bool,
}

/// Class by which a flight was selected for its try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryClass {
    /// The front: the oldest parked flights. No rate limits their tries.
    Oldest,
    /// Flights of the backlog that have been tried only a few times and were selected as such.
    Fresh,
    /// The backlog: all flights younger than the front.
    Backlog,
}

/// A flight whose try is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueFlight {
    /// The flight that may be tried.
    pub id: FlightId,
    /// Class whose rate pays for the try.
    pub class: RetryClass,
}

/// Rule that selects the next due flight; the rules rotate.
#[derive(Debug, Clone, Copy, Default)]
enum RetryOrder {
    #[default]
    Oldest,
    LongestDue,
    Freshest,
}

impl RetryOrder {
    fn next(self) -> RetryOrder {
        match self {
            RetryOrder::Oldest => RetryOrder::LongestDue,
            RetryOrder::LongestDue => RetryOrder::Freshest,
            RetryOrder::Freshest => RetryOrder::Oldest,
        }
    }
}

/// Parked flights by the time of their next try. Where more flights are due than can be tried, three rules rotate: the
/// oldest flight, the flight that has been due for longest, the youngest flight with few tries. So the oldest does not
/// wait behind the rest, and no flight is left out. The parent of a flight with few tries is likely to be created just
/// now.
#[derive(Debug, Default)]
pub struct RetryQueue {
    entries: HashMap<FlightId, ParkedEntry, foldhash::fast::FixedState>,
    by_due: BTreeSet<(u64, FlightId)>,
    /// Fresh flights of `by_due`.
    fresh_by_due: BTreeSet<(u64, FlightId)>,
    by_age: BTreeSet<(EventRef, FlightId)>,
    /// Flights that were due at `ready_ms`, by age.
    ready: BTreeSet<(EventRef, FlightId)>,
    /// Fresh flights of `ready`.
    fresh_ready: BTreeSet<(EventRef, FlightId)>,
    ready_ms: u64,
    order: RetryOrder,
    /// Youngest flight of each class that was full when the front was last determined.
    youngest_of_class: Vec<EventRef>,
    /// Rows of one try of every flight that [`is_wide`].
    wide_rows: usize,
}

/// Returns whether a try with this number of rows pays for its rows: it costs more than one try, also in the front.
pub fn is_wide(rows: usize) -> bool {
    rows > 16
}

impl RetryQueue {
    /// Parks a flight until `due_ms`; a flight that is parked already is moved. `age`: the first event of the flight.
    /// `rows`: the number of rows of its next try.
    pub fn insert(&mut self, id: FlightId, age: EventRef, rows: usize, due_ms: u64, is_fresh: bool) {
        self.remove(id);
        self.by_age.insert((age, id));
        self.wide_rows += if is_wide(rows) { rows } else { 0 };
        self.enqueue(id, ParkedEntry { age, due_ms, delayed_until_ms: 0, rows, is_fresh });
    }

    /// Delays the try of a parked flight until `until_ms`, at most once between two tries: repeated delays would keep
    /// the flight from ever being tried.
    pub fn delay(&mut self, id: FlightId, until_ms: u64) {
        let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.delayed_until_ms < entry.due_ms) else {
            return;
        };
        entry.delayed_until_ms = entry.delayed_until_ms.max(until_ms);
        let entry = *entry;
        if entry.due_ms < until_ms {
            self.reschedule(id, entry, until_ms);
        }
    }

    fn reschedule(&mut self, id: FlightId, entry: ParkedEntry, due_ms: u64) {
        self.dequeue(id, entry);
        self.enqueue(id, ParkedEntry { due_ms, ..entry });
    }

    fn dequeue(&mut self, id: FlightId, entry: ParkedEntry) {
        self.by_due.remove(&(entry.due_ms, id));
        self.ready.remove(&(entry.age, id));
        if entry.is_fresh {
            self.fresh_by_due.remove(&(entry.due_ms, id));
            self.fresh_ready.remove(&(entry.age, id));
        }
    }

    fn enqueue(&mut self, id: FlightId, entry: ParkedEntry) {
        self.entries.insert(id, entry);
        self.by_due.insert((entry.due_ms, id));
        if entry.is_fresh {
            self.fresh_by_due.insert((entry.due_ms, id));
        }
        if entry.due_ms <= self.ready_ms {
            self.mark_ready(id, entry);
        }
    }

    fn mark_ready(&mut self, id: FlightId, entry: ParkedEntry) {
        self.ready.insert((entry.age, id));
        if entry.is_fresh {
            self.fresh_ready.insert((entry.age, id));
        }
    }

    /// Removes a flight, whether due or not; a flight that is not parked is ignored.
    pub fn remove(&mut self, id: FlightId) {
        if let Some(entry) = self.entries.remove(&id) {
            self.wide_rows -= if is_wide(entry.rows) { entry.rows } else { 0 };
            self.by_age.remove(&(entry.age, id));
            self.dequeue(id, entry);
        }
    }

    /// Removes and returns the next due flight. Flights of the front may always try, others only with `backlog_may_try`
    /// or `fresh_may_try`.
    pub fn pop_due(&mut self, now_ms: u64, backlog_may_try: bool, fresh_may_try: bool) -> Option<DueFlight> {
        if self.ready_ms < now_ms {
            let first = FlightId { index: 0, generation: 0 };
            let due = self.by_due.range((self.ready_ms + 1, first)..).take_while(|(due_ms, _)| *due_ms <= now_ms);
            let due: Vec<FlightId> = due.map(|(_, id)| *id).collect();
            for id in due {
                if let Some(entry) = self.entries.get(&id) {
                    self.mark_ready(id, *entry);
                }
            }
            self.ready_ms = now_ms;
        }
        for _ in 0..3 {
            let order = self.order;
            self.order = order.next();
            let id = match order {
                RetryOrder::Oldest => {
                    let oldest =
                        self.ready.first().filter(|(age, _)| backlog_may_try || self.front_class(*age).is_some());
                    oldest.map(|(_, id)| *id)
                }
                RetryOrder::LongestDue => {
                    self.by_due.first().filter(|(due_ms, _)| backlog_may_try && *due_ms <= now_ms).map(|(_, id)| *id)
                }
                RetryOrder::Freshest => self.fresh_ready.last().filter(|_| fresh_may_try).map(|(_, id)| *id),
            };
            if let Some((id, entry)) = id.and_then(|id| Some((id, *self.entries.get(&id)?))) {
                let class = match (self.front_class(entry.age), order) {
                    (Some(_), _) => RetryClass::Oldest,
                    (None, RetryOrder::Freshest) => RetryClass::Fresh,
                    (None, _) => RetryClass::Backlog,
                };
                self.remove(id);
                return Some(DueFlight { id, class });
            }
        }
        None
    }

    /// Returns the rows of one try of every flight that [`is_wide`].
    pub fn wide_rows(&self) -> usize {
        self.wide_rows
    }

    /// Returns the number of parked flights.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Returns the time of the next possible try, ms. The backlog may not try before `backlog_from_ms`, fresh flights
    /// not before `fresh_from_ms`. A flight of the front may be due earlier than the returned time, but not before the
    /// first flight of the queue is due.
    pub fn next_due_ms(&self, backlog_from_ms: u64, fresh_from_ms: u64) -> Option<u64> {
        let others = self
            .by_due
            .first()
            .map(|(due_ms, _)| if self.has_backlog() { backlog_from_ms.max(*due_ms) } else { *due_ms });
        let fresh = self.fresh_by_due.first().map(|(due_ms, _)| fresh_from_ms.max(*due_ms));
        [others, fresh].into_iter().flatten().min()
    }

    /// Returns the class of the front to which a flight of this age belongs, as of the last
    /// [`refresh_front`](Self::refresh_front); `None`: the backlog.
    pub fn front_class(&self, age: EventRef) -> Option<u32> {
        let class = self.youngest_of_class.partition_point(|youngest_of_class| *youngest_of_class < age) as u32;
        (class < CLASSES).then_some(class)
    }

    /// Returns whether there was a backlog at the last [`refresh_front`](Self::refresh_front).
    fn has_backlog(&self) -> bool {
        self.youngest_of_class.len() == CLASSES as usize
    }

    /// Determines the front anew and shortens the pauses of its flights to those of their classes, except for flights
    /// that are [`is_wide`].
    pub fn refresh_front(&mut self, now_ms: u64, pause_of: impl Fn(u32) -> u64) {
        let front: Vec<(EventRef, FlightId)> = self.by_age.iter().take(class_end(CLASSES - 1)).copied().collect();
        let youngest_of_class = (0..CLASSES).map_while(|class| front.get(class_end(class) - 1));
        self.youngest_of_class = youngest_of_class.map(|(age, _)| *age).collect();
        let mut class = 0;
        for (number, (_, id)) in front.into_iter().enumerate() {
            class += u32::from(number == class_end(class));
            let due_ms = now_ms.saturating_add(pause_of(class));
            if let Some(entry) =
                self.entries.get(&id).copied().filter(|entry| due_ms < entry.due_ms && !is_wide(entry.rows))
            {
                self.reschedule(id, entry, due_ms.max(entry.delayed_until_ms));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: u32) -> FlightId {
        FlightId { index, generation: 0 }
    }

    fn age(offset: u64) -> EventRef {
        EventRef { timestamp_ms: 0, partition: 0, offset, epoch: 0 }
    }

    fn pop(queue: &mut RetryQueue, now_ms: u64) -> Option<FlightId> {
        queue.pop_due(now_ms, true, true).map(|due| due.id)
    }

    #[test]
    fn flights_are_tried_in_the_order_of_their_due_times() {
        let mut queue = RetryQueue::default();
        queue.insert(id(1), age(1), 1, 30, false);
        queue.insert(id(2), age(2), 1, 10, false);
        queue.insert(id(3), age(3), 1, 20, false);
        queue.insert(id(1), age(1), 1, 5, false);
        queue.remove(id(3));
        assert_eq!((queue.next_due_ms(0, 0), queue.count()), (Some(5), 2));
        queue.delay(id(1), 7);
        queue.delay(id(2), 7);
        queue.delay(id(3), 7);
        assert_eq!(pop(&mut queue, 6), None, "its try is delayed");
        assert_eq!(pop(&mut queue, 9), Some(id(1)));
        assert_eq!(pop(&mut queue, 9), None);
        assert_eq!(pop(&mut queue, 10), Some(id(2)));
        assert_eq!((queue.next_due_ms(0, 0), queue.count()), (None, 0));
    }

    #[test]
    fn the_oldest_and_the_longest_due_alternate() {
        let mut queue = RetryQueue::default();
        for (number, due_ms) in [(1, 40), (2, 30), (3, 20), (4, 10), (5, 50), (6, 5)] {
            queue.insert(id(number), age(number.into()), 1, due_ms, false);
        }
        assert_eq!([30, 30].map(|now_ms| pop(&mut queue, now_ms)), [Some(id(2)), Some(id(6))]);
        // One flight is removed, one delayed, one parked again.
        queue.remove(id(3));
        queue.delay(id(4), 45);
        queue.insert(id(2), age(2), 1, 29, false);
        assert_eq!((queue.next_due_ms(0, 0), queue.count()), (Some(29), 4));
        assert_eq!([30, 30, 44].map(|now_ms| pop(&mut queue, now_ms)), [Some(id(2)), None, Some(id(1))]);
        assert_eq!([44, 50, 50].map(|now_ms| pop(&mut queue, now_ms)), [None, Some(id(4)), Some(id(5))]);
    }

    #[test]
    fn every_flight_is_tried_although_the_oldest_are_always_due() {
        let mut queue = RetryQueue::default();
        (0..100).for_each(|number| queue.insert(id(number), age(number.into()), 1, 1, false));
        let mut tried = [0; 100];
        // Two flights are tried in each ms, and every flight asks for a try after 2 ms.
        for now_ms in 1..1_000 {
            for _ in 0..2 {
                let Some(FlightId { index, .. }) = pop(&mut queue, now_ms) else { continue };
                tried[index as usize] += 1;
                queue.insert(id(index), age(index.into()), 1, now_ms + 2, false);
            }
        }
        assert!(tried[0] > 400 && tried.iter().all(|count| *count >= 9), "{tried:?}");
    }

    #[test]
    fn a_flight_that_enters_the_front_has_its_pause_shortened() {
        let mut queue = RetryQueue::default();
        let all = 2 * class_end(CLASSES - 1) as u32;
        (0..all).for_each(|number| queue.insert(id(number), age(number.into()), 1, 1_000_000, false));
        assert_eq!(queue.front_class(age(5_000)), Some(0), "the front was not determined yet");
        let refresh = |queue: &mut RetryQueue, now_ms| queue.refresh_front(now_ms, |class| 10 << class);
        refresh(&mut queue, 100);
        let classes = [0, 127, 128, 255, 256, 511, 512, 1_023, 1_024].map(|offset| queue.front_class(age(offset)));
        assert_eq!(classes, [0, 0, 1, 1, 2, 2, 3, 3, 4].map(|class| (class < CLASSES).then_some(class)));
        let due = |queue: &RetryQueue, number| queue.entries[&id(number)].due_ms;
        assert_eq!([0, 128, 256, 512, 1_024].map(|number| due(&queue, number)), [110, 120, 140, 180, 1_000_000]);
        // The older half of the front completes; flight 513 is delayed, flight 514 is due sooner than its class.
        (0..512).for_each(|number| queue.remove(id(number)));
        queue.delay(id(513), 170);
        queue.insert(id(514), age(514), 1, 105, false);
        refresh(&mut queue, 102);
        assert_eq!([512, 513, 514, 1_024].map(|number| due(&queue, number)), [112, 170, 105, 182]);
        assert_eq!(queue.front_class(age(1_023)), Some(2));
    }

    #[test]
    fn repeated_delays_do_not_prevent_a_try() {
        let mut queue = RetryQueue::default();
        queue.insert(id(1), age(1), 1, 10, false);
        let mut tries = 0;
        for now_ms in 0..2_000 {
            if now_ms % 100 == 0 {
                queue.delay(id(1), now_ms + 250);
            }
            if pop(&mut queue, now_ms).is_some() {
                tries += 1;
                queue.insert(id(1), age(1), 1, now_ms + 10, false);
            }
        }
        assert!((8..=80).contains(&tries), "{tries}");
    }

    #[test]
    fn the_front_shortens_no_pause_of_a_wide_flight() {
        let mut queue = RetryQueue::default();
        queue.insert(id(1), age(1), 5_000, 1_000, false);
        queue.insert(id(2), age(2), 16, 1_000, false);
        queue.insert(id(3), age(3), 17, 1_000, false);
        assert_eq!(queue.wide_rows(), 5_017);
        queue.refresh_front(100, |_| 50);
        assert_eq!([150, 999, 1_000].map(|now_ms| pop(&mut queue, now_ms)), [Some(id(2)), None, Some(id(1))]);
        queue.remove(id(3));
        assert_eq!(queue.wide_rows(), 0);
    }

    #[test]
    fn only_the_front_is_tried_while_the_backlog_may_not() {
        let mut queue = RetryQueue::default();
        let all = 2 * class_end(CLASSES - 1) as u32;
        (0..all).for_each(|number| queue.insert(id(number), age(number.into()), 1, 10, false));
        // One flight of the backlog has been due for longest.
        queue.insert(id(all - 1), age(u64::from(all) - 1), 1, 5, false);
        queue.refresh_front(5, |_| 5);
        let front = std::iter::from_fn(|| queue.pop_due(10, false, true));
        assert!(front.eq((0..all / 2).map(|number| DueFlight { id: id(number), class: RetryClass::Oldest })));
        assert_eq!(queue.count(), all as usize / 2);
        assert_eq!(queue.next_due_ms(500, 0), Some(500));
        // A fresh flight may try.
        queue.insert(id(all), age(u64::from(all)), 1, 12, true);
        assert_eq!((queue.pop_due(11, false, true), queue.next_due_ms(500, 0)), (None, Some(12)));
        assert_eq!(queue.pop_due(12, false, true), Some(DueFlight { id: id(all), class: RetryClass::Fresh }));
        // The rules rotate: the oldest flight, then the flight due for longest.
        let due = [12, 12].map(|now_ms| queue.pop_due(now_ms, true, true));
        assert_eq!(
            due,
            [all / 2, all - 1].map(|number| Some(DueFlight { id: id(number), class: RetryClass::Backlog }))
        );
    }

    #[test]
    fn fresh_flights_and_others_share_the_tries() {
        let mut queue = RetryQueue::default();
        let all = 2 * class_end(CLASSES - 1) as u32;
        // The youngest 100 flights are fresh.
        (0..all).for_each(|number| queue.insert(id(number), age(number.into()), 1, 10, number >= all - 100));
        queue.refresh_front(10, |_| 0);
        let mut tried = Vec::new();
        for _ in 0..30 {
            tried.push(queue.pop_due(10, true, true).unwrap());
        }
        let of = |class: RetryClass| {
            tried.iter().filter(|due| due.class == class).map(|due| due.id.index).collect::<Vec<_>>()
        };
        assert_eq!(of(RetryClass::Fresh), (all - 10..all).rev().collect::<Vec<_>>(), "the youngest first");
        assert_eq!(of(RetryClass::Oldest).len() + of(RetryClass::Backlog).len(), 20);
        // Fresh flights may not try, then they may; a flight of the backlog may be fresh.
        let front = std::iter::from_fn(|| queue.pop_due(10, false, false));
        assert!(front.into_iter().all(|due| due.class == RetryClass::Oldest));
        assert_eq!(queue.next_due_ms(60, 50), Some(50));
        assert_eq!(queue.pop_due(50, false, true), Some(DueFlight { id: id(all - 11), class: RetryClass::Fresh }));
        assert_eq!(
            std::iter::from_fn(|| queue.pop_due(50, true, false))
                .filter(|due| due.class == RetryClass::Backlog)
                .count(),
            backlog_left(all, &tried)
        );
        assert_eq!((queue.count(), queue.next_due_ms(0, 0)), (0, None));
        assert!(queue.ready.is_empty() && queue.fresh_ready.is_empty() && queue.fresh_by_due.is_empty());
    }

    /// Counts the backlog after the flights in `out` and one more have been tried.
    fn backlog_left(all: u32, out: &[DueFlight]) -> usize {
        let front = class_end(CLASSES - 1);
        all as usize - front - out.iter().filter(|due| due.id.index as usize >= front).count() - 1
    }
}
