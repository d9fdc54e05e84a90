//! A cluster of Aerospike nodes with two copies of each record, on loopback, with the configuration that is shipped.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use utxo_store::engine::aerospike::AerospikeSettings;

use crate::{
    aerospike_server::{self, AerospikeServer},
    cut_network::CutNetwork,
};

/// Time limit of a change of the cluster; two cores may be shared by many.
pub const CHANGE_BOUND: Duration = Duration::from_secs(180);

/// Version and type of an info message.
const INFO: [u8; 2] = [2, 1];

/// A node whose heartbeats find no core free is left out by the others: of all tests, one at a time has a cluster.
static ONE_CLUSTER: Mutex<()> = Mutex::new(());

/// The nodes. Node number `i` has the id `A{i + 1}`.
pub struct AerospikeCluster {
    nodes: Vec<AerospikeServer>,
    hosts: String,
    /// Networks of the nodes, where a test can cut them. Dropped after the nodes.
    network: Option<(CutNetwork, tempfile::TempDir)>,
    /// The right to have a cluster; a single node needs none.
    _turn: Option<MutexGuard<'static, ()>>,
}

impl AerospikeCluster {
    /// Starts three nodes. `None`, with a line on standard error, when no server is available.
    pub fn start() -> Option<Self> {
        Self::start_with(3, |_, text| text)
    }

    /// Starts nodes whose configurations `edit` changes, by number.
    pub fn start_with(count: usize, edit: impl Fn(usize, String) -> String) -> Option<Self> {
        let turn = (count > 1).then(|| ONE_CLUSTER.lock().unwrap_or_else(PoisonError::into_inner));
        let ports: Vec<[u16; 3]> = (0..count).map(|_| aerospike_server::server_ports()).collect();
        let seeds: Vec<String> =
            ports.iter().map(|[_, _, port]| format!("mesh-seed-address-port 127.0.0.1 {port}")).collect();
        let nodes = (0..count).map(|number| {
            let text = edit(number, configuration(number, "127.0.0.1", &seeds.join("\n    ")));
            AerospikeServer::start_on(&text, ports[number])
        });
        let nodes = nodes.collect::<Option<Vec<AerospikeServer>>>()?;
        Some(AerospikeCluster { hosts: hosts_of(&nodes), nodes, network: None, _turn: turn })
    }

    /// Starts three nodes, each in a network of its own that can be cut, and waits until the nodes are one cluster.
    /// `None`, with a line on standard error, when no server is available, or no network can be made.
    pub fn cuttable() -> Option<Self> {
        let turn = ONE_CLUSTER.lock().unwrap_or_else(PoisonError::into_inner);
        let (program, network) = (aerospike_server::program()?, CutNetwork::make(3)?);
        let folder = tempfile::tempdir().unwrap();
        let seeds: Vec<String> =
            (0..3).map(|node| format!("mesh-seed-address-port {} 3002", network.address(node))).collect();
        let nodes = (0..3).map(|node| {
            let (command, address) = (network.write_program(folder.path(), node, &program), network.address(node));
            let text = configuration(node, &address, &seeds.join("\n    "));
            AerospikeServer::start_at(command, &text, [3000, 3001, 3002], &address)
        });
        let nodes: Vec<AerospikeServer> = nodes.collect();
        let cluster =
            AerospikeCluster { hosts: hosts_of(&nodes), nodes, network: Some((network, folder)), _turn: Some(turn) };
        cluster.until(Self::is_whole);
        Some(cluster)
    }

    /// Returns the networks of the nodes, where they can be cut.
    pub fn network(&self) -> Option<&CutNetwork> {
        self.network.as_ref().map(|(network, _)| network)
    }

    /// As [`start`](Self::start), and waits until the nodes are one cluster.
    pub fn whole() -> Option<Self> {
        let cluster = Self::start()?;
        cluster.until(Self::is_whole);
        Some(cluster)
    }

