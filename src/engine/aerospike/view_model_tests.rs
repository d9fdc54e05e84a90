//! Random histories of a simulated cluster under the rules of [`view`](super::view).
//!
//! The servers: nodes with one `cluster-name` that reach each other agree on a new key if they are a majority. Each
//! *unit* stands for the records of a partition: its copies are on two members, and a migration brings them there. Of
//! two copies the one that was written later by the clock counts. A node that was left out may apply old requests, so
//! that its old copy is the later one.
//!
//! The instances take the steps of `members.rs`, one at a time, with other events between any two steps. The invariant:
//! a view that an instance uses, and that the servers still have, gives every committed write in its newest version, or
//! a sentinel is missing.
//!
//! `FENCE_SEED=n` replays one seed with its story, `FENCE_SEEDS=n` runs that many, `FENCE_FROM=n` begins with another
//! seed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use super::view::*;
use crate::rng::SplitMix64;

/// Events between a look and the last rename that the look permits (`RENAME_DEADLINE`).
const RENAME_DEADLINE: u64 = 12;
/// Events in a history.
const EVENTS: usize = 400;
/// Number of instances at one cluster.
const INSTANCES: usize = 3;
/// Copies of each unit.
const COPIES: usize = 2;
/// Seeds in `make test`.
const DEFAULT_SEEDS: u64 = 300;
/// The configured name of every node.
const BASE: &str = "utxo.store";

/// Events of a history. An event that is impossible in the present state changes nothing, so that any part of a
/// history is a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    Kill(usize),
    /// Starts the process with its records.
    Start(usize),
    /// Deletes the records of a dead node.
    Wipe(usize),
    Freeze(usize),
    Cut(usize),
    /// Ends a freeze or a cut.
    Heal(usize),
    /// Kills the processes of all nodes.
    PowerCut,
    /// The nodes that this node reaches under its name agree on their cluster.
    Settle(usize),
    /// The node applies requests that it got before it was cut off or frozen.
    OldRequests(usize),
    /// A migration of one unit in the cluster of a node.
    Migrate(usize, usize),
    /// An instance looks. The bits name hosts that do not answer in time.
    Look(usize, u32),
    /// An instance goes on with what it does.
    Continue(usize),
    /// An instance stops, and another one takes its place.
    Stop(usize),
    /// An instance commits a write.
    Commit(usize, usize),
}

