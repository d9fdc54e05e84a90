//! Operators' requests to running loops. A request waits in a [`ControlQueue`]; the loop takes it, carries it out
//! between two turns, and answers. No other task changes the state of a loop.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{mpsc, oneshot};

use crate::broker::{BrokerError, BrokerErrorKind};

/// A command on a partition of validated transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionCommand {
    /// Lifts the halt: the partition is read again from its committed offset.
    Retry,
    /// Stops the reads of the partition by this instance.
    Pause,
    /// Continues the reads of the partition.
    Resume,
}

/// Answer of a loop to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum ControlAnswer {
    /// The request was carried out, or is in progress; says what was done.
    Done(String),
    /// The partition, or the chain, is not assigned to this instance.
    NotHeld(String),
    /// The request does not apply: nothing is halted or paused, or another remedy is needed.
    Refused(String),
    /// A later request may succeed.
    NotNow(String),
}

impl ControlAnswer {
    /// Answer for a failed seek to the committed offset; the halt stays.
    pub fn from_seek_error(error: &BrokerError) -> Self {
        match error.kind {
            BrokerErrorKind::NotAssigned => {
                ControlAnswer::NotHeld("the partition is being revoked from this instance".to_owned())
            }
            BrokerErrorKind::Retryable => ControlAnswer::NotNow(format!("the log does not answer: {error}")),
            _ => ControlAnswer::Refused(format!("cannot read from the committed offset: {error}")),
        }
    }
}

/// A request to a loop.
#[derive(Debug)]
pub struct ControlRequest<T> {
    /// The command to carry out.
    pub command: T,
    answer: oneshot::Sender<ControlAnswer>,
}

impl<T> ControlRequest<T> {
    /// Answers the request, also where the asking task no longer waits.
    pub fn answer(self, answer: ControlAnswer) {
        let _ = self.answer.send(answer);
    }
}

/// Most requests that wait for one loop.
const QUEUE_CAPACITY: usize = 16;
/// Longest wait for an answer: a loop that drains answers after the drain.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Queue of the requests to one loop.
#[derive(Debug)]
pub struct ControlQueue<T>(Mutex<Option<mpsc::Sender<ControlRequest<T>>>>);

impl<T> Default for ControlQueue<T> {
    fn default() -> Self {
        ControlQueue(Mutex::default())
    }
}

impl<T> ControlQueue<T> {
    /// Opens the queue for a loop that starts now; an earlier loop gets no more requests.
    pub fn open(&self) -> mpsc::Receiver<ControlRequest<T>> {
        let (requests, received) = mpsc::channel(QUEUE_CAPACITY);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(requests);
        received
    }

    /// Sends a request to the loop and waits for the answer.
    pub async fn ask(&self, command: T) -> ControlAnswer {
        let not_running = "this instance has no partition: the loop has not started, or has ended";
        let not_held = || ControlAnswer::NotHeld(not_running.to_owned());
        let requests = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (answer, answered) = oneshot::channel();
        match requests.map(|requests| requests.try_send(ControlRequest { command, answer })) {
            Some(Ok(())) => {}
            Some(Err(mpsc::error::TrySendError::Full(_))) => {
                return ControlAnswer::NotNow(format!("{QUEUE_CAPACITY} requests wait already"));
            }
            Some(Err(mpsc::error::TrySendError::Closed(_))) | None => return not_held(),
        }
        match tokio::time::timeout(ANSWER_TIMEOUT, answered).await {
            Ok(answer) => answer.unwrap_or_else(|_| not_held()),
            Err(_) => ControlAnswer::NotNow(format!(
                "no answer within {} s: the request may still be carried out; look at /state",
                ANSWER_TIMEOUT.as_secs()
            )),
        }
    }
}

/// The request queues of an instance, and the partitions that operators have paused.
#[derive(Debug, Default)]
pub struct Control {
    /// Queue of the pipeline: commands by partition.
    pub partitions: ControlQueue<(i32, PartitionCommand)>,
    /// Queue of the sequencer: requests to lift the halt of the chain.
    pub chain: ControlQueue<()>,
    /// Partitions that an operator has paused, until the process ends: a partition that a rebalance assigns again stays
    /// paused.
    paused: Mutex<BTreeSet<i32>>,
}

impl Control {
    /// True where an operator has paused the partition, assigned or not.
    pub fn is_paused(&self, partition: i32) -> bool {
        self.paused().contains(&partition)
    }

    /// Records that an operator pauses or resumes a partition; `false`: no change.
    pub fn set_paused(&self, partition: i32, paused: bool) -> bool {
        if paused { self.paused().insert(partition) } else { self.paused().remove(&partition) }
    }

    fn paused(&self) -> MutexGuard<'_, BTreeSet<i32>> {
        self.paused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_loop_that_started_last_answers_and_no_request_waits_for_an_ended_one() {
        let control = Control::default();
        let is_held = |answer: ControlAnswer| !matches!(answer, ControlAnswer::NotHeld(_));
        assert!(!is_held(control.partitions.ask((1, PartitionCommand::Pause)).await), "no loop has started");
        drop(control.partitions.open());
        assert!(!is_held(control.partitions.ask((1, PartitionCommand::Pause)).await), "the loop has ended");
        let mut requests = control.partitions.open();
        let (answer, ()) = tokio::join!(control.partitions.ask((2, PartitionCommand::Retry)), async {
            let request = requests.recv().await.unwrap();
            assert_eq!(request.command, (2, PartitionCommand::Retry));
            request.answer(ControlAnswer::Done("it goes on".into()));
        });
        assert_eq!(answer, ControlAnswer::Done("it goes on".into()));
        assert!(
            matches!(control.partitions.ask((1, PartitionCommand::Pause)).await, ControlAnswer::NotNow(_)),
            "the loop does not answer"
        );
    }
}
