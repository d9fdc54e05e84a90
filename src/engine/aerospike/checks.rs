//! Checks of a cluster before it is used. Each refusal names its remedy in one line.

use std::{sync::Arc, time::Duration};

use aerospike::{Client, CollectionIndexType, IndexType, Node, ResultCode};

use super::{
    connection::OpenAerospikeError,
    errors::describe_error,
    index,
    info::{InfoPairs, Release},
    settings::{AerospikeSettings, Policies},
};
use crate::engine::Index;

/// Oldest release that takes batches of writes with expressions in their rows, and stores records in one format in
/// memory and on devices.
const OLDEST_RELEASE: Release = Release(7, 0);
/// Bytes of a spent slot: its place in the list, its type, 68 bytes of data, and the size byte of its amount.
const SPENT_SLOT_BYTES: u64 = 72;
/// Bytes of a page besides its slots, rounded up.
const PAGE_BYTES: u64 = 4_096;
/// The server's default of `max-record-size`, in bytes.
const DEFAULT_MAX_RECORD_SIZE: u64 = 1 << 20;
/// The server's default of `flush-max-ms`: the time until a write buffer is on its device.
const DEFAULT_FLUSH_MAX_MS: u64 = 1_000;
/// Time allowed from the deadline of a flush to its end.
const FLUSH_MARGIN: Duration = Duration::from_secs(1);
/// Pause between two polls of an index that is being built.
const INDEX_PAUSE: Duration = Duration::from_millis(100);
/// Polls of one index between two log lines.
const POLLS_PER_INDEX_LOG: u32 = 100;

/// Facts that the checks found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckedCluster {
    /// Time during which an acknowledged write can still be lost.
    pub loss_window: Duration,
}

/// Answers of one node to the info commands of the checks.
#[derive(Debug, Clone, Default)]
struct NodeConfig {
    node: String,
    build: String,
    edition: String,
    namespaces: String,
    namespace: InfoPairs,
}

/// Checks every node, then creates the indexes that are missing.
///
/// # Errors
/// The first check that fails.
pub async fn check(
    client: &Arc<Client>,
    settings: &AerospikeSettings,
    policies: &Policies,
) -> Result<CheckedCluster, OpenAerospikeError> {
    let mut longest_window = Duration::ZERO;
    let mut community = false;
    for node in client.nodes() {
        let config = read_node_config(&node, settings, policies).await?;
        check_node(&config, settings)?;
        longest_window = longest_window.max(node_loss_window(&config));
        community |= is_community(&config);
    }
    if community {
        tracing::warn!(
            may_lose_ms = longest_window.as_millis() as u64,
            "aerospike: Community Edition can lose acknowledged writes when a node dies, and deleted records can come \
             back after a cold start; offsets are committed only once their writes are durable, and pruned records \
             stay as tombstones"
        );
    }
    for index in Index::ALL.into_iter().filter(|_| settings.access.creates_indexes) {
        ensure_index(client, settings, policies, index).await?;
    }
    Ok(CheckedCluster { loss_window: longest_window })
}

fn unfit(problem: impl Into<String>, remedy: impl Into<String>) -> OpenAerospikeError {
    OpenAerospikeError::Unfit { problem: problem.into(), remedy: remedy.into() }
}

async fn read_node_config(
    node: &Node,
    settings: &AerospikeSettings,
    policies: &Policies,
) -> Result<NodeConfig, OpenAerospikeError> {
    let namespace_command = format!("namespace/{}", settings.namespace);
    let commands = ["build", "edition", "namespaces", namespace_command.as_str()];
    let answers = node.info(&policies.admin, &commands).await.map_err(|error| OpenAerospikeError::Unreachable {
        hosts: node.address().to_owned(),
        problem: describe_error(&error),
    })?;
    let answer = |command: &str| answers.get(command).cloned().unwrap_or_default();
    Ok(NodeConfig {
        node: node.address().to_owned(),
        build: answer("build"),
        edition: answer("edition"),
        namespaces: answer("namespaces"),
        namespace: InfoPairs::new(&answer(&namespace_command)),
    })
}

