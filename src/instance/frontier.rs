//! Where a rebuild ends.
//!
//! A group that is not quiet, or was killed, commits validated partitions and the chain each for itself: what is committed of
//! one names what is not yet committed of another. So the chain's frontier rises to the last event that was decided
//! (everything before it has been handled), and events above the frontier of the validated partitions count where a decision or a block
//! below the chain's names them, or where they are parents of what counts: they had been handled, all of them, since nothing is
//! decided on, mined or live before. Whatever else stands there is passed over.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{InstanceError, InstanceParts, InstanceSettings};
use crate::{
    blob::objects::Announced,
    broker::{
        Broker, BrokerError, Committed, Message, TopicPartition,
        retry::{next_messages, until_answered},
    },
    event::{CommandResult, DecisionBody, Event, SubtreeTransactions},
    group::{halts::EarlierHalts, partition::consumed_of},
    prepare::{PrepareSettings, Prepared, prepare},
    record::{Consumed, LogEnds, Reason},
    replay::{LastVerdicts, Raised, Rebuild},
    sequencer::{
        chain_group,
        decisions::{DecisionError, DecisionTable},
    },
    tx::{Txid, TxidMap},
};

/// What the group has committed.
pub(crate) struct Frontier {
    /// Next to read, by partition of the validated transactions.
    pub(crate) validated: BTreeMap<i32, u64>,
    /// Next to read of the chain.
    pub(crate) chain: u64,
    /// What instances have committed: the store of the group has consumed it.
    pub(crate) consumed: Consumed,
    /// Of the validated transactions, as they are.
    pub(crate) commits: Vec<(i32, Committed)>,
    /// Of the chain, as it is.
    pub(crate) chain_commit: Option<Committed>,
}

const READ_WAIT: Duration = Duration::from_millis(100);

impl Frontier {
    pub(crate) async fn committed(settings: &InstanceSettings, broker: &dyn Broker) -> Result<Self, BrokerError> {
        let topic = &settings.pipeline.topic;
        let count = broker.partitions(topic).await?.unwrap_or(0);
        let partitions: Vec<TopicPartition> =
            (0..count).map(|partition| TopicPartition { topic: topic.clone(), partition }).collect();
        let committed = broker.committed(&settings.pipeline.group, &partitions).await?;
        let by_instance = (0..count)
            .zip(&committed)
            .filter_map(|(number, committed)| Some((number.unsigned_abs(), consumed_of(committed.as_ref()?)?)));
        let mut consumed = Consumed { chain: 0, validated: by_instance.collect() };
        let validated = (0..count)
            .zip(&committed)
            .map(|(number, committed)| (number, committed.as_ref().map_or(0, |committed| committed.offset)))
            .collect();
        let commits = (0..count).zip(committed).filter_map(|(number, committed)| Some((number, committed?))).collect();
        let chain = [chain_of(settings)];
        let committed = broker.committed(&chain_group(&settings.pipeline.group), &chain).await?;
        let chain_commit = committed.into_iter().flatten().next();
        let chain = chain_commit.as_ref().map_or(0, |committed| committed.offset);
        // Without metadata it is an operator's, who has said where to go on.
        consumed.chain = chain_commit.as_ref().filter(|committed| !committed.metadata.is_empty()).map_or(0, |_| chain);
        Ok(Frontier { validated, chain, consumed, commits, chain_commit })
    }

    /// Remembers which partitions stand halted.
    pub(super) fn look_for_halts(&self, halts: &EarlierHalts) {
        halts.look(self.commits.iter().map(|(number, committed)| (*number, committed)));
    }

    /// Where the group goes on, whoever has said so.
    pub(crate) fn stands_at(&self) -> Consumed {
        let validated = self.validated.iter().map(|(partition, offset)| (partition.unsigned_abs(), *offset));
        Consumed { chain: self.chain, validated: validated.collect() }
    }

    /// What a rebuild is made from that begins now. What may be named must be looked for last: it was in the log before it was named.
    pub(super) async fn log_ends(
        &self,
        settings: &InstanceSettings,
        broker: &dyn Broker,
    ) -> Result<LogEnds, BrokerError> {
        let end = async |partition: TopicPartition| {
            until_answered(|| broker.watermarks(&partition)).await.map(|(_, high)| high)
        };
        let decisions = end(decisions_of(settings)).await?;
        let mut ends = Consumed { chain: end(chain_of(settings)).await?, ..Consumed::default() };
        for number in self.validated.keys() {
            ends.validated.insert(number.unsigned_abs(), end(validated_of(settings, *number)).await?);
        }
        Ok(LogEnds { committed: self.stands_at(), ends, decisions })
    }

    pub(crate) fn any(&self) -> bool {
        self.chain > 0 || self.validated.values().any(|offset| *offset > 0)
    }
}

