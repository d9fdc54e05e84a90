//! Views of a cluster with several copies of each record, and the fences between one view and the next. Pure.
//!
//! A *view* is a set of nodes that agree on one cluster key. A *fence* is a `cluster-name` that belongs to the members
//! of one view: a node that was left out keeps an older name, so that no member accepts its old copies and requests
//! (`docs/protocols/cluster-fence.md`).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// A `cluster-name`: the configured name, and the fence behind the name: `utxo-store.7.9c3f0a21`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterName {
    /// The name in the configuration of the nodes.
    pub base: String,
    /// The fence; `None` on a node whose process was started since the last fence.
    pub fence: Option<Fence>,
}

/// A fence: its number, and the tag of the members to which the fence belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fence {
    /// Greater than the number of every fence before; 0 in the name of a single node that waits outside.
    pub number: u64,
    /// Tag of the members.
    pub tag: MembersTag,
}

/// The first 32 bits of the BLAKE3 hash of sorted node ids, each followed by a newline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MembersTag(u32);

impl MembersTag {
    fn of<'a>(sorted: impl IntoIterator<Item = &'a str>) -> Self {
        let text: String = sorted.into_iter().flat_map(|node| [node, "\n"]).collect();
        let [a, b, c, d, ..] = *blake3::hash(text.as_bytes()).as_bytes();
        MembersTag(u32::from_be_bytes([a, b, c, d]))
    }
}

impl ClusterName {
    /// Returns the name under which a node waits outside: with a name of its own the node forms no cluster with other
    /// nodes that are started.
    pub fn waiting(&self, node: &str) -> Self {
        ClusterName { base: self.base.clone(), fence: Some(Fence { number: 0, tag: MembersTag::of([node]) }) }
    }

    /// Returns whether the process of the node was started since the last fence.
    pub fn was_started(&self) -> bool {
        self.fence.is_none_or(|fence| fence.number == 0)
    }

    /// Splits a name into the configured part and the fence.
    pub fn parse(name: &str) -> Self {
        let fence = || {
            let (rest, tag) = name.rsplit_once('.')?;
            let (base, number) = rest.rsplit_once('.')?;
            let tag = (tag.len() == 8).then(|| u32::from_str_radix(tag, 16).ok())??;
            let fence = Fence { number: number.parse().ok()?, tag: MembersTag(tag) };
            Some(ClusterName { base: base.to_owned(), fence: Some(fence) })
        };
        // Another spelling of the same numbers is another name to the servers.
        let spelled = fence().filter(|parsed| parsed.to_string() == name);
        spelled.unwrap_or_else(|| ClusterName { base: name.to_owned(), fence: None })
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fence {
            Some(Fence { number, tag: MembersTag(tag) }) => write!(f, "{}.{number}.{tag:08x}", self.base),
            None => f.write_str(&self.base),
        }
    }
}

/// Answers of one node to the questions of a look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAnswer {
    /// Position of the asked host in the list of hosts.
    pub host: usize,
    /// Id of the node.
    pub node: String,
    /// The `cluster-name` of the node.
    pub name: ClusterName,
    /// The cluster of the node; `None` for a node that is in no stable cluster.
    pub cluster: Option<NodeCluster>,
}

/// The cluster of a node, as the node names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCluster {
    /// The key on which the members agreed.
    pub key: String,
    /// Number of members; `None`: more than the hosts that were asked.
    pub size: Option<usize>,
}

/// A cluster all of whose nodes have answered with one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// The key on which the members agreed.
    pub key: String,
    /// The members, by their ids.
    pub members: BTreeMap<String, Member>,
}

/// A member of a view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Position of the member's host in the list of hosts.
    pub host: usize,
    /// The `cluster-name` of the member.
    pub name: ClusterName,
}

impl View {
    /// Finds the cluster whose members have all answered. Two such clusters with one configured name cannot exist where
    /// `min-cluster-size` is a majority; of clusters with different names the one named `base` is taken.
    pub fn find(answers: &[NodeAnswer], base: Option<&str>) -> Option<Self> {
        let mut clusters: BTreeMap<(&str, usize), BTreeMap<String, Member>> = BTreeMap::new();
        for NodeAnswer { host, node, name, cluster } in answers {
            let Some(NodeCluster { key, size: Some(size) }) = cluster else { continue };
            if base.is_none_or(|base| base == name.base) {
                let members = clusters.entry((key, *size)).or_default();
                members.insert(node.clone(), Member { host: *host, name: name.clone() });
            }
        }
        let whole = clusters.into_iter().find(|((_, size), members)| *size == members.len());
        whole.map(|((key, _), members)| View { key: key.to_owned(), members })
    }

    /// Ids of the members.
    pub fn nodes(&self) -> BTreeSet<String> {
        self.members.keys().cloned().collect()
    }

    fn tag(&self) -> MembersTag {
        MembersTag::of(self.members.keys().map(String::as_str))
    }

    fn names(&self) -> impl Iterator<Item = &ClusterName> {
        self.members.values().map(|member| &member.name)
    }

    /// Returns whether the processes of all members were started since the last fence: their names are the configured
    /// ones.
    pub fn has_restarted(&self) -> bool {
        self.greatest_fence().is_none()
    }