fn is_community(config: &NodeConfig) -> bool {
    config.edition.to_ascii_lowercase().contains("community")
}

/// Checks that one node fits this store.
fn check_node(config: &NodeConfig, settings: &AerospikeSettings) -> Result<(), OpenAerospikeError> {
    let NodeConfig { node, namespace, .. } = config;
    let name = &settings.namespace;
    if Release::parse(&config.build).is_some_and(|release| release < OLDEST_RELEASE) {
        return Err(unfit(
            format!("the server at {node} is release {}", config.build),
            format!("this store needs {OLDEST_RELEASE} or later"),
        ));
    }
    if !config.namespaces.split(';').any(|namespace| namespace == name) {
        return Err(unfit(
            format!("the server at {node} has no namespace `{name}` (it has {})", config.namespaces),
            "add it to aerospike.conf on every node (see deploy/aerospike.conf), or name another in store.url",
        ));
    }
    if namespace.number("nsup-period") == Some(0) {
        return Err(unfit(
            format!("namespace `{name}` at {node} has `nsup-period 0`, and no record can have a TTL then"),
            "set `nsup-period 120` in the namespace (asinfo -v 'set-config:context=namespace;id=…;nsup-period=120')",
        ));
    }
    let max_record_size = namespace.number("max-record-size").filter(|bytes| *bytes > 0);
    let max_record_size = max_record_size.unwrap_or(DEFAULT_MAX_RECORD_SIZE);
    if let Some(slots) = settings.access.utxo_batch_size {
        // A record that can be created and cannot grow would never take its last spends.
        let needed = u64::from(slots) * SPENT_SLOT_BYTES + PAGE_BYTES;
        let body = settings.access.inline_limit;
        if needed + body > max_record_size {
            return Err(unfit(
                format!(
                    "a page of {slots} spent slots takes {needed} bytes, and the body beside it up to {body}; \
                     `max-record-size` of `{name}` at {node} is {max_record_size}"
                ),
                "raise `max-record-size` (8M at most), lower store.max_tx_size_in_store, or lower \
                 store.utxo_batch_size before the first start",
            ));
        }
    }
    let replicas = namespace.number("effective_replication_factor").or(namespace.number("replication-factor"));
    if is_community(config) && replicas.is_some_and(|replicas| replicas > 1) && !settings.access.accept_replication {
        return Err(unfit(
            format!(
                "namespace `{name}` at {node} is replicated on Community Edition, where a cluster that splits in two \
                 can accept both of two conflicting spends"
            ),
            "set `replication-factor 1`, use Enterprise Edition with strong consistency, or accept the risk with \
             `accept_replication = true` in [store.aerospike]",
        ));
    }
    Ok(())
}

/// Returns the time during which a node can lose an acknowledged write: until the write buffer is on its device. Data
/// held only in memory is lost whole when a node dies; sentinels detect that loss.
fn node_loss_window(config: &NodeConfig) -> Duration {
    let namespace = &config.namespace;
    if namespace.is_true("storage-engine.commit-to-device") {
        return Duration::ZERO;
    }
    let flush_ms = namespace.number("storage-engine.flush-max-ms").filter(|ms| *ms > 0).unwrap_or(DEFAULT_FLUSH_MAX_MS);
    Duration::from_millis(flush_ms) + FLUSH_MARGIN
}

/// Creates an index where it is missing, and waits until every node can answer queries by it.
async fn ensure_index(
    client: &Arc<Client>,
    settings: &AerospikeSettings,
    policies: &Policies,
    index: crate::engine::Index,
) -> Result<(), OpenAerospikeError> {
    let (bin, name) = (index::bin_of(index), index::index_name(&settings.set, index));
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
            format!("the secondary index on `{bin}` cannot be created: {}", describe_error(&error)),
            format!("create it by hand: asadm -e 'enable; manage sindex create numeric {name} ns … set … bin {bin}'"),
        ));
    }
    let mut polls = 0;
    loop {
        let mut ready = true;
        for node in client.nodes() {
            ready &= is_index_ready(&node, settings, policies, &name).await;
        }
        if ready {
            return Ok(());
        }
        polls += 1;
        if polls % POLLS_PER_INDEX_LOG == 0 {
            tracing::info!(index = name, "aerospike: the server is still building a secondary index");
        }
        tokio::time::sleep(INDEX_PAUSE).await;
    }
}

