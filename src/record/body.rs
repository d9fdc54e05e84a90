//! Bodies of transactions.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use serde::Serialize;

use crate::tx::{Transaction, amount_size};

/// The body of a transaction: bins `inputs` and `outputs`, or `external`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// The transaction in extended format.
    Transaction(Bytes),
    /// A partial transaction: its outputs by index, gaps `None`.
    Outputs(PartialOutputs),
    /// The body is a blob of the blob store.
    External(Blob),
}

/// Blob of a body among the blobs of its transaction. A txid commits to the standard format, but not to the previous
/// outputs of the extended format, and not to a partial transaction. One transaction can therefore have several blobs,
/// none of which ever changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blob {
    /// The blob that was stored first, with the BLAKE3 of its content. A record of the reference system, and of an
    /// early version of this store, does not have the hash.
    First(Option<[u8; 32]>),
    /// A blob with other content than the first; the BLAKE3 of the content is part of the name.
    Other([u8; 32]),
}

impl Blob {
    /// Returns the BLAKE3 of the content, as far as the record has the hash.
    pub fn content_hash(self) -> Option<[u8; 32]> {
        match self {
            Blob::First(hash) => hash,
            Blob::Other(hash) => Some(hash),
        }
    }
}

impl Body {
    /// Returns the size that an inline body adds to its master, bytes: the transaction, or the outputs of a partial
    /// one.
    pub fn size(&self) -> u64 {
        let size = match self {
            Body::Transaction(bytes) => bytes.len(),
            Body::Outputs(outputs) => outputs.known().iter().map(|(_, output)| 16 + output.script.len()).sum(),
            Body::External(_) => 0,
        };
        size as u64
    }

    /// Returns `amountSizes` for the first `slots` outputs of the body. Empty for a body in the blob store.
    pub fn amount_sizes(&self, slots: usize) -> Bytes {
        match self {
            Body::Transaction(bytes) => Transaction::parse(bytes).map_or(Bytes::new(), |transaction| {
                transaction.outputs().take(slots).map(|output| amount_size(output.satoshis)).collect()
            }),
            Body::Outputs(outputs) => outputs.iter().take(slots).map(StoredOutput::amount_size_of).collect(),
            Body::External(_) => Bytes::new(),
        }
    }
}

/// Stored output: of a partial transaction, or of a reassignment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StoredOutput {
    /// Amount of the output, satoshis.
    pub satoshis: u64,
    /// Locking script of the output.
    #[serde(serialize_with = "hex::serde::serialize")]
    pub script: Bytes,
}

impl StoredOutput {
    /// Returns the output with the script in other memory, which `moved` returns.
    pub(crate) fn with_script(&self, moved: impl FnOnce(&Bytes) -> Bytes) -> Self {
        StoredOutput { satoshis: self.satoshis, script: moved(&self.script) }
    }

    /// Returns the amount size of an output, 0 for a gap.
    pub(crate) fn amount_size_of(output: Option<&StoredOutput>) -> u8 {
        output.map_or(0, |output| amount_size(output.satoshis))
    }
}

/// Outputs of a partial transaction by index. The unknown ones below the last are gaps, which take no memory: an event
/// of a hundred bytes can name an output with a million gaps before it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PartialOutputs {
    /// Known outputs, ascending by index.
    known: Arc<[(u32, StoredOutput)]>,
    count: u32,
}

impl PartialOutputs {
    /// Creates the outputs up to the last known one; `known` ascends by index.
    pub fn new(known: Vec<(u32, StoredOutput)>) -> Self {
        let count = known.last().map_or(0, |(index, _)| index + 1);
        PartialOutputs { known: known.into(), count }
    }

    /// Returns the number of outputs with the gaps.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the known outputs, ascending by index.
    pub fn known(&self) -> &[(u32, StoredOutput)] {
        &self.known
    }

    /// Returns the output with this index; `None`: a gap, or above the last.
    pub fn get(&self, index: u32) -> Option<&StoredOutput> {
        let place = self.known.binary_search_by_key(&index, |(index, _)| *index).ok()?;
        Some(&self.known[place].1)
    }

    /// Returns all outputs in order; `None` for a gap.
    pub fn iter(&self) -> impl Iterator<Item = Option<&StoredOutput>> + Send {
        self.range(0..self.count)
    }

    /// Returns the outputs in this range, as far as there are any; `None` for a gap.
    pub fn range(&self, range: Range<u32>) -> impl Iterator<Item = Option<&StoredOutput>> + Send {
        let from = self.known.partition_point(|(index, _)| *index < range.start);
        let mut known = self.known[from..].iter().peekable();
        (range.start..range.end.min(self.count))
            .map(move |index| known.next_if(|(found, _)| *found == index).map(|(_, output)| output))
    }

    /// Returns the outputs with the scripts in other memory, which `moved` returns.
    pub(crate) fn with_scripts(&self, moved: impl Fn(&Bytes) -> Bytes) -> Self {
        let known = self.known.iter().map(|(index, output)| (*index, output.with_script(&moved)));
        PartialOutputs { known: known.collect(), count: self.count }
    }
}

impl FromIterator<Option<StoredOutput>> for PartialOutputs {
    fn from_iter<I: IntoIterator<Item = Option<StoredOutput>>>(outputs: I) -> Self {
        let mut count = 0;
        let known = outputs.into_iter().filter_map(|output| {
            count += 1;
            Some((count - 1, output?))
        });
        let known = known.collect();
        PartialOutputs { known, count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(satoshis: u64) -> StoredOutput {
        StoredOutput { satoshis, script: Bytes::from_static(&[0x51]) }
    }

    #[test]
    fn gaps_take_no_memory_and_are_in_every_view() {
        let dense = [None, Some(output(1)), None, Some(output(3)), None];
        let outputs: PartialOutputs = dense.iter().cloned().collect();
        assert_eq!(outputs.iter().map(Option::<&StoredOutput>::cloned).collect::<Vec<_>>(), dense);
        for (from, to) in [(0, 5), (1, 4), (2, 3), (3, 9), (5, 9), (7, 8)] {
            let expected = &dense[from.min(5)..to.min(5)];
            let found: Vec<_> = outputs.range(from as u32..to as u32).map(Option::<&StoredOutput>::cloned).collect();
            assert_eq!(found, expected, "{from} to {to}");
        }
        let all: Vec<_> = (0..6).map(|index| outputs.get(index).cloned()).collect();
        assert_eq!(all, [&dense[..], &[None]].concat());
        let last = PartialOutputs::new(vec![(0, output(1)), ((1 << 20) - 1, output(2))]);
        assert_eq!((last.count(), last.known().len(), last.iter().flatten().count()), (1 << 20, 2, 2));
        assert_ne!(PartialOutputs::new(vec![(0, output(1))]), [Some(output(1)), None].into_iter().collect());
    }
}
