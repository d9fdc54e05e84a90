//! What must be true of a cluster before it is used. Each refusal names its remedy in one line.

use std::{sync::Arc, time::Duration};

use aerospike::{Client, CollectionIndexType, IndexType, Node, ResultCode};

use super::{
    connection::OpenAerospikeError,
    errors::one_line,
    index::{self, INDEXES},
    info::{Pairs, Release},
    settings::{AerospikeSettings, Policies},
};

/// Batches of writes, and expressions in their rows, with the records of one format in memory and on devices.
const OLDEST: Release = Release(7, 0);
/// A slot that is spent: its place in the list, its type and 68 bytes; and the size of its amount.
const SPENT_SLOT_BYTES: u64 = 72;
/// What a page takes besides its slots, generously.
const PAGE_BYTES: u64 = 4_096;
/// The server's own default.
const MAX_RECORD_SIZE: u64 = 1 << 20;
/// Before a write buffer is on its device, where the server does not say.
const FLUSH_MAX_MS: u64 = 1_000;
/// From the deadline of a flush to its end.
const FLUSH_MARGIN: Duration = Duration::from_secs(1);
/// Between two looks at an index that is being built, and how often that is said.
const INDEX_PAUSE: Duration = Duration::from_millis(100);
const INDEX_REPORTS: u32 = 100;

/// What was learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checked {
    /// For how long an acknowledged write may be lost.
    pub may_forget: Duration,
}

/// What a node says of itself.
#[derive(Debug, Clone, Default)]
struct Said {
    node: String,
    build: String,
    edition: String,
    namespaces: String,
    namespace: Pairs,
}

/// Looks at every node, then sees to the indexes.
///
/// # Errors
/// The first thing that is not as it must be.
pub async fn check(
    client: &Arc<Client>,
    settings: &AerospikeSettings,
    policies: &Policies,
) -> Result<Checked, OpenAerospikeError> {
    let mut may_forget = Duration::ZERO;
    let mut community = false;
    for node in client.nodes() {
        let said = ask(&node, settings, policies).await?;
        look(&said, settings)?;
        may_forget = may_forget.max(forgets(&said));
        community |= is_community(&said);
    }
    if community {
        tracing::warn!(
            may_lose_ms = may_forget.as_millis() as u64,
            "Aerospike Community Edition: writes that it acknowledged can be lost when a node dies, and deleted records \
             can come back after a cold start; offsets are committed later by as much, and pruned records stay as tombstones"
        );
    }
    for index in INDEXES.into_iter().filter(|_| settings.access.creates_indexes) {
        see_to_index(client, settings, policies, index).await?;
    }
    Ok(Checked { may_forget })
}

fn unfit(problem: impl Into<String>, remedy: impl Into<String>) -> OpenAerospikeError {
    OpenAerospikeError::Unfit { problem: problem.into(), remedy: remedy.into() }
}

async fn ask(node: &Node, settings: &AerospikeSettings, policies: &Policies) -> Result<Said, OpenAerospikeError> {
    let about = format!("namespace/{}", settings.namespace);
    let commands = ["build", "edition", "namespaces", about.as_str()];
    let answers = node.info(&policies.admin, &commands).await.map_err(|error| OpenAerospikeError::Unreachable {
        hosts: node.address().to_owned(),
        problem: one_line(&error),
    })?;
    let answer = |command: &str| answers.get(command).cloned().unwrap_or_default();
    Ok(Said {
        node: node.address().to_owned(),
        build: answer("build"),
        edition: answer("edition"),
        namespaces: answer("namespaces"),
        namespace: Pairs::of(&answer(&about)),
    })
}

fn is_community(said: &Said) -> bool {
    said.edition.to_ascii_lowercase().contains("community")
}

/// Whether one node is fit.
fn look(said: &Said, settings: &AerospikeSettings) -> Result<(), OpenAerospikeError> {
    let Said { node, namespace, .. } = said;
    let name = &settings.namespace;
    if Release::parse(&said.build).is_some_and(|release| release < OLDEST) {
        return Err(unfit(
            format!("the server at {node} is release {}", said.build),
            format!("this store needs {OLDEST} or later"),
        ));
    }
    if !said.namespaces.split(';').any(|there| there == name) {
        return Err(unfit(
            format!("the server at {node} has no namespace `{name}` (it has {})", said.namespaces),
            "add it to aerospike.conf on every node (see deploy/aerospike.conf), or name another in store.url",
        ));
    }
    if namespace.number("nsup-period") == Some(0) {
        return Err(unfit(
            format!("namespace `{name}` at {node} has `nsup-period 0`, with which no record can have a TTL"),
            "set `nsup-period 120` in the namespace (asinfo -v 'set-config:context=namespace;id=…;nsup-period=120')",
        ));
    }
    let most = namespace.number("max-record-size").filter(|most| *most > 0).unwrap_or(MAX_RECORD_SIZE);
    if let Some(slots) = settings.access.utxo_batch_size {
        // A record that is created and cannot grow would never take its last spends.
        let needed = u64::from(slots) * SPENT_SLOT_BYTES + PAGE_BYTES;
        let body = settings.access.inline_limit;
        if needed + body > most {
            return Err(unfit(
                format!(
                    "a page of {slots} spent slots takes {needed} bytes, and the body beside it up to {body}; `max-record-size` of `{name}` \
                     at {node} is {most}"
                ),
                "raise `max-record-size` (8M at most), lower store.max_tx_size_in_store, or lower store.utxo_batch_size before the first start",
            ));
        }
    }
    let copies = namespace.number("effective_replication_factor").or(namespace.number("replication-factor"));
    if is_community(said) && copies.is_some_and(|copies| copies > 1) && !settings.access.accept_replication {
        return Err(unfit(
            format!(
                "namespace `{name}` at {node} is replicated on Community Edition: a cluster that falls in two can accept both of two conflicting spends"
            ),
            "set `replication-factor 1`, use Enterprise Edition with strong consistency, or accept it with `accept_replication = true` in [store.aerospike]",
        ));
    }
    Ok(())
}

