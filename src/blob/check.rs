//! Checks of a blob's bytes against the blob's name.

use bytes::Bytes;

use super::{
    BlobError, BlobErrorKind, BlobKind, BlobName, PartialTx,
    frame::{HashedContent, TxBlobReader, split_header, verify_checksum},
    outputs::OutputsError,
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

    pub fn checksum_mismatch() -> Self {
        Damage("the stored content does not match its checksum".to_owned())
    }

    pub fn hash_mismatch() -> Self {
        Damage("the stored content does not match the hash in its record".to_owned())
    }
}

impl From<ParseError> for Damage {
    fn from(error: ParseError) -> Self {
        Damage(format!("the stored content is no transaction: {error}"))
    }
}

impl From<OutputsError> for Damage {
    fn from(error: OutputsError) -> Self {
        Damage(format!("the stored content is no list of outputs: {error}"))
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
pub(super) async fn verify_content(name: BlobName, blob: Bytes) -> Result<HashedContent, Damage> {
    let (has_header, bytes) = split_header(name.kind, &blob);
    let end = match name.kind {
        BlobKind::Tx => {
            let (found, end) = parse_until_end(&bytes, &[]).await?;
            verify_txid(found, name)?;
            end
        }
        BlobKind::Outputs => {
            let (partial, end) = PartialTx::decode_until_end(&bytes)?;
            verify_owner(partial, name)?;
            end
        }
    };
    let content = HashedContent::new(bytes.slice(..end)).await;
    verify_checksum(name, has_header, &content.hash, &bytes[end..])?;
    Ok(content)
}

/// Verifies a `.tx` while it is read piece by piece, and returns its outputs `vouts`.
pub(super) async fn verify_stream(
    name: BlobName,
    mut object: ObjectStream,
    vouts: &[u32],
) -> Result<Result<StreamedTransaction, Damage>, BlobError> {
    let mut reader = TxBlobReader::new(TransactionStream::new(object.len, vouts.iter().copied()));
    while let Some(piece) = object.next().await? {
        if let Err(damage) = reader.push(&piece) {
            return Ok(Err(damage));
        }
    }
    Ok(reader.finish(name))
}

/// Parses a transaction and returns its outputs `vouts`.
pub(super) async fn parse_transaction(bytes: &Bytes, vouts: &[u32]) -> Result<StreamedTransaction, Damage> {
    match parse_until_end(bytes, vouts).await? {
        (found, end) if end == bytes.len() => Ok(found),
        (_, end) => Err(Damage(format!("the stored content is no transaction: {} bytes after it", bytes.len() - end))),
    }
}

/// Parses the transaction at the beginning of `bytes`, and returns its outputs `vouts` and the number of its bytes.
/// Yields after each piece, because other tasks share the thread.
async fn parse_until_end(bytes: &Bytes, vouts: &[u32]) -> Result<(StreamedTransaction, usize), Damage> {
    let mut stream = TransactionStream::new(bytes.len() as u64, vouts.iter().copied());
    let mut end = 0;
    for piece in bytes.chunks(PIECE_BYTES) {
        let rest = stream.push_until_end(piece)?;
        end += piece.len() - rest.len();
        if !rest.is_empty() {
            break;
        }
        if bytes.len() > PIECE_BYTES {
            tokio::task::yield_now().await;
        }
    }
    Ok((stream.finish()?, end))
}

pub(super) fn verify_txid(streamed: StreamedTransaction, name: BlobName) -> Result<StreamedTransaction, Damage> {
    match streamed.txid {
        found if found == name.txid => Ok(streamed),
        found => Err(Damage(format!("the stored content hashes to {found}"))),
    }
}

/// Decodes the outputs of the transaction that the blob's name states.
pub(super) fn decode_outputs(name: BlobName, bytes: &Bytes) -> Result<PartialTx, Damage> {
    verify_owner(PartialTx::decode(bytes)?, name)
}

fn verify_owner(partial: PartialTx, name: BlobName) -> Result<PartialTx, Damage> {
    match partial.txid {
        found if found == name.txid => Ok(partial),
        found => Err(Damage(format!("the stored outputs belong to {found}"))),
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
