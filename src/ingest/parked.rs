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
}

/// A queue ordered by the time of the next try, and among those whose time has come by age: where they are more than can be tried, the
/// oldest do not wait behind the rest.
#[derive(Debug, Default)]
pub struct Parked {
    places: HashMap<FlightId, Place, foldhash::fast::FixedState>,
    /// Those that are not ready.
    by_due: BTreeSet<(u64, FlightId)>,
    by_age: BTreeSet<(EventRef, FlightId)>,
    /// Whose time has come, and when that was last looked at.
    ready: BTreeSet<(EventRef, FlightId)>,
    ready_ms: u64,
    /// The youngest of each class that was full when that was last looked at.
    youngest: Vec<EventRef>,
}

impl Parked {
    /// Parks a flight of this age until `due_ms`; a flight that is parked already is moved.
    pub fn insert(&mut self, id: FlightId, age: EventRef, due_ms: u64) {
        self.remove(id);
        self.by_due.insert((due_ms, id));
        self.by_age.insert((age, id));
        self.places.insert(id, Place { age, due_ms, held_until_ms: 0 });
    }

    /// Keeps a flight that is parked until `until_ms` at least.
    pub fn hold(&mut self, id: FlightId, until_ms: u64) {
        let Some(place) = self.places.get_mut(&id) else { return };
        place.held_until_ms = place.held_until_ms.max(until_ms);
        let place = *place;
        if place.due_ms < until_ms {
            self.move_to(id, place, until_ms);
        }
    }

    fn move_to(&mut self, id: FlightId, place: Place, due_ms: u64) {
        self.ready.remove(&(place.age, id));
        self.by_due.remove(&(place.due_ms, id));
        self.by_due.insert((due_ms, id));
        self.places.insert(id, Place { due_ms, ..place });
    }

    /// Takes a flight out, wherever it stands.
    pub fn remove(&mut self, id: FlightId) {
        if let Some(Place { age, due_ms, .. }) = self.places.remove(&id) {
            self.by_due.remove(&(due_ms, id));
            self.by_age.remove(&(age, id));
            self.ready.remove(&(age, id));
        }
    }

    /// The oldest flight whose time has come.
    pub fn pop_due(&mut self, now_ms: u64) -> Option<FlightId> {
        while let Some(&(due_ms, id)) = self.by_due.first().filter(|(due_ms, _)| *due_ms <= now_ms) {
            self.by_due.remove(&(due_ms, id));
            self.ready.extend(self.places.get(&id).map(|place| (place.age, id)));
            self.ready_ms = now_ms;
        }
        let &(_, id) = self.ready.first()?;
        self.remove(id);
        Some(id)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// When the first one is due.
    pub fn next_due_ms(&self) -> Option<u64> {
        let ready = (!self.ready.is_empty()).then_some(self.ready_ms);
        ready.or_else(|| self.by_due.first().map(|(due_ms, _)| *due_ms))
    }

    /// The class of the front that a flight of this age belongs to, as the front was last looked at; `None`: it stands behind the front.
    pub fn class_of(&self, age: EventRef) -> Option<u32> {
        let class = self.youngest.partition_point(|youngest| *youngest < age) as u32;
        (class < CLASSES).then_some(class)
    }

    /// Looks who is in the front now, and has nobody there pause for longer than is usual in its class.
    pub fn look_at_front(&mut self, now_ms: u64, pause_of: impl Fn(u32) -> u64) {
        let front: Vec<(EventRef, FlightId)> = self.by_age.iter().take(end_of(CLASSES - 1)).copied().collect();
        let youngest = (0..CLASSES).map_while(|class| front.get(end_of(class) - 1));
        self.youngest = youngest.map(|(age, _)| *age).collect();
        let mut class = 0;
        for (number, (_, id)) in front.into_iter().enumerate() {
            class += u32::from(number == end_of(class));
            let due_ms = now_ms.saturating_add(pause_of(class));
            if let Some(place) = self.places.get(&id).copied().filter(|place| due_ms < place.due_ms) {
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

    #[test]
    fn comes_out_in_the_order_of_its_time() {
        let mut parked = Parked::default();
        parked.insert(id(1), age(1), 30);
        parked.insert(id(2), age(2), 10);
        parked.insert(id(3), age(3), 20);
        parked.insert(id(1), age(1), 5);
        parked.remove(id(3));
        assert_eq!((parked.next_due_ms(), parked.count()), (Some(5), 2));
        parked.hold(id(1), 7);
        parked.hold(id(2), 7);
        parked.hold(id(3), 7);
        assert_eq!(parked.pop_due(6), None, "it is held");
        assert_eq!(parked.pop_due(9), Some(id(1)));
        assert_eq!(parked.pop_due(9), None);
        assert_eq!(parked.pop_due(10), Some(id(2)));
        assert_eq!((parked.next_due_ms(), parked.count()), (None, 0));
    }

    #[test]
    fn of_those_whose_time_has_come_the_oldest_comes_first() {
        let mut parked = Parked::default();
        for (number, due_ms) in [(1, 40), (2, 30), (3, 20), (4, 10), (5, 50)] {
            parked.insert(id(number), age(number.into()), due_ms);
        }
        assert_eq!(parked.pop_due(30), Some(id(2)));
        assert_eq!(parked.next_due_ms(), Some(30), "two are ready");
        // One is taken out, one is put off, and an older one has become due.
        parked.remove(id(3));
        parked.hold(id(4), 45);
        assert_eq!((parked.next_due_ms(), parked.count()), (Some(40), 3));
        assert_eq!(
            [44, 44, 49, 50].map(|now_ms| parked.pop_due(now_ms)),
            [Some(id(1)), None, Some(id(4)), Some(id(5))]
        );
    }

    #[test]
    fn who_comes_to_the_front_does_not_sleep_on() {
        let mut parked = Parked::default();
        let all = 2 * end_of(CLASSES - 1) as u32;
        (0..all).for_each(|number| parked.insert(id(number), age(number.into()), 1_000_000));
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
        parked.insert(id(514), age(514), 105);
        look(&mut parked, 102);
        assert_eq!([512, 513, 514, 1_024].map(|number| due(&parked, number)), [112, 170, 105, 182]);
        assert_eq!(parked.class_of(age(1_023)), Some(2));
    }
}