/// For how long this node may lose what it acknowledged: until the write buffer is on its device. What is only in memory
/// is gone whole when a node dies; that is found by other means than waiting.
fn forgets(said: &Said) -> Duration {
    let namespace = &said.namespace;
    if namespace.is_true("storage-engine.commit-to-device") {
        return Duration::ZERO;
    }
    let flush_ms = namespace.number("storage-engine.flush-max-ms").filter(|ms| *ms > 0).unwrap_or(FLUSH_MAX_MS);
    Duration::from_millis(flush_ms) + FLUSH_MARGIN
}

/// Creates an index where it is missing, and waits until every node can answer by it.
async fn see_to_index(
    client: &Arc<Client>,
    settings: &AerospikeSettings,
    policies: &Policies,
    index: crate::engine::Index,
) -> Result<(), OpenAerospikeError> {
    let (bin, name) = (index::bin_of(index), index::name_of(&settings.set, index));
    let created = client
        .create_index_on_bin(
            &policies.admin,
            &settings.namespace,
            &settings.set,
            bin,
            &name,
            IndexType::Numeric,
            CollectionIndexType::Default,
            None,
        )
        .await;
    if let Err(error) = created
        && !error.matches(&[ResultCode::IndexFound])
    {
        return Err(unfit(
            format!("the secondary index on `{bin}` cannot be created: {}", one_line(&error)),
            format!("create it by hand: asadm -e 'enable; manage sindex create numeric {name} ns … set … bin {bin}'"),
        ));
    }
    let mut looks = 0;
    loop {
        let mut ready = true;
        for node in client.nodes() {
            ready &= is_ready(&node, settings, policies, &name).await;
        }
        if ready {
            return Ok(());
        }
        looks += 1;
        if looks % INDEX_REPORTS == 0 {
            tracing::info!(index = name, "the server is still building a secondary index");
        }
        tokio::time::sleep(INDEX_PAUSE).await;
    }
}

async fn is_ready(node: &Node, settings: &AerospikeSettings, policies: &Policies, name: &str) -> bool {
    let release = node.version();
    let key = if (release.major, release.minor) >= (8, 1) { "namespace" } else { "ns" };
    let command = format!("sindex-stat:{key}={};indexname={name}", settings.namespace);
    let Ok(answers) = node.info(&policies.admin, &[&command]).await else { return false };
    let said = answers.get(&command).map(|answer| Pairs::of(answer)).unwrap_or_default();
    said.number("load_pct").is_some_and(|percent| percent >= 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(namespace: &str) -> Said {
        Said {
            node: "127.0.0.1:3000".into(),
            build: "8.1.0.3".into(),
            edition: "Aerospike Community Edition".into(),
            namespaces: "bar;test".into(),
            namespace: Pairs::of(namespace),
        }
    }

    fn settings() -> AerospikeSettings {
        let mut settings = AerospikeSettings::new("127.0.0.1:3000", "test", "txmeta");
        settings.access.utxo_batch_size = Some(20_000);
        settings
    }

    const GOOD: &str = "nsup-period=120;max-record-size=8388608;effective_replication_factor=1";

    #[test]
    fn a_fit_server_is_taken() {
        look(&said(GOOD), &settings()).unwrap();
        let enterprise =
            Said { edition: "Aerospike Enterprise Edition".into(), ..said(&GOOD.replace("factor=1", "factor=2")) };
        look(&enterprise, &settings()).unwrap();
        let mut accepted = settings();
        accepted.access.accept_replication = true;
        look(&said(&GOOD.replace("factor=1", "factor=2")), &accepted).unwrap();
    }

    #[test]
    fn what_is_wrong_is_said_with_its_remedy_in_one_line() {
        let cases = [
            (Said { build: "6.4.0.9".into(), ..said(GOOD) }, "7.0 or later"),
            (Said { namespaces: "bar".into(), ..said(GOOD) }, "add it to aerospike.conf"),
            (said(&GOOD.replace("period=120", "period=0")), "nsup-period 120"),
            (said(&GOOD.replace("8388608", "1048576")), "raise `max-record-size`"),
            (said(&GOOD.replace("8388608", "0")), "raise `max-record-size`"),
            (said(&GOOD.replace("factor=1", "factor=2")), "accept_replication = true"),
        ];
        for (said, remedy) in cases {
            let error = look(&said, &settings()).unwrap_err().to_string();
            assert!(error.contains(remedy) && !error.contains('\n'), "{error}");
        }
        // 20,000 spent slots fit 2 MB, and with them a body of half a megabyte, but none of a whole one.
        let two = said(&GOOD.replace("8388608", "2097152"));
        let with_body = |inline_limit| {
            let mut settings = settings();
            settings.access.inline_limit = inline_limit;
            look(&two, &settings)
        };
        with_body(1 << 19).unwrap();
        let error = with_body(1 << 20).unwrap_err().to_string();
        assert!(error.contains("lower store.max_tx_size_in_store"), "{error}");
    }

    #[test]
    fn what_may_be_lost_is_what_is_not_flushed_yet() {
        assert_eq!(forgets(&said(GOOD)), Duration::from_secs(2));
        assert_eq!(forgets(&said("storage-engine.flush-max-ms=500")), Duration::from_millis(1_500));
        assert_eq!(forgets(&said("storage-engine.commit-to-device=true")), Duration::ZERO);
    }
}
