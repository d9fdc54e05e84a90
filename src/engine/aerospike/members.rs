//! The members of a cluster with several copies: finds the present view, fences left-out nodes off, admits empty nodes,
//! and keeps a client that talks to members only (`docs/protocols/cluster-fence.md`).

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

use aerospike::Client;
use tokio::{sync::Notify, task::JoinHandle, time::Instant};

use super::{
    checks::{self, unfit},
    cluster_hosts::{ClusterHosts, ClusterLook},
    connection::{self, OpenAerospikeError},
    errors::describe_error,
    fence_record::FenceRecords,
    settings::{AerospikeSettings, Policies},
    view::{
        FenceRecord, FenceStep, NodeAnswer, UnsafeView, View, bring_back, describe_no_view, interrupted_fence,
        next_step,
    },
    view_error::ViewError,
};

/// Pause between two looks of the background task.
const LOOK_PAUSE: Duration = Duration::from_millis(500);
/// Time for which a start waits for a view that can be used. A cluster agrees on a view within some 3 s.
const OPEN_TIMEOUT: Duration = Duration::from_secs(15);
/// Time for which a cluster of processes that were all started again is not fenced while a member of the last fence is
/// missing: after a power cut the nodes start one after another, and a node that comes later would have to come empty.
const START_PAUSE: Duration = Duration::from_secs(60);
/// Time for which a start looks again at a view that must not be used: a look can be older than the last fence.
const UNSAFE_PAUSE: Duration = Duration::from_secs(5);
/// Pause between two checks of the configuration of members whose view stays.
const CHECK_PAUSE: Duration = Duration::from_secs(5);
/// Pause between two checks of members that do not fit: an operator takes longer, and each check costs the nodes time.
const UNFIT_PAUSE: Duration = Duration::from_secs(1);
/// Time between two warnings about one left-out node.
const WARNING_PAUSE: Duration = Duration::from_secs(60);

/// The members of a cluster, as one process knows them.
pub struct Members {
    settings: AerospikeSettings,
    copies: usize,
    hosts: ClusterHosts,
    records: FenceRecords,
    current: RwLock<Current>,
    problem: Mutex<String>,
    /// The configured name of the nodes, once a view was in use.
    base: Mutex<Option<String>>,
    /// The last fence that this process has met.
    met: Mutex<Option<u64>>,
    /// Members of the last view in use.
    last_members: Mutex<BTreeSet<String>>,
    /// Time since which a cluster of restarted processes waits for a member of the last fence.
    incomplete_since: Mutex<Option<Instant>>,
    /// Wakes the background task before its pause ends.
    wanted: Notify,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// The view in use, and the client of its members.
#[derive(Default)]
struct Current {
    client: Option<Arc<Client>>,
    /// Ids of the nodes to which the client talks.
    nodes: BTreeSet<String>,
    view: Option<View>,
}

impl Members {
    /// Asks whether the cluster has several copies of each record on Community Edition. If so, finds a view that can be
    /// used, and keeps on watching. `None`: another cluster.
    ///
    /// # Errors
    /// No host answers within the timeout of one request, the configuration of a node does not fit, the view is unsafe,
    /// or no view can be used within 15 s. A start waits a minute longer for nodes that may still be starting.
    pub async fn open(settings: &AerospikeSettings) -> Result<Option<Arc<Self>>, OpenAerospikeError> {
        // Community Edition has no login and no encryption.
        if settings.access.login.is_some() || settings.access.tls_ca_file.is_some() {
            return Ok(None);
        }
        let hosts = ClusterHosts::new(settings)?;
        let Some(copies) = hosts.until_copies_are_known(settings).await? else { return Ok(None) };
        let members = Arc::new(Members {
            settings: settings.clone(),
            copies,
            hosts,
            records: FenceRecords::new(&settings.namespace, &Policies::new(settings)),
            current: RwLock::default(),
            problem: Mutex::default(),
            base: Mutex::default(),
            met: Mutex::default(),
            last_members: Mutex::default(),
            incomplete_since: Mutex::default(),
            wanted: Notify::new(),
            task: Mutex::default(),
        });
        members.open_view().await?;
        let weak = Arc::downgrade(&members);
        let task = tokio::spawn(async move {
            let (mut warned_at, mut checked_at) = (None, Instant::now());
            while let Some(members) = weak.upgrade() {
                let error = members.keep_view(&mut warned_at, &mut checked_at).await.err();
                let is_unfit = matches!(error, Some(ViewError::Unfit(_)));
                let problem = error.map(|error| error.to_string()).unwrap_or_default();
                let before = std::mem::replace(&mut *lock(&members.problem), problem.clone());
                if !problem.is_empty() && problem != before {
                    tracing::warn!(problem, "aerospike: the members of the cluster cannot be used");
                }
                if is_unfit {
                    tokio::time::sleep(UNFIT_PAUSE).await;
                    continue;
                }
                let pause = if members.view_in_use().is_some() { LOOK_PAUSE } else { LOOK_PAUSE / 5 };
                let _ = tokio::time::timeout(pause, members.wanted.notified()).await;
            }
        });
        *lock(&members.task) = Some(task);
        Ok(Some(members))
    }

