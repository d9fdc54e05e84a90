//! Checks of a blob's bytes against the blob's name.

use bytes::Bytes;

use super::{
    BlobError, BlobErrorKind, BlobKind, BlobName, PartialTx,
    frame::{CHECKSUM_BYTES, FrameVerifier, Framed},
    requests::{ObjectStream, PIECE_BYTES},
};
use crate::tx::{ParseError, StreamedTransaction, TransactionStream};

/// Difference between a stored blob and its name, as a message.
#[derive(Debug)]
pub(super) struct Damage(String);

impl Damage {
    pub fn into_error(self, name: BlobName) -> BlobError {
        blob_error(BlobErrorKind::Corrupt, "read", name, self.0)
    }

    fn checksum_mismatch() -> Self {
        Damage("the stored content does not match its checksum".to_owned())
    }
}

impl From<ParseError> for Damage {
    fn from(error: ParseError) -> Self {
        Damage(format!("the stored content is no transaction: {error}"))
    }
}

pub(super) fn blob_error(
    kind: BlobErrorKind,
    operation: &'static str,
    name: BlobName,
    message: impl ToString,
) -> BlobError {
    BlobError { kind, operation, path: name.to_string(), message: message.to_string() }
}

/// Verifies a blob that was read whole, and returns its content.
pub(super) async fn verify_content(name: BlobName, blob: Bytes) -> Result<Bytes, Damage> {
    let len = blob.len().checked_sub(CHECKSUM_BYTES).ok_or_else(Damage::checksum_mismatch)?;
    let framed = Framed::new(blob.slice(..len)).await;
    if framed.checksum != blob[len..] || name.content_hash.is_some_and(|hash| framed.checksum != hash[..]) {
        return Err(Damage::checksum_mismatch());
    }
    match name.kind {
        BlobKind::Tx => {
            parse_transaction(&framed.content, &[]).await.and_then(|found| verify_txid(found, name)).map(drop)?
        }
        BlobKind::Outputs => decode_outputs(name, &framed.content).map(drop)?,
    }
    Ok(framed.content)
}

/// Verifies a `.tx` while it is read piece by piece, and returns its outputs `vouts`.
pub(super) async fn verify_stream(
    name: BlobName,
    mut object: ObjectStream,
    vouts: &[u32],
) -> Result<Result<StreamedTransaction, Damage>, BlobError> {
    let Some(mut verifier) = FrameVerifier::new(object.len) else { return Ok(Err(Damage::checksum_mismatch())) };
    let mut stream = TransactionStream::new(verifier.content_left(), vouts.iter().copied());
    while let Some(piece) = object.next().await? {
        if let Err(error) = stream.push(verifier.push(&piece)) {
            return Ok(Err(error.into()));
        }
    }
    Ok(verify_end(name, &verifier, stream))
}

/// Verifies a `.tx` of which every piece was read.
pub(super) fn verify_end(
    name: BlobName,
    verifier: &FrameVerifier,
    stream: TransactionStream,
) -> Result<StreamedTransaction, Damage> {
    if !verifier.is_intact() {
        return Err(Damage::checksum_mismatch());
    }
    stream.finish().map_err(Damage::from).and_then(|found| verify_txid(found, name))
}

/// Parses a transaction and returns its outputs `vouts`. Yields after each piece, because other tasks share the thread.
pub(super) async fn parse_transaction(bytes: &Bytes, vouts: &[u32]) -> Result<StreamedTransaction, Damage> {
    let mut stream = TransactionStream::new(bytes.len() as u64, vouts.iter().copied());
    for piece in bytes.chunks(PIECE_BYTES) {
        stream.push(piece)?;
        if bytes.len() > PIECE_BYTES {
            tokio::task::yield_now().await;
        }
    }
    Ok(stream.finish()?)
}

fn verify_txid(streamed: StreamedTransaction, name: BlobName) -> Result<StreamedTransaction, Damage> {
    match streamed.txid {
        found if found == name.txid => Ok(streamed),
        found => Err(Damage(format!("the stored content hashes to {found}"))),
    }
}

/// Decodes the outputs of the transaction that the blob's name states.
pub(super) fn decode_outputs(name: BlobName, bytes: &Bytes) -> Result<PartialTx, Damage> {
    match PartialTx::decode(bytes) {
        Ok(partial) if partial.txid == name.txid => Ok(partial),
        Ok(partial) => Err(Damage(format!("the stored outputs belong to {}", partial.txid))),
        Err(error) => Err(Damage(format!("the stored content is no list of outputs: {error}"))),
    }
}

/// Refuses bytes that may not be stored under `name`.
pub(super) async fn check_tx(name: BlobName, bytes: &Bytes) -> Result<(), BlobError> {
    let problem = match parse_transaction(bytes, &[]).await {
        Err(Damage(problem)) => problem.replace("the stored content is", "the bytes are"),
        Ok(found) if found.txid != name.txid => format!("the bytes hash to {}", found.txid),
        Ok(found) if !found.extended && !found.coinbase => {
            let message = "the transaction is in standard format, which lacks the previous outputs; \
                           store the extended format";
            message.to_owned()
        }
        Ok(_) => return Ok(()),
    };
    Err(blob_error(BlobErrorKind::Invalid, "write", name, problem))
}

/// Returns whether a stored blob has the same content as `blob`.
pub(super) async fn is_same(mut stored: ObjectStream, blob: &Framed) -> Result<Result<bool, Damage>, BlobError> {
    let Some(mut verifier) = FrameVerifier::new(stored.len) else { return Ok(Err(Damage::checksum_mismatch())) };
    let mut rest = Some(&blob.content[..]);
    while let Some(piece) = stored.next().await? {
        let content = verifier.push(&piece);
        rest = rest.and_then(|rest| rest.strip_prefix(content));
    }
    Ok(if verifier.is_intact() { Ok(rest.is_some_and(<[u8]>::is_empty)) } else { Err(Damage::checksum_mismatch()) })
}
