//! A transaction in flight: from its first event to the completion of all its events.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use crate::{
    broker::Message,
    group::missing_parent::TieRule,
    ingest::plan::{
        EventRef,
        obstacle::{Obstacle, marks_for, obstacle_of},
    },
    prepare::{PreparedPartialTx, PreparedTx},
    record::{Marks, Page, Reason, Rejection, Verdict, build::OtherPages},
    replay::Mode,
    store::canonical::BodyHash,
    tx::Txid,
};

/// Identity of a flight. An id is never reused, so that a late answer to an ended flight finds no flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlightId {
    /// Index in the planner's table.
    pub index: u32,
    /// Number of the flight; it tells apart the flights that use one index in turn.
    pub generation: u32,
}

/// A prepared event: the content that is to be stored.
#[derive(Debug, Clone)]
pub enum SubmittedTx {
    /// A whole transaction, with inputs and outputs.
    Validated(Arc<PreparedTx>),
    /// A partial transaction: outputs only.
    Seeded(Arc<PreparedPartialTx>),
}

/// Ownership of the buffers of a flight's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferState {
    /// The buffers are parts of the batch that the event was read with.
    SharedWithBatch,
    /// Parts of the batch, as [`SharedWithBatch`](Self::SharedWithBatch); the flight was waiting at the last pass.
    SharedAndWaiting,
    /// The flight has copied its content out of the batch.
    Owned,
}

impl From<Arc<PreparedTx>> for SubmittedTx {
    fn from(tx: Arc<PreparedTx>) -> Self {
        SubmittedTx::Validated(tx)
    }
}

impl From<Arc<PreparedPartialTx>> for SubmittedTx {
    fn from(partial: Arc<PreparedPartialTx>) -> Self {
        SubmittedTx::Seeded(partial)
    }
}

impl SubmittedTx {
    /// Returns the live master with its body; `creating` is set where the transaction has further pages.
    pub fn page(&self) -> &Arc<Page> {
        match self {
            SubmittedTx::Validated(tx) => &tx.page,
            SubmittedTx::Seeded(seed) => &seed.page,
        }
    }

    /// Returns the pages behind the master, possibly none, for a transaction that takes more than one write.
    pub fn others(&self) -> Option<&Arc<OtherPages>> {
        match self {
            SubmittedTx::Validated(tx) => tx.others.as_ref(),
            SubmittedTx::Seeded(seed) => seed.others.as_ref(),
        }
    }

    /// Returns the message of the event.
    pub fn source(&self) -> &Message {
        match self {
            SubmittedTx::Validated(tx) => &tx.source,
            SubmittedTx::Seeded(seed) => &seed.source,
        }
    }

    /// Returns the id of the transaction.
    pub fn txid(&self) -> Txid {
        self.page().txid
    }

    /// Returns the hash of the body, as the state digest hashes bodies.
    pub fn body_hash(&self) -> [u8; 32] {
        self.page().body().map_or(BodyHash::MISSING, BodyHash::of).hash()
    }

    /// Returns a copy that shares no memory with the batch of the event.
    pub fn detach_from_batch(&self) -> SubmittedTx {
        match self {
            SubmittedTx::Validated(tx) => SubmittedTx::Validated(Arc::new(tx.detach_from_batch())),
            SubmittedTx::Seeded(seed) => SubmittedTx::Seeded(Arc::new(seed.detach_from_batch())),
        }
    }

    /// Returns whether another event of the same txid has the same content. A txid commits to the whole transaction,
    /// but neither to the claims of its event about the previous outputs, nor to any claim of a partial transaction.
    pub fn has_same_content(&self, other: &SubmittedTx) -> bool {
        let (page, other) = (self.page(), other.page());
        page.body() == other.body() && page.is_coinbase == other.is_coinbase
    }
}

/// An event in the planner, with its content.
#[derive(Debug, Clone)]
pub struct Request {
    /// Place at which the event was read.
    pub event: EventRef,
    /// Content that is to be stored.
    pub work: SubmittedTx,
    /// Treatment of the event: normal, or by the last verdict of the log.
    pub mode: Mode,
    /// An earlier event of the transaction has completed: an event with other content, or, over a store that can lose
    /// writes, any event.
    pub is_later_event: bool,
}

