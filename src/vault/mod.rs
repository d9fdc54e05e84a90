//! The vault: whose outputs these are, soft locks and coin selection, in a database beside the store
//! (`docs/operating/vault.md`, `schemas/vault.md`).
//!
//! - The store stays the truth. A row of an output is the last answer of the store; events only say when to ask again.
//!   An output is asked of the store again before the vault hands it out.
//! - What an answer says (`facts`), who may lock an output (`locks`), which outputs fund an amount (`select`) and in
//!   which part of a balance an output counts (`balance`) are pure functions.
//! - A reservation and its answer are one transaction of the database (`reserve`, `selection`).

mod address;
mod asker;
mod balance;
mod client;
mod database;
mod error;
mod facts;
mod follow;
mod http;
mod http_store;
mod lease;
mod locks;
mod matching;
pub mod model;
mod queries;
mod record;
mod requests;
mod rescan;
mod reserve;
mod rows;
mod scripts;
mod select;
mod selection;
mod service;
mod source;
mod submission;
mod types;
#[allow(clippy::module_inception, reason = "the type that the module is named after")]
mod vault;

pub use address::{ScriptAddressError, address_of};
pub use asker::{Asker, AskerCounts, AskerSettings};
pub use balance::{Balance, BalancePart, Sum};
pub use client::VaultClient;
pub use error::VaultError;
pub use follow::{FollowCounts, FollowError, Follower};
pub use http::{ClientError, RefusedRequest};
pub use http_store::HttpStore;
pub use locks::{Lock, ReserveObstacle};
pub use queries::{ListedOutput, LockCondition, OwnerBalance};
pub use requests::SelectionRequest;
pub use rescan::{PendingRescan, Rescan, RescanPlace, RescanReport};
pub use reserve::{Reservation, Session};
pub use scripts::{NewScript, WatchResult, WatchedScript};
pub use select::{Fee, Strategy, Terms};
pub use selection::SelectedOutputs;
pub use service::{LockTotals, VaultCounts, VaultParts, VaultService};
pub use source::{OutputSource, OwnStore, SourceError, SourceTip};
pub use submission::{PermittedInputs, Submission};
pub use types::{Facts, LockId, NameError, Owner, RequestId, Standing, WatchedOutput};
pub use vault::{OpenVaultError, Vault, VaultSettings};
