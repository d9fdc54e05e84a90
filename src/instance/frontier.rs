//! The frontier: the end offsets of a rebuild.
//!
//! A group that is busy, or was killed, commits the validated partitions and the chain independently: a committed event
//! of one can name an uncommitted event of another. The end offsets are therefore raised above the committed offsets:
//!
//! 1. The end offset of the chain rises to the last event with a decision: every event before that one has been
//!    handled.
//! 2. An event above the committed offset of a validated partition counts if a decision or a block below the end offset
//!    of the chain names its transaction, or if it is a parent of a transaction that counts. Each such event had been
//!    handled, since a transaction is decided on, mined or live only after its event.
//! 3. Every other event above the committed offsets is skipped.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{InstanceError, InstanceParts, InstanceSettings};
use crate::{
    blob::objects::AnnouncedObject,
    broker::{
        Broker, BrokerError, CommittedOffset, Message, TopicPartition, committed::read_committed, range::LogRange,
        retry::until_answered,
    },
    event::{CommandResult, Decision, DecisionBody, Event, SubtreeTransactions, Topic},
    group::{commit_metadata::committed_by_instance, earlier_halts::EarlierHalts},
    ingest::pipeline::PipelineError,
    prepare::{BodyLoadError, PrepareSettings, PreparedEvent, load_body, prepare_loaded},
    record::{ConsumedOffsets, LogEnds, Reason, Restored},
    replay::{LastVerdicts, RaisedFrontier, ReplayPlan},
    sequencer::{
        chain_group,
        decided_chunks::DecisionWalk,
        decisions::{DecisionError, DecisionTable},
        state::ChainState,
    },
    store::StateStore,
    tx::{Txid, TxidMap},
};

/// The committed offsets of a group.
#[derive(Default)]
pub(crate) struct Frontier {
    /// Offsets at which the group resumes, committed by instances or operators; 0 without a commit.
    pub(crate) resume: ConsumedOffsets,
    /// Offsets that instances committed (not operators): the store of the group has consumed them.
    pub(crate) consumed: ConsumedOffsets,
    /// Commits of the validated transactions with their metadata, by partition.
    pub(crate) commits: Vec<(i32, CommittedOffset)>,
    /// Commit of the chain with its metadata.
    pub(crate) chain_commit: Option<CommittedOffset>,
}

/// Pause between two attempts to read an object.
const OBJECT_PAUSE: Duration = Duration::from_secs(1);

impl Frontier {
    pub(crate) async fn read(settings: &InstanceSettings, broker: &dyn Broker) -> Result<Self, BrokerError> {
        let committed = read_committed(broker, &settings.pipeline.group, &settings.pipeline.topic).await?;
        let (mut resume, mut consumed) = (ConsumedOffsets::default(), ConsumedOffsets::default());
        let mut commits = Vec::new();
        for (TopicPartition { partition, .. }, committed) in committed {
            let number = partition.unsigned_abs();
            resume.validated.insert(number, committed.as_ref().map_or(0, |committed| committed.offset));
            let by_instance = committed.as_ref().and_then(committed_by_instance);
            consumed.validated.extend(by_instance.map(|offset| (number, offset)));
            commits.extend(committed.map(|committed| (partition, committed)));
        }
        let chain = [settings.partition(Topic::Chain, 0)];
        let committed = broker.committed(&chain_group(&settings.pipeline.group), &chain).await?;
        let chain_commit = committed.into_iter().flatten().next();
        resume.chain = chain_commit.as_ref().map_or(0, |committed| committed.offset);
        // A commit without metadata was made by an operator, who has chosen the offset.
        consumed.chain =
            chain_commit.as_ref().filter(|committed| !committed.metadata.is_empty()).map_or(0, |_| resume.chain);
        Ok(Frontier { resume, consumed, commits, chain_commit })
    }

    /// Records the partitions that are halted already.
    pub(super) fn record_halts(&self, halts: &EarlierHalts) {
        halts.record_existing(self.commits.iter().map(|(number, committed)| (*number, committed)));
    }