    async fn open_view(&self) -> Result<(), OpenAerospikeError> {
        let started = Instant::now();
        let mut unsafe_since = None;
        loop {
            let look = self.hosts.look(None).await;
            self.hosts.check(&look, &self.settings.hosts)?;
            let problem = match self.use_view_of(look).await {
                Ok(()) => return Ok(()),
                Err(ViewError::Unfit(error)) => return Err(error),
                // The record can be newer than the look: another instance has set a fence in between.
                Err(ViewError::Unsafe(view)) => {
                    if unsafe_since.get_or_insert_with(Instant::now).elapsed() > UNSAFE_PAUSE {
                        return Err(unfit(view.to_string(), "stop all instances first"));
                    }
                    view.to_string()
                }
                Err(ViewError::Passing(problem)) => {
                    unsafe_since = None;
                    problem
                }
            };
            if started.elapsed() > OPEN_TIMEOUT && lock(&self.incomplete_since).is_none() {
                return Err(OpenAerospikeError::Unreachable { hosts: self.settings.hosts.clone(), problem });
            }
            tokio::time::sleep(LOOK_PAUSE / 5).await;
        }
    }

    /// The client of the members.
    pub fn client(&self) -> Arc<Client> {
        self.current().client.clone().expect("the first view is in use before the members are handed out")
    }

    /// Returns the view in use if the cluster still has it.
    ///
    /// # Errors
    /// The cluster has another view, or none. The background task looks for it.
    pub async fn confirmed_view(&self) -> Result<View, String> {
        let view = self.view_in_use();
        let look = self.look().await;
        match look.view {
            Some(found) if Some(&found) == view.as_ref() => Ok(found),
            found => {
                self.wanted.notify_one();
                let problem = lock(&self.problem).clone();
                Err(match found {
                    None => describe_no_view(&look.answers, &look.silent),
                    Some(_) if problem.is_empty() => "the members of the cluster have changed".into(),
                    Some(_) => problem,
                })
            }
        }
    }

    /// Stops the background task, and closes the client.
    pub async fn close(&self) -> Result<(), aerospike::Error> {
        if let Some(task) = lock(&self.task).take() {
            task.abort();
        }
        self.client().close().await
    }

