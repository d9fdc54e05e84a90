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
    errors::{fenced, is_fencing, translate},
    inbox::{Inbox, RevocationState, SharedInbox},
    lookup::commit_list,
    settings::KafkaSettings,
    worker::{Handle, SeekResult, WorkerCommand},
};
use crate::broker::{
    BrokerError, BrokerErrorKind, CommitFuture, CommittedOffset, Consumer, ConsumerEvent, Message, MessageBatch,
    PartitionReader, PartitionSetReader, TopicPartition,
};

/// Runs a blocking call on a thread of its own. A call of librdkafka that hangs delays neither the runtime nor the
/// runtime's shutdown.
pub(super) async fn run_blocking<T: Send + 'static>(
    operation: &'static str,
    bound: Duration,
    work: impl FnOnce() -> Result<T, BrokerError> + Send + 'static,
) -> Result<T, BrokerError> {
    let (reply, answer) = oneshot::channel();
    // The result is dropped where the caller no longer waits.
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

/// A group member. A member that is dropped without [`Consumer::close`] leaves the group in the background.
pub(super) struct KafkaConsumer {
    pub(super) handle: Handle,
    pub(super) settings: KafkaSettings,
    pub(super) closed: bool,
}

#[async_trait]
impl Consumer for KafkaConsumer {
    async fn poll(&mut self) -> Result<ConsumerEvent, BrokerError> {
        let polled = self.handle.shared.next().await;
        // The inbox has room for another batch now.
        self.handle.wake();
        polled
    }

    fn commit(&mut self, offsets: &[(TopicPartition, CommittedOffset)]) -> CommitFuture {
        let (consumer, shared) = (self.handle.consumer.clone(), self.handle.shared.clone());
        let (thread, bound, closed) = (self.handle.thread.clone(), self.settings.commit_timeout, self.closed);
        let (offsets, instance_id) = (offsets.to_vec(), self.settings.group_instance_id.clone());
        Box::pin(async move {
            let closed_error = || BrokerError::new(BrokerErrorKind::Fatal, "commit", "the consumer is closed");
            let Some((first, _)) = offsets.first() else { return Ok(()) };
            if closed {
                return Err(closed_error());
            }
            let (tpl, name) = (commit_list("commit", &offsets)?, first.to_string());
            begin_commit(&shared, &offsets)?;
            let done = CommitGuard { shared: shared.clone(), thread };
            let result = run_blocking("commit", bound, move || {
                let _done = done;
                let consumer = consumer.upgrade().ok_or_else(closed_error)?;
                consumer.commit(&tpl, CommitMode::Sync).map_err(|error| {
                    let error = translate("commit", &name, &error);
                    // A commit of a client that was fenced before names no cause; the client keeps its fatal error.
                    let is_fenced = consumer.client().fatal_error().is_some_and(|(code, _)| is_fencing(code));
                    if is_fenced || error.kind == BrokerErrorKind::Fenced {
                        return fenced("commit", instance_id.as_deref());
                    }
                    error
                })
            })
            .await;
            match result {
                Err(ref error) if error.kind == BrokerErrorKind::Fenced => result,
                // A partition that was revoked meanwhile explains the failure better.
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
        if inbox.revocation == RevocationState::Taken {
            inbox.revocation = RevocationState::Finished;
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
        self.send("close", WorkerCommand::Close { reply: Some(reply) })?;
        // The thread keeps the close timeout once it has begun to close; the request before may take its own timeout.
        let bound = self.settings.close_timeout + self.settings.request_timeout;
        match timeout(bound, answer).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(BrokerError::new(BrokerErrorKind::Fatal, "close", "the consumer's thread has ended")),
            Err(_) => {
                let message =
                    format!("the group was not left within {bound:?}; the session timeout will remove the member");
                Err(BrokerError::new(BrokerErrorKind::Retryable, "close", message))
            }
        }
    }
}

impl Handle {
    fn send(&self, operation: &'static str, command: WorkerCommand) -> Result<(), BrokerError> {
        let closed = |_| BrokerError::new(BrokerErrorKind::Fatal, operation, "the consumer is closed");
        self.commands.send(command).map_err(closed)?;
        self.wake();
        Ok(())
    }

    async fn seek(&self, partition: &TopicPartition, offset: u64) -> Result<SeekResult, BrokerError> {
        let (reply, answer) = oneshot::channel();
        self.send("seek", WorkerCommand::Seek { partition: partition.clone(), offset, reply })?;
        answer.await.map_err(|_| BrokerError::new(BrokerErrorKind::Fatal, "seek", "the consumer is closed"))?
    }
}

impl KafkaConsumer {
    fn send(&self, operation: &'static str, command: WorkerCommand) -> Result<(), BrokerError> {
        self.handle.send(operation, command)
    }
}

fn check_owned(inbox: &Inbox, offsets: &[(TopicPartition, CommittedOffset)]) -> Result<(), BrokerError> {
    match offsets.iter().find(|(at, _)| !inbox.can_commit(at)) {
        Some((at, _)) => Err(BrokerError::not_assigned("commit", at)),
        None => Ok(()),
    }
}

/// Checks ownership and blocks the release of partitions, in one step. One commit runs at a time: a commit that hangs
/// must neither be overtaken by a later commit nor queue up behind it.
fn begin_commit(shared: &SharedInbox, offsets: &[(TopicPartition, CommittedOffset)]) -> Result<(), BrokerError> {
    let mut inbox = shared.lock();
    check_owned(&inbox, offsets)?;
    if inbox.committing {
        let message = "an earlier commit is still on its way";
        return Err(BrokerError::new(BrokerErrorKind::Retryable, "commit", message));
    }
    inbox.committing = true;
    Ok(())
}

/// Marks the commit as ended when dropped, whatever the outcome.
struct CommitGuard {
    shared: Arc<SharedInbox>,
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
        // The send fails only where the thread has ended already.
        let _ = self.send("drop", WorkerCommand::Close { reply: None });
    }
}

/// Reads one partition without a group.
pub(super) struct KafkaReader {
    pub(super) handle: Handle,
    pub(super) partition: TopicPartition,
    pub(super) position: u64,
    /// End offset of the partition when the reader was opened or last sought.
    pub(super) end: u64,
    /// Error of every read until a seek succeeds: the position is out of range, or the outcome of a seek is unknown.
    pub(super) stuck: Option<BrokerError>,
}

#[async_trait]
impl PartitionReader for KafkaReader {
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
                Ok(ConsumerEvent::Messages(batch)) => {
                    self.position = batch.messages.last().map_or(self.position, |last| last.offset + 1);
                    return Ok(batch.messages);
                }
                // An offset below the end that was not delivered is no message, but the marker of a Kafka transaction
                // or an aborted message. For other gaps only the end before the first fetch is certainly passed.
                Ok(ConsumerEvent::End(end)) => self.position = self.position.max(self.end).max(end.position),
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
        // The send fails only where the thread has ended already.
        let _ = self.handle.send("drop", WorkerCommand::Close { reply: None });
    }
}

/// Reads several partitions without a group.
pub(super) struct KafkaSetReader {
    pub(super) handle: Handle,
}

#[async_trait]
impl PartitionSetReader for KafkaSetReader {
    async fn next(&mut self) -> Result<MessageBatch, BrokerError> {
        loop {
            let polled = self.handle.shared.next().await;
            self.handle.wake();
            if let ConsumerEvent::Messages(batch) = polled? {
                return Ok(batch);
            }
        }
    }
}

impl Drop for KafkaSetReader {
    fn drop(&mut self) {
        // The send fails only where the thread has ended already.
        let _ = self.handle.send("drop", WorkerCommand::Close { reply: None });
    }
}
