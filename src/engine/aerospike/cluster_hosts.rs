//! The hosts of `store.url`, as info commands see them: one look at all of them; names, configurations and records of
//! single ones.

use std::{io, time::Duration};

use aerospike::Host;
use futures_util::{
    future::{join_all, try_join_all},
    stream::{FuturesUnordered, StreamExt},
};
use tokio::time::Instant;

use super::{
    checks::{self, MemberConfig, unfit},
    connection::{self, CONNECT_PAUSE, OpenAerospikeError},
    info::{InfoPairs, is_cluster_key},
    info_connection::InfoConnection,
    settings::AerospikeSettings,
    view::{ClusterName, NodeAnswer, NodeCluster, View},
};

/// Info commands of a look; the last one is repeated with each size that the cluster may have.
const LOOK_COMMANDS: [&str; 3] = ["node", "cluster-name", "cluster-stable:ignore-migrations=true"];
/// Time in which a host answers an info command. A node that is alive answers within a few milliseconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Age of a look behind which no node is renamed: by then another instance may have set a later fence.
const RENAME_DEADLINE: Duration = Duration::from_secs(2);

/// All hosts, each with a connection for info commands.
pub struct ClusterHosts {
    namespace: String,
    hosts: Vec<(Host, InfoConnection)>,
}

/// Answers of the hosts to one question to all of them.
pub struct ClusterLook {
    /// Time at which the question was sent.
    pub began_at: Instant,
    /// Answers of the hosts that answered.
    pub answers: Vec<NodeAnswer>,
    /// Hosts that did not answer.
    pub silent: Vec<String>,
    /// A cluster all of whose members have answered.
    pub view: Option<View>,
}

impl ClusterHosts {
    /// Parses the hosts of the settings. Nothing is asked yet.
    ///
    /// # Errors
    /// The hosts are no list.
    pub fn new(settings: &AerospikeSettings) -> Result<Self, OpenAerospikeError> {
        let connect = |host: Host| (host.clone(), InfoConnection::new((host.name, host.port)));
        let hosts = connection::hosts(settings)?.into_iter().map(connect).collect();
        Ok(ClusterHosts { namespace: settings.namespace.clone(), hosts })
    }

    /// Positions of all hosts.
    pub fn all(&self) -> std::ops::Range<usize> {
        0..self.hosts.len()
    }

    /// Returns the host at a position, for the client library.
    pub fn host(&self, host: usize) -> Host {
        self.hosts[host].0.clone()
    }

    /// Describes the host at a position as `name:port`.
    pub fn describe(&self, host: usize) -> String {
        let (name, port) = self.hosts[host].1.host();
        format!("{name}:{port}")
    }

    /// Checks that the hosts of the settings lead to all nodes of one cluster.
    ///
    /// # Errors
    /// The cluster has other nodes, or there are two clusters.
    pub fn check(&self, look: &ClusterLook, hosts: &str) -> Result<(), OpenAerospikeError> {
        let Some(first) = look.answers.first() else { return Ok(()) };
        if look.answers.iter().any(|answer| matches!(answer.cluster, Some(NodeCluster { size: None, .. }))) {
            return Err(unfit(
                format!("the cluster has more nodes than the hosts `{hosts}`"),
                "name every node in store.url",
            ));
        }
        match look.answers.iter().find(|answer| answer.name.base != first.name.base) {
            None => Ok(()),
            Some(other) => Err(unfit(
                format!(
                    "{} belongs to the cluster `{}`, {} to the cluster `{}`",
                    self.describe(first.host),
                    first.name.base,
                    self.describe(other.host),
                    other.name.base
                ),
                "name nodes of one cluster in store.url, and give its nodes one `cluster-name`",
            )),
        }
    }

