//! Batches of outcomes: txids gathered by the partitions of the topic of outcomes. Pure.
//!
//! A reader that waits for one transaction reads one partition. Each txid of a batch is therefore in the partition that
//! the txid has as a key.

use crate::{
    broker::{OutgoingMessage, partitioner::partition_of},
    event::{OutcomeBatch, OutcomeChange, TxidList},
    tx::Txid,
};

/// Most txids of one message, which has 250 KiB then: less than every usual size limit of a topic.
pub const MAX_TXIDS: usize = if cfg!(test) { 3 } else { 8_000 };

/// Topic of outcomes, as a start of the instance found it.
#[derive(Debug, Clone)]
pub struct OutcomeTopic {
    /// Name of the topic.
    pub name: String,
    /// Number of its partitions.
    pub partitions: i32,
}

/// Gathered txids of one partition, each with data of the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionTxids<T> {
    partition: i32,
    txids: Vec<u8>,
    attached: Vec<T>,
}

impl<T> PartitionTxids<T> {
    fn take(&mut self) -> Self {
        let (txids, attached) = (std::mem::take(&mut self.txids), std::mem::take(&mut self.attached));
        PartitionTxids { partition: self.partition, txids, attached }
    }

    /// Returns the message with these txids, and the data of the caller, in the order of the txids.
    pub fn into_message(self, topic: &str, change: OutcomeChange) -> (OutgoingMessage, Vec<T>) {
        let txids = TxidList::new(&self.txids).unwrap_or_else(|| unreachable!("txids are added whole"));
        let message = OutgoingMessage {
            topic: topic.to_owned(),
            partition: Some(self.partition),
            payload: OutcomeBatch { change, txids }.encode().into(),
            ..OutgoingMessage::default()
        };
        (message, self.attached)
    }
}

/// Txids that are gathered for the partitions of the topic of outcomes.
#[derive(Debug)]
pub struct GatheredTxids<T> {
    partitions: Vec<PartitionTxids<T>>,
    count: usize,
}

impl<T> GatheredTxids<T> {
    /// Creates a collection without txids for a topic of this number of partitions, at least one.
    pub fn new(partitions: i32) -> Self {
        let empty = |partition| PartitionTxids { partition, txids: Vec::new(), attached: Vec::new() };
        GatheredTxids { partitions: (0..partitions.max(1)).map(empty).collect(), count: 0 }
    }

    /// Adds a txid. Returns the txids of its partition once they fill a message.
    pub fn add(&mut self, txid: Txid, attached: T) -> Option<PartitionTxids<T>> {
        let number = partition_of(&txid.0, self.partitions.len() as i32)?;
        let gathered = self.partitions.get_mut(number as usize)?;
        gathered.txids.extend(txid.0);
        gathered.attached.push(attached);
        self.count += 1;
        if gathered.attached.len() < MAX_TXIDS {
            return None;
        }
        self.count -= MAX_TXIDS;
        Some(gathered.take())
    }

    /// Takes all txids, one item a partition.
    pub fn take_all(&mut self) -> impl Iterator<Item = PartitionTxids<T>> {
        self.count = 0;
        self.partitions.iter_mut().filter(|gathered| !gathered.attached.is_empty()).map(PartitionTxids::take)
    }

    /// Returns the number of gathered txids.
    pub fn count(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;

    /// Returns partition, txids and data of a message.
    fn read(gathered: PartitionTxids<u8>) -> (i32, Vec<Txid>, Vec<u8>) {
        let (message, attached) = gathered.into_message("outcomes", OutcomeChange::Live);
        assert_eq!((message.topic.as_str(), message.key.len()), ("outcomes", 0));
        let Ok(Event::OutcomeBatch(OutcomeBatch { change: OutcomeChange::Live, txids })) =
            Event::decode(&message.payload)
        else {
            panic!("not a batch of live transactions")
        };
        (message.partition.unwrap(), txids.iter().collect(), attached)
    }

    #[test]
    fn each_txid_is_in_the_partition_of_its_key_and_in_order() {
        const PARTITIONS: i32 = 5;
        let mut gathered = GatheredTxids::new(PARTITIONS);
        let txids: Vec<Txid> = (0..60).map(|byte| Txid([byte; 32])).collect();
        let full = txids.iter().zip(0..).filter_map(|(txid, number)| gathered.add(*txid, number)).collect::<Vec<_>>();
        let rest: Vec<_> = gathered.take_all().collect();
        assert_eq!((gathered.count(), gathered.take_all().count()), (0, 0));
        let mut messages: Vec<_> = full.into_iter().chain(rest).map(read).collect();
        assert!(messages.iter().all(|(_, txids, _)| (1..=MAX_TXIDS).contains(&txids.len())), "{messages:?}");
        // One message a partition has room: all others are full.
        assert!(messages.iter().filter(|(_, txids, _)| txids.len() < MAX_TXIDS).count() <= PARTITIONS as usize);
        for (partition, txids, attached) in &messages {
            assert!(txids.iter().all(|txid| partition_of(&txid.0, PARTITIONS) == Some(*partition)));
            assert!(attached.is_sorted() && txids.iter().zip(attached).all(|(txid, number)| txid.0[0] == *number));
        }
        messages.sort_by_key(|(_, txids, _)| txids[0]);
        let mut told: Vec<Txid> = messages.into_iter().flat_map(|(_, txids, _)| txids).collect();
        told.sort();
        assert_eq!(told, txids);
    }

    #[test]
    fn the_number_of_gathered_txids_leaves_out_full_messages() {
        let mut gathered = GatheredTxids::new(1);
        let fill = |gathered: &mut GatheredTxids<u8>| gathered.add(Txid([1; 32]), 0).is_some();
        assert_eq!(
            [(); 4].map(|()| (fill(&mut gathered), gathered.count())),
            [(false, 1), (false, 2), (true, 0), (false, 1)]
        );
    }
}
