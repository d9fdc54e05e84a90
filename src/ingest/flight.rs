//! One transaction in flight.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use crate::{
    broker::Message,
    group::proof::Ties,
    ingest::plan::{
        EventRef,
        barred::{Barred, barred_by, marks_for},
    },
    prepare::{PreparedSeed, PreparedTx},
    record::{Marks, Page, Reason, Rejection, Verdict, build::OtherPages},
    replay::Mode,
    store::canonical::BodyHash,
    tx::Txid,
};

/// Names a flight; never reused, so a late answer to an ended one finds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlightId {
    /// Place in the planner's table.
    pub index: u32,
    /// Of that place.
    pub generation: u32,
}

/// What is to be stored.
#[derive(Debug, Clone)]
pub enum Work {
    /// A whole transaction.
    Validated(Arc<PreparedTx>),
    /// Outputs only.
    Seeded(Arc<PreparedSeed>),
}

/// Where the memory of a transaction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// In that of everything that was read with it.
    WithItsBatch,
    /// There, too; it was waiting when somebody looked.
    SeenToWait,
    /// In its own.
    Apart,
}

impl Work {
    /// Its master, live, with its body; `creating` where there are other pages.
    pub fn page(&self) -> &Arc<Page> {
        match self {
            Work::Validated(tx) => &tx.page,
            Work::Seeded(seed) => &seed.page,
        }
    }

    /// Its other pages, which may be none, where it takes more than one write.
    pub fn others(&self) -> Option<&Arc<OtherPages>> {
        match self {
            Work::Validated(tx) => tx.others.as_ref(),
            Work::Seeded(seed) => seed.others.as_ref(),
        }
    }

    /// The message that asked for it.
    pub fn source(&self) -> &Message {
        match self {
            Work::Validated(tx) => &tx.source,
            Work::Seeded(seed) => &seed.source,
        }
    }

    /// The transaction.
    pub fn txid(&self) -> Txid {
        self.page().txid
    }

    /// Hash of its body, as the digest hashes it.
    pub fn body_hash(&self) -> [u8; 32] {
        self.page().body().map_or(BodyHash::MISSING, BodyHash::of).hash()
    }

    /// The same, sharing no memory with the batch that it was read with.
    pub fn apart(&self) -> Work {
        match self {
            Work::Validated(tx) => Work::Validated(Arc::new(tx.apart())),
            Work::Seeded(seed) => Work::Seeded(Arc::new(seed.apart())),
        }
    }

    /// Whether another event for the same txid says the same. A transaction id commits to a whole transaction, but neither to
    /// what its event claims of the outputs that it spends, nor to anything that a partial one claims.
    pub fn says_the_same(&self, other: &Work) -> bool {
        let (page, other) = (self.page(), other.page());
        page.body() == other.body() && page.is_coinbase == other.is_coinbase
    }
}

/// An event that asks for a transaction.
#[derive(Debug, Clone)]
pub struct Request {
    /// Where it was read.
    pub event: EventRef,
    /// What it asks for.
    pub work: Work,
    /// How it is treated.
    pub mode: Mode,
    /// An earlier event for the same transaction has had its turn: one that says otherwise, or, over a store that forgets, any.
    pub again: bool,
}

/// It tries once more, since what it waits for is proven missing.
#[derive(Debug, Clone)]
pub struct LastTry {
    /// The parents of which that is proven: another one that turns out to be absent may still come.
    pub proven: BTreeSet<Txid>,
    /// How it was proven.
    pub ties: Ties,
}

/// One group of spends: the inputs that take slots of one page.
#[derive(Debug, Clone, Default)]
pub struct Group {
    /// All its slots name this transaction.
    pub held: bool,
    /// Why not, by the last answer.
    pub refusal: Option<Rejection>,
    /// They did once, but the master of their page, which was to be told that all of it is spent, was not there.
    pub untold: bool,
    /// The flight whose create carries the spends.
    pub rides_on: Option<FlightId>,
}