/// The last attempt of a flight whose absent parents are proven missing.
#[derive(Debug, Clone)]
pub struct FinalAttempt {
    /// The parents that are proven missing. Another absent parent may still be created.
    pub proven: BTreeSet<Txid>,
    /// Rule for events of equal time under which the proof holds.
    pub ties: TieRule,
}

/// The change of a transaction that a parked flight waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AwaitedChange {
    /// The transaction is absent, creating or undecided: any of its outcomes can end the wait.
    Creation,
    /// The transaction is locked, and so live already: its own event ends no wait.
    Unlock,
}

/// Spends of one page: the inputs that take slots of this page.
#[derive(Debug, Clone, Default)]
pub struct SpendGroup {
    /// Every slot of the group names this transaction.
    pub has_slots: bool,
    /// The refusal of the last answer.
    pub refusal: Option<Rejection>,
    /// The slots named this transaction, but the master of their page was absent and could not be told that every slot
    /// of the page is spent.
    pub master_not_updated: bool,
    /// The flight of the parent whose create carries these spends.
    pub attached_to: Option<FlightId>,
}

/// State of a flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Parents that are in flight in this instance must end first.
    AwaitingParents {
        /// Number of parents that have not ended.
        remaining: u32,
    },
    /// The spends of the groups are with the store.
    Spending {
        /// Number of groups without an answer.
        pending: u32,
    },
    /// The own record is being read before the first spend: in a rebuild, or while a restored store reads again.
    CheckingOwn,
    /// The own record is being read before the flight is parked.
    ReadingOwn,
    /// The record of an earlier event of the same transaction is being read.
    ReadingFirstRecord {
        /// Reason of the contest; `None`: every slot names the transaction.
        contested: Option<Reason>,
    },
    /// The flight is in the retry queue until its next try.
    Parked,
    /// The store cannot take a row of the flight. Its partitions are halted, and the flight waits until its events are
    /// read again.
    Halted,
    /// The live create is with the store.
    Creating,
    /// The contested create is with the store.
    StoringContested {
        /// Reason of the contest.
        reason: Reason,
    },
    /// The contest is being published to the chain log.
    PublishingContest {
        /// The events contradict the stored record.
        contradicts: bool,
    },
}

/// State of one transaction in flight.
#[derive(Debug)]
pub struct Flight {
    /// Identity of the flight.
    pub id: FlightId,
    /// Id of the transaction.
    pub txid: Txid,
    /// Content that is to be stored.
    pub work: SubmittedTx,
    /// Treatment of the event: normal, or by the last verdict of the log.
    pub mode: Mode,
    /// The first event of the flight, which its contest names.
    pub origin: EventRef,
    /// The events of the flight; empty once their partitions are revoked.
    pub events: Vec<EventRef>,
    /// Content of the events that joined the first event.
    pub joined: Vec<(EventRef, SubmittedTx)>,
    /// State of the flight.
    pub stage: Stage,
    /// Answers by group, in the order of the groups of the transaction.
    pub groups: Vec<SpendGroup>,
    /// Flights that wait for this one to end.
    pub children: Vec<FlightId>,
    /// An earlier event of the transaction has completed.
    pub is_later_event: bool,
    /// Later events of the transaction with other content; each is handled after this flight has ended.
    pub later_requests: VecDeque<Request>,
    /// Number of times that the flight was parked.
    pub attempts: u32,
    /// Ownership of the buffers of `work`.
    pub buffers: BufferState,
    /// Time of the first parking, ms.
    pub parked_since_ms: Option<u64>,
    /// The parent that may be missing, and the time of the first question about it, ms.
    pub parent_in_question: Option<(Txid, u64)>,
    /// Index in the planner's list of waiting flights.
    pub waiting_index: Option<u32>,
    /// Time at which the flight was first seen waiting, or last read its own record because of that, ms.
    pub waiting_since_ms: Option<u64>,
    /// The own record was read and was not live.
    pub own_record_read: bool,
    /// Number of transactions whose outcomes the parked flight waits for.
    pub awaited: u32,
    /// Number of transactions that outcomes had named when the last try began.
    pub try_began: u64,
    /// A parent that is absent after this try is missing.
    pub final_attempt: Option<FinalAttempt>,
    /// An outcome has ended the last wait: the rows of this try leave before those of first tries.
    pub is_woken: bool,
}

