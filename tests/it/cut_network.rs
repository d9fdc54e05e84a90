//! A network of its own for each node of a cluster, which a test can cut. Network namespaces need root and `ip`.

use std::{
    io::Read,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

/// Makes a bridge and a namespace for each node, and says so. It removes all once its own standard input has ended,
/// which happens when the holder of the other end ends.
const KEEPER: &str = r#"
name=$1; net=$2; nodes=$3
remove() {
    set +e
    # The kernel removes a namespace some time after its name: the interface would be in the way of the next one.
    for i in $(seq "$nodes"); do
        ip link del "$name-$i"
        ip netns del "$name-$i"
    done
    ip link del "$name"
} 2>/dev/null
trap remove EXIT
set -e
ip link add "$name" type bridge
ip addr add "$net.254/24" dev "$name"
ip link set "$name" up
for i in $(seq "$nodes"); do
    ip netns add "$name-$i"
    ip link add "$name-$i" type veth peer name eth0 netns "$name-$i"
    ip link set "$name-$i" master "$name" up
    ip -n "$name-$i" addr add "$net.$i/24" dev eth0
    ip -n "$name-$i" link set lo up
    ip -n "$name-$i" link set eth0 up
done
echo ready
cat >/dev/null
"#;

/// The namespaces of the nodes, by number from 0.
pub struct CutNetwork {
    keeper: Child,
    input: Option<ChildStdin>,
    name: String,
    net: String,
    nodes: usize,
}

impl CutNetwork {
    /// Makes the namespaces; `None`, with a line on standard error, where that is not permitted.
    pub fn make(nodes: usize) -> Option<Self> {
        // Names of interfaces have 15 characters at most.
        let process = std::process::id();
        let (name, net) = (format!("us{process}"), format!("10.199.{}", process % 250));
        let keeper = Command::new("sh")
            .args(["-c", KEEPER, "sh", &name, &net, &nodes.to_string()])
            // A signal to the group of the test would end the keeper before it removes the namespaces.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut keeper = keeper.unwrap();
        let input = keeper.stdin.take();
        static IS_POSSIBLE: AtomicBool = AtomicBool::new(false);
        if keeper.stdout.as_mut().unwrap().read_exact(&mut [0; 5]).is_err() {
            keeper.wait().unwrap();
            assert!(!IS_POSSIBLE.load(Relaxed), "network namespaces could be made a moment ago");
            eprintln!(
                "SKIPPED: nodes that are cut off: network namespaces cannot be made here (root and `ip` are needed)"
            );
            return None;
        }
        IS_POSSIBLE.store(true, Relaxed);
        Some(CutNetwork { keeper, input, name, net, nodes })
    }

    /// Returns the address of a node.
    pub fn address(&self, node: usize) -> String {
        format!("{}.{}", self.net, node + 1)
    }

    fn namespace(&self, node: usize) -> String {
        format!("{}-{}", self.name, node + 1)
    }

    /// Writes a program that runs `command` in the namespace of a node; its process id is the command's.
    pub fn write_program(&self, folder: &Path, node: usize, command: &Path) -> PathBuf {
        use std::{fs, os::unix::fs::PermissionsExt};
        let program = folder.join(format!("node-{node}"));
        let text = format!("#!/bin/sh\nexec ip netns exec {} {} \"$@\"\n", self.namespace(node), command.display());
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        program
    }

    /// Cuts a node off from the other nodes, or joins it again. Clients reach the node.
    pub fn cut_from_peers(&self, node: usize, is_cut: bool) {
        for peer in (0..self.nodes).filter(|peer| *peer != node) {
            let change = if is_cut { "add" } else { "del" };
            let peer = format!("{}/32", self.address(peer));
            self.ip(&["-n", &self.namespace(node), "route", change, "blackhole", &peer]);
        }
    }

    /// Cuts the connections on which a node sends copies of records to the other nodes, or joins them again. Heartbeats
    /// arrive. What waits in the buffers of a cut connection is lost after a second or two, as with a dead machine.
    pub fn cut_copies(&self, node: usize, fabric_port: u16, is_cut: bool) {
        let (namespace, port) = (self.namespace(node), fabric_port.to_string());
        let end_soon = "echo 2 >/proc/sys/net/ipv4/tcp_retries2";
        self.ip(&["netns", "exec", &namespace, "sh", "-c", end_soon]);
        for side in ["sport", "dport"] {
            let change = if is_cut { "add" } else { "del" };
            self.ip(&["-n", &namespace, "rule", change, "ipproto", "tcp", side, &port, "blackhole"]);
        }
    }

    /// Cuts a node off from the other nodes and from clients, or joins it again.
    pub fn cut_from_all(&self, node: usize, is_cut: bool) {
        self.ip(&["link", "set", &self.namespace(node), if is_cut { "down" } else { "up" }]);
    }

    fn ip(&self, arguments: &[&str]) {
        assert!(Command::new("ip").args(arguments).status().unwrap().success(), "ip {arguments:?}");
    }
}

impl Drop for CutNetwork {
    fn drop(&mut self) {
        drop(self.input.take());
        self.keeper.wait().ok();
    }
}
