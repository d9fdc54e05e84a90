//! The state: the store of records, what it says of the log, its nodes, its blob store.

use std::{path::Path, sync::Arc};

use super::{Logged, Report, in_time};
use crate::{
    blob::{BlobStore, BlobUrl, Intent},
    cli::{CommandResult, opening, wiring},
    config::Config,
    engine::{self, OpenError, StoreUrl, fjall::OpenFjallError},
    event::Topic,
    instance::{InstanceError, InstanceSettings, expectations},
    preflight::{Finding, Outcome},
    record::MetaRecord,
    store::{
        Store,
        meta::{MetaError, has_partitions, is_made_from},
        nodes::durability_lag,
        topics::{is_bound_to, is_known_by_id},
        whole::{has_consumed, is_above},
    },
    telemetry::Metrics,
};

/// Looks at the state, held against the log where that is known.
pub(super) async fn look(
    config: &Config,
    settings: &InstanceSettings,
    logged: Option<&Logged>,
    report: &mut Report,
) -> CommandResult {
    let metrics = Arc::new(Metrics::new());
    let found = match engine::open_existing(&config.store.url.to_string(), &wiring::engine(config)).await {
        Ok(engine) => {
            let store = Store::new(engine, wiring::store(config));
            let looked = records(config, settings, logged, &store, report).await;
            store.engine.close().await?;
            looked?
        }
        Err(OpenError::Fjall(OpenFjallError::Missing(_))) => {
            let none = Found { meta: None, is_known: true };
            report.tell(&match logged {
                Some(logged) if logged.any => Finding::of("store", Err::<&str, _>(MetaError::NamespaceLost)),
                _ => Finding::new("store", Outcome::Ok, "there is none yet: the first start makes it"),
            })?;
            none
        }
        Err(error) => {
            let remedy = match error {
                OpenError::Fjall(OpenFjallError::InUse(_)) => "; ask that one (/health/ready), or stop it first",
                _ => "",
            };
            report.tell(&Finding::of("store", Err::<&str, _>(format!("{error} (store.url){remedy}"))))?;
            Found { meta: None, is_known: false }
        }
    };
    report.tell(&blobs(config, &found, &metrics).await)?;
    let objects = match opening::objects(config, &metrics).await {
        Ok(None) => Finding::new("objects of large blocks", Outcome::Skipped, "sequencer.objects_url is not set"),
        Ok(Some(_)) => Finding::new("objects of large blocks", Outcome::Ok, "their place can be opened"),
        Err(failure) => Finding::of("objects of large blocks", Err::<&str, _>(failure.told())),
    };
    Ok(report.tell(&objects)?)
}

/// What there is of a store.
struct Found {
    /// Its meta record; `None`: it is not made yet.
    meta: Option<MetaRecord>,
    /// Whether it could be looked at.
    is_known: bool,
}

async fn records(
    config: &Config,
    settings: &InstanceSettings,
    logged: Option<&Logged>,
    store: &Store,
    report: &mut Report,
) -> Result<Found, crate::cli::Failure> {
    // Whether the blob store that is configured answers is another check.
    let blobs = config.store.blob_url().ok().flatten().map(|_| BlobStore::memory());
    let store = store.clone().with_blobs(blobs);
    let looked = in_time(store.look_at_meta(expectations(&store), logged.is_some_and(|logged| logged.any))).await;
    let meta = match looked {
        Ok(meta) => meta,
        Err(why) => {
            report.tell(&Finding::of("store", Err::<&str, _>(why)))?;
            return Ok(Found { meta: None, is_known: false });
        }
    };
    report.tell(&identity(config, meta.as_ref()))?;
    report.tell(&against_log(logged, meta.as_ref()))?;
    report.tell(&durability(settings, &store).await)?;
    Ok(Found { meta, is_known: true })
}

fn identity(config: &Config, meta: Option<&MetaRecord>) -> Finding {
    let gone = match config.store.url {
        StoreUrl::Memory => Some("it is gone at the end of the process (store.url is memory://)".to_owned()),
        StoreUrl::Null => Some("it keeps nothing (store.url is null:///)".to_owned()),
        StoreUrl::Fjall(..) | StoreUrl::Aerospike(_) => None,
    };
    let told = match meta {
        None => "it is empty: the first start makes it".to_owned(),
        Some(meta) => format!("store {} of network {}", hex::encode(meta.store_id), meta.network),
    };
    let retention = meta.filter(|meta| meta.retention != config.store.block_height_retention).map(|meta| {
        format!(
            "it was last run with store.block_height_retention = {}, and a start makes that {}",
            meta.retention, config.store.block_height_retention
        )
    });
    let cautions: Vec<String> = gone.into_iter().chain(retention).collect();
    Finding::weighed("store", &told, &[], &cautions)
}

/// Whether the store is that of this log, as far as the log could be looked at.
fn against_log(logged: Option<&Logged>, meta: Option<&MetaRecord>) -> Finding {
    const CHECK: &str = "store and log";
    let (logged, meta) = match (logged, meta) {
        (None, _) => return Finding::new(CHECK, Outcome::Skipped, "the log could not be looked at"),
        (_, None) => return Finding::new(CHECK, Outcome::Ok, "neither the group nor the store has begun"),
        (Some(logged), Some(meta)) => (logged, meta),
    };
    let mut judged = vec![has_partitions(meta, logged.partitions)];
    judged.extend(logged.topics.iter().map(|topic| is_bound_to(meta, topic)));
    // What became of the chain's first record says nothing where the topic is known by its id.
    if logged.chain_id.is_some() || !is_known_by_id(&logged.topics, Topic::Chain) {
        judged.push(is_made_from(meta, logged.chain_id));
    }
    // Offsets of another topic mean nothing, and what is said of them would mislead.
    if judged.iter().all(Result::is_ok) {
        judged.extend([has_consumed(meta, &logged.consumed), is_above(&meta.replay_floor, &logged.from)]);
    }
    let problems: Vec<String> = judged.into_iter().filter_map(Result::err).map(|error| error.to_string()).collect();
    Finding::weighed(CHECK, "the store was made from this log, and is not behind its group", &problems, &[])
}