    /// Returns the end offsets of a rebuild that begins now. Validated partitions are read last: an event is in the log
    /// before a decision or a block names its transaction.
    pub(crate) async fn log_ends(
        &self,
        settings: &InstanceSettings,
        broker: &dyn Broker,
    ) -> Result<LogEnds, BrokerError> {
        let end = async |partition: TopicPartition| {
            until_answered(|| broker.watermarks(&partition)).await.map(|(_, high)| high)
        };
        let decisions = end(settings.partition(Topic::Decisions, 0)).await?;
        let mut ends =
            ConsumedOffsets { chain: end(settings.partition(Topic::Chain, 0)).await?, ..ConsumedOffsets::default() };
        for number in offsets_by_number(&self.resume).into_keys() {
            ends.validated.insert(number.unsigned_abs(), end(settings.partition(Topic::ValidatedTxs, number)).await?);
        }
        Ok(LogEnds { committed: self.resume.clone(), ends, decisions })
    }

    pub(crate) fn has_commits(&self) -> bool {
        self.resume.chain > 0 || self.resume.validated.values().any(|offset| *offset > 0)
    }
}

/// Returns the plan of a rebuild, the end offset of the chain, and the transactions with undecided contests.
pub(super) async fn plan_rebuild(
    log: &LogEnds,
    settings: &InstanceSettings,
    parts: &InstanceParts,
) -> Result<(ReplayPlan, u64, Vec<Txid>), InstanceError> {
    let broker = parts.broker.as_ref();
    let topics = [settings.partition(Topic::Decisions, 0), settings.partition(Topic::Chain, 0)];
    let decided = DecidedChain::read(log, &topics, broker, settings.sequencer.verdict_memory.chunk_bytes).await?;
    let chain = log.committed.chain.max(decided.handled);
    let undecided = decided.undecided.clone();
    let verdicts = Arc::new(decided.last_verdicts((broker, &topics[0]), chain).await?);
    let (frontier, ends) = (offsets_by_number(&log.committed), offsets_by_number(&log.ends));
    let mut rebuild = ReplayPlan { frontier, verdicts, raised: None };
    if rebuild.frontier != ends {
        let above = read_events_above(&rebuild, &ends, settings, parts).await?;
        let mut roots = RequiredAbove { above: &above, found: BTreeSet::new() };
        let commands = decided.collect_required((broker, &topics[0]), chain, &mut roots).await?;
        drop(decided);
        let mut objects = Vec::new();
        let each = |message: Message| collect_named(&message, &commands, &mut roots, &mut objects);
        read_range(broker, &topics[1], 0, chain, each).await?;
        collect_from_objects(parts, objects, &mut roots).await?;
        let roots = roots.found;
        rebuild = raise_frontier(rebuild, roots, above, settings, parts).await?;
    }
    Ok((rebuild, chain, undecided))
}

/// Returns the plan of a restored store that reads the log again: the events that the group had handled before, and the
/// last verdicts.
pub(super) async fn plan_reading_again(
    restored: &Restored,
    frontier: &Frontier,
    settings: &InstanceSettings,
    broker: &dyn Broker,
) -> Result<ReplayPlan, InstanceError> {
    let [decisions, chain] = [settings.partition(Topic::Decisions, 0), settings.partition(Topic::Chain, 0)];
    // The chain ends last in this order: a contest is in its log before its decision.
    let (first_decision, decisions_end) = until_answered(|| broker.watermarks(&decisions)).await?;
    let (first_event, chain_end) = until_answered(|| broker.watermarks(&chain)).await?;
    let log = LogEnds {
        ends: ConsumedOffsets { chain: chain_end, ..ConsumedOffsets::default() },
        decisions: decisions_end,
        ..LogEnds::default()
    };
    let of_commit = |committed: &CommittedOffset| {
        Some((ChainState::from_metadata(&committed.metadata).ok()?.decisions_from, committed.offset))
    };
    // Where retention has dropped decisions, the group has handled their events again: their verdicts are in the store.
    let is_dropped = restored.decisions_from < first_decision;
    let committed = frontier.chain_commit.as_ref().filter(|_| is_dropped).and_then(of_commit);
    let (decisions_from, chain_from) = committed.unwrap_or((restored.decisions_from, restored.chain_from));
    tracing::info!(from = decisions_from, to = decisions_end, "instance: reading the decisions of the log");
    let chunk_bytes = settings.sequencer.verdict_memory.chunk_bytes;
    let table = DecisionTable::from_offset(chain_from).with_kept_bytes(chunk_bytes);
    let decided = DecidedChain::read_from(
        (table, decisions_from, chain_from.max(first_event)),
        &log,
        [&decisions, &chain],
        broker,
    )
    .await?;
    let verdicts = Arc::new(decided.last_verdicts((broker, &decisions), u64::MAX).await?);
    Ok(ReplayPlan { frontier: offsets_by_number(&restored.handled), verdicts, ..ReplayPlan::default() })
}

