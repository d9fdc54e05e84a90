//! Commits what is safe, or reads everything else again where a node of the store has forgotten.

use std::{collections::VecDeque, pin::Pin, time::Duration};

use tokio::time::Instant;

use super::{Pipeline, PipelineError};
use crate::{
    broker::{Assigned, BrokerError, BrokerErrorKind, Committed, Committing, TopicPartition, identity::Sight},
    group::partition::{PartitionState, consumed_of},
    ingest::dispatch::{Done, spawn},
    record::Consumed,
    replay::Modes,
    store::{
        asked::{Asked, Unasked, ask},
        meta::MetaError,
        nodes::Look,
        whole::WholeStore,
    },
    telemetry::CommitFailure,
};

const ASK_AGAIN: Duration = Duration::from_secs(1);
/// A consumer's commits have a bound of their own; what it says behind this one is not waited for.
const COMMITTED_WITHIN: Duration = Duration::from_secs(15);

/// What this instance has written into the store of what it has consumed.
#[derive(Default)]
pub(super) struct Notes {
    /// What was written last.
    last: Consumed,
    /// What the store may still forget, each with when it was there.
    young: VecDeque<(Instant, Consumed)>,
    /// What it can no longer forget.
    settled: Consumed,
}

impl Notes {
    /// Whatever was there longer than `lag` before `asked` is there for good.
    fn settle(&mut self, asked: Instant, lag: Duration) {
        while let Some((_, consumed)) = self.young.front().filter(|(at, _)| *at + lag <= asked) {
            self.settled.raise(consumed);
            self.young.pop_front();
        }
    }

    /// So much of a partition may be committed.
    fn of(&self, partition: i32) -> u64 {
        self.settled.validated.get(&partition.unsigned_abs()).copied().unwrap_or(0)
    }
}

/// What is committed, each under the epoch of its assignment.
type Offered = Vec<(TopicPartition, Committed, u64)>;

/// A commit that is on its way beside the loop: one at a time. Dropped, it counts for nothing any more.
pub(super) enum UnderWay {
    /// The commit asks the store, and then for the topic's identity.
    Asking(Asking),
    /// It asks the group's coordinator.
    Committing(Offered, Committing),
}

/// The answers that a commit needs.
pub(super) struct Answers {
    /// The store's.
    asked: Asked,
    /// Whether the topic is the store's. Asked last, so that it is as late as can be.
    sight: Result<Sight, BrokerError>,
}

type Asking = Pin<Box<dyn Future<Output = Answers> + Send>>;

/// What a commit that is on its way has heard.
pub(super) enum Heard {
    Asked(Answers),
    Committed(Offered, Result<(), BrokerError>),
}

/// What the commit that is on its way hears next; never, where there is none.
pub(super) async fn next_heard(under_way: &mut Option<UnderWay>) -> Heard {
    let heard = match under_way {
        None => return std::future::pending().await,
        Some(UnderWay::Asking(asking)) => Heard::Asked(asking.await),
        Some(UnderWay::Committing(offered, committing)) => {
            let answer = committing.await;
            Heard::Committed(std::mem::take(offered), answer)
        }
    };
    *under_way = None;
    heard
}

/// Ends whatever a consumer does, or does not do.
fn within_bound(committing: Committing) -> Committing {
    Box::pin(async move {
        tokio::time::timeout(COMMITTED_WITHIN, committing).await.unwrap_or_else(|_| {
            let message = format!("no answer within {COMMITTED_WITHIN:?}");
            Err(BrokerError::new(BrokerErrorKind::Retryable, "commit", message))
        })
    })
}

impl Pipeline {
    /// Begins a commit beside the loop, as soon as the one that is on its way has ended.
    pub(super) fn begin_commit(&mut self) {
        self.commit_due = self.under_way.is_some();
        if !self.commit_due {
            self.under_way = Some(UnderWay::Asking(self.asking_the_store()));
        }
    }