/// How events are treated that a rebuild reads, the chain's frontier, and how many contests are undecided.
pub(super) async fn raise(
    log: &LogEnds,
    settings: &InstanceSettings,
    parts: &InstanceParts,
) -> Result<(Rebuild, u64, usize), InstanceError> {
    let decided = Decided::read(log, settings, parts.broker.as_ref()).await?;
    let chain = log.committed.chain.max(decided.handled);
    let undecided = decided.undecided.len();
    let contested = decided.undecided.iter().copied();
    let verdicts = Arc::new(LastVerdicts::new(decided.table.iter(), contested, chain));
    let (frontier, ends) = (numbered(&log.committed), numbered(&log.ends));
    let mut rebuild = Rebuild { frontier, verdicts, stop_at_frontier: true, raised: None };
    if rebuild.frontier != ends {
        let below = decided.table.iter().take_while(|decision| decision.chain_offset < chain);
        let mut roots: BTreeSet<Txid> = below.flat_map(|decision| names(&decision.body)).collect();
        roots.extend(&decided.winners);
        let commands = decided.commands_below(chain);
        drop(decided);
        let mut elsewhere = Vec::new();
        let each = |message: Message| named_in(&message, &commands, &mut roots, &mut elsewhere);
        read(parts.broker.as_ref(), &chain_of(settings), 0, chain, each).await?;
        listed_elsewhere(parts, elsewhere, &mut roots).await?;
        rebuild = raised(rebuild, roots, &ends, settings, parts).await?;
    }
    Ok((rebuild, chain, undecided))
}

/// By the number of each partition, as it is read.
fn numbered(consumed: &Consumed) -> BTreeMap<i32, u64> {
    let numbered = |(partition, offset): (&u32, &u64)| Some((i32::try_from(*partition).ok()?, *offset));
    consumed.validated.iter().filter_map(numbered).collect()
}

/// What all decisions come to.
struct Decided {
    /// All of them. They may be many: nothing keeps them twice.
    table: DecisionTable,
    /// Whose contests have none yet, or not the whole of one.
    undecided: Vec<Txid>,
    /// Who those found in their place.
    winners: Vec<Txid>,
    /// Every event of the chain below it has been handled.
    handled: u64,
}

impl Decided {
    /// All decisions, and the contests that may not be decided on.
    async fn read(log: &LogEnds, settings: &InstanceSettings, broker: &dyn Broker) -> Result<Self, InstanceError> {
        let mut table = DecisionTable::default();
        let mut absorbed = Ok(());
        read(broker, &decisions_of(settings), 0, log.decisions, |message| {
            if absorbed.is_ok() {
                absorbed = table.absorb(&message);
            }
        })
        .await?;
        absorbed.map_err(DecisionError::from)?;
        let handled = table.handled_below();
        let mut contests: Vec<(u64, Txid, Option<Txid>)> = Vec::new();
        read(broker, &chain_of(settings), handled.min(log.ends.chain), log.ends.chain, |message| {
            // What cannot be decoded is a dead letter of the sequencer's, and mentions nobody.
            if let Ok(Event::Contest(contest)) = Event::decode(&message.payload) {
                contests.push((message.offset, contest.txid, winner_of(&contest.reason)));
            }
        })
        .await?;
        contests.retain(|(chain_offset, ..)| table.whole(*chain_offset, 0).is_none());
        let winners = contests.iter().filter_map(|(.., winner)| *winner).collect();
        let undecided = contests.into_iter().map(|(_, txid, _)| txid).collect();
        Ok(Decided { table, undecided, winners, handled })
    }

    /// The commands below a chain offset whose transactions were there.
    fn commands_below(&self, chain: u64) -> BTreeSet<u64> {
        let below = self.table.iter().take_while(|decision| decision.chain_offset < chain);
        let was_there = |body: &DecisionBody| matches!(body, DecisionBody::CommandDone { result, .. } if !matches!(result, CommandResult::Refused { .. }));
        below.filter(|decision| was_there(&decision.body)).map(|decision| decision.chain_offset).collect()
    }
}

/// Raises the frontier of the validated partitions to cover `roots` and the parents of what counts.
async fn raised(
    rebuild: Rebuild,
    roots: BTreeSet<Txid>,
    ends: &BTreeMap<i32, u64>,
    settings: &InstanceSettings,
    parts: &InstanceParts,
) -> Result<Rebuild, InstanceError> {
    /// The events of a transaction above the frontier, and its parents.
    #[derive(Default)]
    struct Above {
        events: Vec<(i32, u64)>,
        parents: Vec<Txid>,
    }
    let wants_parents = |txid: &Txid| rebuild.mode_of(txid).ends_live();
    let preparing = PrepareSettings::of(&parts.store);
    let mut above: TxidMap<Above> = TxidMap::default();
    for (&number, &end) in ends {
        let partition = validated_of(settings, number);
        let from = rebuild.frontier.get(&number).copied().unwrap_or(0);
        read(parts.broker.as_ref(), &partition, from, end, |message| {
            if let Some((txid, parents)) = relations(&preparing, &message) {
                let entry = above.entry(txid).or_default();
                entry.events.push((number, message.offset));
                entry.parents.extend(parents.into_iter().filter(|_| wants_parents(&txid)));
            }
        })
        .await?;
    }
    let mut open: Vec<Txid> = roots.into_iter().filter(|txid| above.contains_key(txid)).collect();
    for (&number, &end) in &rebuild.frontier {
        let partition = validated_of(settings, number);
        read(parts.broker.as_ref(), &partition, 0, end, |message| {
            if let Some((_, parents)) = relations(&preparing, &message).filter(|(txid, _)| wants_parents(txid)) {
                open.extend(parents.into_iter().filter(|parent| above.contains_key(parent)));
            }
        })
        .await?;
    }
    let mut raised = Raised { committed: rebuild.frontier.clone(), ..Raised::default() };
    let mut frontier = rebuild.frontier.clone();
    while let Some(txid) = open.pop() {
        let Some(entry) = above.get(&txid) else { continue };
        if raised.counts.insert(txid, ()).is_none() {
            open.extend(&entry.parents);
            for (number, offset) in &entry.events {
                let end = frontier.entry(*number).or_default();
                *end = (*end).max(offset + 1);
            }
        }
    }
    if !raised.counts.is_empty() {
        let count = raised.counts.len();
        tracing::info!(count, "transactions above what is committed count: what is committed elsewhere names them");
    }
    Ok(Rebuild { frontier, raised: Some(raised), ..rebuild })
}

