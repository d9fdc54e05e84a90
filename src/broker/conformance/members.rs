//! Checks of the members of a group: assignment, revocation, commits.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::timeout;

use super::{MAX_WAIT, QUIET, Suite, offset};
use crate::broker::{
    AssignedPartition, BrokerError, BrokerErrorKind, CommittedOffset, Consumer, ConsumerEvent, MAX_COMMIT_METADATA,
    Message, MessageBatch, TopicPartition,
};

/// A member with its assigned partitions.
pub(super) struct Member {
    pub(super) consumer: Box<dyn Consumer>,
    pub(super) assigned: BTreeMap<TopicPartition, AssignedPartition>,
}

impl Member {
    pub(super) async fn poll_event(&mut self) -> Result<ConsumerEvent, BrokerError> {
        let polled = timeout(MAX_WAIT, self.consumer.poll()).await.expect("an event before MAX_WAIT");
        if let Ok(ConsumerEvent::Assigned(assigned)) = &polled {
            self.assigned.extend(assigned.iter().map(|a| (a.partition.clone(), a.clone())));
        }
        polled
    }

    /// Polls until the member has `count` assigned partitions.
    pub(super) async fn wait_for_assignment(&mut self, count: usize) {
        while self.assigned.len() < count {
            match self.poll_event().await.unwrap() {
                ConsumerEvent::Revoked { partitions, .. } => {
                    partitions.iter().for_each(|at| drop(self.assigned.remove(at)));
                    self.consumer.finish_revocation();
                }
                _ => continue,
            }
        }
    }

    pub(super) async fn batch(&mut self) -> MessageBatch {
        loop {
            if let ConsumerEvent::Messages(batch) = self.poll_event().await.unwrap() {
                return batch;
            }
        }
    }

    /// Returns the messages up to the end of a partition.
    pub(super) async fn read_to_end(&mut self) -> Vec<Message> {
        let mut messages = Vec::new();
        loop {
            match self.poll_event().await.unwrap() {
                ConsumerEvent::Messages(batch) => messages.extend(batch.messages),
                ConsumerEvent::End(_) => return messages,
                _ => {}
            }
        }
    }

    /// True where [`QUIET`] passes without an event. An assignment without partitions is no event.
    pub(super) async fn is_quiet(&mut self) -> bool {
        let hears = async {
            while let Ok(ConsumerEvent::Assigned(assigned)) = self.consumer.poll().await {
                if !assigned.is_empty() {
                    return;
                }
            }
        };
        timeout(QUIET, hears).await.is_err()
    }
}

impl Suite {
    pub(super) async fn a_new_member_resumes_at_the_commit_with_its_metadata(&self) {
        let at = self.at("resume", 0);
        self.fill("resume", 0, 20).await;
        let mut first = self.join("resume").await;
        first.wait_for_assignment(1).await;
        let committed = CommittedOffset { offset: 12, metadata: "what the offset means: ü".into() };
        first.consumer.commit(&[(at.clone(), committed.clone())]).await.unwrap();
        let long = CommittedOffset { offset: 13, metadata: "x".repeat(MAX_COMMIT_METADATA + 1) };
        assert_eq!(first.consumer.commit(&[(at.clone(), long)]).await.unwrap_err().kind, BrokerErrorKind::Refused);
        first.consumer.close().await.unwrap();

        let mut second = self.join("resume").await;
        second.wait_for_assignment(1).await;
        let assigned = second.assigned[&at].clone();
        assert_eq!((assigned.position, assigned.committed.as_ref()), (12, Some(&committed)));
        assert_ne!(assigned.epoch, first.assigned[&at].epoch);
        assert_eq!(second.batch().await.messages[0].offset, 12);
        second.consumer.close().await.unwrap();
        let group = format!("{}resume-group", self.prefix);
        assert_eq!(self.broker.committed(&group, std::slice::from_ref(&at)).await.unwrap(), [Some(committed)]);
        assert_eq!(self.broker.committed("a group that nobody knows", &[at]).await.unwrap(), [None]);
    }

