//! The vault on SQLite and PostgreSQL, over a store that the tests write, and over real instances.

mod away;
mod doors;
mod fake_store;
mod following;
mod histories;
mod locks;
mod processes;
mod selections;
mod upkeep;
mod walk;

use std::{path::Path, sync::Arc, time::Duration};

use utxo_store::{
    engine::{StoreUrl, sql::SqlAccess},
    tx::{Outpoint, Txid},
    vault::{LockId, NewScript, OutputSource, Owner, Vault, VaultSettings},
};

use crate::postgres_server;

/// Opens a vault.
pub async fn open(url: &str, source: Arc<dyn OutputSource>) -> Vault {
    open_with(url, source, VaultSettings::default()).await
}

pub async fn open_with(url: &str, source: Arc<dyn OutputSource>, settings: VaultSettings) -> Vault {
    let url: StoreUrl = url.parse().unwrap();
    let access = SqlAccess { timeout: Duration::from_secs(60), ..SqlAccess::default() };
    Vault::open(&url, &access, source, settings).await.unwrap()
}

/// Runs a test on each database.
pub async fn on_each_database(run: impl AsyncFn(&str)) {
    let folder = tempfile::tempdir().unwrap();
    for url in databases(folder.path()) {
        run(&url).await;
    }
}

/// Returns the URLs of new databases: SQLite in memory and in a file, and PostgreSQL where it is installed.
fn databases(folder: &Path) -> Vec<String> {
    let mut urls = vec!["sqlitememory:///vault".to_owned(), format!("sqlite://{}/vault", folder.display())];
    urls.extend(postgres_server::shared_database().map(|database| database.url()));
    urls
}

pub fn owner(name: &str) -> Owner {
    name.parse().unwrap()
}

/// A script that belongs to a name.
pub fn script(name: &str) -> Vec<u8> {
    [&[0x51, name.len() as u8], name.as_bytes()].concat()
}

pub fn new_script(name: &str) -> NewScript {
    NewScript { script: script(name).into(), address: None }
}

pub fn outpoint(number: u8) -> Outpoint {
    Outpoint { txid: Txid([number; 32]), vout: 0 }
}

pub fn lock(number: u128) -> LockId {
    LockId(uuid::Uuid::from_u128(number))
}