    /// The greatest fence of any member.
    fn greatest_fence(&self) -> Option<Fence> {
        self.names().filter_map(|name| name.fence).max()
    }

    /// The configured name of the members.
    pub fn base(&self) -> &str {
        self.names().next().map_or("", |name| name.base.as_str())
    }

    /// The fence of the view: every member has the name that belongs to exactly these members.
    pub fn fence(&self) -> Option<u64> {
        let first = self.names().next()?;
        let fence = first.fence.filter(|fence| fence.tag == self.tag())?;
        self.names().all(|name| name == first).then_some(fence.number)
    }
}

/// The fences of a namespace, kept as a record of the namespace itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FenceRecord {
    /// The greatest number that any instance has chosen for a fence.
    pub planned: u64,
    /// Number of the last fence that an instance has seen on all members. Offsets are committed behind it only.
    pub met: u64,
    /// The members behind the fence `met`.
    pub members: BTreeSet<String>,
    /// The members when all copies were complete the last time.
    pub complete: BTreeSet<String>,
    /// Members of fences planned since: a migration may have brought the only copies of a record to them.
    pub joined: BTreeSet<String>,
    /// Members that must all be present until the copies are complete. The processes of these nodes were all started
    /// again, and one of the nodes may have lost its files.
    pub unproven: BTreeSet<String>,
}

/// The next step of an instance towards the use of a view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FenceStep {
    /// The fence is known: the view can be used.
    Use,
    /// The fence stands: write the record, then use the view.
    Meet(FenceRecord),
    /// Write the record, then give the name to every member.
    Plan(FenceRecord, ClusterName),
    /// An instance has begun with this name: give the name to every member.
    Finish(ClusterName),
}

/// A view that must not be used: records can be older than acknowledged ones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum UnsafeView {
    #[error(
        "node {node} came back by itself although fence {met} had left it out; if the node was empty, stop it, delete \
         its files again, and start it once the others are a cluster; otherwise its old records can have replaced \
         newer ones: rebuild the store into another namespace (replay --rebuild)"
    )]
    NotAdmitted { node: String, met: u64 },
    #[error(
        "the nodes have the cluster-name of fence {found}, and fence {met} came later: a node that was left out can \
         have replaced newer records by its old ones; rebuild the store into another namespace (replay --rebuild)"
    )]
    WentBack { found: u64, met: u64 },
    #[error(
        "nodes {} left the cluster before the copies of their records were complete: start one of them again with its \
         records, or rebuild the store into another namespace (replay --rebuild)",
        join(lost)
    )]
    CopiesLost { lost: BTreeSet<String> },
}

