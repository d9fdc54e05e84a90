//! [`FeedPosition`]: a place in the topic of outcomes, and [`OutcomeGap`]: outcomes that a place no longer leads to.

use std::{fmt, str::FromStr};

use serde::Serialize;

use crate::broker::TopicId;

/// Text of a topic without an id.
const NO_ID: &str = "-";

/// Offsets of a reader, one for each partition of the topic of outcomes. The text `ID:12,7,0` has the hexadecimal id of
/// the topic (`-`: the cluster gives no ids), and the offsets in the order of the partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FeedPosition {
    /// Id of the topic; `None`: the cluster gives no ids.
    pub topic: Option<TopicId>,
    /// Next offset of each partition.
    pub offsets: Vec<u64>,
}

/// Error of a text that is no position in the topic of outcomes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the text is no position in the outcomes: write the id of the topic and one offset for each partition")]
pub(crate) struct InvalidPosition;

impl FeedPosition {
    /// Returns whether the topic of this id, whose partitions have these first offsets and end offsets, has the
    /// position. The topic can have got further partitions.
    pub(crate) fn is_inside(&self, topic: Option<TopicId>, bounds: &[(u64, u64)]) -> bool {
        self.topic == topic
            && self.offsets.len() <= bounds.len()
            && self.offsets.iter().zip(bounds).all(|(offset, (_, end))| offset <= end)
    }
}

impl fmt::Display for FeedPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let offsets: Vec<String> = self.offsets.iter().map(u64::to_string).collect();
        let topic = self.topic.map_or_else(|| NO_ID.to_owned(), hex::encode);
        write!(f, "{topic}:{}", offsets.join(","))
    }
}

impl FromStr for FeedPosition {
    type Err = InvalidPosition;

    fn from_str(text: &str) -> Result<Self, InvalidPosition> {
        let (topic, offsets) = text.split_once(':').ok_or(InvalidPosition)?;
        let topic = match topic {
            NO_ID => None,
            digits => {
                let mut id = TopicId::default();
                hex::decode_to_slice(digits, &mut id).map_err(|_| InvalidPosition)?;
                Some(id)
            }
        };
        let offsets: Result<Vec<u64>, _> = offsets.split(',').map(str::parse).collect();
        Ok(FeedPosition { topic, offsets: offsets.map_err(|_| InvalidPosition)? })
    }
}

/// Outcomes that a reader from a position cannot read any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
pub(crate) enum OutcomeGap {
    /// The topic of the position is gone, or has lost its end. The reader continues with the first outcome of the
    /// present topic.
    OtherTopic,
    /// The retention of the topic has dropped offsets.
    Retention {
        /// Number of the partition.
        partition: i32,
        /// First offset that the topic no longer has.
        from: u64,
        /// Offset with which the reader continues.
        to: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_from_its_text() {
        for topic in [Some([7; 16]), None] {
            for offsets in [vec![0], vec![12, 7, u64::MAX]] {
                let position = FeedPosition { topic, offsets };
                assert_eq!(position.to_string().parse(), Ok(position));
            }
        }
        for wrong in ["", "12,7", "-:", "-:1,x", "-:-1", ":1", "07:1", &format!("{}:1", "0x".repeat(16))] {
            assert_eq!(wrong.parse::<FeedPosition>(), Err(InvalidPosition), "{wrong}");
        }
    }
}