    /// What a commit heard that is on its way.
    pub(super) async fn on_heard(&mut self, heard: Heard) -> Result<(), PipelineError> {
        match heard {
            Heard::Asked(asked) => match self.on_asked(asked)? {
                Some(Look::Restarted) => self.rewind().await?,
                Some(Look::Same { .. }) => {
                    self.under_way = self.offer().map(|(offered, answer)| UnderWay::Committing(offered, answer));
                }
                None => {}
            },
            Heard::Committed(offered, answer) => self.on_committed(offered, answer)?,
        }
        if self.under_way.is_none() && std::mem::take(&mut self.commit_due) {
            self.next_commit = Instant::now();
        }
        Ok(())
    }

    /// Whoever drains commits once it has: what has only asked the store asks it again then.
    pub(super) fn begin_no_commit(&mut self) {
        self.commit_due = false;
        if let Some(UnderWay::Asking(_)) = self.under_way {
            self.under_way = None;
        }
    }

    /// Commits what is safe, and waits for that: what is to be let go is not committed later. A commit that is on its way is waited for
    /// where the group has been asked, and begun anew where only the store has.
    pub(super) async fn commit(&mut self) -> Result<(), PipelineError> {
        if self.commit_unless_restarted().await? { Ok(()) } else { self.rewind().await }
    }

    /// The same; `false`: a node of the store has restarted, nothing was committed, and what was done since the last commit is to be done again.
    pub(super) async fn commit_unless_restarted(&mut self) -> Result<bool, PipelineError> {
        self.end_commit().await?;
        let asked = self.asking_the_store().await;
        match self.on_asked(asked)? {
            Some(Look::Restarted) => return Ok(false),
            Some(Look::Same { .. }) => {
                if let Some((offered, answer)) = self.offer() {
                    let answer = answer.await;
                    self.on_committed(offered, answer)?;
                }
            }
            None => {}
        }
        Ok(true)
    }

    /// Waits for a commit of which the group has been asked; one that has only asked the store counts for nothing any more.
    pub(super) async fn end_commit(&mut self) -> Result<(), PipelineError> {
        self.commit_due = false;
        if let Some(UnderWay::Committing(offered, committing)) = self.under_way.take() {
            let answer = committing.await;
            self.on_committed(offered, answer)?;
        }
        Ok(())
    }

    /// The first half of a commit, which holds nothing of the pipeline.
    fn asking_the_store(&self) -> Asking {
        let (whole, nodes, consumed) = (self.parts.whole.clone(), self.parts.nodes.clone(), self.to_note());
        let (guard, topics) = (self.parts.guard.clone(), vec![self.settings.topic.to_string()]);
        Box::pin(async move {
            let asked = ask(whole.as_ref(), &nodes, consumed).await;
            let sight = tokio::time::timeout(COMMITTED_WITHIN, guard.look(&topics)).await.unwrap_or_else(|_| {
                let message = format!("no answer within {COMMITTED_WITHIN:?}");
                Err(BrokerError::new(BrokerErrorKind::Retryable, "look up topic ids", message))
            });
            Answers { asked, sight }
        })
    }

    /// What is consumed by now, where the store does not know it.
    fn to_note(&self) -> Option<Consumed> {
        if let Modes::Rebuild(_) = self.parts.modes {
            return None;
        }
        let mut consumed = self.notes.last.clone();
        let compared = self.partitions.iter().filter(|(_, state)| state.compared);
        let validated = compared.map(|(number, state)| (number.unsigned_abs(), state.tracker.watermark()));
        consumed.raise(&Consumed { chain: 0, validated: validated.collect() });
        (consumed != self.notes.last).then_some(consumed)
    }

