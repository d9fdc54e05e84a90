//! A vault over the end of a history: a vault that reads the whole log, and asks the store about every output, must
//! have exactly the outputs that the store has.
//!
//! The vault works after the history, on a clock of its own: the clock of a simulation jumps while a database works.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use tokio_util::sync::CancellationToken;
use utxo_store::{
    Store,
    config::{Config, Topics},
    engine::sql::SqlAccess,
    record::StoredOutput,
    store::spend_status::SpendStatus,
    tx::Outpoint,
    vault::{
        Asker, AskerSettings, FollowError, Follower, LockCondition, NewScript, OutputSource, OwnStore, Owner, Rescan,
        Standing, Vault, VaultSettings,
    },
};

use super::run::Remains;

/// Whether a vault is checked at the end of this history: of a sixteenth of them, or of all with `SIM_VAULT=1`.
pub fn is_wanted(rng_seed: u64) -> bool {
    rng_seed.is_multiple_of(16) || std::env::var("SIM_VAULT").is_ok_and(|text| text == "1")
}

fn topics() -> Topics {
    let name = |text: &str| text.parse().unwrap();
    Topics {
        validated_txs: name("txs"),
        chain: name("chain"),
        outcomes: name("outcomes"),
        ..Config::default().kafka.topics
    }
}

/// Compares a vault with the store. Owner `even` watches every second script, owner `odd` the others.
pub fn check(remains: Remains) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(compare(remains))
}

async fn compare(Remains { broker, store, made }: Remains) -> Result<(), String> {
    let source = Arc::new(OwnStore::of(&Store::of_state_store(store.clone())));
    let settings = VaultSettings { network: store.settings.network, ..VaultSettings::default() };
    let url = "sqlitememory:///vault".parse().unwrap();
    let access = SqlAccess { timeout: Duration::from_secs(60), ..SqlAccess::default() };
    let vault = Vault::open(&url, &access, source.clone(), settings).await.map_err(|error| error.to_string())?;
    let scripts: BTreeSet<&[u8]> = made
        .iter()
        .flat_map(|made| &made.outputs)
        .map(|(_, script)| script.as_slice())
        .filter(|s| !s.is_empty())
        .collect();
    let owners: [Owner; 2] = ["even".parse().unwrap(), "odd".parse().unwrap()];
    let owner_of: BTreeMap<&[u8], &Owner> = scripts.iter().copied().zip(owners.iter().cycle()).collect();
    let broker: Arc<dyn utxo_store::broker::Broker> = Arc::new(broker);
    let follower = Follower {
        vault: vault.clone(),
        broker: broker.clone(),
        topics: topics(),
        group: "vault".into(),
        bodies: None,
        counts: Arc::default(),
    };
    follower.begin().await.map_err(|error| error.to_string())?;
    for owner in &owners {
        let own = owner_of.iter().filter(|(_, of)| **of == owner);
        let own: Vec<NewScript> = own.map(|(script, _)| new_script(script)).collect();
        if !own.is_empty() {
            vault.watch(owner, &own).await.map_err(|error| error.to_string())?;
        }
    }
    let rescan = Rescan { vault: vault.clone(), broker, topics: topics(), bodies: None, store: None, snapshots: None };
    rescan.begin(0).await.map_err(|error| error.to_string())?;
    match rescan.run(&CancellationToken::new(), &AtomicU64::new(0)).await {
        Ok(_) => {}
        // Bodies are objects in some histories, and the vault of this check has no object store.
        Err(FollowError::NoObjects { .. }) => return Ok(()),
        Err(error) => return Err(format!("vault: {error}")),
    }
    let asker = Asker::new(vault.clone(), AskerSettings::default());
    tokio::time::sleep(Duration::from_millis(250)).await;
    while asker.ask_due().await.map_err(|error| error.to_string())? > 0 {}
    let mut rows = BTreeMap::new();
    for owner in &owners {
        if owner_of.values().any(|of| *of == owner) {
            let listed = vault.outputs(owner, &LockCondition::Any, None, 10_000).await;
            let listed = listed.map_err(|error| error.to_string())?;
            rows.extend(listed.into_iter().map(|listed| (listed.output.outpoint, listed)));
        }
    }
    let height = source.tip().await.map_err(|error| error.to_string())?.height + 1;
    for made in &made {
        let outpoints: Vec<Outpoint> =
            (0..made.outputs.len() as u32).map(|vout| Outpoint { txid: made.txid, vout }).collect();
        for ((outpoint, state), (satoshis, script)) in
            outpoints.iter().zip(source.ask(&outpoints, height).await).zip(&made.outputs)
        {
            let state = state.map_err(|error| error.to_string())?;
            let stored = StoredOutput { satoshis: *satoshis, script: script.clone().into() };
            if script.is_empty() || state.output.as_ref().is_some_and(|output| *output != stored) {
                // A reassigned output belongs to another script.
                continue;
            }
            let expected = match state.status {
                SpendStatus::Unspent => Some(Standing::Unspent),
                SpendStatus::Immature(_) | SpendStatus::NotYetSpendable(_) if state.spender.is_none() => {
                    Some(Standing::Unspent)
                }
                SpendStatus::Frozen | SpendStatus::Locked => Some(Standing::Frozen),
                // The vault may know of the event, and waits for the store.
                SpendStatus::NotFound | SpendStatus::Creating => continue,
                _ => None,
            };
            let found = rows.get(outpoint).map(|listed| listed.output.facts.standing);
            if found != expected {
                let status = state.status.code();
                return Err(format!("vault: {outpoint} is {status} in the store, and {found:?} in the vault"));
            }
        }
    }
    vault.close().await;
    Ok(())
}

fn new_script(script: &[u8]) -> NewScript {
    NewScript { script: bytes::Bytes::copy_from_slice(script), address: None }
}