    /// Asks all hosts at once. With a known base name the look ends as soon as a whole cluster of this name has
    /// answered: a node that was left out may never answer.
    pub async fn look(&self, base: Option<&str>) -> ClusterLook {
        let began_at = Instant::now();
        let mut commands: Vec<String> = LOOK_COMMANDS.map(str::to_owned).into();
        let sizes = 1..=self.hosts.len();
        commands.extend(sizes.map(|size| format!("{};size={size}", LOOK_COMMANDS[2])));
        let commands = &commands;
        let ask = |host: usize| async move { (host, self.ask(host, commands).await) };
        let mut asked: FuturesUnordered<_> = self.all().map(ask).collect();
        let mut look = ClusterLook { began_at, answers: Vec::new(), silent: Vec::new(), view: None };
        while let Some((host, answer)) = asked.next().await {
            match answer.ok().and_then(|answer| parse_answer(host, &answer)) {
                Some(answer) => look.answers.push(answer),
                None => look.silent.push(self.describe(host)),
            }
            if base.is_some() {
                look.view = View::find(&look.answers, base);
            }
            if look.view.is_some() {
                return look;
            }
        }
        look.view = View::find(&look.answers, base);
        look
    }

    /// Asks one host what a look asks; `None`: the host does not answer.
    pub async fn look_at(&self, host: usize) -> Option<NodeAnswer> {
        parse_answer(host, &self.ask(host, &LOOK_COMMANDS.map(str::to_owned)).await.ok()?)
    }

    /// Returns the replication factor if any host answers that the factor is above 1 on Community Edition.
    ///
    /// # Errors
    /// No host answers: the copies are not known.
    async fn fenced_copies(&self) -> Result<Option<usize>, String> {
        let commands = ["edition".to_owned(), format!("namespace/{}", self.namespace)];
        let commands = &commands;
        let ask = |host: usize| async move {
            let answer = self.ask_named(host, commands).await?;
            Ok(checks::fenced_copies(&answer[0], &InfoPairs::new(&answer[1])))
        };
        let answers: Vec<Result<Option<usize>, String>> = join_all(self.all().map(ask)).await;
        let copies = answers.iter().flatten().flatten().max().copied();
        if answers.iter().any(Result::is_ok) {
            return Ok(copies);
        }
        Err(answers.into_iter().find_map(Result::err).unwrap_or_default())
    }

    /// Returns the fenced copies once a host answers. A start beside starting nodes must not take their silence for an
    /// answer: without a fence, a node that comes back would bring old copies back.
    ///
    /// # Errors
    /// No host answers within the timeout of one request.
    pub async fn until_copies_are_known(
        &self,
        settings: &AerospikeSettings,
    ) -> Result<Option<usize>, OpenAerospikeError> {
        let deadline = Instant::now() + settings.access.timeout;
        loop {
            match self.fenced_copies().await {
                Ok(copies) => return Ok(copies),
                Err(problem) if Instant::now() + CONNECT_PAUSE > deadline => {
                    return Err(OpenAerospikeError::Unreachable { hosts: settings.hosts.clone(), problem });
                }
                Err(_) => tokio::time::sleep(CONNECT_PAUSE).await,
            }
        }
    }

    /// Gives a name to these hosts, all at once: members that are renamed within 0.3 s keep their cluster. Behind a
    /// look that is too old no host is renamed.
    ///
    /// # Errors
    /// A host does not answer, or refuses the name; the look is too old. Some hosts may have the name.
    pub async fn rename(
        &self,
        hosts: impl Iterator<Item = usize>,
        name: &ClusterName,
        looked_at: Instant,
    ) -> Result<(), String> {
        let commands = [format!("set-config:context=service;cluster-name={name}")];
        let commands = &commands;
        let rename = |host: usize| async move {
            if looked_at.elapsed() > RENAME_DEADLINE {
                return Err("a look at the cluster took too long to set a fence by it".to_owned());
            }
            match self.ask_named(host, commands).await?[0].as_str() {
                "ok" => Ok(()),
                refusal => Err(format!("{} refuses the cluster-name `{name}`: {refusal}", self.describe(host))),
            }
        };
        join_all(hosts.map(rename)).await.into_iter().collect()
    }

