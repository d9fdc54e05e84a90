//! What operators ask of a loop that runs. They write a line on its desk, and the loop itself does what it says, in its turn, and answers:
//! nothing that is a loop's is touched by anybody else.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{mpsc, oneshot};

use crate::broker::{BrokerError, BrokerErrorKind};

/// What may be asked about a partition of validated transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionCommand {
    /// Lifts its halt: it is read again from its committed offset.
    Retry,
    /// Nothing more is read of it here.
    Pause,
    /// It is read on.
    Resume,
}

/// An answer of a loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// What was done, or is being done.
    Done(String),
    /// It is held by another instance, or by none.
    NotHeld(String),
    /// There is nothing to lift, or it cannot be lifted so.
    Refused(String),
    /// It may be asked again.
    NotNow(String),
}

impl Answer {
    /// What was to be read again from where it was committed is not, and stays as it was.
    pub fn not_read_again(error: &BrokerError) -> Self {
        match error.kind {
            BrokerErrorKind::NotAssigned => Answer::NotHeld("it is being taken away from this instance".to_owned()),
            BrokerErrorKind::Retryable => Answer::NotNow(format!("the log does not answer: {error}")),
            _ => Answer::Refused(format!("it cannot be read from where it was committed: {error}")),
        }
    }
}

/// Something that is asked of a loop.
#[derive(Debug)]
pub struct ControlRequest<T> {
    /// What.
    pub what: T,
    answer: oneshot::Sender<Answer>,
}

impl<T> ControlRequest<T> {
    /// Answers. Who asked may have gone.
    pub fn answer(self, answer: Answer) {
        let _ = self.answer.send(answer);
    }
}

/// So many orders wait at the most.
const WAITING: usize = 16;
/// A loop that drains answers once it has.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);

/// Where orders for one loop are left.
#[derive(Debug)]
pub struct ControlQueue<T>(Mutex<Option<mpsc::Sender<ControlRequest<T>>>>);

impl<T> Default for ControlQueue<T> {
    fn default() -> Self {
        ControlQueue(Mutex::default())
    }
}

impl<T> ControlQueue<T> {
    /// The loop that begins now takes the orders from here on.
    pub fn open(&self) -> mpsc::Receiver<ControlRequest<T>> {
        let (orders, received) = mpsc::channel(WAITING);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(orders);
        received
    }

    /// Asks the loop, and waits for its answer.
    pub async fn ask(&self, what: T) -> Answer {
        let not_held = || Answer::NotHeld("nothing is held here: this instance has not begun, or has ended".to_owned());
        let orders = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (answer, answered) = oneshot::channel();
        match orders.map(|orders| orders.try_send(ControlRequest { what, answer })) {
            Some(Ok(())) => {}
            Some(Err(mpsc::error::TrySendError::Full(_))) => {
                return Answer::NotNow(format!("{WAITING} requests wait already"));
            }
            Some(Err(mpsc::error::TrySendError::Closed(_))) | None => return not_held(),
        }
        match tokio::time::timeout(ANSWERED_WITHIN, answered).await {
            Ok(answer) => answer.unwrap_or_else(|_| not_held()),
            Err(_) => Answer::NotNow(format!(
                "no answer within {} s: it may be done yet; /state says so",
                ANSWERED_WITHIN.as_secs()
            )),
        }
    }
}

/// The desks of an instance.
#[derive(Debug, Default)]
pub struct Control {
    /// Of the pipeline: what is asked about a partition.
    pub partitions: ControlQueue<(i32, PartitionCommand)>,
    /// Of the sequencer: that the halt of the chain is lifted.
    pub chain: ControlQueue<()>,
    /// What is paused by hand, for as long as the process lives: a rebalance that hands a partition back lets nobody read it.
    paused: Mutex<BTreeSet<i32>>,
}

impl Control {
    /// Whether a partition is paused by hand, whenever it is held here.
    pub fn is_paused(&self, partition: i32) -> bool {
        self.paused().contains(&partition)
    }

    /// Has it paused, or no longer; `false`: it was so already.
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
    async fn the_loop_that_began_last_answers_and_nobody_waits_for_one_that_is_gone() {
        let control = Control::default();
        let held = |answer: Answer| !matches!(answer, Answer::NotHeld(_));
        assert!(!held(control.partitions.ask((1, PartitionCommand::Pause)).await), "none has begun");
        drop(control.partitions.open());
        assert!(!held(control.partitions.ask((1, PartitionCommand::Pause)).await), "it has ended");
        let mut orders = control.partitions.open();
        let (answer, ()) = tokio::join!(control.partitions.ask((2, PartitionCommand::Retry)), async {
            let order = orders.recv().await.unwrap();
            assert_eq!(order.what, (2, PartitionCommand::Retry));
            order.answer(Answer::Done("it goes on".into()));
        });
        assert_eq!(answer, Answer::Done("it goes on".into()));
        assert!(
            matches!(control.partitions.ask((1, PartitionCommand::Pause)).await, Answer::NotNow(_)),
            "the loop stands"
        );
    }
}