async fn is_index_ready(node: &Node, settings: &AerospikeSettings, policies: &Policies, name: &str) -> bool {
    let release = node.version();
    let key = if (release.major, release.minor) >= (8, 1) { "namespace" } else { "ns" };
    let command = format!("sindex-stat:{key}={};indexname={name}", settings.namespace);
    let Ok(answers) = node.info(&policies.admin, &[&command]).await else { return false };
    let statistics = answers.get(&command).map(|answer| InfoPairs::new(answer)).unwrap_or_default();
    statistics.number("load_pct").is_some_and(|percent| percent >= 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node_config(namespace: &str) -> NodeConfig {
        NodeConfig {
            node: "127.0.0.1:3000".into(),
            build: "8.1.0.3".into(),
            edition: "Aerospike Community Edition".into(),
            namespaces: "bar;test".into(),
            namespace: InfoPairs::new(namespace),
        }
    }

    fn settings() -> AerospikeSettings {
        let mut settings = AerospikeSettings::new("127.0.0.1:3000", "test", "txmeta");
        settings.access.utxo_batch_size = Some(20_000);
        settings
    }

    const GOOD: &str = "nsup-period=120;max-record-size=8388608;effective_replication_factor=1";

    #[test]
    fn a_fitting_server_is_accepted() {
        check_node(&node_config(GOOD), &settings()).unwrap();
        let replicated = GOOD.replace("factor=1", "factor=2");
        let enterprise = NodeConfig { edition: "Aerospike Enterprise Edition".into(), ..node_config(&replicated) };
        check_node(&enterprise, &settings()).unwrap();
        let mut accepted = settings();
        accepted.access.accept_replication = true;
        check_node(&node_config(&replicated), &accepted).unwrap();
    }

    #[test]
    fn each_refusal_is_one_line_with_its_remedy() {
        let cases = [
            (NodeConfig { build: "6.4.0.9".into(), ..node_config(GOOD) }, "7.0 or later"),
            (NodeConfig { namespaces: "bar".into(), ..node_config(GOOD) }, "add it to aerospike.conf"),
            (node_config(&GOOD.replace("period=120", "period=0")), "nsup-period 120"),
            (node_config(&GOOD.replace("8388608", "1048576")), "raise `max-record-size`"),
            (node_config(&GOOD.replace("8388608", "0")), "raise `max-record-size`"),
            (node_config(&GOOD.replace("factor=1", "factor=2")), "accept_replication = true"),
        ];
        for (config, remedy) in cases {
            let error = check_node(&config, &settings()).unwrap_err().to_string();
            assert!(error.contains(remedy) && !error.contains('\n'), "{error}");
        }
        // A record of 2 MB holds 20,000 spent slots and a body of half a megabyte, but not a body of one megabyte.
        let two_megabytes = node_config(&GOOD.replace("8388608", "2097152"));
        let with_body = |inline_limit| {
            let mut settings = settings();
            settings.access.inline_limit = inline_limit;
            check_node(&two_megabytes, &settings)
        };
        with_body(1 << 19).unwrap();
        let error = with_body(1 << 20).unwrap_err().to_string();
        assert!(error.contains("lower store.max_tx_size_in_store"), "{error}");
    }

    #[test]
    fn the_loss_window_is_the_flush_time_with_a_margin() {
        assert_eq!(node_loss_window(&node_config(GOOD)), Duration::from_secs(2));
        assert_eq!(node_loss_window(&node_config("storage-engine.flush-max-ms=500")), Duration::from_millis(1_500));
        assert_eq!(node_loss_window(&node_config("storage-engine.commit-to-device=true")), Duration::ZERO);
    }
}