/// Where a flight stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Parents that are in flight here must end first.
    AwaitingParents {
        /// How many.
        remaining: u32,
    },
    /// Spends are on their way.
    Spending {
        /// Groups that have not answered.
        pending: u32,
    },
    /// Its own record is being read, before it begins: only a rebuild can afford that.
    Looking,
    /// Its own record is being read, before it is parked.
    ReadingOwn,
    /// The record that an earlier event of its transaction made is being read.
    ReadingFirst {
        /// Why it is to be contested; `None`: its slots are all its own.
        contested: Option<Reason>,
    },
    /// Waits for its next try.
    Parked,
    /// What it needs cannot be stored until somebody has looked: its partitions are halted, and it stands until whoever is started
    /// later reads its events again.
    Halted,
    /// Its create is on its way.
    Creating,
    /// Its contested create is on its way.
    StoringContested {
        /// Why it is contested.
        reason: Reason,
    },
    /// Its contest is on its way into the log.
    PublishingContest {
        /// What its events say contradicts what is stored.
        contradicts: bool,
    },
}

/// One transaction in flight.
#[derive(Debug)]
pub struct Flight {
    /// Its name.
    pub id: FlightId,
    /// Its transaction.
    pub txid: Txid,
    /// What is to be stored.
    pub work: Work,
    /// How it is treated.
    pub mode: Mode,
    /// The event that asked for it first: what its contest names.
    pub origin: EventRef,
    /// The events that asked for it; empty once their partitions were taken away.
    pub events: Vec<EventRef>,
    /// What the events said that joined the first.
    pub joined: Vec<(EventRef, Work)>,
    /// Where it stands.
    pub stage: Stage,
    /// Parallel to the groups of the transaction.
    pub groups: Vec<Group>,
    /// Flights that wait for this one to end.
    pub children: Vec<FlightId>,
    /// An earlier event for the same transaction has had its turn.
    pub again: bool,
    /// Later events for the same transaction that say otherwise: each has its own turn.
    pub behind: VecDeque<Request>,
    /// Tries so far.
    pub attempts: u32,
    /// Whether its memory is its own, or will be if it waits still at the next look.
    pub kept: Kept,
    /// When it was first parked.
    pub parked_since_ms: Option<u64>,
    /// The parent of which it is asked whether it is missing, and since when.
    pub in_question: Option<(Txid, u64)>,
    /// Its place among those that wait.
    pub waits_at: Option<u32>,
    /// When it was first seen to wait for others, or last looked at its own record because of that.
    pub waits_since_ms: Option<u64>,
    /// Its own record was read and was not live.
    pub own_state_read: bool,
    /// It stands in the planner's table of absent parents.
    pub awaits_registered: bool,
    /// What is absent after this try will never come.
    pub last_try: Option<LastTry>,
}

impl Flight {
    /// A flight that has not started.
    pub fn new(id: FlightId, request: Request) -> Self {
        let Request { event, work, mode, again } = request;
        let groups = match &work {
            Work::Validated(tx) => tx.groups.len(),
            Work::Seeded(_) => 0,
        };
        Flight {
            id,
            txid: work.txid(),
            work,
            mode,
            origin: event,
            events: vec![event],
            joined: Vec::new(),
            stage: Stage::Spending { pending: 0 },
            groups: vec![Group::default(); groups],
            children: Vec::new(),
            again,
            behind: VecDeque::new(),
            attempts: 0,
            kept: Kept::WithItsBatch,
            parked_since_ms: None,
            in_question: None,
            waits_at: None,
            waits_since_ms: None,
            own_state_read: false,
            awaits_registered: false,
            last_try: None,
        }
    }

    /// Whether marks bar its way.
    pub fn marks(&self) -> Marks {
        marks_for(self.mode)
    }

    /// Its first event that still counts.
    pub fn first_event(&self) -> Option<EventRef> {
        self.events.iter().min().copied()
    }

    /// Whether it waits for others.
    pub fn waits(&self) -> bool {
        matches!(self.stage, Stage::Parked | Stage::AwaitingParents { .. })
    }

    /// What it asks the store for when it tries once more, in rows: one of each group that it does not hold.
    pub fn rows_of_a_try(&self) -> usize {
        self.groups.iter().filter(|group| !group.held).count()
    }

