//! The async sides of a consumer thread: a group member and a reader.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use rdkafka::consumer::{CommitMode, Consumer as _};
use tokio::{sync::oneshot, time::timeout};

use super::{
    errors::{fenced, translate},
    inbox::{Inbox, Revocation, Shared},
    lookup::list_of,
    settings::KafkaSettings,
    worker::{Command, Handle, Sought},
};
use crate::broker::{
    BrokerError, BrokerErrorKind, Committed, Committing, Consumer, Message, Polled, Reader, TopicPartition,
};

/// Runs something that blocks on a thread of its own: it may hang for as long as librdkafka likes without holding up
/// the runtime, not even its shutdown.
pub(super) async fn off_the_runtime<T: Send + 'static>(
    operation: &'static str,
    bound: Duration,
    work: impl FnOnce() -> Result<T, BrokerError> + Send + 'static,
) -> Result<T, BrokerError> {
    let (reply, answer) = oneshot::channel();
    // The answer to a caller who no longer waits is dropped with it.
    thread::Builder::new()
        .name("kafka-request".into())
        .spawn(move || drop(reply.send(work())))
        .map_err(|error| BrokerError::new(BrokerErrorKind::Retryable, operation, format!("no thread: {error}")))?;
    match timeout(bound, answer).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(BrokerError::new(BrokerErrorKind::Fatal, operation, "the thread panicked")),
        Err(_) => Err(BrokerError::new(BrokerErrorKind::Retryable, operation, format!("no answer within {bound:?}"))),
    }
}

/// A group member. Dropped without [`Consumer::close`] it leaves the group in the background.
pub(super) struct KafkaConsumer {
    pub(super) handle: Handle,
    pub(super) settings: KafkaSettings,
    pub(super) closed: bool,
}

#[async_trait]
impl Consumer for KafkaConsumer {
    async fn poll(&mut self) -> Result<Polled, BrokerError> {
        let polled = self.handle.shared.next().await;
        // There is room for another batch now.
        self.handle.wake();
        polled
    }

    fn commit(&mut self, offsets: &[(TopicPartition, Committed)]) -> Committing {
        let (consumer, shared) = (self.handle.consumer.clone(), self.handle.shared.clone());
        let (thread, bound, closed) = (self.handle.thread.clone(), self.settings.commit_timeout, self.closed);
        let (offsets, instance_id) = (offsets.to_vec(), self.settings.group_instance_id.clone());
        Box::pin(async move {
            let gone = || BrokerError::new(BrokerErrorKind::Fatal, "commit", "the consumer is closed");
            let Some((first, _)) = offsets.first() else { return Ok(()) };
            if closed {
                return Err(gone());
            }
            let (tpl, name) = (list_of("commit", &offsets)?, first.to_string());
            begin_commit(&shared, &offsets)?;
            let done = CommitGuard { shared: shared.clone(), thread };
            let result = off_the_runtime("commit", bound, move || {
                let _done = done;
                let consumer = consumer.upgrade().ok_or_else(gone)?;
                consumer.commit(&tpl, CommitMode::Sync).map_err(|error| translate("commit", &name, &error))
            })
            .await;
            match result {
                Err(ref error) if error.kind == BrokerErrorKind::Fenced => {
                    Err(fenced("commit", instance_id.as_deref()))
                }
                // Taken away meanwhile: that is why.
                Err(_) => check_owned(&shared.lock(), &offsets).and(result),
                Ok(()) => Ok(()),
            }
        })
    }

    async fn seek(&mut self, partition: &TopicPartition, offset: u64) -> Result<u64, BrokerError> {
        if !self.handle.shared.lock().is_assigned(partition) {
            return Err(BrokerError::not_assigned("seek", partition));
        }
        Ok(self.handle.seek(partition, offset).await?.epoch)
    }

    fn pause(&mut self, partition: &TopicPartition) -> Result<(), BrokerError> {
        match self.handle.shared.lock().set_paused(partition, true) {
            true => Ok(()),
            false => Err(BrokerError::not_assigned("pause", partition)),
        }
    }

    fn resume(&mut self, partition: &TopicPartition) -> Result<(), BrokerError> {
        if !self.handle.shared.lock().set_paused(partition, false) {
            return Err(BrokerError::not_assigned("resume", partition));
        }
        self.handle.wake();
        Ok(())
    }

    fn finish_revocation(&mut self) {
        let mut inbox = self.handle.shared.lock();
        if inbox.revocation == Revocation::Heard {
            inbox.revocation = Revocation::Finished;
        }
        drop(inbox);
        self.handle.wake();
    }