/// Converts offsets of validated partitions to a map by the number that the broker uses.
fn offsets_by_number(consumed: &ConsumedOffsets) -> BTreeMap<i32, u64> {
    let convert = |(partition, offset): (&u32, &u64)| Some((i32::try_from(*partition).ok()?, *offset));
    consumed.validated.iter().filter_map(convert).collect()
}

/// The decisions of a log, and the contests without a decision.
struct DecidedChain {
    /// Every decision. Chunks of descendants are left in the topic but for the newest, as in a sequencer: one verdict
    /// can have millions of descendants.
    table: DecisionTable,
    /// Contested transactions without a decision, or with a part of one.
    undecided: Vec<Txid>,
    /// Winners that the undecided contests name: holders of the contested slots.
    winners: Vec<Txid>,
    /// Chain offset below which every event has been handled.
    handled: u64,
}

impl DecidedChain {
    /// Reads every decision, and the contests that may lack one. About `chunk_bytes` of chunks are in memory at most.
    async fn read(
        log: &LogEnds,
        [decisions, chain]: &[TopicPartition; 2],
        broker: &dyn Broker,
        chunk_bytes: usize,
    ) -> Result<Self, InstanceError> {
        let table = DecisionTable::default().with_kept_bytes(chunk_bytes);
        Self::read_from((table, 0, 0), log, [decisions, chain], broker).await
    }

    /// Reads the decisions from an offset on into `table`, which ignores decisions below its floor, and the contests
    /// from the chain offset on that may lack a decision.
    async fn read_from(
        (mut table, from, chain_from): (DecisionTable, u64, u64),
        log: &LogEnds,
        [decisions, chain]: [&TopicPartition; 2],
        broker: &dyn Broker,
    ) -> Result<Self, InstanceError> {
        let mut absorbed = Ok(());
        read_range(broker, decisions, from, log.decisions, |message| {
            if absorbed.is_ok() {
                absorbed = table.absorb(&message);
            }
        })
        .await?;
        absorbed.map_err(DecisionError::from)?;
        let handled = table.handled_below().max(chain_from);
        let mut contests: Vec<(u64, Txid, Option<Txid>)> = Vec::new();
        read_range(broker, chain, handled.min(log.ends.chain), log.ends.chain, |message| {
            // An undecodable message is a dead letter of the sequencer, and names no transaction.
            if let Ok(Event::Contest(contest)) = Event::decode(&message.payload) {
                contests.push((message.offset, contest.txid, winner_of(&contest.reason)));
            }
        })
        .await?;
        contests.retain(|(chain_offset, ..)| !table.has_next(*chain_offset, 0));
        let winners = contests.iter().filter_map(|(.., winner)| *winner).collect();
        let undecided = contests.into_iter().map(|(_, txid, _)| txid).collect();
        Ok(DecidedChain { table, undecided, winners, handled })
    }

    /// Folds all decisions to the final state of each transaction that they name.
    async fn last_verdicts(
        &self,
        topic: (&dyn Broker, &TopicPartition),
        frontier: u64,
    ) -> Result<LastVerdicts, DecisionError> {
        let (mut verdicts, mut walk) = (LastVerdicts::default(), DecisionWalk::new(&self.table, topic));
        while let Some(decision) = walk.next().await? {
            verdicts.add(&decision, frontier);
        }
        verdicts.add_undecided(self.undecided.iter().copied());
        Ok(verdicts)
    }