/// A copy of a unit. The copy with the greater `time` counts.
#[derive(Debug, Clone, PartialEq, Eq)]
struct UnitCopy {
    time: u64,
    version: u64,
    fences: FenceRecord,
    generation: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ServerCluster {
    key: u64,
    members: BTreeSet<usize>,
}

#[derive(Debug, Clone)]
struct ServerNode {
    is_up: bool,
    is_frozen: bool,
    is_cut: bool,
    name: ClusterName,
    cluster: Option<ServerCluster>,
    copies: Vec<Option<UnitCopy>>,
    /// Units for which requests were on their way when the node was frozen or cut off.
    old_requests: Vec<usize>,
    /// Renames that wait in the socket of a frozen node; the machine of their sender is gone.
    old_renames: Vec<ClusterName>,
}

#[derive(Debug, Clone)]
struct StoredFences {
    record: FenceRecord,
    generation: u32,
}

#[derive(Debug, Clone)]
enum Doing {
    Decide { view: View, looked_at: u64 },
    Write { view: View, looked_at: u64, stored: StoredFences, step: FenceStep },
    Rename { hosts: Vec<usize>, name: ClusterName, looked_at: u64 },
    RecordComplete { view: View, stored: StoredFences },
}

#[derive(Debug, Clone, Default)]
struct Instance {
    nodes: BTreeSet<String>,
    used: Option<View>,
    base: Option<String>,
    met: Option<u64>,
    cached: Option<StoredFences>,
    doing: Option<Doing>,
}

/// The rule under test; the tests of the model break it.
pub(super) type Rule = fn(&View, &FenceRecord, usize) -> Result<FenceStep, UnsafeView>;

/// End of a history before its last event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    /// A committed write cannot be read in a view in use.
    Broken(String),
    /// The store has noticed a missing sentinel.
    SentinelMissing,
    /// The rules do not claim to survive what follows ("Limits" of `docs/protocols/cluster-fence.md`).
    Limit(&'static str),
}

/// Counts of what the histories reached.
#[derive(Debug, Clone, Default)]
pub(super) struct Coverage(BTreeMap<&'static str, u64>);

pub(super) struct World {
    rule: Rule,
    nodes: Vec<ServerNode>,
    least: usize,
    units: Vec<Vec<usize>>,
    instances: Vec<Instance>,
    committed: Vec<u64>,
    /// The members behind the last fence that was met.
    last_members: BTreeSet<usize>,
    last_met: u64,
    /// Nodes that have lost their records, until they are admitted or the copies are complete again.
    emptied: BTreeSet<usize>,
    /// A left-out node with records has joined members by itself: all processes were started again.
    is_mixed: bool,
    keys: u64,
    /// Count of events, and the clock of the writes.
    now: u64,
    pub(super) coverage: Coverage,
    pub(super) story: Option<String>,
}

fn node_id(node: usize) -> String {
    char::from(b'A' + node as u8).to_string()
}

fn node_number(id: &str) -> usize {
    usize::from(id.as_bytes()[0] - b'A')
}

fn permutations(nodes: usize) -> Vec<Vec<usize>> {
    let mut lists = Vec::new();
    for first in 0..nodes {
        for second in (0..nodes).filter(|second| *second != first) {
            let rest = (1..nodes).map(|step| (second + step) % nodes).filter(|node| *node != first);
            lists.push([first, second].into_iter().chain(rest).collect());
        }
    }
    lists
}

impl World {
    /// `record` is the order of the nodes for the record of fences.
    pub(super) fn new(nodes: usize, record: usize, rule: Rule) -> Self {
        let orders = permutations(nodes);
        let units: Vec<Vec<usize>> =
            orders.iter().chain(&orders).cloned().chain([orders[record % orders.len()].clone()]).collect();
        let name = ClusterName { base: BASE.into(), fence: None };
        let node = ServerNode {
            is_up: true,
            is_frozen: false,
            is_cut: false,
            name,
            cluster: None,
            copies: vec![None; units.len()],
            old_requests: Vec::new(),
            old_renames: Vec::new(),
        };
        let mut world = World {
            rule,
            nodes: vec![node; nodes],
            least: nodes / 2 + 1,
            committed: vec![0; units.len()],
            last_members: (0..nodes).collect(),
            last_met: 0,
            emptied: BTreeSet::new(),
            is_mixed: false,
            units,
            instances: vec![Instance::default(); INSTANCES],
            keys: 0,
            now: 0,
            coverage: Coverage::default(),
            story: None,
        };
        // A store whose first fence is met: sentinels and first versions are there.
        for unit in 0..world.record_unit() {
            for owner in world.owners(unit, &(0..nodes).collect()) {
                world.nodes[owner].copies[unit] =
                    Some(UnitCopy { time: 0, version: 0, fences: FenceRecord::default(), generation: 0 });
            }
        }
        world.apply(Event::Settle(0)).expect("no view is in use yet");
        while world.instances[0].used.is_none() {
            let is_doing = world.instances[0].doing.is_some();
            let event = if is_doing { Event::Continue(0) } else { Event::Look(0, 0) };
            world.apply(event).expect("no node has failed");
        }
        world
    }

    fn record_unit(&self) -> usize {
        self.units.len() - 1
    }

    fn sentinels(&self) -> std::ops::Range<usize> {
        0..self.record_unit() / 2
    }

    pub(super) fn data(&self) -> std::ops::Range<usize> {
        self.record_unit() / 2..self.record_unit()
    }

    fn owners(&self, unit: usize, members: &BTreeSet<usize>) -> Vec<usize> {
        self.units[unit].iter().copied().filter(|node| members.contains(node)).take(COPIES).collect()
    }

    fn tell(&mut self, text: impl FnOnce(&World) -> String) {
        if self.story.is_some() {
            let line = text(self);
            let now = self.now;
            if let Some(story) = &mut self.story {
                let _ = writeln!(story, "    {now:>4} {line}");
            }
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.coverage.0.entry(what).or_default() += 1;
    }

    fn reach(&self, one: usize, other: usize) -> bool {
        let (one, other) = (&self.nodes[one], &self.nodes[other]);
        let answers = |node: &ServerNode| node.is_up && !node.is_frozen;
        answers(one) && answers(other) && one.is_cut == other.is_cut
    }

    // The servers.

    /// Members of the cluster of a node that the node reaches and that have the same cluster.
    fn peers(&self, node: usize) -> BTreeSet<usize> {
        let Some(cluster) = &self.nodes[node].cluster else { return BTreeSet::new() };
        let is_peer = |other: &usize| self.reach(node, *other) && self.nodes[*other].cluster.as_ref() == Some(cluster);
        cluster.members.iter().copied().filter(is_peer).collect()
    }

    fn newest(&self, unit: usize, nodes: &BTreeSet<usize>) -> Option<&UnitCopy> {
        nodes.iter().filter_map(|node| self.nodes[*node].copies[unit].as_ref()).max_by_key(|copy| copy.time)
    }

    /// The copies of a unit are on its owners, and on no other member.
    fn is_complete(&self, unit: usize, members: &BTreeSet<usize>) -> bool {
        let newest = self.newest(unit, members);
        let owners = self.owners(unit, members);
        members.iter().all(|node| {
            let copy = self.nodes[*node].copies[unit].as_ref();
            if owners.contains(node) { copy == newest } else { copy.is_none() }
        })
    }

    /// Reads a unit at the cluster of `node`: duplicates are resolved, unless the copies are complete.
    fn read(&self, node: usize, unit: usize) -> Result<Option<UnitCopy>, ()> {
        let members = self.nodes[node].cluster.as_ref().ok_or(())?.members.clone();
        let peers = self.peers(node);
        let owners = self.owners(unit, &members);
        let may_read = peers == members || (peers.contains(&owners[0]) && self.is_complete(unit, &members));
        if may_read { Ok(self.newest(unit, &peers).cloned()) } else { Err(()) }
    }

    /// Writes a unit at the cluster of `node`: to all owners, or not at all.
    fn write(&mut self, node: usize, unit: usize, copy: &UnitCopy) -> Result<(), ()> {
        let members = self.nodes[node].cluster.as_ref().ok_or(())?.members.clone();
        let peers = self.peers(node);
        let owners = self.owners(unit, &members);
        let reaches_owners = owners.iter().all(|owner| peers.contains(owner));
        if !reaches_owners || (peers != members && !self.is_complete(unit, &members)) {
            return Err(());
        }
        for owner in owners {
            self.nodes[owner].copies[unit] = Some(copy.clone());
        }
        Ok(())
    }

    fn settle(&mut self, node: usize) {
        if !self.reach(node, node) {
            return;
        }
        let is_of_group = |other: &usize| self.reach(node, *other) && self.nodes[*other].name == self.nodes[node].name;
        let group: BTreeSet<usize> = (0..self.nodes.len()).filter(is_of_group).collect();
        if group.len() < self.least {
            for member in group {
                self.nodes[member].cluster = None;
            }
            self.tell(|world| {
                format!("{} is in no cluster", node_id(node) + " " + &world.nodes[node].name.to_string())
            });
            return;
        }
        let present = self.nodes[node].cluster.clone();
        if present.as_ref().is_some_and(|present| present.members == group)
            && group.iter().all(|member| self.nodes[*member].cluster == present)
        {
            return;
        }
        let is_old = |member: &usize| !self.last_members.contains(member) && !self.emptied.contains(member);
        self.is_mixed |= self.nodes[node].name.fence.is_none() && group.iter().any(is_old);
        self.keys += 1;
        for member in &group {
            let cluster = ServerCluster { key: self.keys, members: group.clone() };
            let node = &mut self.nodes[*member];
            (node.cluster, node.old_requests) = (Some(cluster), Vec::new());
        }
        self.tell(|world| format!("cluster {} named {}: {group:?}", world.keys, world.nodes[node].name));
        self.count("clusters");
    }

    fn migrate(&mut self, node: usize, unit: usize) {
        let Some(ServerCluster { members, .. }) = self.nodes[node].cluster.clone() else { return };
        if self.peers(node) != members || self.is_complete(unit, &members) {
            return;
        }
        let newest = self.newest(unit, &members).cloned();
        let owners = self.owners(unit, &members);
        for member in members {
            self.nodes[member].copies[unit] = if owners.contains(&member) { newest.clone() } else { None };
        }
        self.tell(|_| format!("unit {unit} migrated"));
    }

    fn kill(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        (node.is_up, node.is_frozen, node.is_cut, node.cluster) = (false, false, false, None);
        (node.old_requests, node.old_renames) = (Vec::new(), Vec::new());
        node.name.fence = None;
    }

    fn isolate(&mut self, node: usize, freeze: bool) {
        if !self.nodes[node].is_up || self.nodes[node].is_frozen || self.nodes[node].is_cut {
            return;
        }
        let mut requests = Vec::new();
        if let Some(ServerCluster { members, .. }) = &self.nodes[node].cluster {
            for unit in 0..self.units.len() {
                let has_newest = self.newest(unit, members) == self.nodes[node].copies[unit].as_ref();
                if has_newest && self.owners(unit, members).contains(&node) {
                    requests.push(unit);
                }
            }
        }
        let node = &mut self.nodes[node];
        node.old_requests = requests;
        (node.is_frozen, node.is_cut) = (freeze, !freeze);
    }

    fn heal(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        (node.is_frozen, node.is_cut) = (false, false);
        for name in std::mem::take(&mut node.old_renames) {
            node.name = name;
        }
    }

    /// The requests are applied once: whatever the node does later, it does as a member.
    fn apply_old_requests(&mut self, node: usize) {
        let time = self.now;
        let node = &mut self.nodes[node];
        for unit in std::mem::take(&mut node.old_requests) {
            if let Some(copy) = &mut node.copies[unit] {
                copy.time = time;
            }
        }
    }

    // An instance.

    fn answers(&self, silent: u32) -> Vec<NodeAnswer> {
        let answers = |node: &usize| self.reach(*node, *node) && silent >> node & 1 == 0;
        let answer = |node: usize| {
            let ServerNode { name, cluster, .. } = &self.nodes[node];
            let cluster = cluster.as_ref().map(|ServerCluster { key, members }| NodeCluster {
                key: format!("{key:X}"),
                size: Some(members.len()),
            });
            NodeAnswer { host: node, node: node_id(node), name: name.clone(), cluster }
        };
        (0..self.nodes.len()).filter(answers).map(answer).collect()
    }

    fn is_empty(&self, node: usize) -> bool {
        self.nodes[node].copies.iter().all(Option::is_none)
    }

    /// A node that serves the client of an instance.
    fn server(&self, instance: usize) -> Option<usize> {
        let mut nodes = self.instances[instance].nodes.iter().map(|node| node_number(node));
        nodes.find(|node| self.reach(*node, *node) && self.nodes[*node].cluster.is_some())
    }

    fn read_record(&mut self, instance: usize) -> Option<StoredFences> {
        let server = self.server(instance)?;
        let stored = match self.read(server, self.record_unit()).ok()? {
            Some(UnitCopy { fences, generation, .. }) => StoredFences { record: fences, generation },
            None => StoredFences { record: FenceRecord::default(), generation: 0 },
        };
        self.instances[instance].cached = Some(stored.clone());
        Some(stored)
    }

    fn write_record(&mut self, instance: usize, stored: &StoredFences, record: &FenceRecord) -> Option<()> {
        self.instances[instance].cached = None;
        let (server, unit) = (self.server(instance)?, self.record_unit());
        let present = self.read(server, unit).ok()?.map_or(0, |copy| copy.generation);
        if present != stored.generation {
            return None;
        }
        let copy = UnitCopy { time: self.now, version: 0, fences: record.clone(), generation: present + 1 };
        self.write(server, unit, &copy).ok()
    }

    fn look(&mut self, instance: usize, silent: u32) {
        let answers = self.answers(silent);
        let one = &self.instances[instance];
        let view = View::find(&answers, one.base.as_deref());
        let looked_at = self.now;
        let Some(view) = view else {
            return self.finish_interrupted(instance, &answers);
        };
        if one.used.as_ref() == Some(&view) {
            return self.tend(instance, &view, silent);
        }
        if one.nodes != view.nodes() {
            let one = &mut self.instances[instance];
            (one.nodes, one.used) = (view.nodes(), None);
            return;
        }
        self.tell(|_| format!("instance {instance} looks: {}", describe(&view)));
        self.instances[instance].doing = Some(Doing::Decide { view, looked_at });
    }

    fn finish_interrupted(&mut self, instance: usize, answers: &[NodeAnswer]) {
        if answers.iter().all(|answer| answer.name.fence.is_none()) {
            return;
        }
        let with_records = answers.iter().filter(|answer| !self.is_empty(answer.host));
        let with_records = with_records.map(|answer| answer.node.clone()).collect();
        let met = self.instances[instance].met;
        let Some((name, hosts)) = interrupted_fence(answers, &with_records, met) else { return };
        if !hosts.is_empty() {
            self.tell(|_| format!("instance {instance} finishes {name} at {hosts:?} (met {met:?})"));
            self.count("interrupted fences");
            self.instances[instance].doing = Some(Doing::Rename { hosts, name, looked_at: self.now });
        }
    }

    fn tend(&mut self, instance: usize, view: &View, silent: u32) {
        let Some(stored) = self.instances[instance].cached.clone().or_else(|| self.read_record(instance)) else {
            return;
        };
        let members: BTreeSet<usize> = view.members.values().map(|member| member.host).collect();
        if stored.record.complete != view.nodes() || !stored.record.unproven.is_empty() {
            let all = |unit| self.is_complete(unit, &members);
            if (0..self.units.len()).all(all) {
                self.instances[instance].doing = Some(Doing::RecordComplete { view: view.clone(), stored });
            }
            return;
        }
        for NodeAnswer { host, node, name, cluster } in self.answers(silent) {
            let is_outside = !view.members.contains_key(&node) && cluster.is_none() && name.base == view.base();
            if is_outside && name.fence.is_none() && self.is_empty(host) {
                let name = view.members.values().next().unwrap().name.clone();
                self.tell(|_| format!("instance {instance} admits {node} as {name}"));
                self.count("admissions");
                // All copies are on the members, and the record tells so.
                self.emptied.remove(&host);
                self.instances[instance].doing = Some(Doing::Rename { hosts: vec![host], name, looked_at: self.now });
                return;
            }
        }
    }

    /// Brings missing members back to a view that lacks copies.
    fn bring_back(&mut self, instance: usize, view: &View, record: &FenceRecord) {
        let mut waiting = self.answers(0);
        waiting.retain(|answer| record.met == 0 || !self.is_empty(answer.host));
        let Some((name, hosts)) = bring_back(view, record, &waiting).filter(|(_, hosts)| !hosts.is_empty()) else {
            return;
        };
        self.tell(|_| format!("instance {instance} brings members back: {hosts:?} as {name}"));
        self.count("members brought back");
        self.instances[instance].doing = Some(Doing::Rename { hosts, name, looked_at: self.now });
    }

    fn go_on(&mut self, instance: usize) -> Result<(), Ended> {
        match self.instances[instance].doing.take() {
            None => {}
            Some(Doing::Decide { view, looked_at }) => {
                let Some(stored) = self.read_record(instance) else { return Ok(()) };
                if stored.record.planned == 0 && view.members.len() < self.nodes.len() {
                    self.count("first fences with too few nodes");
                    return Ok(());
                }
                if self.instances[instance].met.is_some_and(|met| stored.record.met < met) {
                    self.tell(|_| format!("instance {instance} refuses an old record: {}", fences(&stored)));
                    self.count("old records");
                    return Ok(());
                }
                let step = (self.rule)(&view, &stored.record, COPIES);
                self.tell(|_| {
                    format!("instance {instance}, {}: {} -> {}", describe(&view), fences(&stored), short(&step))
                });
                self.check_limits(&view, &stored.record, &step)?;
                match step {
                    Ok(FenceStep::Use) => return self.use_view(instance, view),
                    Ok(FenceStep::Finish(name)) => {
                        let lacking = view.members.values().filter(|member| member.name != name);
                        let hosts = lacking.map(|member| member.host).collect();
                        self.count("finished fences");
                        self.instances[instance].doing = Some(Doing::Rename { hosts, name, looked_at });
                    }
                    Ok(step) => {
                        self.instances[instance].doing = Some(Doing::Write { view, looked_at, stored, step });
                    }
                    Err(UnsafeView::NotAdmitted { .. }) => self.count("not admitted"),
                    Err(UnsafeView::WentBack { .. }) => self.count("went back"),
                    Err(UnsafeView::CopiesLost { .. }) => {
                        self.count("copies lost");
                        self.bring_back(instance, &view, &stored.record);
                    }
                }
            }
            Some(Doing::Write { view, looked_at, stored, step }) => match step {
                FenceStep::Meet(record) => {
                    if self.write_record(instance, &stored, &record).is_some() {
                        self.tell(|_| format!("instance {instance} has met fence {}", record.met));
                        self.count("met fences");
                        if record.met > self.last_met {
                            self.last_met = record.met;
                            self.last_members = record.members.iter().map(|node| node_number(node)).collect();
                        }
                        return self.use_view(instance, view);
                    }
                }
                FenceStep::Plan(record, name) => {
                    if self.write_record(instance, &stored, &record).is_some() {
                        let mut hosts: Vec<usize> = view.members.values().map(|member| member.host).collect();
                        let first = self.now as usize % hosts.len();
                        hosts.rotate_left(first);
                        self.instances[instance].doing = Some(Doing::Rename { hosts, name, looked_at });
                    }
                }
                FenceStep::Use | FenceStep::Finish(_) => unreachable!("written only with a record"),
            },
            Some(Doing::Rename { mut hosts, name, looked_at }) => {
                let Some(host) = hosts.pop() else { return Ok(()) };
                if self.now - looked_at > RENAME_DEADLINE {
                    return Ok(());
                }
                if self.reach(host, host) {
                    self.nodes[host].name = name.clone();
                    self.tell(|_| format!("instance {instance} renames {} to {name}", node_id(host)));
                }
                self.instances[instance].doing = Some(Doing::Rename { hosts, name, looked_at });
            }
            Some(Doing::RecordComplete { view, stored }) => {
                let (joined, unproven) = (BTreeSet::new(), BTreeSet::new());
                let record = FenceRecord { complete: view.nodes(), joined, unproven, ..stored.record.clone() };
                if self.write_record(instance, &stored, &record).is_some() {
                    let members: BTreeSet<usize> = view.members.values().map(|member| member.host).collect();
                    if (0..self.units.len()).all(|unit| self.is_complete(unit, &members)) {
                        self.emptied.clear();
                    }
                    self.tell(|_| format!("instance {instance} records complete copies: {:?}", record.complete));
                    self.count("complete copies");
                }
            }
        }
        Ok(())
    }

    /// Ends a history in which a step follows that the rules cannot refuse: "Limits" of
    /// `docs/protocols/cluster-fence.md`.
    fn check_limits(
        &self,
        view: &View,
        record: &FenceRecord,
        step: &Result<FenceStep, UnsafeView>,
    ) -> Result<(), Ended> {
        if !matches!(step, Ok(FenceStep::Plan(..))) || !view.has_restarted() {
            return Ok(());
        }
        let members: BTreeSet<usize> = view.members.keys().map(|node| node_number(node)).collect();
        let emptied = members.intersection(&self.emptied).count();
        if emptied > 0 && emptied + self.nodes.len() - members.len() >= COPIES {
            return Err(Ended::Limit("limit: an emptied member, and another absent or emptied one"));
        }
        match self.is_mixed {
            true if record.met < self.last_met => Err(Ended::Limit("limit: old records hide the last fence")),
            true if members.is_subset(&self.last_members) => Err(Ended::Limit("limit: old records merged unseen")),
            _ => Ok(()),
        }
    }

    /// Replaces an instance by a fresh one. Renames to a frozen node stay in its socket: the machine of the instance is
    /// gone.
    fn stop(&mut self, instance: usize) {
        let stopped = std::mem::take(&mut self.instances[instance]);
        if let Some(Doing::Rename { hosts, name, looked_at }) = stopped.doing
            && self.now - looked_at <= RENAME_DEADLINE
        {
            for host in hosts {
                if self.nodes[host].is_frozen {
                    self.nodes[host].old_renames.push(name.clone());
                }
            }
        }
    }

    fn use_view(&mut self, instance: usize, view: View) -> Result<(), Ended> {
        let one = &mut self.instances[instance];
        one.met = view.fence().max(one.met);
        (one.base, one.used) = (Some(view.base().to_owned()), Some(view.clone()));
        self.count("used views");
        self.judge(instance, &view)
    }

    /// Judges a view in use if the servers still have the view; a view that they have no more is confirmed no more.
    fn judge(&mut self, instance: usize, view: &View) -> Result<(), Ended> {
        if View::find(&self.answers(0), Some(BASE)).as_ref() != Some(view) {
            return Ok(());
        }
        let members: BTreeSet<usize> = view.members.values().map(|member| member.host).collect();
        if self.sentinels().any(|unit| self.newest(unit, &members).is_none()) {
            return Err(Ended::SentinelMissing);
        }
        for unit in self.data() {
            let found = self.newest(unit, &members).map(|copy| copy.version);
            if found != Some(self.committed[unit]) {
                return Err(Ended::Broken(format!(
                    "instance {instance} uses {}: unit {unit} is at version {found:?}, committed was {}",
                    describe(view),
                    self.committed[unit]
                )));
            }
        }
        Ok(())
    }

    fn commit(&mut self, instance: usize, unit: usize) -> Result<(), Ended> {
        let Some(view) = self.instances[instance].used.clone() else { return Ok(()) };
        if View::find(&self.answers(0), Some(BASE)).as_ref() != Some(&view) {
            return Ok(());
        }
        self.judge(instance, &view)?;
        let Some(server) = view.members.values().next().map(|member| member.host) else { return Ok(()) };
        let time = self.now;
        let copy = UnitCopy { time, version: time, fences: FenceRecord::default(), generation: 0 };
        if self.write(server, unit, &copy).is_ok() {
            self.committed[unit] = time;
            self.tell(|_| format!("instance {instance} commits unit {unit}"));
            self.count("commits");
        }
        Ok(())
    }

    pub(super) fn apply(&mut self, event: Event) -> Result<(), Ended> {
        self.now += 1;
        match event {
            Event::Kill(node) => self.kill(node),
            Event::Start(node) => self.nodes[node].is_up = true,
            Event::Wipe(node) if !self.nodes[node].is_up => {
                self.nodes[node].copies.fill(None);
                self.emptied.insert(node);
            }
            Event::Freeze(node) => self.isolate(node, true),
            Event::Cut(node) => self.isolate(node, false),
            Event::Heal(node) => self.heal(node),
            Event::PowerCut => (0..self.nodes.len()).for_each(|node| self.kill(node)),
            Event::Settle(node) => self.settle(node),
            Event::OldRequests(node) => self.apply_old_requests(node),
            Event::Migrate(node, unit) => self.migrate(node, unit),
            Event::Look(instance, silent) => {
                if self.instances[instance].doing.is_none() {
                    self.look(instance, silent);
                }
            }
            Event::Continue(instance) => return self.go_on(instance),
            Event::Stop(instance) => self.stop(instance),
            Event::Commit(instance, unit) => return self.commit(instance, unit),
            Event::Wipe(_) => {}
        }
        Ok(())
    }
}

fn describe(view: &View) -> String {
    let member = |(node, member): (&String, &Member)| match member.name.fence {
        Some(_) => format!("{node}{}", member.name.to_string().trim_start_matches(BASE)),
        None => node.clone(),
    };
    format!("view {} [{}]", view.key, view.members.iter().map(member).collect::<Vec<_>>().join(" "))
}

fn fences(stored: &StoredFences) -> String {
    let FenceRecord { planned, met, members, complete, joined, unproven } = &stored.record;
    let join = |nodes: &BTreeSet<String>| nodes.iter().map(String::as_str).collect::<String>();
    let (members, complete) = (join(members), join(complete));
    let (joined, unproven) = (join(joined), join(unproven));
    format!("planned {planned}, met {met} {members}, complete {complete}, joined {joined}, unproven {unproven}")
}

fn short(step: &Result<FenceStep, UnsafeView>) -> String {
    match step {
        Ok(FenceStep::Plan(_, name)) => format!("plan {name}"),
        Ok(FenceStep::Meet(record)) => format!("meet {}", record.met),
        Ok(FenceStep::Finish(name)) => format!("finish {name}"),
        step => format!("{step:?}"),
    }
}

/// Faults that a history may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Profile {
    /// A node fails at a time, and the next one once the copies are recorded as complete. Power cuts, stopped
    /// instances. The operator deletes the records of left-out nodes before their start.
    OneNode,
    /// Any number of nodes. The operator deletes the records of left-out nodes before their start.
    AnyNodes,
    /// Any number of nodes. Left-out nodes start with their records.
    AnyNodesCareless,
}

/// Weights of the faults of a history, by their kind.
#[derive(Debug, Clone, Copy)]
struct Faults {
    kill: u64,
    wipe: u64,
    freeze: u64,
    cut: u64,
    power_cut: u64,
    stop: u64,
}

/// A history: the cluster, and its events.
#[derive(Debug, Clone)]
pub(super) struct History {
    pub(super) nodes: usize,
    pub(super) record: usize,
    pub(super) events: Vec<Event>,
}

struct Generator {
    rng: SplitMix64,
    profile: Profile,
    faults: Faults,
    /// A member that has lost its records, until the copies are complete again.
    emptied: Option<usize>,
    world: World,
    events: Vec<Event>,
    ended: Option<Ended>,
}

impl Generator {
    fn new(seed: u64, profile: Profile, rule: Rule) -> (Self, usize, usize) {
        let mut rng = SplitMix64::new(seed);
        let nodes = if rng.below(4) == 0 { 5 } else { 3 };
        let record = rng.below(20) as usize;
        let mut weight = || [0, 1, 2, 4][rng.below(4) as usize];
        let faults = Faults {
            kill: weight() + 1,
            wipe: weight(),
            freeze: weight(),
            cut: weight(),
            power_cut: weight(),
            stop: weight(),
        };
        let world = World::new(nodes, record, rule);
        (Generator { rng, profile, faults, emptied: None, world, events: Vec::new(), ended: None }, nodes, record)
    }

    fn push(&mut self, event: Event) {
        if self.ended.is_none() {
            self.events.push(event);
            self.ended = self.world.apply(event).err();
        }
    }

    fn node(&mut self) -> usize {
        self.rng.below(self.world.nodes.len() as u64) as usize
    }

    fn settle_all(&mut self) {
        let from = self.node();
        let nodes = self.world.nodes.len();
        (0..nodes).for_each(|step| self.push(Event::Settle((from + step) % nodes)));
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..55 => self.instance_event(),
            55..70 => {
                let node = self.node();
                self.push(Event::Settle(node));
            }
            70..78 => {
                let node = self.node();
                let unit = self.rng.below(self.world.units.len() as u64) as usize;
                self.push(Event::Migrate(node, unit));
            }
            78..84 => self.fault(),
            84..91 => self.repair(),
            91..94 => {
                let node = self.node();
                self.push(Event::OldRequests(node));
            }
            _ => self.quiet_time(),
        }
    }

    fn instance_event(&mut self) {
        let instance = self.rng.below(INSTANCES as u64) as usize;
        let is_doing = self.world.instances[instance].doing.is_some();
        match self.rng.below(10) {
            0 if self.rng.below(10) < self.faults.stop => self.push(Event::Stop(instance)),
            1..3 => {
                let data = self.world.data();
                let unit = data.start + self.rng.below(data.len() as u64) as usize;
                self.push(Event::Commit(instance, unit));
            }
            _ if is_doing => self.push(Event::Continue(instance)),
            _ => {
                let silent = if self.rng.below(6) == 0 { 1 << self.node() } else { 0 };
                self.push(Event::Look(instance, silent));
            }
        }
    }

    fn fault(&mut self) {
        let Faults { kill, wipe, freeze, cut, power_cut, .. } = self.faults;
        let node = self.node();
        let is_healthy = self.world.is_healthy();
        // With another node absent, an emptied member that starts again after a power cut is seen by sentinels only.
        self.emptied = self.emptied.filter(|node| !is_healthy && self.world.last_members.contains(node));
        let mut drawn = self.rng.below(kill + wipe + freeze + cut + power_cut);
        for (weight, event) in [
            (kill, Event::Kill(node)),
            (wipe, Event::Wipe(node)),
            (freeze, Event::Freeze(node)),
            (cut, Event::Cut(node)),
            (power_cut, Event::PowerCut),
        ] {
            if drawn < weight {
                let may_fail =
                    is_healthy || (event == Event::PowerCut && self.emptied.is_none() && !self.world.has_stray());
                if self.profile == Profile::OneNode && !may_fail {
                    return;
                }
                if let Event::Wipe(node) = event {
                    return self.lose_records(node);
                }
                return self.push(event);
            }
            drawn -= weight;
        }
    }

    /// A node loses its records; a power cut can be the reason.
    fn lose_records(&mut self, node: usize) {
        self.emptied = Some(node);
        if self.rng.below(3) > 0 {
            self.push(Event::Kill(node));
            return self.push(Event::Wipe(node));
        }
        self.push(Event::PowerCut);
        self.push(Event::Wipe(node));
        if self.profile == Profile::OneNode {
            (0..self.world.nodes.len()).for_each(|node| self.push(Event::Start(node)));
        }
    }

    fn repair(&mut self) {
        let node = self.node();
        if self.world.nodes[node].is_up {
            return self.push(Event::Heal(node));
        }
        if self.profile != Profile::AnyNodesCareless && !self.world.last_members.contains(&node) {
            self.push(Event::Wipe(node));
        }
        self.push(Event::Start(node));
    }

    /// The nodes settle, an instance goes on for some steps, and units may migrate.
    fn quiet_time(&mut self) {
        let instance = self.rng.below(INSTANCES as u64) as usize;
        for _ in 0..1 + self.rng.below(3) {
            self.settle_all();
            for _ in 0..2 + self.rng.below(8) {
                let is_doing = self.world.instances[instance].doing.is_some();
                self.push(if is_doing { Event::Continue(instance) } else { Event::Look(instance, 0) });
            }
        }
        if self.rng.below(2) == 0 {
            let skipped = self.rng.below(2 * self.world.units.len() as u64) as usize;
            let node = self.node();
            for unit in (0..self.world.units.len()).filter(|unit| *unit != skipped) {
                if !self.world.is_unit_complete(node, unit) {
                    self.push(Event::Migrate(node, unit));
                }
            }
        }
    }
}

impl World {
    fn is_unit_complete(&self, node: usize, unit: usize) -> bool {
        let cluster = self.nodes[node].cluster.as_ref();
        cluster.is_none_or(|cluster| self.is_complete(unit, &cluster.members))
    }
}

/// Generates the history of a seed and a profile under a rule, and its end.
fn generate(seed: u64, profile: Profile, rule: Rule) -> (History, Option<Ended>, Coverage) {
    let (mut generator, nodes, record) = Generator::new(seed, profile, rule);
    while generator.events.len() < EVENTS && generator.ended.is_none() {
        generator.step();
    }
    let Generator { events, ended, world, .. } = generator;
    (History { nodes, record, events }, ended, world.coverage)
}

/// Runs a history; returns its end, and its story if that is wanted.
pub(super) fn run(history: &History, rule: Rule, with_story: bool) -> (Option<Ended>, String) {
    let mut world = World::new(history.nodes, history.record, rule);
    world.story = with_story.then(String::new);
    for event in &history.events {
        let is_told = !matches!(event, Event::Look(..) | Event::Continue(_) | Event::Settle(_) | Event::Migrate(..));
        if is_told && !matches!(event, Event::Commit(..)) {
            world.now += 1;
            world.tell(|_| format!("{event:?}"));
            world.now -= 1;
        }
        if let Err(ended) = world.apply(*event) {
            return (Some(ended), world.story.unwrap_or_default());
        }
    }
    (None, world.story.unwrap_or_default())
}

/// Removes events for as long as the history still breaks the invariant.
fn shrink(mut history: History, rule: Rule) -> History {
    let is_broken = |history: &History| matches!(run(history, rule, false).0, Some(Ended::Broken(_)));
    let mut size = history.events.len() / 2;
    while size > 0 {
        let mut at = 0;
        let before = history.events.len();
        while at < history.events.len() {
            let mut candidate = history.clone();
            candidate.events.drain(at..(at + size).min(history.events.len()));
            if is_broken(&candidate) {
                history = candidate;
            } else {
                at += size;
            }
        }
        if size > 1 || before == history.events.len() {
            size /= 2;
        }
    }
    history
}

/// Describes a broken history: reduced, with its story.
fn describe_broken(seed: u64, history: History, rule: Rule) -> (usize, String) {
    let small = shrink(history, rule);
    let (ended, story) = run(&small, rule, true);
    let Some(Ended::Broken(problem)) = ended else { unreachable!("a reduced history is broken") };
    let text = format!(
        "FENCE_SEED={seed} breaks the invariant: {problem}\n{} nodes, record {}, {} events:\n{story}    {:?}\n",
        small.nodes,
        small.record,
        small.events.len(),
        small.events
    );
    (small.events.len(), text)
}

fn env_number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Returns the broken histories among the seeds, the shortest first, and what the histories reached.
fn find_broken(
    seeds: std::ops::Range<u64>,
    profile: Profile,
    rule: Rule,
    enough: usize,
) -> (Vec<(usize, String)>, Coverage) {
    let (mut broken, mut coverage) = (Vec::new(), Coverage::default());
    for seed in seeds {
        let (history, ended, reached) = generate(seed, profile, rule);
        coverage.absorb(reached);
        match ended {
            Some(Ended::Broken(_)) => broken.push(describe_broken(seed, history, rule)),
            Some(Ended::Limit(limit)) => coverage.absorb(Coverage([(limit, 1)].into())),
            Some(Ended::SentinelMissing) => coverage.absorb(Coverage([("sentinels missing", 1)].into())),
            None => {}
        }
        if broken.len() >= enough {
            break;
        }
    }
    broken.sort();
    (broken, coverage)
}

impl Coverage {
    fn absorb(&mut self, other: Coverage) {
        for (what, count) in other.0 {
            *self.0.entry(what).or_default() += count;
        }
    }
}

fn seeds() -> std::ops::Range<u64> {
    if let Some(seed) = env_number("FENCE_SEED") {
        return seed..seed + 1;
    }
    let from = env_number("FENCE_FROM").unwrap_or(0);
    from..from + env_number("FENCE_SEEDS").unwrap_or(DEFAULT_SEEDS)
}

fn check_profile(profile: Profile) {
    let seeds = seeds();
    let enough = env_number("FENCE_ENOUGH").unwrap_or(1) as usize;
    let (broken, coverage) = find_broken(seeds.clone(), profile, next_step, enough);
    eprintln!("{profile:?}, seeds {seeds:?}: {} broken, {coverage:?}", broken.len());
    let shown = env_number("FENCE_SHOWN").unwrap_or(1) as usize;
    let texts: Vec<String> = broken.into_iter().take(shown).map(|(_, text)| text).collect();
    assert!(texts.is_empty(), "the shortest:\n{}", texts.join("\n"));
}

#[test]
fn one_lost_node_at_a_time_loses_no_committed_write() {
    check_profile(Profile::OneNode);
}

#[test]
fn a_view_in_use_has_every_committed_write() {
    check_profile(Profile::AnyNodes);
}

#[test]
fn old_records_of_left_out_nodes_are_refused() {
    check_profile(Profile::AnyNodesCareless);
}

// Broken rules.

fn with_record(view: &View, record: &FenceRecord, copies: usize, change: fn(&View, &mut FenceRecord)) -> StepResult {
    let mut changed = record.clone();
    change(view, &mut changed);
    next_step(view, &changed, copies)
}

type StepResult = Result<FenceStep, UnsafeView>;

fn without_admission(view: &View, record: &FenceRecord, copies: usize) -> StepResult {
    match next_step(view, record, copies) {
        Err(UnsafeView::NotAdmitted { .. }) => {
            with_record(view, record, copies, |view, record| record.members.extend(view.nodes()))
        }
        step => step,
    }
}

fn without_lost_copies(view: &View, record: &FenceRecord, copies: usize) -> StepResult {
    match next_step(view, record, copies) {
        Err(UnsafeView::CopiesLost { .. }) => {
            with_record(view, record, copies, |view, record| record.complete = view.nodes())
        }
        step => step,
    }
}

/// Members that were all started again may have lost their files.
fn without_unproven_members(view: &View, record: &FenceRecord, copies: usize) -> StepResult {
    with_record(view, record, copies, |_, record| record.unproven.clear())
}

/// Migrations may have brought the only copies to an admitted node.
fn without_joined_members(view: &View, record: &FenceRecord, copies: usize) -> StepResult {
    with_record(view, record, copies, |_, record| record.joined.clear())
}

fn met_copies_count_as_complete(view: &View, record: &FenceRecord, copies: usize) -> StepResult {
    match next_step(view, record, copies) {
        Ok(FenceStep::Meet(met)) => Ok(FenceStep::Meet(FenceRecord { complete: view.nodes(), ..met })),
        step => step,
    }
}

/// A view is used under the fence of more members: no fence is set as a member leaves.
fn without_fence_for_a_leaver(view: &View, record: &FenceRecord, copies: usize) -> StepResult {
    match next_step(view, record, copies) {
        Ok(FenceStep::Plan(..)) if record.met > 0 && view.nodes().is_subset(&record.members) => Ok(FenceStep::Use),
        step => step,
    }
}

#[test]
fn broken_rules_are_found() {
    // Each with a seed shortly before the first one that finds the rule.
    let rules: [(&str, Profile, u64, Rule); 6] = [
        ("without_admission", Profile::AnyNodesCareless, 3970, without_admission),
        ("without_lost_copies", Profile::AnyNodes, 3600, without_lost_copies),
        ("met_copies_count_as_complete", Profile::AnyNodes, 3360, met_copies_count_as_complete),
        ("without_fence_for_a_leaver", Profile::OneNode, 0, without_fence_for_a_leaver),
        ("without_unproven_members", Profile::OneNode, 3955, without_unproven_members),
        ("without_joined_members", Profile::OneNode, 8348, without_joined_members),
    ];
    let mut missed = Vec::new();
    for (name, profile, from, rule) in rules {
        // The sound rule must not be broken by the same history.
        let find = |seed| match generate(seed, profile, rule) {
            (history, Some(Ended::Broken(_)), _) => {
                let small = shrink(history, rule);
                let is_sound = !matches!(run(&small, next_step, false).0, Some(Ended::Broken(_)));
                is_sound.then_some((seed, small))
            }
            _ => None,
        };
        match (from..from + env_number("FENCE_SEEDS").unwrap_or(40)).find_map(find) {
            Some((seed, history)) => {
                eprintln!(
                    "{name}: found by seed {seed} ({profile:?}), {} events after reduction",
                    history.events.len()
                );
                if env_number("FENCE_SHOWN").is_some() {
                    eprintln!("{}", run(&history, rule, true).1);
                }
            }
            None => missed.push(name),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

// After the faults.

impl World {
    /// Every node is a member of one cluster whose fence is met, and the copies are recorded as complete.
    fn is_healthy(&self) -> bool {
        let all: BTreeSet<usize> = (0..self.nodes.len()).collect();
        let is_member = |node: &usize| self.peers(*node) == all && self.nodes[*node].name == self.nodes[0].name;
        let complete: BTreeSet<String> = all.iter().map(|node| node_id(*node)).collect();
        let fence = self.nodes[0].name.fence.map(|fence| fence.number);
        let is_recorded = |copy: &UnitCopy| {
            let FenceRecord { joined, unproven, .. } = &copy.fences;
            joined.is_empty()
                && unproven.is_empty()
                && copy.fences.complete == complete
                && copy.fences.members == complete
                && Some(copy.fences.met) == fence
        };
        all.iter().all(is_member)
            && fence == Some(self.last_met)
            && (0..self.units.len()).all(|unit| self.is_complete(unit, &all))
            && self.newest(self.record_unit(), &all).is_some_and(is_recorded)
    }

    /// A left-out node has joined the members by itself: all processes were started again.
    fn has_stray(&self) -> bool {
        let is_stray = |node: usize| {
            let ServerNode { name, cluster, .. } = &self.nodes[node];
            !self.last_members.contains(&node) && cluster.is_some() && name.fence.is_none()
        };
        (0..self.nodes.len()).any(is_stray)
    }

    fn has_view_with_all_nodes(&self) -> bool {
        let found = View::find(&self.answers(0), Some(BASE));
        let is_used = self.instances.iter().any(|one| one.used.is_some() && one.used == found);
        is_used && self.is_healthy()
    }
}

/// Ends all faults, and does what `docs/operating/halts-and-recovery.md` tells an operator: members start with their
/// records, also those that wait outside; left-out nodes are stopped, emptied, and started once the members are in use.
/// Returns the number of rounds until all nodes are in use, and whether all members had to be started again.
fn recover(generator: &mut Generator) -> Result<(usize, bool), String> {
    let nodes = generator.world.nodes.len();
    let (mut emptied, mut has_restarted) = (BTreeSet::new(), false);
    for round in 0..60 {
        if let Some(ended) = &generator.ended {
            return Err(format!("{ended:?}"));
        }
        if generator.world.has_view_with_all_nodes() {
            return Ok((round, has_restarted));
        }
        let found = View::find(&generator.world.answers(0), Some(BASE));
        let is_in_use = generator.world.instances.iter().any(|one| one.used.is_some() && one.used == found);
        for node in 0..nodes {
            generator.push(Event::Heal(node));
            let is_member = generator.world.last_members.contains(&node);
            let is_in_view = found.as_ref().is_some_and(|view| view.members.contains_key(&node_id(node)));
            match (is_member, is_in_use) {
                (true, _) => generator.push(Event::Start(node)),
                // Left-out nodes with records or a name are stopped at once, and start once the members are in use.
                (false, _) if is_in_view && is_in_use => {}
                (false, false) => {
                    generator.push(Event::Kill(node));
                    emptied.remove(&node);
                }
                (false, true) if emptied.insert(node) || round % 10 == 9 => {
                    generator.push(Event::Kill(node));
                    generator.push(Event::Wipe(node));
                    generator.push(Event::Start(node));
                }
                (false, true) => {}
            }
        }
        if round % 10 == 2
            && !is_in_use
            && let Some(found) = &found
        {
            // Members of the last fence that wait outside start again with their records.
            for member in generator.world.last_members.clone() {
                if !found.members.contains_key(&node_id(member)) {
                    generator.push(Event::Kill(member));
                    generator.push(Event::Start(member));
                }
            }
        }
        if round % 10 == 5 && !is_in_use {
            // No instance finds a view: the members start again with their records.
            has_restarted = true;
            let members: Vec<usize> = generator.world.last_members.iter().copied().collect();
            members.iter().for_each(|member| generator.push(Event::Kill(*member)));
            members.iter().for_each(|member| generator.push(Event::Start(*member)));
        }
        for instance in 0..INSTANCES {
            generator.settle_all();
            for _ in 0..10 {
                let is_doing = generator.world.instances[instance].doing.is_some();
                generator.push(if is_doing { Event::Continue(instance) } else { Event::Look(instance, 0) });
            }
        }
        for unit in 0..generator.world.units.len() {
            (0..nodes).for_each(|node| generator.push(Event::Migrate(node, unit)));
        }
    }
    Err("no view with all nodes is used".into())
}

#[test]
fn the_cluster_becomes_whole_again_after_faults() {
    let (mut slowest, mut restarts, mut limits, mut stuck) = (0, 0, 0, Vec::new());
    for seed in seeds() {
        let (mut generator, nodes, record) = Generator::new(seed, Profile::OneNode, next_step);
        while generator.events.len() < EVENTS && generator.ended.is_none() {
            generator.step();
        }
        match recover(&mut generator) {
            Ok((rounds, has_restarted)) => {
                slowest = slowest.max(rounds);
                restarts += u64::from(has_restarted);
            }
            Err(_) if matches!(generator.ended, Some(Ended::Limit(_))) => limits += 1,
            Err(problem) => {
                let history = History { nodes, record, events: generator.events };
                stuck.push((seed, problem, history));
            }
        }
    }
    eprintln!(
        "slowest {slowest} rounds, members started again in {restarts} histories, limits {limits}, stuck {}",
        stuck.len()
    );
    if let Some((seed, problem, history)) = stuck.first() {
        let (_, story) = run(history, next_step, true);
        let seeds: Vec<u64> = stuck.iter().map(|(seed, ..)| *seed).collect();
        panic!("FENCE_SEED={seed}: {problem}\n{story}\nseeds: {seeds:?}");
    }
}

// Histories that broke the invariant before the rules were mended.

impl Generator {
    fn scripted(nodes: usize, record: usize) -> Self {
        let faults = Faults { kill: 1, wipe: 0, freeze: 0, cut: 0, power_cut: 0, stop: 0 };
        let (profile, rng) = (Profile::AnyNodesCareless, SplitMix64::new(0));
        let mut world = World::new(nodes, record, next_step);
        world.story = Some(String::new());
        Generator { rng, profile, faults, emptied: None, world, events: Vec::new(), ended: None }
    }

    fn all(&mut self, events: impl IntoIterator<Item = Event>) {
        events.into_iter().for_each(|event| self.push(event));
    }

    /// An instance takes steps until it has nothing left to do; the nodes settle between two rounds.
    fn work(&mut self, instance: usize) {
        for _ in 0..4 {
            self.all((0..self.world.nodes.len()).map(Event::Settle));
            self.work_without_settling(instance);
        }
    }

    fn work_without_settling(&mut self, instance: usize) {
        for _ in 0..9 {
            let is_doing = self.world.instances[instance].doing.is_some();
            self.push(if is_doing { Event::Continue(instance) } else { Event::Look(instance, 0) });
        }
    }

    fn commit_all(&mut self, instance: usize) {
        let data = self.world.data();
        self.all(data.map(|unit| Event::Commit(instance, unit)));
    }

    fn assert_used(&self, nodes: &str) {
        let used = self.world.instances.iter().filter_map(|one| one.used.as_ref());
        let is_used = |view: &View| view.members.keys().map(String::as_str).collect::<String>() == nodes;
        assert!(used.into_iter().any(is_used), "{nodes} is not in use:\n{}", self.world.story.as_deref().unwrap_or(""));
    }

    fn assert_unbroken(self) {
        let story = self.world.story.unwrap_or_default();
        assert!(!matches!(self.ended, Some(Ended::Broken(_))), "{:?}:\n{story}", self.ended);
    }
}

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

#[test]
fn an_instance_that_is_behind_brings_no_members_to_a_left_out_node() {
    // The record of fences is at C and A.
    let mut history = Generator::scripted(3, 4);
    history.work(0);
    history.work(1);
    history.push(Event::Freeze(C));
    history.work(0);
    history.assert_used("AB");
    history.commit_all(0);
    history.all([Event::Heal(C), Event::OldRequests(C), Event::Settle(C)]);
    // Instance 1 has met fence 1 only. A and B have started again, and have no cluster yet.
    history.all([Event::Kill(A), Event::Kill(B), Event::Start(A), Event::Start(B)]);
    history.work_without_settling(1);
    history.work(1);
    history.assert_unbroken();
}

/// B has lost its records in a power cut, and no other node fails: C has not got the new name yet as A and B
/// settle without C. Seed 3960 of `OneNode`, reduced.
#[test]
fn a_member_that_is_not_renamed_yet_is_no_second_loss_beside_an_emptied_one() {
    use Event::*;
    let lose_b = [PowerCut, Wipe(B), Start(A), Start(B), Start(C), Settle(A), Settle(B)];
    let plan = [Look(2, 0), Look(2, 0), Continue(2), Continue(2), Continue(2), Continue(2)];
    let migrate = [Migrate(1, 3), Migrate(1, 5), Migrate(1, 6), Migrate(1, 8), Migrate(1, 9)];
    let part = [Settle(C), Settle(A), Settle(B), Stop(2), Look(2, 0)];
    let go_on = [Look(2, 0), Continue(2), Continue(2), Continue(2), Continue(2), Continue(2)];
    let meet = [Look(2, 0), Continue(2), Continue(2)];
    let events = [&lose_b[..], &plan, &migrate, &part, &go_on, &meet].concat();
    let mut history = Generator::scripted(3, 19);
    history.all(events);
    history.assert_unbroken();
}