    /// What the store said; where none of its nodes has restarted, what cannot be forgotten any more is safe from now on. `None`: nothing
    /// may be committed.
    fn on_asked(&mut self, Answers { asked, sight }: Answers) -> Result<Option<Look>, PipelineError> {
        if let Some((at, consumed)) = asked.noted {
            self.notes.young.push_back((at, consumed.clone()));
            self.notes.last.raise(&consumed);
        }
        let (failure, why) = match asked.look {
            Ok(look) => {
                let Look::Same { asked } = look else { return Ok(Some(look)) };
                self.settle(asked);
                let why = match sight {
                    Ok(Sight::Same) => return Ok(Some(look)),
                    // Offsets of one topic are no offsets of another.
                    Ok(Sight::Other(why)) => return self.on_other_topic(why).map(|()| None),
                    Ok(Sight::Absent(topic)) => format!("topic `{topic}` does not exist at the moment"),
                    Err(error) => error.to_string(),
                };
                (CommitFailure::Broker, format!("cannot tell whether the topic is the store's: {why}"))
            }
            Err(Unasked::Now(failure, why)) => (failure, why),
            Err(Unasked::Store(error)) => return Err(PipelineError::Store(error.to_string())),
            Err(Unasked::Engine(error)) => return Err(PipelineError::Store(error.to_string())),
        };
        tracing::warn!(why, "nothing is committed");
        self.parts.metrics.commit_failures.of(failure).inc();
        self.commits.failed(&self.parts.health, why);
        Ok(None)
    }

    /// No node had restarted when this was `asked`.
    fn settle(&mut self, asked: Instant) {
        let lag = self.parts.nodes.lag();
        let before_ms = self.uptime_ms(asked).saturating_sub(lag.as_millis() as u64);
        for (number, state) in &mut self.partitions {
            state.tracker.settle(before_ms);
            self.planner.settle(*number, state.tracker.safe());
        }
        self.notes.settle(asked, lag);
    }

    /// Looks, beside the loop, whether the store is the one that the commits of a partition speak of; ends the pipeline where it
    /// is not. Until then nothing is said of the partition, neither to the store nor to the group.
    pub(super) fn compare_with_store(&mut self, assigned: &Assigned) {
        let partition = assigned.partition.partition;
        let Some(offset) = assigned.committed.as_ref().and_then(consumed_of) else { return };
        let committed = Consumed { chain: 0, validated: [(partition.unsigned_abs(), offset)].into() };
        let (whole, done) = (self.parts.whole.clone(), self.done_sender.clone());
        spawn("comparing the store with its group", &self.done_sender, async move {
            let answer = match until_compared(whole.as_ref(), &committed).await {
                Ok(()) => Done::Compared { partition, offset },
                Err(error) => Done::Fatal(PipelineError::Store(error.to_string())),
            };
            // A pipeline that has ended meanwhile asks again when it starts.
            let _ = done.send(answer);
        });
    }