    /// Makes one look, and one step by what the look shows. The background task calls this again and again.
    async fn keep_view(&self, warned_at: &mut Option<Instant>, checked_at: &mut Instant) -> Result<(), ViewError> {
        let used = self.view_in_use();
        let look = self.look().await;
        let Some(view) = look.view.as_ref().filter(|view| used.as_ref() == Some(view)) else {
            return self.use_view_of(look).await;
        };
        if !self.settings.access.manages_cluster {
            return Ok(());
        }
        // An operator can change a setting, and a clock can jump. A view whose members do not fit is not used.
        if checked_at.elapsed() > CHECK_PAUSE {
            match self.check_members(view).await {
                Ok(()) => *checked_at = Instant::now(),
                Err(error @ ViewError::Unfit(_)) => {
                    self.current.write().unwrap_or_else(PoisonError::into_inner).view = None;
                    return Err(error);
                }
                // A member did not answer: the next look checks again.
                Err(_) => {}
            }
        }
        self.tend(view, warned_at).await
    }

    async fn check_members(&self, view: &View) -> Result<(), ViewError> {
        Ok(checks::check_members(&self.settings.namespace, self.copies, &self.hosts.configurations(view).await?)?)
    }

    /// Takes one step towards the use of the view that this look shows, and ends with an error until the view is in
    /// use.
    async fn use_view_of(&self, mut look: ClusterLook) -> Result<(), ViewError> {
        let Some(view) = look.view.take() else {
            self.finish_interrupted_fence(&look).await?;
            self.let_strangers_wait(&look).await?;
            return Err(ViewError::Passing(describe_no_view(&look.answers, &look.silent)));
        };
        if self.current().nodes != view.nodes() {
            // The client takes a moment; the next step begins with a fresh look.
            self.connect(&view).await?;
            self.wanted.notify_one();
            return Err(ViewError::Passing("connecting to the members of the cluster".into()));
        }
        if !self.settings.access.manages_cluster {
            self.use_view(view);
            return Ok(());
        }
        self.check_members(&view).await?;
        let client = self.client();
        let stored = self.records.read(&client).await?;
        if stored.record.planned == 0 {
            self.require_all_hosts(&view).await?;
        }
        self.wait_for_members(&view, &stored.record)?;
        if let Some(met) = *lock(&self.met)
            && stored.record.met < met
        {
            return Err(UnsafeView::WentBack { found: stored.record.met, met }.into());
        }
        let step = match next_step(&view, &stored.record, self.copies) {
            Err(UnsafeView::CopiesLost { lost }) => {
                self.bring_back(&view, &stored.record).await?;
                return Err(UnsafeView::CopiesLost { lost }.into());
            }
            step => step?,
        };
        match step {
            FenceStep::Use => {
                self.records.copy_again(&client).await?;
                self.use_view(view);
                return Ok(());
            }
            FenceStep::Meet(record) => {
                self.records.write(&client, &stored, &record).await?;
                tracing::info!(fence = record.met, nodes = ?record.members, "aerospike: met a fence");
                self.use_view(view);
                return Ok(());
            }
            FenceStep::Plan(record, name) => {
                self.records.write(&client, &stored, &record).await?;
                tracing::info!(%name, nodes = ?view.nodes(), "aerospike: setting a fence");
                self.hosts.rename(view.members.values().map(|member| member.host), &name, look.began_at).await?;
            }
            FenceStep::Finish(name) => {
                let lacking = view.members.values().filter(|member| member.name != name);
                self.hosts.rename(lacking.map(|member| member.host), &name, look.began_at).await?;
            }
        }
        self.wanted.notify_one();
        Err(ViewError::Passing("setting a fence around the members of the cluster".into()))
    }

    /// Checks that the view has the nodes of all hosts: without a record of fences, the record and its copy may be on
    /// two nodes that have not started yet.
    async fn require_all_hosts(&self, view: &View) -> Result<(), ViewError> {
        for host in self.hosts_outside(view) {
            // Two hosts can lead to one node.
            let answer = self.hosts.look_at(host).await;
            if answer.is_none_or(|answer| !view.members.contains_key(&answer.node)) {
                let host = self.hosts.describe(host);
                let problem = "is not in the cluster; the first fence needs every node that store.url names";
                return Err(ViewError::Passing(format!("{host} {problem}")));
            }
        }
        Ok(())
    }