    /// The parent transactions, one a group.
    pub fn parents(&self) -> impl Iterator<Item = Txid> {
        let groups = match &self.work {
            Work::Validated(tx) => tx.groups.as_slice(),
            Work::Seeded(_) => &[],
        };
        groups.iter().map(|group| group.parent)
    }

    /// Whether any slot may name it, as far as the answers tell. A refusal names one slot and says nothing of the others of
    /// its page.
    pub fn may_hold_any(&self) -> bool {
        let Work::Validated(tx) = &self.work else { return false };
        tx.groups
            .iter()
            .zip(&self.groups)
            .any(|(prepared, group)| group.held || group.untold || prepared.slots.len() > 1)
    }

    /// Whether, in a rebuild, another event of it must have been the one that won: this one's claims do not hold, and a
    /// later one claims otherwise.
    pub fn gives_way(&self) -> bool {
        let wrong = |refusal: &Rejection| matches!(refusal, Rejection::HashMismatch(_) | Rejection::OutputMismatch(_));
        self.mode == Mode::RebuildWon && !self.behind.is_empty() && self.refusals().any(|(_, refusal)| wrong(refusal))
    }

    fn refusals(&self) -> impl Iterator<Item = (Txid, &Rejection)> {
        self.parents().zip(&self.groups).filter_map(|(parent, group)| Some((parent, group.refusal.as_ref()?)))
    }

    /// The first parent that it waits for, and why, for whoever has to find out.
    pub fn what_bars_it(&self) -> String {
        let bars = self.refusals().next().map(|(parent, refusal)| format!("{parent} ({})", refusal.code()));
        bars.unwrap_or_else(|| "its own record".to_owned())
    }

    /// Whether the last answer for a parent was a refusal.
    pub fn is_barred(&self) -> bool {
        self.refusals().next().is_some()
    }

    /// Parents that it waits for, but for those that are [`decided`].
    pub fn awaited_parents(&self) -> impl Iterator<Item = Txid> {
        self.refusals().filter(|(_, refusal)| !decided(refusal)).map(|(parent, _)| parent)
    }

    /// Parents without a record.
    pub fn absent_parents(&self) -> impl Iterator<Item = Txid> {
        self.refusals().filter(|(_, refusal)| matches!(refusal, Rejection::NotFound)).map(|(parent, _)| parent)
    }

    /// A locked parent, if nothing but locked parents is waited for.
    pub fn locked_parent(&self) -> Option<Txid> {
        let waits = |refusal: &Rejection| matches!(refusal, Rejection::NotFound | Rejection::Creating);
        let undecided = |refusal: &Rejection| matches!(refusal, Rejection::Conflicting(verdict) if !matches!(verdict, Verdict::Conflicting(_)));
        if self.refusals().any(|(_, refusal)| waits(refusal) || undecided(refusal)) {
            return None;
        }
        self.refusals().find(|(_, refusal)| matches!(refusal, Rejection::Locked)).map(|(parent, _)| parent)
    }

    /// What the answers of all groups come to. A transaction is contested only when all its parents exist and are
    /// decided, so waiting comes before contesting; the first reason in the order of the groups counts.
    pub fn verdict_on_slots(&self) -> Barred {
        let Work::Validated(tx) = &self.work else { return Barred::No };
        let mut contested = Barred::No;
        let mut waits = false;
        for (prepared, group) in tx.groups.iter().zip(&self.groups) {
            let Some(refusal) = group.refusal.as_ref().filter(|_| !group.held) else { continue };
            match barred_by(refusal, prepared.parent, &prepared.slots, self.mode) {
                Barred::Pruned => return Barred::Pruned,
                Barred::Waits => waits = true,
                reason @ Barred::Contested(_) if contested == Barred::No => contested = reason,
                Barred::Contested(_) | Barred::No => {}
            }
        }
        if waits { Barred::Waits } else { contested }
    }
}

/// Whether a parent that refuses so is conflicting by verdict, or pruned. It is not waited for, even where a later event of it is in
/// flight: that may wait in turn for what is only proven missing once this one has ended.
pub fn decided(refusal: &Rejection) -> bool {
    matches!(refusal, Rejection::Conflicting(Verdict::Conflicting(_)) | Rejection::Pruned(_))
}
