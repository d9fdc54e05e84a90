//! Transactions that wait, by when they are tried again, and by how old they are. Pure.

use std::collections::{BTreeSet, HashMap};

use crate::ingest::{flight::FlightId, plan::EventRef};

/// Classes of the front, which is the oldest of those that wait: whatever moves next is among them.
const CLASSES: u32 = 4;

/// How many are in the first class, and with the second twice as many, and so on.
const FIRST_CLASS: usize = 128;

/// How many there are in a class and all before.
const fn end_of(class: u32) -> usize {
    FIRST_CLASS << class
}

#[derive(Debug, Clone, Copy)]
struct Place {
    age: EventRef,
    due_ms: u64,
    /// Not tried before, whatever its class.
    held_until_ms: u64,
    /// What a try costs.
    rows: usize,
    /// It has hardly been tried yet.
    is_new: bool,
}

/// Among whom one has its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// The oldest of all.
    Front,
    /// Those behind them that have hardly been tried yet, as such.
    New,
    /// All behind the front.
    Behind,
}

/// One whose time has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// Which.
    pub id: FlightId,
    /// Among whom.
    pub lane: Lane,
}

/// Whose turn it is.
#[derive(Debug, Clone, Copy, Default)]
enum Turn {
    #[default]
    Oldest,
    LongestDue,
    New,
}

impl Turn {
    fn next(self) -> Turn {
        match self {
            Turn::Oldest => Turn::LongestDue,
            Turn::LongestDue => Turn::New,
            Turn::New => Turn::Oldest,
        }
    }
}

/// A queue by the time of the next try. Where more are due than can be tried, the oldest does not wait behind the rest, nor does anybody wait
/// for ever: they come out in turn, the oldest, whoever has been due for longest, and the youngest of those that have hardly been tried: what
/// it waits for is likely to come just now.
#[derive(Debug, Default)]
pub struct Parked {
    places: HashMap<FlightId, Place, foldhash::fast::FixedState>,
    by_due: BTreeSet<(u64, FlightId)>,
    /// Of those the ones that are new.
    new_by_due: BTreeSet<(u64, FlightId)>,
    by_age: BTreeSet<(EventRef, FlightId)>,
    /// Those whose time had come when that was last looked at.
    ready: BTreeSet<(EventRef, FlightId)>,
    /// Of those the ones that are new.
    new_ready: BTreeSet<(EventRef, FlightId)>,
    ready_ms: u64,
    turn: Turn,
    /// The youngest of each class that was full when that was last looked at.
    youngest: Vec<EventRef>,
    /// The rows of all that are [`wide`].
    wide_rows: usize,
}

/// Whether a try of so many rows is more than one among others: it is paid for by who makes it, wherever in the front it stands.
pub fn wide(rows: usize) -> bool {
    rows > 16
}

impl Parked {
    /// Parks a flight of this age, whose next try takes so many rows, until `due_ms`; a flight that is parked already is moved.
    pub fn insert(&mut self, id: FlightId, age: EventRef, rows: usize, due_ms: u64, is_new: bool) {
        self.remove(id);
        self.by_age.insert((age, id));
        self.wide_rows += if wide(rows) { rows } else { 0 };
        self.put(id, Place { age, due_ms, held_until_ms: 0, rows, is_new });
    }

    /// Keeps a flight that is parked until `until_ms` at least. It is put off by that once between two tries: whoever holds often enough
    /// would keep it for ever.
    pub fn hold(&mut self, id: FlightId, until_ms: u64) {
        let Some(place) = self.places.get_mut(&id).filter(|place| place.held_until_ms < place.due_ms) else { return };
        place.held_until_ms = place.held_until_ms.max(until_ms);
        let place = *place;
        if place.due_ms < until_ms {
            self.move_to(id, place, until_ms);
        }
    }

    fn move_to(&mut self, id: FlightId, place: Place, due_ms: u64) {
        self.take_from_queue(id, place);
        self.put(id, Place { due_ms, ..place });
    }

    fn take_from_queue(&mut self, id: FlightId, place: Place) {
        self.by_due.remove(&(place.due_ms, id));
        self.ready.remove(&(place.age, id));
        if place.is_new {
            self.new_by_due.remove(&(place.due_ms, id));
            self.new_ready.remove(&(place.age, id));
        }
    }

    fn put(&mut self, id: FlightId, place: Place) {
        self.places.insert(id, place);
        self.by_due.insert((place.due_ms, id));
        if place.is_new {
            self.new_by_due.insert((place.due_ms, id));
        }
        if place.due_ms <= self.ready_ms {
            self.is_ready(id, place);
        }
    }