    /// Collects the transactions that must exist for the decisions below a chain offset to be applied. Returns the
    /// offsets of the commands below that found their transaction.
    async fn collect_required(
        &self,
        topic: (&dyn Broker, &TopicPartition),
        frontier: u64,
        required: &mut RequiredAbove<'_>,
    ) -> Result<BTreeSet<u64>, DecisionError> {
        let (mut commands, mut walk) = (BTreeSet::new(), DecisionWalk::new(&self.table, topic));
        while let Some(Decision { chain_offset, body, .. }) =
            walk.next().await?.filter(|decision| decision.chain_offset < frontier)
        {
            required.extend(required_txids(&body));
            if let DecisionBody::CommandDone { result, .. } = body
                && !matches!(result, CommandResult::Refused { .. })
            {
                commands.insert(chain_offset);
            }
        }
        required.extend(self.winners.iter().copied());
        Ok(commands)
    }
}

/// The events of a transaction above the committed offsets, and its parents.
#[derive(Debug, Default)]
struct EventsAbove {
    events: Vec<(i32, u64)>,
    parents: Vec<Txid>,
}

/// The transactions that must exist at the frontier and that have an event above the committed offsets. All other ids
/// of blocks and decisions are dropped as they are read, so that memory does not grow with the chain.
struct RequiredAbove<'a> {
    above: &'a TxidMap<EventsAbove>,
    found: BTreeSet<Txid>,
}

impl Extend<Txid> for RequiredAbove<'_> {
    fn extend<T: IntoIterator<Item = Txid>>(&mut self, txids: T) {
        self.found.extend(txids.into_iter().filter(|txid| self.above.contains_key(txid)));
    }
}

/// Reads the events between the committed offsets and `ends`. Parents are kept of transactions that end live.
async fn read_events_above(
    rebuild: &ReplayPlan,
    ends: &BTreeMap<i32, u64>,
    settings: &InstanceSettings,
    parts: &InstanceParts,
) -> Result<TxidMap<EventsAbove>, InstanceError> {
    let mut above: TxidMap<EventsAbove> = TxidMap::default();
    for (&number, &end) in ends {
        let partition = settings.partition(Topic::ValidatedTxs, number);
        let from = rebuild.frontier.get(&number).copied().unwrap_or(0);
        let mut range = LogRange::open(parts.broker.as_ref(), &partition, from, end).await?;
        while let Some(messages) = range.next().await? {
            for message in messages {
                let Some((txid, parents)) = txid_and_parents(&parts.store, &message).await? else { continue };
                let entry = above.entry(txid).or_default();
                entry.events.push((number, message.offset));
                entry.parents.extend(parents.into_iter().filter(|_| rebuild.mode_of(&txid).ends_live()));
            }
        }
    }
    Ok(above)
}

/// Raises the end offsets of the validated partitions to cover `roots` and the parents of every transaction that
/// counts.
async fn raise_frontier(
    rebuild: ReplayPlan,
    roots: BTreeSet<Txid>,
    above: TxidMap<EventsAbove>,
    settings: &InstanceSettings,
    parts: &InstanceParts,
) -> Result<ReplayPlan, InstanceError> {
    let mut open = Vec::from_iter(roots);
    for (&number, &end) in &rebuild.frontier {
        let partition = settings.partition(Topic::ValidatedTxs, number);
        let mut range = LogRange::open(parts.broker.as_ref(), &partition, 0, end).await?;
        while let Some(messages) = range.next().await? {
            for message in messages {
                let found = txid_and_parents(&parts.store, &message).await?;
                if let Some((_, parents)) = found.filter(|(txid, _)| rebuild.mode_of(txid).ends_live()) {
                    open.extend(parents.into_iter().filter(|parent| above.contains_key(parent)));
                }
            }
        }
    }
    let mut raised = RaisedFrontier { committed: rebuild.frontier.clone(), ..RaisedFrontier::default() };
    let mut frontier = rebuild.frontier.clone();
    while let Some(txid) = open.pop() {
        let Some(entry) = above.get(&txid) else { continue };
        if raised.counted_txids.insert(txid, ()).is_none() {
            open.extend(&entry.parents);
            for (number, offset) in &entry.events {
                let end = frontier.entry(*number).or_default();
                *end = (*end).max(offset + 1);
            }
        }
    }
    if !raised.counted_txids.is_empty() {
        let count = raised.counted_txids.len();
        tracing::info!(count, "rebuild: frontier raised to transactions that committed events name");
    }
    Ok(ReplayPlan { frontier, raised: Some(raised), ..rebuild })
}