fn join(nodes: &BTreeSet<String>) -> String {
    nodes.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// Decides the next step of an instance towards the use of a view. `copies` is the replication factor.
///
/// # Errors
/// The view must not be used.
pub fn next_step(view: &View, record: &FenceRecord, copies: usize) -> Result<FenceStep, UnsafeView> {
    let nodes = view.nodes();
    let greatest = view.greatest_fence();
    if record.met > 0 {
        if let Some(Fence { number, .. }) = greatest.filter(|fence| fence.number < record.met) {
            return Err(UnsafeView::WentBack { found: number, met: record.met });
        }
        // A node with a fence's name was admitted. Processes that were started since have no fence in their name: they
        // find each other by themselves, also the process of a node that was left out.
        if let (true, Some(node)) = (view.has_restarted(), nodes.difference(&record.members).next()) {
            return Err(UnsafeView::NotAdmitted { node: node.clone(), met: record.met });
        }
        let holders = record.complete.union(&record.joined);
        let lost: BTreeSet<String> = holders.filter(|node| !nodes.contains(*node)).cloned().collect();
        if lost.len() >= copies {
            return Err(UnsafeView::CopiesLost { lost });
        }
    }
    let lost: BTreeSet<String> = record.unproven.difference(&nodes).cloned().collect();
    if !lost.is_empty() {
        return Err(UnsafeView::CopiesLost { lost });
    }
    if let Some(met) = view.fence() {
        if met == record.met && nodes == record.members {
            return Ok(FenceStep::Use);
        }
        let planned = record.planned.max(met);
        let met = FenceRecord { planned, met, members: nodes.clone(), ..record.clone() };
        return Ok(FenceStep::Meet(match record.met {
            // The namespace may have records from a time before the first fence.
            0 => FenceRecord { complete: nodes.clone(), unproven: nodes, ..met },
            _ => met,
        }));
    }
    let tag = view.tag();
    let base = view.base().to_owned();
    if let Some(fence) = greatest.filter(|fence| fence.tag == tag) {
        return Ok(FenceStep::Finish(ClusterName { base, fence: Some(fence) }));
    }
    let number = greatest.map_or(0, |fence| fence.number).max(record.planned) + 1;
    let name = ClusterName { base, fence: Some(Fence { number, tag }) };
    let joined = record.joined.union(&nodes).filter(|node| !record.complete.contains(*node)).cloned().collect();
    let unproven = if view.has_restarted() { nodes } else { record.unproven.clone() };
    Ok(FenceStep::Plan(FenceRecord { planned: number, joined, unproven, ..record.clone() }, name))
}

/// Finds how missing members come back to a view that lacks copies: they have waited outside with their records, and no
/// view was used without them. Returns a name, and the hosts that get the name.
///
/// `waiting` are nodes outside the view that may come back if they are missing. The name belongs to exactly the view
/// and the nodes that come back: where one of these does not join, the name is no fence of the others.
pub fn bring_back(view: &View, record: &FenceRecord, waiting: &[NodeAnswer]) -> Option<(ClusterName, Vec<usize>)> {
    let is_missing = |answer: &&NodeAnswer| {
        let is_member = record.members.contains(&answer.node) || record.unproven.contains(&answer.node);
        is_member && answer.cluster.is_none() && !view.members.contains_key(&answer.node)
    };
    let missing: Vec<&NodeAnswer> = waiting.iter().filter(is_missing).collect();
    // A missing member has the name of the last fence if an instance began this fence there.
    let is_last = |name: &&ClusterName| name.fence.is_some_and(|fence| fence.number == record.planned);
    let mut names: Vec<&ClusterName> = view.names().collect();
    names.extend(missing.iter().map(|answer| &answer.name).filter(is_last).filter(|name| name.base == view.base()));
    let name = names.into_iter().max_by_key(|name| name.fence)?.clone();
    let present = view.nodes();
    let members = subset_with_tag(&missing, &present, name.fence?.tag)?;
    let joining = members.into_iter().map(|answer| (answer.host, &answer.name));
    let hosts = view.members.values().map(|member| (member.host, &member.name)).chain(joining);
    let lacking = hosts.filter(|(_, present)| **present != name).map(|(host, _)| host).collect();
    Some((name, lacking))
}

/// Finds the nodes that, together with `others`, have this tag. More than a few nodes are not searched.
fn subset_with_tag<'a>(
    nodes: &[&'a NodeAnswer],
    others: &BTreeSet<String>,
    tag: MembersTag,
) -> Option<Vec<&'a NodeAnswer>> {
    if nodes.len() > 12 {
        return None;
    }
    let subset = |bits: u32| nodes.iter().enumerate().filter(move |(at, _)| bits >> at & 1 == 1).map(|(_, node)| *node);
    let members = (0..1_u32 << nodes.len()).find(|bits| {
        let ids = subset(*bits).map(|answer| answer.node.as_str());
        MembersTag::of(ids.chain(others.iter().map(String::as_str)).collect::<BTreeSet<_>>()) == tag
    })?;
    Some(subset(members).collect())
}

/// Finds members of one fence that have lost each other and have no cluster: an instance was stopped between the
/// renames of two members, or the process of a member was started again. Returns the name, and the hosts that lack the
/// name.
///
/// Only nodes in `with_records` are considered: an empty node would lower the number of copies. `met` is the last fence
/// that this process has met. A node that was started since is brought back behind this fence or a later one only: to a
/// process that has met none, the greatest fence may be that of a node that was left out. Of several nodes that were
/// started since none is brought back: they may have met a later fence without the node that has the greatest one now.
pub fn interrupted_fence(
    answers: &[NodeAnswer],
    with_records: &BTreeSet<String>,
    met: Option<u64>,
) -> Option<(ClusterName, Vec<usize>)> {
    if answers.iter().any(|answer| answer.cluster.is_some()) {
        return None;
    }
    let is_candidate =
        |answer: &&NodeAnswer| with_records.contains(&answer.node) && (met.is_some() || !answer.name.was_started());
    let candidates: Vec<&NodeAnswer> = answers.iter().filter(is_candidate).collect();
    let name = candidates.iter().map(|answer| &answer.name).max_by_key(|name| name.fence)?.clone();
    let Fence { number, tag } = name.fence?;
    if met.is_some_and(|met| number < met) || candidates.iter().any(|answer| answer.name.base != name.base) {
        return None;
    }
    let members = subset_with_tag(&candidates, &BTreeSet::new(), tag)?;
    let lacking: Vec<&NodeAnswer> = members.into_iter().filter(|node| node.name != name).collect();
    let started = lacking.iter().filter(|node| node.name.was_started()).count();
    (started <= 1).then(|| (name.clone(), lacking.iter().map(|node| node.host).collect()))
}

/// Describes why the answers show no usable view, for an operator.
pub fn describe_no_view(answers: &[NodeAnswer], silent: &[String]) -> String {
    let mut parts: Vec<String> = Vec::new();
    for NodeAnswer { node, name, cluster, .. } in answers {
        parts.push(match cluster {
            Some(NodeCluster { key, size: Some(size) }) => {
                format!("node {node} ({name}) is in cluster {key} of {size}")
            }
            Some(NodeCluster { key, size: None }) => format!(
                "node {node} ({name}) is in cluster {key}, which has nodes that store.url does not name: name every \
                 node"
            ),
            None => format!("node {node} ({name}) is in no cluster"),
        });
    }
    parts.extend(silent.iter().map(|host| format!("{host} does not answer")));
    format!("the nodes are no cluster with a majority: {}", parts.join(", "))
}