    pub(super) async fn a_revocation_waits_for_the_member_and_fences_it(&self) {
        for partition in 0..4 {
            self.fill("rebalance", partition, 5).await;
        }
        // A loaded cluster sometimes expels a member that commits during a rebalance: repeat with new members.
        for _ in 0..5 {
            if self.check_one_revocation().await {
                return;
            }
        }
        panic!("every commit during a rebalance has failed");
    }

    /// `false`: the group expelled the member before the revocation was finished.
    async fn check_one_revocation(&self) -> bool {
        let mut first = self.join("rebalance").await;
        first.wait_for_assignment(4).await;
        let mut second = self.join("rebalance").await;
        let revoked = loop {
            match first.poll_event().await.unwrap() {
                ConsumerEvent::Revoked { partitions, lost } => break assert_not_lost(partitions, lost),
                _ => continue,
            }
        };
        assert_eq!(revoked.len(), self.revoked, "{revoked:?}");
        assert!(second.is_quiet().await, "no partition moves before the revocation is finished");
        let last_commit: Vec<_> = revoked.iter().map(|at| (at.clone(), offset(3))).collect();
        if !commit_with_retries(&mut first, &last_commit).await {
            second.consumer.close().await.unwrap();
            first.consumer.close().await.unwrap();
            return false;
        }
        let refused = first.consumer.seek(&revoked[0], 0).await.unwrap_err();
        assert_eq!(refused.kind, BrokerErrorKind::NotAssigned);
        first.consumer.finish_revocation();

        // A rebalance ends only while all members poll.
        let before = first.assigned.clone();
        let mut moved = BTreeMap::new();
        first.assigned.retain(|at, _| !revoked.contains(at));
        while moved.len() < 2 || first.assigned.len() < 2 {
            tokio::select! {
                polled = second.poll_event() => if let ConsumerEvent::Assigned(assigned) = polled.unwrap() {
                    moved.extend(assigned.into_iter().map(|a| (a.partition.clone(), a)));
                },
                polled = first.poll_event() => if let ConsumerEvent::Messages(batch) = polled.unwrap() {
                    let owned = first.assigned.get(&batch.partition);
                    let epoch = owned.map(|a| a.epoch);
                    assert_eq!(Some(batch.epoch), epoch, "{} was revoked and is still read", batch.partition);
                },
            }
        }
        for (at, assigned) in moved.iter().chain(first.assigned.iter().filter(|(at, _)| revoked.contains(at))) {
            assert!(revoked.contains(at));
            assert_eq!((assigned.position, assigned.committed.clone()), (3, Some(offset(3))));
            assert!(assigned.epoch > before[at].epoch);
        }
        let last_commit: Vec<_> = moved.keys().map(|at| (at.clone(), offset(4))).collect();
        let late = first.consumer.commit(&last_commit).await.unwrap_err();
        assert_eq!(late.kind, BrokerErrorKind::NotAssigned, "{late}");
        second.consumer.close().await.unwrap();
        first.consumer.close().await.unwrap();
        true
    }

    pub(super) async fn unassigned_partitions_are_refused(&self) {
        let (own, foreign) = (self.at("refused", 0), self.at("refused", 7));
        let mut member = self.join("refused").await;
        member.wait_for_assignment(1).await;
        let both = [(own.clone(), offset(0)), (foreign.clone(), offset(0))];
        assert_eq!(member.consumer.commit(&both).await.unwrap_err().kind, BrokerErrorKind::NotAssigned);
        let group = format!("{}refused-group", self.prefix);
        assert_eq!(self.broker.committed(&group, &[own]).await.unwrap(), [None], "all or nothing");
        assert_eq!(member.consumer.seek(&foreign, 0).await.unwrap_err().kind, BrokerErrorKind::NotAssigned);
        assert_eq!(member.consumer.pause(&foreign).unwrap_err().kind, BrokerErrorKind::NotAssigned);
        assert_eq!(member.consumer.resume(&foreign).unwrap_err().kind, BrokerErrorKind::NotAssigned);
        assert!(member.read_to_end().await.is_empty(), "an empty partition is at its end");
        member.consumer.close().await.unwrap();
    }