async fn durability(settings: &InstanceSettings, store: &Store) -> Finding {
    const CHECK: &str = "durability";
    let may_forget = store.engine.may_forget();
    let Some(lag) = durability_lag(store.engine.as_ref(), settings.durability_lag) else {
        return Finding::of(CHECK, Err::<&str, _>(InstanceError::LagTooShort(may_forget)));
    };
    if lag.is_zero() {
        return Finding::new(CHECK, Outcome::Ok, "what the store acknowledges it keeps");
    }
    let told = format!("offsets are committed {lag:?} later: what was acknowledged may be lost for {may_forget:?}");
    let nodes = in_time(store.engine.incarnation()).await;
    let unknown = |why| format!("whether a node has restarted is not known, and nothing would be committed: {why}");
    Finding::of(CHECK, nodes.map(|_| told).map_err(unknown))
}

async fn blobs(config: &Config, found: &Found, metrics: &Arc<Metrics>) -> Finding {
    const CHECK: &str = "blob store";
    // That it is a sensible place was checked with the configuration.
    let Ok(Some(url)) = config.store.blob_url() else {
        return Finding::new(CHECK, Outcome::Skipped, "none is configured (store.blobs.url)");
    };
    if !found.is_known {
        return Finding::new(CHECK, Outcome::Skipped, "whose it has to be is not known");
    }
    let is_first = found.meta.as_ref().is_none_or(|meta| !meta.has_blobs);
    if let BlobUrl::Directory(directory) = &url
        && is_first
        && is_absent(directory)
    {
        return Finding::new(CHECK, Outcome::Ok, format!("the first start makes {}", directory.display()));
    }
    let store_id = found.meta.as_ref().map(|meta| meta.store_id);
    let looked = in_time(async {
        let (access, options) = wiring::blobs(config, metrics);
        let store = crate::blob::open(&url, Intent::Look, &access, options).await?;
        store.look(store_id, is_first).await
    });
    let told = |is_ours| match is_ours {
        true => "it is that of this store",
        false => "it is empty: the first start makes it this store's, and tries whether it keeps what came first",
    };
    Finding::of(CHECK, looked.await.map(told))
}

fn is_absent(directory: &Path) -> bool {
    matches!(directory.try_exists(), Ok(false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        record::{BoundTopic, Consumed},
        store::{meta::MetaExpectations, testing, topics::FoundTopic},
        tx::Network,
    };

    fn consumed(chain: u64, validated: u64) -> Consumed {
        Consumed { chain, validated: [(0, validated)].into() }
    }

    #[tokio::test]
    async fn a_store_that_is_not_this_logs_is_told_by_all_that_does_not_fit() {
        let expected = MetaExpectations { network: Network::Regtest, utxo_batch_size: 5, retention: 9 };
        let made = testing::store(5).open_meta(expected, false, [1; 16]).await.unwrap();
        let meta = MetaRecord {
            partitions: Some(1),
            chain_id: Some([7; 32]),
            consumed: consumed(5, 50),
            replay_floor: consumed(3, 30),
            topics: [("utxo.reorgs".to_owned(), BoundTopic { id: Some([3; 16]), first: Default::default() })].into(),
            ..made
        };
        let reorgs = |id: u8| FoundTopic {
            topic: Topic::Reorgs,
            name: "my.reorgs".into(),
            id: Some([id; 16]),
            partitions: 1,
            first: Default::default(),
        };
        let fits = || Logged {
            partitions: 1,
            chain_id: Some([7; 32]),
            topics: vec![reorgs(3)],
            any: true,
            consumed: consumed(5, 50),
            from: consumed(3, 30),
        };
        let told = |logged| against_log(Some(&logged), Some(&meta)).to_string();
        assert!(told(fits()).starts_with("ok "), "{}", told(fits()));
        for (unfit, words) in [
            (Logged { partitions: 2, ..fits() }, "has 2 partitions, the store was made from 1"),
            (Logged { chain_id: Some([8; 32]), ..fits() }, "the chain topic was recreated"),
            (Logged { chain_id: None, ..fits() }, "has id none"),
            (Logged { topics: vec![reorgs(4)], ..fits() }, "`my.reorgs` is not the one that the store was made from"),
            (Logged { consumed: consumed(6, 50), ..fits() }, "committed 6, the store has consumed 5"),
            (Logged { from: consumed(3, 29), ..fits() }, "is to be read again from offset 29"),
        ] {
            let told = told(unfit);
            assert!(told.starts_with("FAILED ") && told.contains(words), "{told}");
        }
        // Neither pruning nor offsets are to blame for another topic.
        let anew = Logged { topics: vec![reorgs(4)], from: consumed(0, 0), consumed: consumed(9, 99), ..fits() };
        let told = told(anew);
        assert!(!told.contains("pruned") && !told.contains("consumed") && told.contains("another group"), "{told}");
        assert!(against_log(None, Some(&meta)).to_string().starts_with("skipped "));
    }
}
