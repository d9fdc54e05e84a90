//! Whether bytes are what a blob's name says.

use bytes::Bytes;

use super::{
    BlobError, BlobErrorKind, BlobKind, BlobName, PartialTx,
    frame::{CHECKSUM, Framed, Unframing},
    requests::{PIECE, Reading},
};
use crate::tx::{ParseError, StreamedTransaction, TransactionStream};

/// What was read is not what it should be, and why.
#[derive(Debug)]
pub(super) struct Damage(String);

impl Damage {
    pub const UNREAD: Damage = Damage(String::new());

    pub fn of(self, name: BlobName) -> BlobError {
        error(BlobErrorKind::Corrupt, "read", name, self.0)
    }

    fn checksum() -> Self {
        Damage("what is stored does not match its checksum".to_owned())
    }
}

impl From<ParseError> for Damage {
    fn from(error: ParseError) -> Self {
        Damage(format!("what is stored is no transaction: {error}"))
    }
}

pub(super) fn error(kind: BlobErrorKind, operation: &'static str, name: BlobName, message: impl ToString) -> BlobError {
    BlobError { kind, operation, path: name.to_string(), message: message.to_string() }
}

/// The content of a blob that was read whole.
pub(super) async fn content(name: BlobName, blob: Bytes) -> Result<Bytes, Damage> {
    let len = blob.len().checked_sub(CHECKSUM).ok_or_else(Damage::checksum)?;
    let framed = Framed::new(blob.slice(..len)).await;
    if framed.checksum != blob[len..] || name.other.is_some_and(|content| framed.checksum != content[..]) {
        return Err(Damage::checksum());
    }
    match name.kind {
        BlobKind::Tx => transaction(&framed.content, &[]).await.and_then(|found| belongs_to(found, name)).map(drop)?,
        BlobKind::Outputs => outputs(name, &framed.content).map(drop)?,
    }
    Ok(framed.content)
}

/// A `.tx` that is read piece by piece.
pub(super) async fn streamed(
    name: BlobName,
    mut reading: Reading,
    vouts: &[u32],
) -> Result<Result<StreamedTransaction, Damage>, BlobError> {
    let Some(mut unframing) = Unframing::of(reading.len) else { return Ok(Err(Damage::checksum())) };
    let mut stream = TransactionStream::new(unframing.left(), vouts.iter().copied());
    while let Some(piece) = reading.next().await? {
        if let Err(error) = stream.push(unframing.take(&piece)) {
            return Ok(Err(error.into()));
        }
    }
    if !unframing.is_whole() {
        return Ok(Err(Damage::checksum()));
    }
    Ok(stream.finish().map_err(Damage::from).and_then(|found| belongs_to(found, name)))
}

/// Some bytes as a transaction, with these of its outputs. Hashing gives way between pieces: other tasks share the thread.
pub(super) async fn transaction(bytes: &Bytes, vouts: &[u32]) -> Result<StreamedTransaction, Damage> {
    let mut stream = TransactionStream::new(bytes.len() as u64, vouts.iter().copied());
    for piece in bytes.chunks(PIECE) {
        stream.push(piece)?;
        if bytes.len() > PIECE {
            tokio::task::yield_now().await;
        }
    }
    Ok(stream.finish()?)
}

fn belongs_to(streamed: StreamedTransaction, name: BlobName) -> Result<StreamedTransaction, Damage> {
    match streamed.txid {
        found if found == name.txid => Ok(streamed),
        found => Err(Damage(format!("what is stored hashes to {found}"))),
    }
}

/// Some bytes as the outputs that the name says.
pub(super) fn outputs(name: BlobName, bytes: &Bytes) -> Result<PartialTx, Damage> {
    match PartialTx::decode(bytes) {
        Ok(partial) if partial.txid == name.txid => Ok(partial),
        Ok(partial) => Err(Damage(format!("what is stored are outputs of {}", partial.txid))),
        Err(error) => Err(Damage(format!("what is stored are no outputs: {error}"))),
    }
}

/// Whether bytes that are to be stored are what their name will say.
pub(super) async fn check_tx(name: BlobName, bytes: &Bytes) -> Result<(), BlobError> {
    let wrong = match transaction(bytes, &[]).await {
        Err(Damage(wrong)) => wrong.replace("what is stored is", "this is"),
        Ok(found) if found.txid != name.txid => format!("this hashes to {}", found.txid),
        Ok(found) if !found.extended && !found.coinbase => {
            "this is in standard format, which does not say what its inputs spend".to_owned()
        }
        Ok(_) => return Ok(()),
    };
    Err(error(BlobErrorKind::Invalid, "write", name, wrong))
}

/// Whether what is stored is this very blob, or another one.
pub(super) async fn is_same(mut stored: Reading, blob: &Framed) -> Result<Result<bool, Damage>, BlobError> {
    let Some(mut unframing) = Unframing::of(stored.len) else { return Ok(Err(Damage::checksum())) };
    let mut rest = Some(&blob.content[..]);
    while let Some(piece) = stored.next().await? {
        let content = unframing.take(&piece);
        rest = rest.and_then(|rest| rest.strip_prefix(content));
    }
    Ok(if unframing.is_whole() { Ok(rest.is_some_and(<[u8]>::is_empty)) } else { Err(Damage::checksum()) })
}