    fn is_ready(&mut self, id: FlightId, place: Place) {
        self.ready.insert((place.age, id));
        if place.is_new {
            self.new_ready.insert((place.age, id));
        }
    }

    /// Takes a flight out, wherever it stands.
    pub fn remove(&mut self, id: FlightId) {
        if let Some(place) = self.places.remove(&id) {
            self.wide_rows -= if wide(place.rows) { place.rows } else { 0 };
            self.by_age.remove(&(place.age, id));
            self.take_from_queue(id, place);
        }
    }

    /// A flight whose time has come. Who stands in the front may always try, the others where `behind` and `new` say so.
    pub fn pop_due(&mut self, now_ms: u64, behind: bool, new: bool) -> Option<Due> {
        if self.ready_ms < now_ms {
            let first = FlightId { index: 0, generation: 0 };
            let due = self.by_due.range((self.ready_ms + 1, first)..).take_while(|(due_ms, _)| *due_ms <= now_ms);
            let due: Vec<FlightId> = due.map(|(_, id)| *id).collect();
            for id in due {
                if let Some(place) = self.places.get(&id) {
                    self.is_ready(id, *place);
                }
            }
            self.ready_ms = now_ms;
        }
        for _ in 0..3 {
            let turn = self.turn;
            self.turn = turn.next();
            let id = match turn {
                Turn::Oldest => {
                    let oldest = self.ready.first().filter(|(age, _)| behind || self.class_of(*age).is_some());
                    oldest.map(|(_, id)| *id)
                }
                Turn::LongestDue => {
                    self.by_due.first().filter(|(due_ms, _)| behind && *due_ms <= now_ms).map(|(_, id)| *id)
                }
                Turn::New => self.new_ready.last().filter(|_| new).map(|(_, id)| *id),
            };
            if let Some((id, place)) = id.and_then(|id| Some((id, *self.places.get(&id)?))) {
                let lane = match (self.class_of(place.age), turn) {
                    (Some(_), _) => Lane::Front,
                    (None, Turn::New) => Lane::New,
                    (None, _) => Lane::Behind,
                };
                self.remove(id);
                return Some(Due { id, lane });
            }
        }
        None
    }