    async fn close(&mut self) -> Result<(), BrokerError> {
        if self.closed {
            return Ok(());
        }
        self.closed = true;
        let (reply, answer) = oneshot::channel();
        self.send("close", Command::Close { reply: Some(reply) })?;
        // The thread keeps to the same bound once it has begun; what it was doing may take a request's time.
        let bound = self.settings.close_timeout + self.settings.request_timeout;
        match timeout(bound, answer).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(BrokerError::new(BrokerErrorKind::Fatal, "close", "the consumer's thread has ended")),
            Err(_) => {
                let message = format!("the group was not left within {bound:?}; it will notice by itself");
                Err(BrokerError::new(BrokerErrorKind::Retryable, "close", message))
            }
        }
    }
}

impl Handle {
    fn send(&self, operation: &'static str, command: Command) -> Result<(), BrokerError> {
        let closed = |_| BrokerError::new(BrokerErrorKind::Fatal, operation, "the consumer is closed");
        self.commands.send(command).map_err(closed)?;
        self.wake();
        Ok(())
    }

    async fn seek(&self, partition: &TopicPartition, offset: u64) -> Result<Sought, BrokerError> {
        let (reply, answer) = oneshot::channel();
        self.send("seek", Command::Seek { partition: partition.clone(), offset, reply })?;
        answer.await.map_err(|_| BrokerError::new(BrokerErrorKind::Fatal, "seek", "the consumer is closed"))?
    }
}

impl KafkaConsumer {
    fn send(&self, operation: &'static str, command: Command) -> Result<(), BrokerError> {
        self.handle.send(operation, command)
    }
}

fn check_owned(inbox: &Inbox, offsets: &[(TopicPartition, Committed)]) -> Result<(), BrokerError> {
    match offsets.iter().find(|(at, _)| !inbox.may_commit(at)) {
        Some((at, _)) => Err(BrokerError::not_assigned("commit", at)),
        None => Ok(()),
    }
}

/// Checks ownership and keeps partitions from being let go, in one step. One commit at a time: one that hangs must
/// not overtake, nor pile up behind, a later one.
fn begin_commit(shared: &Shared, offsets: &[(TopicPartition, Committed)]) -> Result<(), BrokerError> {
    let mut inbox = shared.lock();
    check_owned(&inbox, offsets)?;
    if inbox.committing {
        let message = "an earlier commit is still on its way";
        return Err(BrokerError::new(BrokerErrorKind::Retryable, "commit", message));
    }
    inbox.committing = true;
    Ok(())
}

/// Ends the commit however it ends.
struct CommitGuard {
    shared: Arc<Shared>,
    thread: thread::Thread,
}

impl Drop for CommitGuard {
    fn drop(&mut self) {
        self.shared.lock().committing = false;
        self.thread.unpark();
    }
}

impl Drop for KafkaConsumer {
    fn drop(&mut self) {
        // Fails only when the thread has ended already.
        let _ = self.send("drop", Command::Close { reply: None });
    }
}

/// Reads one partition without a group.
pub(super) struct KafkaReader {
    pub(super) handle: Handle,
    pub(super) partition: TopicPartition,
    pub(super) position: u64,
    /// End of the partition before the reader began, or began anew.
    pub(super) end: u64,
    /// Once the position is out of range, or nobody knows where a seek has led, it stays so until one succeeds.
    pub(super) stuck: Option<BrokerError>,
}

#[async_trait]
impl Reader for KafkaReader {
    async fn next(&mut self, wait: Duration) -> Result<Vec<Message>, BrokerError> {
        if let Some(error) = &self.stuck {
            return Err(error.clone());
        }
        let deadline = Instant::now() + wait;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(polled) = timeout(left, self.handle.shared.next()).await else { return Ok(Vec::new()) };
            self.handle.wake();
            match polled {
                Ok(Polled::Messages(batch)) => {
                    self.position = batch.messages.last().map_or(self.position, |last| last.offset + 1);
                    return Ok(batch.messages);
                }
                // What lies before the end and was not delivered is no message: a mark of a transaction, or what one
                // gave up. Of other gaps only the end as it was before anything was fetched is certainly passed.
                Ok(Polled::End(end)) => self.position = self.position.max(self.end).max(end.position),
                Ok(_) => {}
                Err(error) => {
                    self.stuck = (error.kind == BrokerErrorKind::OutOfRange).then(|| error.clone());
                    return Err(error);
                }
            }
        }
    }

    fn position(&self) -> u64 {
        self.position
    }

    async fn seek(&mut self, offset: u64) -> Result<(), BrokerError> {
        let message = format!("{}: a seek to offset {offset} has not been answered", self.partition);
        self.stuck = Some(BrokerError::new(BrokerErrorKind::Retryable, "read", message));
        let sought =
            self.handle.seek(&self.partition, offset).await.inspect_err(|error| self.stuck = Some(error.clone()))?;
        (self.position, self.end, self.stuck) = (offset, sought.end, None);
        Ok(())
    }
}

impl Drop for KafkaReader {
    fn drop(&mut self) {
        // Fails only when the thread has ended already.
        let _ = self.handle.send("drop", Command::Close { reply: None });
    }
}