    /// Reads the configuration of every member.
    ///
    /// # Errors
    /// A member does not answer.
    pub async fn configurations(&self, view: &View) -> Result<Vec<MemberConfig>, String> {
        let namespace = format!("namespace/{}", self.namespace);
        let commands = ["get-config:context=service".to_owned(), "statistics".to_owned(), namespace];
        try_join_all(view.members.iter().map(async |(node, member)| {
            let answer = self.ask_named(member.host, &commands).await?;
            Ok(MemberConfig {
                node: node.clone(),
                service: InfoPairs::new(&answer[0]),
                statistics: InfoPairs::new(&answer[1]),
                namespace: InfoPairs::new(&answer[2]),
            })
        }))
        .await
    }

    /// Returns whether every member has all copies that belong to it.
    ///
    /// # Errors
    /// A member does not answer.
    pub async fn has_complete_copies(&self, view: &View) -> Result<bool, String> {
        let (size, namespace) = (view.members.len(), &self.namespace);
        let commands = [format!("cluster-stable:ignore-migrations=false;size={size};namespace={namespace}")];
        for member in view.members.values() {
            if self.ask_named(member.host, &commands).await?[0] != view.key {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the number of records of the namespace at this host.
    ///
    /// # Errors
    /// The host does not answer, or does not have the namespace.
    pub async fn objects(&self, host: usize) -> Result<u64, String> {
        let answer = self.ask_named(host, &[format!("namespace/{}", self.namespace)]).await?;
        let objects = InfoPairs::new(&answer[0]).number("objects");
        objects.ok_or_else(|| format!("{} does not report its records", self.describe(host)))
    }

    async fn ask(&self, host: usize, commands: &[String]) -> io::Result<Vec<String>> {
        self.hosts[host].1.ask(commands, ANSWER_TIMEOUT).await
    }

    async fn ask_named(&self, host: usize, commands: &[String]) -> Result<Vec<String>, String> {
        self.ask(host, commands).await.map_err(|error| format!("cannot ask {}: {error}", self.describe(host)))
    }
}

/// Parses the answers to `node`, `cluster-name`, `cluster-stable`, and `cluster-stable` for each size from 1.
fn parse_answer(host: usize, answer: &[String]) -> Option<NodeAnswer> {
    let [node, name, sizes @ ..] = answer else { return None };
    if node.is_empty() || name.is_empty() {
        return None;
    }
    let key = sizes.first().filter(|answer| is_cluster_key(answer));
    let cluster = key.map(|key| NodeCluster {
        key: key.clone(),
        size: sizes.iter().skip(1).position(|answer| answer == key).map(|at| at + 1),
    });
    Some(NodeAnswer { host, node: node.clone(), name: ClusterName::parse(name), cluster })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_name_a_cluster_only_by_a_key() {
        let parse = |answer: &[&str]| {
            parse_answer(7, &answer.iter().map(|answer| (*answer).to_owned()).collect::<Vec<String>>())
        };
        let size = "ERROR:7:cluster not specified size";
        let found = parse(&["A1", "utxo.3.0000000f", "BDD96", size, "BDD96", size]).unwrap();
        assert_eq!((found.host, found.node.as_str(), found.name.to_string().as_str()), (7, "A1", "utxo.3.0000000f"));
        assert_eq!(found.cluster, Some(NodeCluster { key: "BDD96".into(), size: Some(2) }));
        let larger = parse(&["A1", "utxo", "BDD96", size, size]).unwrap();
        assert_eq!(larger.cluster.unwrap().size, None);
        // The cluster changed between two answers.
        let changed = parse(&["A1", "utxo", "BDD96", "C0DE1", size]).unwrap();
        assert_eq!(changed.cluster.unwrap().size, None);
        for key in ["ERROR:7:unstable cluster", "ERROR:7:unstable clusterBDD96", "0", ""] {
            assert_eq!(parse(&["A1", "utxo", key, key]).unwrap().cluster, None);
        }
        assert!(parse(&["", "utxo", "BDD96"]).is_none() && parse(&["A1", "", "BDD96"]).is_none());
        assert!(parse(&["A1"]).is_none());
    }
}