/// Returns the transaction of an event and its parents; `None` for a dead letter, which cannot be prepared. Waits for
/// an object to which the event refers.
async fn txid_and_parents(store: &StateStore, message: &Message) -> Result<Option<(Txid, Vec<Txid>)>, InstanceError> {
    let body = loop {
        match load_body(store.event_bodies.as_ref(), message).await {
            Ok(body) => break body,
            Err(BodyLoadError::Unavailable(why)) => {
                tracing::warn!(why, offset = message.offset, "rebuild: cannot read a body; trying again");
                tokio::time::sleep(OBJECT_PAUSE).await;
            }
            Err(BodyLoadError::Halt(why)) => return Err(PipelineError::Body(why).into()),
            Err(BodyLoadError::Poison(_)) => return Ok(None),
        }
    };
    let Ok(prepared) = prepare_loaded(&PrepareSettings::of(store), message, body.as_ref()) else { return Ok(None) };
    let parents = match &prepared {
        PreparedEvent::Validated(tx) => tx.groups.iter().map(|group| group.parent).collect(),
        PreparedEvent::Seeded(_) => Vec::new(),
    };
    Ok(Some((prepared.txid(), parents)))
}

/// Returns the transactions that must exist for a decision to be applied. A transaction that was passed over need not
/// exist.
fn required_txids(body: &DecisionBody) -> Vec<Txid> {
    match body {
        DecisionBody::Accepted { txid, inputs, losers, .. } => {
            let parents = inputs.iter().map(|input| input.outpoint.txid);
            let holders = inputs.iter().filter_map(|input| input.holder).map(|holder| holder.txid);
            std::iter::once(*txid).chain(losers.iter().copied()).chain(parents).chain(holders).collect()
        }
        DecisionBody::Conflicting { txid, reason, .. } => std::iter::once(*txid).chain(winner_of(reason)).collect(),
        DecisionBody::Cone { members, .. } => members.iter().map(|member| member.txid).collect(),
        DecisionBody::PassedOver { .. }
        | DecisionBody::CommandDone { .. }
        | DecisionBody::Closed
        | DecisionBody::AcceptedPart { .. }
        | DecisionBody::Lifted { .. } => Vec::new(),
    }
}

/// Returns the winner that a reason names. The winner was live, and the rebuilt store must have it as the holder, too.
fn winner_of(reason: &Reason) -> Option<Txid> {
    match reason {
        Reason::DoubleSpend { winner, .. } => Some(*winner),
        _ => None,
    }
}

/// Reference to an object with the transaction ids of a block.
struct ObjectRef {
    key: String,
    count: u64,
    sha256: [u8; 32],
}

/// Collects the transactions that a handled event of the chain names: the transactions of its blocks, all of which were
/// live when the event had been handled, and the subject of a command at one of the offsets `commands`.
fn collect_named(
    message: &Message,
    commands: &BTreeSet<u64>,
    roots: &mut RequiredAbove<'_>,
    objects: &mut Vec<ObjectRef>,
) {
    let blocks = match Event::decode(&message.payload) {
        Ok(Event::BlockMined(mined)) if mined.block.longest_chain => vec![mined.block],
        Ok(Event::Reorg(reorg)) => reorg.connected,
        Ok(Event::Command(command)) if commands.contains(&message.offset) => {
            roots.extend([command.action.subject()]);
            return;
        }
        _ => return,
    };
    for subtree in blocks.iter().flat_map(|block| &block.subtrees) {
        match &subtree.transactions {
            SubtreeTransactions::Inline(_) => roots.extend(subtree.transactions.inline().into_iter().flatten()),
            SubtreeTransactions::Object { key, sha256 } => {
                objects.push(ObjectRef { key: (*key).to_owned(), count: subtree.count, sha256: *sha256 });
            }
        }
    }
}