    /// Waits a while for members of the last fence whose processes may still be starting.
    fn wait_for_members(&self, view: &View, record: &FenceRecord) -> Result<(), ViewError> {
        let missing: Vec<String> = record.members.difference(&view.nodes()).cloned().collect();
        let mut since = lock(&self.incomplete_since);
        if !view.has_restarted() || missing.is_empty() {
            *since = None;
            return Ok(());
        }
        match since.get_or_insert_with(Instant::now).elapsed() > START_PAUSE {
            true => Ok(()),
            false => Err(ViewError::Passing(format!(
                "all nodes have started again; waiting up to {START_PAUSE:?} for {}",
                missing.join(", ")
            ))),
        }
    }

    fn use_view(&self, view: View) {
        let met = *lock(&self.met);
        *lock(&self.met) = view.fence().max(met);
        *lock(&self.base) = Some(view.base().to_owned());
        *lock(&self.last_members) = view.nodes();
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        tracing::info!(key = view.key, nodes = ?current.nodes, "aerospike: using this view of the cluster");
        current.view = Some(view);
    }

    /// Connects to the members of the view, and to no other node. The client before is closed once its requests have
    /// ended.
    async fn connect(&self, view: &View) -> Result<(), ViewError> {
        let hosts = view.members.values().map(|member| self.hosts.host(member.host)).collect();
        let client = match connection::connect_to_members(&self.settings, hosts).await {
            // A member has died meanwhile.
            Err(OpenAerospikeError::Unreachable { problem, .. }) => return Err(ViewError::Passing(problem)),
            connected => connected?,
        };
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let before = current.client.replace(Arc::new(client));
        (current.nodes, current.view) = (view.nodes(), None);
        let Some(before) = before else { return Ok(()) };
        let grace = self.settings.access.timeout;
        tokio::spawn(async move {
            tokio::time::sleep(grace).await;
            if let Err(error) = before.close().await {
                tracing::debug!(error = describe_error(&error), "aerospike: cannot close the client of an old view");
            }
        });
        Ok(())
    }

    /// Renames the rest of the members whose fence an instance began and did not end, where these have lost each other.
    async fn finish_interrupted_fence(&self, look: &ClusterLook) -> Result<(), ViewError> {
        if !self.settings.access.manages_cluster || look.answers.iter().all(|answer| answer.name.fence.is_none()) {
            return Ok(());
        }
        let mut with_records = BTreeSet::new();
        for NodeAnswer { host, node, .. } in &look.answers {
            if self.hosts.objects(*host).await? > 0 {
                with_records.insert(node.clone());
            }
        }
        let met = *lock(&self.met);
        match interrupted_fence(&look.answers, &with_records, met) {
            Some((name, hosts)) if !hosts.is_empty() => {
                tracing::info!(%name, "aerospike: setting the rest of a fence");
                Ok(self.hosts.rename(hosts.into_iter(), &name, look.began_at).await?)
            }
            _ => Ok(()),
        }
    }

    /// Gives each started node that was no member of the last view a name of its own while there is no view: the node
    /// would form a cluster with a member that is started again.
    async fn let_strangers_wait(&self, look: &ClusterLook) -> Result<(), ViewError> {
        let members = lock(&self.last_members).clone();
        if !self.settings.access.manages_cluster || members.is_empty() {
            return Ok(());
        }
        for NodeAnswer { host, node, name, cluster } in &look.answers {
            if name.fence.is_none() && cluster.is_none() && !members.contains(node) {
                self.hosts.rename(std::iter::once(*host), &name.waiting(node), look.began_at).await?;
            }
        }
        Ok(())
    }

