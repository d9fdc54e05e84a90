//! Checks of a cluster before it is used. Each refusal names its remedy in one line.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

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
/// Bytes of a spent slot in `compact`: its place in the list, its type, 69 bytes of data, and a byte of `amountSizes`.
/// `teranode` needs one byte less. The nodes are checked before the layout is known.
pub const SPENT_SLOT_BYTES: u64 = 73;
/// Bytes of a page besides its slots, rounded up.
const PAGE_BYTES: u64 = 4_096;
/// The server's default of `max-record-size`, in bytes.
const DEFAULT_MAX_RECORD_SIZE: u64 = 1 << 20;
/// The server's default of `flush-max-ms`: the time until a write buffer is on its device.
const DEFAULT_FLUSH_MAX_MS: u64 = 1_000;
/// Time allowed from the deadline of a flush to its end.
const FLUSH_MARGIN: Duration = Duration::from_secs(1);
/// Time for which an index is created anew while the nodes do not agree on it.
const INDEX_TIMEOUT: Duration = Duration::from_secs(30);
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

/// Checks that every node fits this store; `are_fenced`: only members of a view with a fence are used.
///
/// # Errors
/// The first check that fails.
pub async fn check(
    client: &Arc<Client>,
    settings: &AerospikeSettings,
    policies: &Policies,
    are_fenced: bool,
) -> Result<CheckedCluster, OpenAerospikeError> {
    let mut longest_window = Duration::ZERO;
    let mut community = false;
    for node in client.nodes() {
        let config = read_node_config(&node, settings, policies).await?;
        check_node(&config, settings)?;
        check_copies(&config, are_fenced)?;
        longest_window = longest_window.max(node_loss_window(&config));
        community |= is_community(&config.edition);
    }
    if community {
        tracing::warn!(
            may_lose_ms = longest_window.as_millis() as u64,
            "aerospike: Community Edition can lose acknowledged writes when a node dies, and deleted records can come \
             back after a cold start; offsets are committed only once their writes are durable, and pruned records \
             stay as tombstones"
        );
    }
    Ok(CheckedCluster { loss_window: longest_window })
}

/// Creates the indexes that are missing.
///
/// # Errors
/// An index cannot be created.
pub async fn ensure_indexes(
    client: &Arc<Client>,
    settings: &AerospikeSettings,
    policies: &Policies,
) -> Result<(), OpenAerospikeError> {
    for index in Index::ALL.into_iter().filter(|_| settings.access.manages_cluster) {
        ensure_index(client, settings, policies, index).await?;
    }
    Ok(())
}

/// The replication factor as configured. A cluster of a single node has one copy until a second node joins.
fn replication_factor(namespace: &InfoPairs) -> u64 {
    namespace.number("replication-factor").or(namespace.number("effective_replication_factor")).unwrap_or(1)
}