    /// A node has forgotten: everything that is not committed is read and done again, under new epochs, so that no
    /// completion from before counts.
    pub(super) async fn rewind(&mut self) -> Result<(), PipelineError> {
        let store = |error: &dyn std::fmt::Display| PipelineError::Store(error.to_string());
        self.parts.metrics.node_restarts.inc();
        if let Modes::Rebuild(_) = self.parts.modes {
            return Err(store(&"a node restarted while the store was rebuilt: begin again, with an empty set"));
        }
        self.parts.nodes.meet().await.map_err(|error| store(&error))?;
        self.parts.whole.check().await.map_err(|error| store(&error))?;
        // What was written last may be among what is forgotten.
        self.notes = Notes::default();
        self.planner.abandon();
        self.dispatcher.give_all_up();
        self.chunks.clear();
        self.unprepared = 0;
        self.throttled = false;
        for (number, state) in std::mem::take(&mut self.partitions) {
            tracing::warn!(partition = number, "a node of the store restarted: read again from what is committed");
            match self.read_again(number, &state).await {
                Ok(()) => {
                    // Only an operator lifts a halt.
                    if let Some(halt) = state.halted {
                        self.stay_halted(number, halt);
                    }
                }
                // It is being taken away, which is heard next.
                Err(error) if error.kind == BrokerErrorKind::NotAssigned => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.share_out();
        self.tell_halts();
        Ok(())
    }

    /// Has a partition, which was as `state` says, read again from what is committed, under a new epoch. After an error nothing of it has been read.
    pub(super) async fn read_again(&mut self, number: i32, state: &PartitionState) -> Result<(), BrokerError> {
        let partition = TopicPartition { topic: self.settings.topic.clone(), partition: number };
        let position = state.rewind_to();
        let epoch = self.consumer.seek(&partition, position).await?;
        if state.paused {
            self.consumer.resume(&partition)?;
        }
        self.partitions.insert(number, state.rewound(epoch, position, self.parts.nodes.may_forget()));
        if self.throttled || state.paused_by_hand {
            self.pause(number);
        }
        Ok(())
    }

    /// Offers every safe prefix that has grown to the group, with what other instances need for their proofs. `None`: none has.
    fn offer(&mut self) -> Option<(Offered, Committing)> {
        let rebuild = matches!(self.parts.modes, Modes::Rebuild(_));
        let named = self.planner.named();
        let mut offered = Vec::new();
        for (number, state) in &mut self.partitions {
            let noted = if rebuild { u64::MAX } else { self.notes.of(*number) };
            let named = named.get(number).map_or(&[][..], Vec::as_slice);
            let Some(committed) = state.to_commit(noted, named) else { continue };
            state.offer(committed.offset);
            let partition = TopicPartition { topic: self.settings.topic.clone(), partition: *number };
            offered.push((partition, committed, state.epoch));
        }
        if offered.is_empty() {
            self.commits.succeeded(&self.parts.health);
            return None;
        }
        let offsets: Vec<_> = offered.iter().map(|(at, committed, _)| (at.clone(), committed.clone())).collect();
        let committing = within_bound(self.consumer.commit(&offsets));
        Some((offered, committing))
    }

    /// The group has taken what it was offered, or not. What came of a partition under an epoch that is gone counts for nothing.
    fn on_committed(&mut self, offered: Offered, answer: Result<(), BrokerError>) -> Result<(), PipelineError> {
        match answer {
            Ok(()) => {
                for (partition, committed, epoch) in offered {
                    let state = self.partitions.get_mut(&partition.partition);
                    if let Some(state) = state.filter(|state| state.epoch == epoch) {
                        state.committed = Some(committed);
                    }
                }
                self.parts.metrics.commits.inc();
                self.commits.succeeded(&self.parts.health);
            }
            Err(error) if error.kind.ends_the_client() => return Err(error.into()),
            Err(error) => {
                tracing::warn!(%error, "offsets are not committed; tried again");
                self.parts.metrics.commit_failures.of(CommitFailure::Broker).inc();
                self.commits.failed(&self.parts.health, error);
            }
        }
        Ok(())
    }
}

/// Asks until the store answers.
pub(super) async fn until_compared(whole: &dyn WholeStore, committed: &Consumed) -> Result<(), MetaError> {
    loop {
        match whole.holds(committed).await {
            Err(error) if error.may_be_retried() => {
                tracing::warn!(%error, "whether the store is the group's is asked again");
                tokio::time::sleep(ASK_AGAIN).await;
            }
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_may_be_committed_once_the_store_cannot_forget_it() {
        let consumed = |offset| Consumed { chain: 0, validated: [(3, offset)].into() };
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut notes = Notes::default();
        (1..=4).for_each(|n| notes.young.push_back((start + second * n, consumed(u64::from(n) * 10))));
        let mut settled = |at: u32| {
            notes.settle(start + second * at, 2 * second);
            (notes.of(3), notes.of(4), notes.young.len())
        };
        assert_eq!([settled(2), settled(3), settled(5), settled(9)], [(0, 0, 4), (10, 0, 3), (30, 0, 1), (40, 0, 0)]);
    }
}
