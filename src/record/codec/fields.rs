//! Fields of the codec: each method of [`RecordWriter`] has its counterpart in [`RecordReader`].

use bytes::{Buf, Bytes};

use super::CodecError;
use crate::{
    record::{Phase, Reason, SpendingData, Stamp, StoredOutput, Verdict},
    tx::Txid,
};

pub(super) struct RecordWriter<'a>(pub &'a mut Vec<u8>);

impl RecordWriter<'_> {
    pub fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Writes LEB128: seven bits per byte, the lowest first.
    pub fn number(&mut self, number: impl Into<u64>) {
        let mut rest = number.into();
        while rest >= 0x80 {
            self.byte(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.byte(rest as u8);
    }

    pub fn count(&mut self, count: usize) {
        self.number(count as u64);
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.raw(bytes);
    }

    pub fn option<T>(&mut self, value: Option<&T>, write: impl FnOnce(&mut Self, &T)) {
        self.byte(u8::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
    }

    pub fn stamp(&mut self, stamp: &Stamp) {
        self.number(stamp.offset);
        self.byte(stamp.phase as u8);
    }

    pub fn spending_data(&mut self, by: &SpendingData) {
        self.raw(&by.txid.0);
        self.raw(&by.input.to_le_bytes());
    }

    pub fn output(&mut self, output: &StoredOutput) {
        self.number(output.satoshis);
        self.bytes(&output.script);
    }

    pub fn verdict(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Pending => self.byte(0),
            Verdict::Accepted => self.byte(1),
            Verdict::Conflicting(reason) => {
                self.byte(2);
                self.reason(reason);
            }
        }
    }

    fn reason(&mut self, reason: &Reason) {
        let (tag, input, txid) = match reason {
            Reason::DoubleSpend { input, winner } => (0, Some(input), Some(winner)),
            Reason::ConflictingParent { parent } => (1, None, Some(parent)),
            Reason::MissingParent { parent } => (2, None, Some(parent)),
            Reason::PrunedParent { parent } => (3, None, Some(parent)),
            Reason::Immature { input } => (4, Some(input), None),
            Reason::Mismatch { input } => (5, Some(input), None),
            Reason::NoSuchOutput { input } => (6, Some(input), None),
            Reason::NotYetSpendable { input } => (7, Some(input), None),
            Reason::Frozen { input } => (8, Some(input), None),
            Reason::Locked { parent } => (9, None, Some(parent)),
            Reason::History { input } => (10, Some(input), None),
            Reason::Found => (11, None, None),
            Reason::Command => (12, None, None),
            Reason::Disconnected => (13, None, None),
            Reason::Seeded => (14, None, None),
        };
        self.byte(tag);
        if let Some(input) = input {
            self.number(*input);
        }
        if let Some(txid) = txid {
            self.raw(&txid.0);
        }
    }
}

pub(super) struct RecordReader(pub Bytes);

impl RecordReader {
    pub fn byte(&mut self) -> Result<u8, CodecError> {
        self.0.try_get_u8().map_err(|_| CodecError::Truncated)
    }

    pub fn bool(&mut self) -> Result<bool, CodecError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(CodecError::Field("flag")),
        }
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let array = *self.0.first_chunk().ok_or(CodecError::Truncated)?;
        self.0.advance(N);
        Ok(array)
    }

    pub fn u64(&mut self) -> Result<u64, CodecError> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            if bits << shift >> shift != bits {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(CodecError::Field("number"))
    }

    pub fn u32(&mut self) -> Result<u32, CodecError> {
        u32::try_from(self.u64()?).map_err(|_| CodecError::Field("number"))
    }

    /// Reads a count of elements of at least one byte each. A count above the number of remaining bytes is refused.
    pub fn count(&mut self) -> Result<usize, CodecError> {
        let count = self.u64()?;
        usize::try_from(count).ok().filter(|count| *count <= self.0.len()).ok_or(CodecError::Truncated)
    }

    pub fn bytes(&mut self) -> Result<Bytes, CodecError> {
        let length = self.count()?;
        Ok(self.0.split_to(length))
    }

    pub fn text(&mut self) -> Result<String, CodecError> {
        let bytes = self.bytes()?;
        std::str::from_utf8(&bytes).map(str::to_owned).map_err(|_| CodecError::Field("text"))
    }

    pub fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, CodecError>,
    ) -> Result<Option<T>, CodecError> {
        if self.bool()? { read(self).map(Some) } else { Ok(None) }
    }

    /// Reads a count and as many elements, into any collection.
    pub fn list<T, C: FromIterator<T>>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, CodecError>,
    ) -> Result<C, CodecError> {
        let count = self.count()?;
        (0..count).map(|_| read(self)).collect()
    }

    pub fn txid(&mut self) -> Result<Txid, CodecError> {
        self.array().map(Txid)
    }

    pub fn stamp(&mut self) -> Result<Stamp, CodecError> {
        let offset = self.u64()?;
        let phase = match self.byte()? {
            0 => Phase::Evaluate,
            1 => Phase::Apply,
            2 => Phase::Prune,
            _ => return Err(CodecError::Field("stamp")),
        };
        Ok(Stamp { offset, phase })
    }

    pub fn spending_data(&mut self) -> Result<SpendingData, CodecError> {
        Ok(SpendingData { txid: self.txid()?, input: u32::from_le_bytes(self.array()?) })
    }

    pub fn output(&mut self) -> Result<StoredOutput, CodecError> {
        Ok(StoredOutput { satoshis: self.u64()?, script: self.bytes()? })
    }

    pub fn verdict(&mut self) -> Result<Verdict, CodecError> {
        match self.byte()? {
            0 => Ok(Verdict::Pending),
            1 => Ok(Verdict::Accepted),
            2 => self.reason().map(Verdict::Conflicting),
            _ => Err(CodecError::Field("verdict")),
        }
    }

    fn reason(&mut self) -> Result<Reason, CodecError> {
        Ok(match self.byte()? {
            0 => Reason::DoubleSpend { input: self.u32()?, winner: self.txid()? },
            1 => Reason::ConflictingParent { parent: self.txid()? },
            2 => Reason::MissingParent { parent: self.txid()? },
            3 => Reason::PrunedParent { parent: self.txid()? },
            4 => Reason::Immature { input: self.u32()? },
            5 => Reason::Mismatch { input: self.u32()? },
            6 => Reason::NoSuchOutput { input: self.u32()? },
            7 => Reason::NotYetSpendable { input: self.u32()? },
            8 => Reason::Frozen { input: self.u32()? },
            9 => Reason::Locked { parent: self.txid()? },
            10 => Reason::History { input: self.u32()? },
            11 => Reason::Found,
            12 => Reason::Command,
            13 => Reason::Disconnected,
            14 => Reason::Seeded,
            _ => return Err(CodecError::Field("reason")),
        })
    }
}