/// A transaction and its parents; what cannot be prepared is a dead letter and relates to nobody.
fn relations(settings: &PrepareSettings, message: &Message) -> Option<(Txid, Vec<Txid>)> {
    let prepared = prepare(settings, message).ok()?;
    let parents = match &prepared {
        Prepared::Validated(tx) => tx.groups.iter().map(|group| group.parent).collect(),
        Prepared::Seeded(_) => Vec::new(),
    };
    Some((prepared.txid(), parents))
}

/// Who has to be there for a decision to be applied. Who was passed over need not be: perhaps nothing was there to judge.
fn names(body: &DecisionBody) -> Vec<Txid> {
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
        | DecisionBody::AcceptedPart { .. } => Vec::new(),
    }
}

/// Who a transaction lost to: it was live, and nothing else may be in its place for who goes on with the rebuilt store.
fn winner_of(reason: &Reason) -> Option<Txid> {
    match reason {
        Reason::DoubleSpend { winner, .. } => Some(*winner),
        _ => None,
    }
}

/// An object that holds what a block lists.
struct Elsewhere {
    key: String,
    count: u64,
    sha256: [u8; 32],
}

/// Who an event of the chain needs: what its blocks list, all of which was live when it had been handled, and what a command at one of
/// these offsets changed.
fn named_in(message: &Message, commands: &BTreeSet<u64>, roots: &mut BTreeSet<Txid>, elsewhere: &mut Vec<Elsewhere>) {
    let blocks = match Event::decode(&message.payload) {
        Ok(Event::BlockMined(mined)) if mined.block.longest_chain => vec![mined.block],
        Ok(Event::Reorg(reorg)) => reorg.connected,
        Ok(Event::Command(command)) if commands.contains(&message.offset) => {
            roots.insert(command.action.subject());
            return;
        }
        _ => return,
    };
    for subtree in blocks.iter().flat_map(|block| &block.subtrees) {
        match &subtree.transactions {
            SubtreeTransactions::Inline(_) => roots.extend(subtree.transactions.inline().into_iter().flatten()),
            SubtreeTransactions::Object { key, sha256 } => {
                elsewhere.push(Elsewhere { key: (*key).to_owned(), count: subtree.count, sha256: *sha256 });
            }
        }
    }
}

async fn listed_elsewhere(
    parts: &InstanceParts,
    elsewhere: Vec<Elsewhere>,
    roots: &mut BTreeSet<Txid>,
) -> Result<(), InstanceError> {
    // Without them the chain halts at such a block, and says why.
    let Some(objects) = &parts.store.objects else { return Ok(()) };
    for Elsewhere { key, count, sha256 } in elsewhere {
        let mut txids = objects.txids(Announced { key: &key, count, sha256 }).await?;
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

/// Every message of a partition between two offsets.
async fn read(
    broker: &dyn Broker,
    partition: &TopicPartition,
    from: u64,
    end: u64,
    mut each: impl FnMut(Message),
) -> Result<(), BrokerError> {
    if from >= end {
        return Ok(());
    }
    let mut reader = until_answered(|| broker.read(partition, from)).await?;
    while reader.position() < end {
        let messages = next_messages(&mut reader, broker, partition, READ_WAIT).await?;
        messages.into_iter().filter(|message| message.offset < end).for_each(&mut each);
    }
    Ok(())
}

fn validated_of(settings: &InstanceSettings, partition: i32) -> TopicPartition {
    TopicPartition { topic: settings.pipeline.topic.clone(), partition }
}

fn decisions_of(settings: &InstanceSettings) -> TopicPartition {
    TopicPartition { topic: settings.topics.decisions.as_str().into(), partition: 0 }
}

fn chain_of(settings: &InstanceSettings) -> TopicPartition {
    TopicPartition { topic: settings.topics.chain.as_str().into(), partition: 0 }
}