    /// Brings missing members back to a view that lacks copies, where they wait outside with their records.
    async fn bring_back(&self, view: &View, record: &FenceRecord) -> Result<(), ViewError> {
        let looked_at = Instant::now();
        let mut waiting = Vec::new();
        for host in self.hosts_outside(view) {
            let Some(answer) = self.hosts.look_at(host).await else { continue };
            // A namespace without a fence may have no records yet.
            if record.met == 0 || self.hosts.objects(host).await? > 0 {
                waiting.push(answer);
            }
        }
        match bring_back(view, record, &waiting) {
            Some((name, hosts)) if !hosts.is_empty() => {
                tracing::info!(%name, "aerospike: bringing members back with their records");
                Ok(self.hosts.rename(hosts.into_iter(), &name, looked_at).await?)
            }
            _ => Ok(()),
        }
    }

    /// Records that the copies are complete, and treats the nodes outside.
    async fn tend(&self, view: &View, warned_at: &mut Option<Instant>) -> Result<(), ViewError> {
        let is_complete = self.record_complete_copies(view).await?;
        // The look that led here ended with the last member's answer: the other hosts are asked here.
        for host in self.hosts_outside(view) {
            self.admit(host, view, is_complete, warned_at).await?;
        }
        Ok(())
    }

    /// Returns whether the copies are complete, once this is recorded.
    async fn record_complete_copies(&self, view: &View) -> Result<bool, ViewError> {
        let client = self.client();
        let stored = self.records.read_cached(&client).await?;
        if stored.record.complete != view.nodes() || !stored.record.unproven.is_empty() {
            if !self.hosts.has_complete_copies(view).await? {
                return Ok(false);
            }
            let (joined, unproven) = (BTreeSet::new(), BTreeSet::new());
            let record = FenceRecord { complete: view.nodes(), joined, unproven, ..stored.record.clone() };
            self.records.write(&client, &stored, &record).await?;
            tracing::info!(nodes = ?record.complete, "aerospike: the copies of all records are complete");
        }
        Ok(true)
    }

    /// Admits the node at this host if the node is empty, was started since the node was left out, and the copies are
    /// complete. Another started node gets a name under which the node waits.
    async fn admit(
        &self,
        host: usize,
        view: &View,
        is_complete: bool,
        warned_at: &mut Option<Instant>,
    ) -> Result<(), ViewError> {
        let looked_at = Instant::now();
        let Some(NodeAnswer { node, name, cluster, .. }) = self.hosts.look_at(host).await else { return Ok(()) };
        if view.members.contains_key(&node) || name.base != view.base() || cluster.is_some() {
            return Ok(());
        }
        let Some(present) = view.members.values().next().map(|member| &member.name) else { return Ok(()) };
        if name == *present {
            // The node is joining.
            return Ok(());
        }
        let is_empty = name.was_started() && self.hosts.objects(host).await? == 0;
        if is_empty && is_complete {
            tracing::info!(node, name = %present, "aerospike: admitting an empty node to the cluster");
            return Ok(self.hosts.rename(std::iter::once(host), present, looked_at).await?);
        }
        if name.fence.is_none() {
            self.hosts.rename(std::iter::once(host), &name.waiting(&node), looked_at).await?;
        }
        if !is_empty && warned_at.is_none_or(|at| at.elapsed() > WARNING_PAUSE) {
            *warned_at = Some(Instant::now());
            tracing::warn!(
                node,
                host = self.hosts.describe(host),
                "aerospike: a node that was left out waits with old records; stop the process, delete the files of its \
                 namespaces, and start the process again"
            );
        }
        Ok(())
    }

    /// Returns the hosts that have led to no member.
    fn hosts_outside(&self, view: &View) -> impl Iterator<Item = usize> {
        self.hosts.all().filter(|host| view.members.values().all(|member| member.host != *host))
    }

    async fn look(&self) -> ClusterLook {
        let base = lock(&self.base).clone();
        self.hosts.look(base.as_deref()).await
    }

    fn view_in_use(&self) -> Option<View> {
        self.current().view.clone()
    }

    fn current(&self) -> std::sync::RwLockReadGuard<'_, Current> {
        self.current.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        if let Some(task) = lock(&self.task).take() {
            task.abort();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
