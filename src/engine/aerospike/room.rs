//! Lack of room, as nodes report it.

use aerospike::{AdminPolicy, Client};

use super::{
    incarnation::{ask_each, parse_node},
    info::InfoPairs,
};
use crate::engine::{EngineError, RoomShortage};

/// Share of a device, in percent, that should be free. The server stops writes at 5 % by default.
const LEAST_FREE: u64 = 15;
/// Most of a device, in percent, that records should take. The server stops writes at 70 % by default.
const MOST_USED: u64 = 60;

/// Asks every node whether its namespace takes writes, and how full its devices are.
///
/// # Errors
/// Retryable: a node does not answer.
pub async fn read_shortages(
    client: &Client,
    policy: &AdminPolicy,
    namespace: &str,
) -> Result<Vec<RoomShortage>, EngineError> {
    let command = format!("namespace/{namespace}");
    let parse = |[node, namespace]: [&str; 2]| Ok((parse_node(node)?, InfoPairs::new(namespace)));
    let answers = ask_each(&client.nodes(), policy, &["node", command.as_str()], parse).await?;
    Ok(answers.iter().filter_map(|(node, namespace)| find_shortage(node, namespace)).collect())
}

fn find_shortage(node: &str, namespace: &InfoPairs) -> Option<RoomShortage> {
    let number = |name: &str| namespace.number(name);
    let (free, used) = (number("data_avail_pct"), number("data_used_pct"));
    let known = [(free, "free"), (used, "used")];
    let figures: Vec<String> =
        known.iter().filter_map(|(percent, name)| Some(format!("{} % {name}", (*percent)?))).collect();
    let figures = if figures.is_empty() { "no figures".to_owned() } else { figures.join(", ") };
    let refuses_writes = namespace.is_true("stop_writes") || namespace.is_true("clock_skew_stop_writes");
    let why = if namespace.is_true("clock_skew_stop_writes") { "clocks of the cluster differ" } else { "stop-writes" };
    match refuses_writes {
        true => {
            let message = format!("node {node} refuses writes ({why}; storage: {figures})");
            Some(RoomShortage { message, refuses_writes })
        }
        false if free.is_some_and(|free| free < LEAST_FREE) || used.is_some_and(|used| used > MOST_USED) => {
            let message = format!("node {node} has little room left (storage: {figures})");
            Some(RoomShortage { message, refuses_writes })
        }
        false => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_node_and_one_with_little_room_are_named_with_figures() {
        let shortage = |namespace: &str| find_shortage("A1", &InfoPairs::new(namespace));
        assert_eq!(shortage("stop_writes=false;data_avail_pct=50;data_used_pct=40"), None);
        // A namespace in memory without a limit reports no share.
        assert_eq!(shortage("stop_writes=false"), None);
        for (namespace, message, refuses_writes) in [
            (
                "stop_writes=true;data_avail_pct=4;data_used_pct=71",
                "node A1 refuses writes (stop-writes; storage: 4 % free, 71 % used)",
                true,
            ),
            (
                "stop_writes=false;clock_skew_stop_writes=true",
                "node A1 refuses writes (clocks of the cluster differ; storage: no figures)",
                true,
            ),
            (
                "stop_writes=false;data_avail_pct=14;data_used_pct=40",
                "node A1 has little room left (storage: 14 % free, 40 % used)",
                false,
            ),
        ] {
            assert_eq!(shortage(namespace), Some(RoomShortage { message: message.to_owned(), refuses_writes }));
        }
    }
}