/// Makes the refusal of a cluster that does not fit this store.
pub fn unfit(problem: impl Into<String>, remedy: impl Into<String>) -> OpenAerospikeError {
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

fn is_community(edition: &str) -> bool {
    edition.to_ascii_lowercase().contains("community")
}

/// Returns the copies of each record where the server does not keep nodes that were left out from bringing old copies
/// back: Community Edition with a replication factor above 1.
pub fn fenced_copies(edition: &str, namespace: &InfoPairs) -> Option<usize> {
    let copies = replication_factor(namespace) as usize;
    (is_community(edition) && copies > 1).then_some(copies)
}

/// Checks that no node has several copies where no fence protects them: some nodes have another replication factor than
/// the nodes that were asked first.
fn check_copies(config: &NodeConfig, are_fenced: bool) -> Result<(), OpenAerospikeError> {
    match fenced_copies(&config.edition, &config.namespace) {
        Some(copies) if !are_fenced => Err(unfit(
            format!("{} has `replication-factor {copies}`, and another node of the cluster has 1", config.node),
            "give the namespace the same `replication-factor` on every node, and start again",
        )),
        _ => Ok(()),
    }
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
    if !is_community(&config.edition) && replication_factor(namespace) > 1 && !namespace.is_true("strong-consistency") {
        return Err(unfit(
            format!(
                "namespace `{name}` at {node} has several copies without strong consistency, and a cluster that splits \
                 in two can lose acknowledged writes"
            ),
            "set `strong-consistency true` in the namespace on every node, and the roster",
        ));
    }
    Ok(())
}

/// Answers of one member of a cluster with several copies.
#[derive(Debug, Clone)]
pub struct MemberConfig {
    pub node: String,
    /// Answer of the node to `get-config:context=service`.
    pub service: InfoPairs,
    /// Answer of the node to `statistics`.
    pub statistics: InfoPairs,
    /// Answer of the node to `namespace/NAME`.
    pub namespace: InfoPairs,
}

/// Settings of a namespace without which acknowledged writes were lost or undone in experiments
/// (`docs/operating/aerospike.md`).
const NEEDED: [(&str, &str); 4] = [
    ("conflict-resolution-policy", "last-update-time"),
    ("disable-write-dup-res", "false"),
    ("read-consistency-level-override", "all"),
    ("write-commit-level-override", "all"),
];
/// Longest distance between two clocks, in ms. Writes stop at 40 s, and of two versions of a record the one written
/// last counts.
const MAX_CLOCK_SKEW_MS: u64 = 5_000;

/// Checks that every member of a cluster has the configuration that the store needs, and as many copies as the process
/// found when it started.
///
/// # Errors
/// The first check that fails; the message names node, setting and remedy.
pub fn check_members(namespace: &str, copies: usize, members: &[MemberConfig]) -> Result<(), OpenAerospikeError> {
    for MemberConfig { node, service, statistics, namespace: config } in members {
        for (setting, needed) in NEEDED {
            let found = config.get(setting).unwrap_or("unknown");
            if found != needed {
                return Err(unfit(
                    format!("namespace `{namespace}` at node {node} has `{setting} {found}`"),
                    format!(
                        "set `{setting} {needed}` on every node (asinfo -v \
                         'set-config:context=namespace;id={namespace};{setting}={needed}', and in aerospike.conf)"
                    ),
                ));
            }
        }
        let least = service.number("min-cluster-size").unwrap_or(1);
        let nodes = members.len() as u64;
        if least < 2 || 2 * least <= nodes {
            return Err(unfit(
                format!(
                    "node {node} has `min-cluster-size {least}` in a cluster of {nodes} nodes: both sides of a cluster \
                     that is split in two accept writes"
                ),
                format!(
                    "set `min-cluster-size {}`, a majority, on every node (asinfo -v \
                     'set-config:context=service;min-cluster-size=…', and in aerospike.conf)",
                    (nodes / 2 + 1).max(2)
                ),
            ));
        }
        let skew = statistics.number("cluster_clock_skew_ms").unwrap_or(0);
        if skew > MAX_CLOCK_SKEW_MS {
            return Err(unfit(
                format!("the clocks of the nodes differ by {} s, as node {node} reports", skew.div_ceil(1_000)),
                "set the clocks, and run NTP on every node",
            ));
        }
    }
    match members.iter().find(|member| replication_factor(&member.namespace) != copies as u64) {
        None => Ok(()),
        Some(other) => Err(unfit(
            format!(
                "namespace `{namespace}` has `replication-factor {}` at node {} and had {copies} when this process \
                 started",
                replication_factor(&other.namespace),
                other.node
            ),
            "set one value on every node and run `asinfo -v recluster:`; start the instances again if the value is new",
        )),
    }
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
    let create = || {
        client.create_index_on_bin(
            &policies.admin,
            &settings.namespace,
            &settings.set,
            bin,
            &name,
            IndexType::Numeric,
            CollectionIndexType::Default,
            None,
        )
    };
    let mut created = create().await;
    // Nodes that agree on a new cluster key agree on indexes some seconds later.
    let started = Instant::now();
    while let Err(error) = &created
        && error.matches(&[ResultCode::Timeout])
        && started.elapsed() < INDEX_TIMEOUT
    {
        created = create().await;
    }
    if let Err(error) = created
        && !error.matches(&[ResultCode::IndexFound])
    {
        let problem = format!("the secondary index on `{bin}` cannot be created: {}", describe_error(&error));
        if error.server_result_code().is_none() {
            return Err(OpenAerospikeError::Unreachable { hosts: settings.hosts.clone(), problem });
        }
        return Err(unfit(
            problem,
            format!("create it by hand: asadm -e 'enable; manage sindex create numeric {name} ns … set … bin {bin}'"),
        ));
    }
    let mut polls = 0;
    loop {
        let nodes = client.nodes();
        // The client of nodes that have formed another cluster meanwhile has no node left.
        if nodes.is_empty() {
            let problem = format!("no node is left that builds the secondary index on `{bin}`");
            return Err(OpenAerospikeError::Unreachable { hosts: settings.hosts.clone(), problem });
        }
        let mut ready = true;
        for node in nodes {
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
        let error = check_node(&enterprise, &settings()).unwrap_err().to_string();
        assert!(error.contains("strong-consistency true"), "{error}");
        let consistent = InfoPairs::new(&format!("{replicated};strong-consistency=true"));
        check_node(&NodeConfig { namespace: consistent, ..enterprise }, &settings()).unwrap();
        check_node(&node_config(&replicated), &settings()).unwrap();
    }

    #[test]
    fn several_copies_without_a_fence_are_refused() {
        let replicated = node_config(&GOOD.replace("factor=1", "factor=2"));
        check_copies(&replicated, true).unwrap();
        check_copies(&node_config(GOOD), false).unwrap();
        let error = check_copies(&replicated, false).unwrap_err().to_string();
        assert!(error.contains("the same `replication-factor` on every node"), "{error}");
    }

    #[test]
    fn each_refusal_is_one_line_with_its_remedy() {
        let cases = [
            (NodeConfig { build: "6.4.0.9".into(), ..node_config(GOOD) }, "7.0 or later"),
            (NodeConfig { namespaces: "bar".into(), ..node_config(GOOD) }, "add it to aerospike.conf"),
            (node_config(&GOOD.replace("period=120", "period=0")), "nsup-period 120"),
            (node_config(&GOOD.replace("8388608", "1048576")), "raise `max-record-size`"),
            (node_config(&GOOD.replace("8388608", "0")), "raise `max-record-size`"),
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
    fn a_member_that_differs_is_refused_with_a_remedy() {
        let check = |from: &str, to: &str| {
            let texts = [
                "min-cluster-size=2",
                "cluster_clock_skew_ms=4999",
                "conflict-resolution-policy=last-update-time;disable-write-dup-res=false;replication-factor=2;\
                 read-consistency-level-override=all;write-commit-level-override=all",
            ];
            let member = |node: &str, texts: [String; 3]| {
                let [service, statistics, namespace] = texts.map(|text| InfoPairs::new(&text));
                MemberConfig { node: node.into(), service, statistics, namespace }
            };
            let members = [
                member("A1", texts.map(str::to_owned)),
                member("A2", texts.map(|text| text.replace(from, to))),
                member("A3", texts.map(str::to_owned)),
            ];
            check_members("test", 2, &members).map_err(|error| error.to_string())
        };
        check("", "").unwrap();
        for (from, to, remedy) in [
            ("last-update-time", "generation", "set `conflict-resolution-policy last-update-time`"),
            ("dup-res=false", "dup-res=true", "set `disable-write-dup-res false`"),
            ("read-consistency-level-override=all", "", "set `read-consistency-level-override all`"),
            ("write-commit-level-override=all", "", "set `write-commit-level-override all`"),
            ("cluster-size=2", "cluster-size=1", "set `min-cluster-size 2`, a majority"),
            ("skew_ms=4999", "skew_ms=5001", "run NTP on every node"),
            ("factor=2", "factor=3", "set one value on every node"),
        ] {
            let error = check(from, to).unwrap_err();
            assert!(error.contains("A2") && error.contains(remedy) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn the_loss_window_is_the_flush_time_with_a_margin() {
        assert_eq!(node_loss_window(&node_config(GOOD)), Duration::from_secs(2));
        assert_eq!(node_loss_window(&node_config("storage-engine.flush-max-ms=500")), Duration::from_millis(1_500));
        assert_eq!(node_loss_window(&node_config("storage-engine.commit-to-device=true")), Duration::ZERO);
    }
}
