//! The first page: the chain, the state of the process, halts.

use maud::{Markup, html};
use serde_json::Value;

use super::layout;
use crate::{status::HealthReport, store::chain::ChainInfo, text::hex_reversed};

/// Renders the page. `status`: the state page as JSON.
pub fn render(chain: &ChainInfo, ready: &HealthReport, status: &Value) -> Markup {
    let partitions: Vec<&Value> = status["pipeline"]["partitions"].as_array().into_iter().flatten().collect();
    let lag: u64 = partitions.iter().filter_map(|partition| partition["lag_messages"].as_u64()).sum();
    let halts = partitions.iter().copied().chain(Some(&status["chain"]["partition"]));
    let halts: Vec<&Value> = halts.filter(|partition| !partition["halted"].is_null()).collect();
    html! {
        h1 { "The chain" }
        dl {
            dt { "Height" } dd { (chain.height) }
            dt { "Hash" } dd.mono {
                @match &chain.hash {
                    Some(hash) => { @let hash = hex_reversed(hash); a href={ "/blocks/" (hash) } { (hash) } },
                    None => { "the store has applied no block" },
                }
            }
            @if let Some(time) = chain.median_time {
                dt { "Median time" } dd { (layout::time_text(u64::from(time) * 1_000)) }
            }
            dt { "Retention" } dd { (chain.retention) " blocks" }
            dt { "Pruned up to height" } dd { (chain.prune_horizon) }
        }
        h2 { "This process" }
        p {
            @if ready.ok { span.good { "Ready." } }
            @else { span.bad { "Not ready." } }
        }
        @if !ready.reasons.is_empty() {
            dl {
                @for (condition, reason) in &ready.reasons { dt { (condition) } dd { (reason) } }
            }
        }
        @if partitions.is_empty() { p { "The process reads no partition of the log." } }
        @else {
            dl {
                dt { "Partitions" } dd { (partitions.len()) }
                dt { "Lag" } dd { (lag) " messages" }
                dt { "In flight" } dd { (status["pipeline"]["in_flight"]) }
                dt { "Parked" } dd { (status["pipeline"]["parked"]) }
            }
        }
        @if !halts.is_empty() {
            h2 { "Halts" }
            table {
                tr { th { "Topic" } th { "Partition" } th { "Reason" } }
                @for halted in halts {
                    tr {
                        td { (halted["topic"].as_str().unwrap_or_default()) }
                        td { (halted["partition"]) }
                        td { (halted["halted"]["why"].as_str().unwrap_or_default()) }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    #[test]
    fn halts_and_reasons_are_shown() {
        let chain = ChainInfo { height: 7, hash: Some([1; 32]), median_time: None, retention: 288, prune_horizon: 0 };
        let reasons = BTreeMap::from([("chain_fed", "a gap".to_owned())]);
        let ready = HealthReport { ok: false, reasons, waits: None };
        let halted = json!({"topic": "txs", "partition": 3, "lag_messages": 5, "halted": {"why": "a <bad> event"}});
        let status = json!({"pipeline": {"partitions": [halted], "in_flight": 2, "parked": 1}, "chain": {}});
        let shown = render(&chain, &ready, &status).into_string();
        for words in ["Not ready", "chain_fed", "a &lt;bad&gt; event", "5 messages"] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
        let quiet = render(&chain, &HealthReport { ok: true, reasons: BTreeMap::new(), waits: None }, &json!({}));
        assert!(!quiet.into_string().contains("Halts"));
    }
}