async fn collect_from_objects(
    parts: &InstanceParts,
    objects: Vec<ObjectRef>,
    roots: &mut RequiredAbove<'_>,
) -> Result<(), InstanceError> {
    // Without a setting for the objects the chain halts at a block that refers to an object, with its own error.
    let Some(object_store) = &parts.store.objects else { return Ok(()) };
    for ObjectRef { key, count, sha256 } in objects {
        let mut txids = object_store.txids(AnnouncedObject { key: &key, count, sha256 }).await?;
        loop {
            let next = txids.next().await?;
            if next.is_empty() {
                break;
            }
            roots.extend(next);
        }
    }
    Ok(())
}

/// Calls `each` for every message of a partition from `from` up to `end` (exclusive).
async fn read_range(
    broker: &dyn Broker,
    partition: &TopicPartition,
    from: u64,
    end: u64,
    mut each: impl FnMut(Message),
) -> Result<(), BrokerError> {
    let mut range = LogRange::open(broker, partition, from, end).await?;
    while let Some(messages) = range.next().await? {
        messages.into_iter().for_each(&mut each);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        broker::memory::{MemoryBroker, MemorySettings},
        broker::{NewTopic, OutgoingMessage},
        clock::Clock,
        event::Descendant,
    };

    const fn id(n: u8) -> Txid {
        Txid([n; 32])
    }

    /// The ids of a long chain are not kept: only those of transactions with an event above the committed offsets.
    #[test]
    fn only_transactions_with_an_event_above_the_committed_offsets_are_kept() {
        let above: TxidMap<EventsAbove> = [2, 5].map(|n| (id(n), EventsAbove::default())).into_iter().collect();
        let mut required = RequiredAbove { above: &above, found: BTreeSet::new() };
        (0..3).for_each(|_| required.extend((0..=255).map(id)));
        assert_eq!(required.found, [id(2), id(5)].into());
    }

    /// A verdict has many chunks of descendants. Protects: memory holds one chunk, and the plan knows every descendant.
    #[tokio::test(start_paused = true)]
    async fn the_descendants_of_a_verdict_are_not_held_in_memory() {
        let broker = MemoryBroker::new(MemorySettings::new(Clock::simulated(0)));
        let topics = ["decisions", "chain"].map(|topic| TopicPartition { topic: topic.into(), partition: 0 });
        let new =
            |partition: &TopicPartition| NewTopic { name: partition.topic.to_string(), partitions: 1, config: vec![] };
        broker.create_topics(&topics.each_ref().map(new)).await.unwrap();
        let chunk = |n: u8| {
            let members = [n, 100 + n].map(|n| Descendant { txid: id(n), parent: id(0), live: true });
            DecisionBody::Cone { members: members.to_vec(), height: 5 }
        };
        let reason = Reason::MissingParent { parent: id(99) };
        let verdict = DecisionBody::Conflicting { txid: id(0), reason, height: 5, live: true };
        let bodies = std::iter::once(verdict).chain((1..=9).map(chunk)).chain([DecisionBody::Closed]);
        let producer = broker.producer().await.unwrap();
        for (body, step) in bodies.zip(0..) {
            let payload = Event::Decision(Decision { chain_offset: 7, step, body }).encode().into();
            let message = OutgoingMessage { topic: "decisions".into(), payload, ..OutgoingMessage::default() };
            producer.produce(message).await.unwrap();
        }
        let log = LogEnds { decisions: 11, ..LogEnds::default() };
        let decided = DecidedChain::read(&log, &topics, &broker, 0).await.unwrap();
        assert_eq!(decided.handled, 8);
        let in_memory = (1..10).filter(|step| decided.table.get(7, *step).is_some()).count();
        assert_eq!(in_memory, 1);
        let verdicts = decided.last_verdicts((&broker, &topics[0]), 8).await.unwrap();
        assert!((0..=9).chain(101..=109).all(|n| verdicts.ends_conflicting(&id(n))));
        let above: TxidMap<EventsAbove> = [3, 55].map(|n| (id(n), EventsAbove::default())).into_iter().collect();
        let mut required = RequiredAbove { above: &above, found: BTreeSet::new() };
        decided.collect_required((&broker, &topics[0]), 8, &mut required).await.unwrap();
        assert_eq!(required.found, [id(3)].into());
    }
}