    /// What one try of everybody who is [`wide`] costs.
    pub fn wide_rows(&self) -> usize {
        self.wide_rows
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// When the first one is due, where those behind the front may not try before `behind_ms`, and those that are new not before
    /// `new_ms`. Somebody in the front may be due sooner than this says, but not before the first of those moments.
    pub fn next_due_ms(&self, behind_ms: u64, new_ms: u64) -> Option<u64> {
        let others =
            self.by_due.first().map(|(due_ms, _)| if self.has_behind() { behind_ms.max(*due_ms) } else { *due_ms });
        let new = self.new_by_due.first().map(|(due_ms, _)| new_ms.max(*due_ms));
        [others, new].into_iter().flatten().min()
    }

    /// The class of the front that a flight of this age belongs to, as the front was last looked at; `None`: it stands behind the front.
    pub fn class_of(&self, age: EventRef) -> Option<u32> {
        let class = self.youngest.partition_point(|youngest| *youngest < age) as u32;
        (class < CLASSES).then_some(class)
    }

    /// Whether anybody stands behind the front, as it was last looked at.
    fn has_behind(&self) -> bool {
        self.youngest.len() == CLASSES as usize
    }

    /// Looks who is in the front now, and has nobody there pause for longer than is usual in its class, but for who is [`wide`].
    pub fn look_at_front(&mut self, now_ms: u64, pause_of: impl Fn(u32) -> u64) {
        let front: Vec<(EventRef, FlightId)> = self.by_age.iter().take(end_of(CLASSES - 1)).copied().collect();
        let youngest = (0..CLASSES).map_while(|class| front.get(end_of(class) - 1));
        self.youngest = youngest.map(|(age, _)| *age).collect();
        let mut class = 0;
        for (number, (_, id)) in front.into_iter().enumerate() {
            class += u32::from(number == end_of(class));
            let due_ms = now_ms.saturating_add(pause_of(class));
            if let Some(place) =
                self.places.get(&id).copied().filter(|place| due_ms < place.due_ms && !wide(place.rows))
            {
                self.move_to(id, place, due_ms.max(place.held_until_ms));
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

    fn pop(parked: &mut Parked, now_ms: u64) -> Option<FlightId> {
        parked.pop_due(now_ms, true, true).map(|due| due.id)
    }

    #[test]
    fn comes_out_in_the_order_of_its_time() {
        let mut parked = Parked::default();
        parked.insert(id(1), age(1), 1, 30, false);
        parked.insert(id(2), age(2), 1, 10, false);
        parked.insert(id(3), age(3), 1, 20, false);
        parked.insert(id(1), age(1), 1, 5, false);
        parked.remove(id(3));
        assert_eq!((parked.next_due_ms(0, 0), parked.count()), (Some(5), 2));
        parked.hold(id(1), 7);
        parked.hold(id(2), 7);
        parked.hold(id(3), 7);
        assert_eq!(pop(&mut parked, 6), None, "it is held");
        assert_eq!(pop(&mut parked, 9), Some(id(1)));
        assert_eq!(pop(&mut parked, 9), None);
        assert_eq!(pop(&mut parked, 10), Some(id(2)));
        assert_eq!((parked.next_due_ms(0, 0), parked.count()), (None, 0));
    }

    #[test]
    fn the_oldest_and_whoever_has_been_due_for_longest_come_out_in_turn() {
        let mut parked = Parked::default();
        for (number, due_ms) in [(1, 40), (2, 30), (3, 20), (4, 10), (5, 50), (6, 5)] {
            parked.insert(id(number), age(number.into()), 1, due_ms, false);
        }
        assert_eq!([30, 30].map(|now_ms| pop(&mut parked, now_ms)), [Some(id(2)), Some(id(6))]);
        // One is taken out, one is put off and one is put back among them.
        parked.remove(id(3));
        parked.hold(id(4), 45);
        parked.insert(id(2), age(2), 1, 29, false);
        assert_eq!((parked.next_due_ms(0, 0), parked.count()), (Some(29), 4));
        assert_eq!([30, 30, 44].map(|now_ms| pop(&mut parked, now_ms)), [Some(id(2)), None, Some(id(1))]);
        assert_eq!([44, 50, 50].map(|now_ms| pop(&mut parked, now_ms)), [None, Some(id(4)), Some(id(5))]);
    }

    #[test]
    fn nobody_is_left_out_where_the_oldest_are_always_due() {
        let mut parked = Parked::default();
        (0..100).for_each(|number| parked.insert(id(number), age(number.into()), 1, 1, false));
        let mut tried = [0; 100];
        // Two come out in each moment, and all wish to be tried in every second one.
        for now_ms in 1..1_000 {
            for _ in 0..2 {
                let Some(FlightId { index, .. }) = pop(&mut parked, now_ms) else { continue };
                tried[index as usize] += 1;
                parked.insert(id(index), age(index.into()), 1, now_ms + 2, false);
            }
        }
        assert!(tried[0] > 400 && tried.iter().all(|count| *count >= 9), "{tried:?}");
    }

    #[test]
    fn who_comes_to_the_front_does_not_sleep_on() {
        let mut parked = Parked::default();
        let all = 2 * end_of(CLASSES - 1) as u32;
        (0..all).for_each(|number| parked.insert(id(number), age(number.into()), 1, 1_000_000, false));
        assert_eq!(parked.class_of(age(5_000)), Some(0), "nobody has looked");
        let look = |parked: &mut Parked, now_ms| parked.look_at_front(now_ms, |class| 10 << class);
        look(&mut parked, 100);
        let classes = [0, 127, 128, 255, 256, 511, 512, 1_023, 1_024].map(|offset| parked.class_of(age(offset)));
        assert_eq!(classes, [0, 0, 1, 1, 2, 2, 3, 3, 4].map(|class| (class < CLASSES).then_some(class)));
        let due = |parked: &Parked, number| parked.places[&id(number)].due_ms;
        assert_eq!([0, 128, 256, 512, 1_024].map(|number| due(&parked, number)), [110, 120, 140, 180, 1_000_000]);
        // The older half of the front is done with; one of those that follow is held, and another is due sooner than it would be.
        (0..512).for_each(|number| parked.remove(id(number)));
        parked.hold(id(513), 170);
        parked.insert(id(514), age(514), 1, 105, false);
        look(&mut parked, 102);
        assert_eq!([512, 513, 514, 1_024].map(|number| due(&parked, number)), [112, 170, 105, 182]);
        assert_eq!(parked.class_of(age(1_023)), Some(2));
    }

    #[test]
    fn who_is_held_again_and_again_is_tried_all_the_same() {
        let mut parked = Parked::default();
        parked.insert(id(1), age(1), 1, 10, false);
        let mut tries = 0;
        for now_ms in 0..2_000 {
            if now_ms % 100 == 0 {
                parked.hold(id(1), now_ms + 250);
            }
            if pop(&mut parked, now_ms).is_some() {
                tries += 1;
                parked.insert(id(1), age(1), 1, now_ms + 10, false);
            }
        }
        assert!((8..=80).contains(&tries), "{tries}");
    }

    #[test]
    fn the_front_hurries_nobody_who_is_wide() {
        let mut parked = Parked::default();
        parked.insert(id(1), age(1), 5_000, 1_000, false);
        parked.insert(id(2), age(2), 16, 1_000, false);
        parked.insert(id(3), age(3), 17, 1_000, false);
        assert_eq!(parked.wide_rows(), 5_017);
        parked.look_at_front(100, |_| 50);
        assert_eq!([150, 999, 1_000].map(|now_ms| pop(&mut parked, now_ms)), [Some(id(2)), None, Some(id(1))]);
        parked.remove(id(3));
        assert_eq!(parked.wide_rows(), 0);
    }

    #[test]
    fn unless_anybody_may_only_the_front_comes_out() {
        let mut parked = Parked::default();
        let all = 2 * end_of(CLASSES - 1) as u32;
        (0..all).for_each(|number| parked.insert(id(number), age(number.into()), 1, 10, false));
        // Behind the front one has been due for longest.
        parked.insert(id(all - 1), age(u64::from(all) - 1), 1, 5, false);
        parked.look_at_front(5, |_| 5);
        let front = std::iter::from_fn(|| parked.pop_due(10, false, true));
        assert!(front.eq((0..all / 2).map(|number| Due { id: id(number), lane: Lane::Front })));
        assert_eq!(parked.count(), all as usize / 2);
        assert_eq!(parked.next_due_ms(500, 0), Some(500));
        // But for who is new.
        parked.insert(id(all), age(u64::from(all)), 1, 12, true);
        assert_eq!((parked.pop_due(11, false, true), parked.next_due_ms(500, 0)), (None, Some(12)));
        assert_eq!(parked.pop_due(12, false, true), Some(Due { id: id(all), lane: Lane::New }));
        // The oldest has its turn, and then who has been due for longest.
        let due = [12, 12].map(|now_ms| parked.pop_due(now_ms, true, true));
        assert_eq!(due, [all / 2, all - 1].map(|number| Some(Due { id: id(number), lane: Lane::Behind })));
    }

    #[test]
    fn a_flood_of_new_ones_leaves_the_others_their_turn_and_they_it() {
        let mut parked = Parked::default();
        let all = 2 * end_of(CLASSES - 1) as u32;
        // The youngest are new.
        (0..all).for_each(|number| parked.insert(id(number), age(number.into()), 1, 10, number >= all - 100));
        parked.look_at_front(10, |_| 0);
        let mut lanes = Vec::new();
        for _ in 0..30 {
            lanes.push(parked.pop_due(10, true, true).unwrap());
        }
        let of = |lane: Lane| lanes.iter().filter(|due| due.lane == lane).map(|due| due.id.index).collect::<Vec<_>>();
        assert_eq!(of(Lane::New), (all - 10..all).rev().collect::<Vec<_>>(), "the youngest first");
        assert_eq!(of(Lane::Front).len() + of(Lane::Behind).len(), 20);
        // They may not try, and then they may; whoever may try behind the front may be new as well.
        let front = std::iter::from_fn(|| parked.pop_due(10, false, false));
        assert!(front.into_iter().all(|due| due.lane == Lane::Front));
        assert_eq!(parked.next_due_ms(60, 50), Some(50));
        assert_eq!(parked.pop_due(50, false, true), Some(Due { id: id(all - 11), lane: Lane::New }));
        assert_eq!(
            std::iter::from_fn(|| parked.pop_due(50, true, false)).filter(|due| due.lane == Lane::Behind).count(),
            parked_behind(all, &lanes)
        );
        assert_eq!((parked.count(), parked.next_due_ms(0, 0)), (0, None));
        assert!(parked.ready.is_empty() && parked.new_ready.is_empty() && parked.new_by_due.is_empty());
    }

    /// How many stand behind the front once all of these and one more have come out.
    fn parked_behind(all: u32, out: &[Due]) -> usize {
        let front = end_of(CLASSES - 1);
        all as usize - front - out.iter().filter(|due| due.id.index as usize >= front).count() - 1
    }
}