    /// Waits until `is_so`.
    pub fn until(&self, is_so: impl Fn(&Self) -> bool) {
        let started = Instant::now();
        while !is_so(self) {
            let state = || (0..self.nodes.len()).map(|node| (self.ask(node, "cluster-name"), self.size(node)));
            assert!(started.elapsed() < CHANGE_BOUND, "the cluster stays at {:?}", state().collect::<Vec<_>>());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Number of members of the cluster of a node; 0 while the node is in no stable cluster.
    pub fn size(&self, node: usize) -> usize {
        let is_key = |answer: &str| u64::from_str_radix(answer, 16).is_ok_and(|key| key != 0);
        let size =
            |size: &usize| is_key(&self.ask(node, &format!("cluster-stable:ignore-migrations=true;size={size}")));
        (1..=self.nodes.len()).find(size).unwrap_or(0)
    }

    /// Returns whether a node answers, and is in no cluster.
    pub fn is_outside(&self, node: usize) -> bool {
        !self.ask(node, "node").is_empty() && self.size(node) == 0
    }

    /// Number of nodes.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Returns whether all nodes are one cluster in which the copies of all records are complete.
    pub fn is_whole(&self) -> bool {
        let complete = format!("cluster-stable:ignore-migrations=false;size={}", self.nodes.len());
        (0..self.nodes.len()).all(|node| u64::from_str_radix(&self.ask(node, &complete), 16).is_ok_and(|key| key != 0))
    }

    /// Number of times that a node has written a part of a block to its file because `flush-max-ms` was over. `None`:
    /// the node does not answer.
    pub fn flushes(&self, node: usize) -> Option<u64> {
        let statistics = self.ask(node, "namespace/test");
        let value = |pair: &str| pair.strip_prefix("storage-engine.file[0].partial_writes=").map(str::to_owned);
        Some(statistics.split(';').find_map(value)?.parse().unwrap())
    }

    /// Sends an info command to a node. An answer that does not come is empty.
    pub fn ask(&self, node: usize, command: &str) -> String {
        self.try_ask(node, command).unwrap_or_default()
    }

    fn try_ask(&self, node: usize, command: &str) -> std::io::Result<String> {
        let address = self.nodes[node].hosts().parse().unwrap();
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        let mut header = (command.len() as u64 + 1).to_be_bytes();
        header[..2].copy_from_slice(&INFO);
        stream.write_all(&[&header, command.as_bytes(), b"\n"].concat())?;
        stream.read_exact(&mut header)?;
        let is_info = header[..2] == INFO;
        header[..2].fill(0);
        let length = u64::from_be_bytes(header);
        assert!(is_info && length < 1 << 20, "another server has the port of node {node}: {header:?}");
        let mut text = vec![0; length as usize];
        stream.read_exact(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        Ok(text.trim_end().split_once('\t').map_or_else(String::new, |(_, answer)| answer.to_owned()))
    }

    /// Returns settings with a set that no other test uses.
    pub fn settings(&self) -> AerospikeSettings {
        AerospikeSettings { hosts: self.hosts.clone(), ..self.nodes[0].settings() }
    }

    /// Returns a store URL with a set that no other test uses.
    pub fn url(&self) -> String {
        self.nodes[0].url().replace(self.nodes[0].hosts(), &self.hosts)
    }

    /// Ends a node as a power cut would.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].kill();
    }

    /// Starts a node again, with the records of its file.
    pub fn restart(&mut self, node: usize) {
        self.nodes[node].restart();
    }

    /// Ends a node, deletes its records, and starts the node again.
    pub fn replace(&mut self, node: usize) {
        self.kill(node);
        self.replace_dead(node);
    }

    /// Deletes the records of a dead node, and starts the node again.
    pub fn replace_dead(&mut self, node: usize) {
        self.nodes[node].wipe();
        self.nodes[node].restart();
    }

    /// Stops a node without ending it, or lets it go on.
    pub fn freeze(&self, node: usize, is_frozen: bool) {
        self.nodes[node].freeze(is_frozen);
    }
}

fn hosts_of(nodes: &[AerospikeServer]) -> String {
    nodes.iter().map(AerospikeServer::hosts).collect::<Vec<_>>().join(",")
}

/// The configuration of `deploy/aerospike-cluster.conf`, with addresses, names and sizes of a test.
fn configuration(number: usize, address: &str, seeds: &str) -> String {
    let mut text = include_str!("../../deploy/aerospike-cluster.conf").to_owned();
    let mut replace = |from: &str, to: &str| {
        assert!(text.contains(from), "the configuration that is shipped lacks `{from}`");
        text = text.replace(from, to);
    };
    let own_seed = "    mesh-seed-address-port 10.0.0.1 3002";
    replace(own_seed, &format!("    {seeds}"));
    replace("    mesh-seed-address-port 10.0.0.2 3002\n", "");
    replace("    mesh-seed-address-port 10.0.0.3 3002\n", "");
    replace("port 3000", &format!("access-address {address}\n    port {{SERVICE}}"));
    replace("port 3001", "port {FABRIC}");
    replace("port 3002", "port {HEARTBEAT}");
    replace("10.0.0.1", address);
    replace("proto-fd-max 15000", "proto-fd-max 1024\n  work-directory {FOLDER}");
    replace("node-id a1", &format!("node-id a{}", number + 1));
    replace("namespace utxo", "namespace test");
    replace("/var/lib/aerospike/utxo.dat", "{FOLDER}/test.dat");
    replace("filesize 64G", "filesize 512M");
    format!("{text}\nmod-lua {{\n  user-path {{FOLDER}}/usr/udf/lua\n}}\n")
}
