//! Bodies of transactions that are too large for a record: [`BlobStore`], on any store of objects that [`object_store`] speaks to.
//!
//! A blob is written once, before the records that need it, under a name that follows from its transaction ([`BlobName`]); the
//! record's `external` says that it is there. So the order is: blob, child pages, master (`DESIGN.md` section 5), and the blob is
//! deleted last. Seed: `003_f428a83e5197ea21.txt`, "External Blob Storage"; where the reference lets whoever comes last overwrite, here
//! the first one stays, and what says otherwise gets a name of its own, by its content: so no blob ever changes, and a record says
//! for good which one is meant.
//!
//! | blob | content |
//! |---|---|
//! | `ab/ab…cd.tx` | the transaction in extended format, as its event had it; a coinbase in standard format, too |
//! | `ab/ab…cd.outputs` | [`PartialTx`] |
//! | `ab/ab…cd.0123…cdef.tx`, `….outputs` | the same of a transaction of which another one was stored first; named by the BLAKE3 of its content |
//!
//! Behind the content stands its BLAKE3 (32 bytes). `utxo-store.blobs` says that the store is there, and whose it is: that of one store of
//! records ([`BlobStore::claim`]). `staging/` holds what is being written in parts.

mod cache;
mod check;
mod claim;
pub mod conformance;
mod directory;
mod error;
pub mod fault;
mod frame;
mod keep;
mod name;
pub mod objects;
mod open;
mod outputs;
mod requests;
mod store;
mod url;

pub use error::{BlobError, BlobErrorKind};
pub use name::{BlobKind, BlobName};
pub use open::{BlobAccess, Intent, OpenBlobError, open, open_objects};
pub use outputs::{OutputsError, PartialTx};
pub use store::{BlobOptions, BlobStore, Put, Reuse};
pub use url::{BlobUrl, BlobUrlError, Bucket};

#[cfg(test)]
mod claim_tests;
#[cfg(test)]
mod tests;