    pub(super) async fn a_dropped_member_loses_its_partitions(&self) {
        let mut first = self.join("drop").await;
        first.wait_for_assignment(1).await;
        let epoch = first.assigned[&self.at("drop", 0)].epoch;
        drop(first);
        let mut second = self.join("drop").await;
        second.wait_for_assignment(1).await;
        assert_ne!(second.assigned[&self.at("drop", 0)].epoch, epoch);
        second.consumer.close().await.unwrap();
    }

    pub(super) async fn offsets_of_a_group_without_members_can_be_set(&self) {
        let (at, group) = (self.at("set", 0), format!("{}set-group", self.prefix));
        self.fill("set", 0, 20).await;
        let committed = || async { self.broker.committed(&group, std::slice::from_ref(&at)).await.unwrap() };
        let back = CommittedOffset { offset: 5, metadata: "why: ü".into() };
        let set_back = [(at.clone(), back.clone())];

        let mut member = self.join("set").await;
        member.wait_for_assignment(1).await;
        assert!(commit_with_retries(&mut member, &[(at.clone(), offset(12))]).await);
        let refused = self.broker.set_committed(&group, &set_back).await.unwrap_err();
        assert_eq!(refused.kind, BrokerErrorKind::Refused, "{refused}");
        assert!(refused.message.contains(&group) && refused.message.contains("members"), "{refused}");
        assert_eq!(committed().await, [Some(offset(12))]);
        member.consumer.close().await.unwrap();

        let long = CommittedOffset { offset: 5, metadata: "x".repeat(MAX_COMMIT_METADATA + 1) };
        let refused = self.broker.set_committed(&group, &[(at.clone(), long)]).await.unwrap_err();
        assert_eq!((refused.kind, committed().await), (BrokerErrorKind::Refused, vec![Some(offset(12))]));
        let memberless = format!("{}set-nobody", self.prefix);
        self.broker.set_committed(&memberless, &set_back).await.unwrap();
        assert_eq!(self.broker.committed(&memberless, std::slice::from_ref(&at)).await.unwrap(), [Some(back.clone())]);
        if self.mock {
            return;
        }
        // The coordinator may need a moment to notice that the member has left.
        let start = tokio::time::Instant::now();
        while let Err(error) = self.broker.set_committed(&group, &set_back).await {
            assert!(start.elapsed() < MAX_WAIT, "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(committed().await, [Some(back.clone())]);
        let mut member = self.join("set").await;
        member.wait_for_assignment(1).await;
        let assigned = &member.assigned[&at];
        assert_eq!((assigned.position, assigned.committed.as_ref()), (5, Some(&back)));
        assert_eq!(member.batch().await.messages[0].offset, 5);
        member.consumer.close().await.unwrap();
    }
}

fn assert_not_lost(partitions: Vec<TopicPartition>, lost: bool) -> Vec<TopicPartition> {
    assert!(!lost, "{partitions:?}");
    partitions
}

/// Commits, and repeats a commit that a rebalance has refused; `false`: the partitions were revoked meanwhile.
async fn commit_with_retries(member: &mut Member, offsets: &[(TopicPartition, CommittedOffset)]) -> bool {
    // A rebalance takes up to a minute on a loaded machine.
    for _ in 0..1_200 {
        match member.consumer.commit(offsets).await {
            Err(error) if error.kind == BrokerErrorKind::Retryable => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) if error.kind == BrokerErrorKind::NotAssigned => return false,
            result => return result.map(|()| true).unwrap(),
        }
    }
    panic!("no commit succeeded within a minute");
}