impl Flight {
    /// Creates a flight that has not started.
    pub fn new(id: FlightId, request: Request) -> Self {
        let Request { event, work, mode, is_later_event } = request;
        let groups = match &work {
            SubmittedTx::Validated(tx) => tx.groups.len(),
            SubmittedTx::Seeded(_) => 0,
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
            groups: vec![SpendGroup::default(); groups],
            children: Vec::new(),
            is_later_event,
            later_requests: VecDeque::new(),
            attempts: 0,
            buffers: BufferState::SharedWithBatch,
            parked_since_ms: None,
            parent_in_question: None,
            waiting_index: None,
            waiting_since_ms: None,
            own_record_read: false,
            awaited: 0,
            try_began: 0,
            final_attempt: None,
            is_woken: false,
        }
    }

    /// Returns whether spends respect marks on slots.
    pub fn marks(&self) -> Marks {
        marks_for(self.mode)
    }

    /// Returns the first event whose partition is still assigned.
    pub fn first_event(&self) -> Option<EventRef> {
        self.events.iter().min().copied()
    }

    /// Returns whether the flight is parked or waits for parents in flight.
    pub fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Parked | Stage::AwaitingParents { .. })
    }

    /// Returns the number of rows of the next try: one for each group without its slots.
    pub fn rows_per_try(&self) -> usize {
        self.groups.iter().filter(|group| !group.has_slots).count()
    }

    /// Returns the parent of a group of spends, and the number of the parent's page.
    pub fn place_of_group(&self, group: u32) -> Option<(Txid, u32)> {
        let SubmittedTx::Validated(tx) = &self.work else { return None };
        tx.groups.get(group as usize).map(|prepared| (prepared.parent, prepared.page))
    }

    /// Returns the offset of the first slot of a group of spends.
    pub fn first_offset(&self, group: u32) -> u32 {
        let SubmittedTx::Validated(tx) = &self.work else { return 0 };
        tx.groups.get(group as usize).and_then(|group| group.slots.first()).map_or(0, |slot| slot.offset)
    }

    /// Returns the parents, one for each group.
    pub fn parents(&self) -> impl Iterator<Item = Txid> {
        let groups = match &self.work {
            SubmittedTx::Validated(tx) => tx.groups.as_slice(),
            SubmittedTx::Seeded(_) => &[],
        };
        groups.iter().map(|group| group.parent)
    }

    /// Returns whether a slot may name the transaction, as far as the answers tell. A refusal names one slot and says
    /// nothing about the other slots of the page.
    pub fn may_hold_slots(&self) -> bool {
        let SubmittedTx::Validated(tx) = &self.work else { return false };
        tx.groups
            .iter()
            .zip(&self.groups)
            .any(|(prepared, group)| group.has_slots || group.master_not_updated || prepared.slots.len() > 1)
    }

    /// Returns whether a later event must be the event that won: the claims of this event do not hold, and a later
    /// event claims otherwise.
    pub fn defers_to_later_event(&self) -> bool {
        let wrong = |refusal: &Rejection| matches!(refusal, Rejection::HashMismatch(_) | Rejection::OutputMismatch(_));
        self.mode == Mode::EndsLive
            && !self.later_requests.is_empty()
            && self.refusals().any(|(_, refusal)| wrong(refusal))
    }

    fn refusals(&self) -> impl Iterator<Item = (Txid, &Rejection)> {
        self.parents().zip(&self.groups).filter_map(|(parent, group)| Some((parent, group.refusal.as_ref()?)))
    }

    /// Describes the first refusal for operators: the parent and the code.
    pub fn wait_reason(&self) -> String {
        let bars = self.refusals().next().map(|(parent, refusal)| format!("{parent} ({})", refusal.code()));
        bars.unwrap_or_else(|| "its own record".to_owned())
    }

    /// Returns whether the last answer of any parent was a refusal.
    pub fn has_refusal(&self) -> bool {
        self.refusals().next().is_some()
    }

    /// Returns the parents that refused, without parents that are [`is_decided`].
    pub fn awaited_parents(&self) -> impl Iterator<Item = Txid> {
        self.refusals().filter(|(_, refusal)| !is_decided(refusal)).map(|(parent, _)| parent)
    }

    /// Returns the transactions that the flight waits for: its parents whose refusals are temporary. Without one the
    /// flight waits for its own record, which another instance creates.
    pub fn awaited_transactions(&self) -> BTreeMap<Txid, AwaitedChange> {
        let is_temporary = |(parent, refusal): &(Txid, &Rejection)| {
            obstacle_of(refusal, *parent, &[], self.mode) == Obstacle::Temporary
        };
        let mut parents = BTreeMap::new();
        for (parent, refusal) in self.refusals().filter(is_temporary) {
            // One locked page bars the transaction, whatever bars its other pages.
            let change = parents.entry(parent).or_insert(AwaitedChange::Creation);
            if matches!(refusal, Rejection::Locked) {
                *change = AwaitedChange::Unlock;
            }
        }
        if parents.is_empty() { BTreeMap::from([(self.txid, AwaitedChange::Creation)]) } else { parents }
    }

    /// Returns whether every refusal of the last answers lasts, or asks for the proof that a parent is missing.
    pub fn has_lasting_refusals(&self) -> bool {
        let lasts = |refusal: &Rejection| {
            matches!(
                refusal,
                Rejection::Pruned(_)
                    | Rejection::NotFound
                    | Rejection::HashMismatch(_)
                    | Rejection::OutputMismatch(_)
                    | Rejection::NoSuchOutput(_)
            )
        };
        self.refusals().all(|(_, refusal)| lasts(refusal))
    }

    /// Returns whether every refusal is the verdict on a parent, or the lock of one: only the chain changes these.
    pub fn waits_for_chain(&self) -> bool {
        let is_of_chain = |refusal: &Rejection| {
            matches!(refusal, Rejection::Locked | Rejection::Conflicting(Verdict::Conflicting(_)))
        };
        self.refusals().all(|(_, refusal)| is_of_chain(refusal))
    }

    /// Returns the parents that have no record.
    pub fn absent_parents(&self) -> impl Iterator<Item = Txid> {
        self.refusals().filter(|(_, refusal)| matches!(refusal, Rejection::NotFound)).map(|(parent, _)| parent)
    }

    /// Returns a locked parent if the flight waits only for locked parents.
    pub fn locked_parent(&self) -> Option<Txid> {
        let is_undecided = |refusal: &Rejection| match refusal {
            Rejection::NotFound | Rejection::Creating => true,
            Rejection::Conflicting(verdict) => !matches!(verdict, Verdict::Conflicting(_)),
            _ => false,
        };
        if self.refusals().any(|(_, refusal)| is_undecided(refusal)) {
            return None;
        }
        self.refusals().find(|(_, refusal)| matches!(refusal, Rejection::Locked)).map(|(parent, _)| parent)
    }

    /// Combines the answers of all groups. A transaction is contested only when all its parents exist and are decided,
    /// so waiting comes before contesting. The first reason in the order of the groups counts.
    pub fn obstacle(&self) -> Obstacle {
        let SubmittedTx::Validated(tx) = &self.work else { return Obstacle::None };
        let mut contested = Obstacle::None;
        let mut is_temporary = false;
        for (prepared, group) in tx.groups.iter().zip(&self.groups) {
            let Some(refusal) = group.refusal.as_ref().filter(|_| !group.has_slots) else { continue };
            match obstacle_of(refusal, prepared.parent, &prepared.slots, self.mode) {
                Obstacle::SpenderPruned => return Obstacle::SpenderPruned,
                Obstacle::Temporary => is_temporary = true,
                reason @ Obstacle::Final(_) if contested == Obstacle::None => contested = reason,
                Obstacle::Final(_) | Obstacle::None => {}
            }
        }
        if is_temporary { Obstacle::Temporary } else { contested }
    }
}

/// Returns whether a parent with this refusal is conflicting by verdict, or pruned. Such a parent is not waited for,
/// even where a later event of the parent is in flight: the later event may wait for a proof that needs the end of this
/// flight.
pub fn is_decided(refusal: &Rejection) -> bool {
    matches!(refusal, Rejection::Conflicting(Verdict::Conflicting(_)) | Rejection::Pruned(_))
}
