//! The first page: the chain, rates and state of the process, halts and waits.

use maud::{Markup, html};
use serde_json::Value;

use super::{layout, rate::Rate};
use crate::{status::HealthReport, store::chain::ChainInfo, text::hex_reversed};

/// Progress of the process: its state page as JSON, and what its metrics count.
pub struct Progress {
    /// The state page of the process, as JSON.
    pub status: Value,
    /// Transactions that the process has completed since its start.
    pub completed: u64,
    /// Rate of the completed transactions.
    pub rate: Rate,
}

/// Renders the first page from the chain, the readiness and the progress.
pub fn render(chain: &ChainInfo, ready: &HealthReport, progress: &Progress) -> Markup {
    html! {
        h1 { "The chain" }
        (render_chain(chain))
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
        (render_pipeline(progress))
        (render_halts(&progress.status))
        (render_waits(&progress.status))
    }
}

fn render_chain(chain: &ChainInfo) -> Markup {
    html! {
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
    }
}

fn render_pipeline(progress: &Progress) -> Markup {
    let pipeline = &progress.status["pipeline"];
    let partitions: Vec<&Value> = pipeline["partitions"].as_array().into_iter().flatten().collect();
    let lag: u64 = partitions.iter().filter_map(|partition| partition["lag_messages"].as_u64()).sum();
    let Rate { per_second, over } = progress.rate;
    html! {
        @if pipeline.is_null() {
            p { "This process reads no events: it has neither lag nor rates. The pages of the instances show them." }
        } @else {
            dl {
                dt { "Rate" }
                dd { (format!("{per_second:.1}")) " transactions a second, over the last " (over.as_secs()) " s" }
                dt { "Completed" } dd { (layout::number_text(progress.completed)) " transactions since the start" }
                dt { "Lag" } dd { (layout::number_text(lag)) " messages in " (partitions.len()) " partitions" }
                dt { "In flight" } dd { (pipeline["in_flight"]) }
                dt { "Parked" } dd { (pipeline["parked"]) }
                dt { "Sequencer" } dd {
                    @if progress.status["chain"]["held"] == true { "in this process" } @else { "in another process" }
                }
            }
        }
    }
}

/// Renders what halts, since when and why.
fn render_halts(status: &Value) -> Markup {
    let partitions = status["pipeline"]["partitions"].as_array().into_iter().flatten();
    let chain = &status["chain"]["partition"];
    let halts: Vec<&Value> = partitions.chain(Some(chain)).filter(|partition| !partition["halted"].is_null()).collect();
    html! {
        @if !halts.is_empty() {
            h2 { "Halts" }
            p { "A halted partition is not read until its cause is removed and an operator sends the request." }
            table {
                thead {
                    tr { th { "Topic" } th.number { "Partition" } th { "Since" } th { "Reason" } th { "Request" } }
                }
                tbody {
                    @for halted in halts {
                        tr {
                            td { (text_of(&halted["topic"])) }
                            td.number data-label="Partition" { (halted["partition"]) }
                            td.time data-label="Since" { (time_of(&halted["halted"]["since_ms"])) }
                            td.bad { (layout::linked_text(text_of(&halted["halted"]["why"]))) }
                            td.mono data-label="Request" {
                                @if std::ptr::eq(halted, chain) { "POST /chain/retry" }
                                @else { "POST /partitions/" (halted["partition"]) "/retry" }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Renders what the chain waits for, since when.
fn render_waits(status: &Value) -> Markup {
    let waits = status["chain"]["waits_for"].as_array().map(Vec::as_slice).unwrap_or_default();
    html! {
        @if !waits.is_empty() {
            h2 { "Waits of the chain" }
            table {
                thead { tr { th { "Event" } th { "Since" } th { "Missing" } } }
                tbody {
                    @for wait in waits {
                        tr {
                            td { (text_of(&wait["about"])) }
                            td.time data-label="Since" { (time_of(&wait["since_ms"])) }
                            td data-label="Missing" { (layout::linked_text(text_of(&wait["missing"]))) }
                        }
                    }
                }
            }
        }
    }
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn time_of(value: &Value) -> String {
    value.as_u64().map(layout::time_text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use serde_json::json;

    use super::*;

    #[test]
    fn halts_waits_rates_and_reasons_are_shown() {
        let chain = ChainInfo { height: 7, hash: Some([1; 32]), median_time: None, retention: 288, prune_horizon: 0 };
        let reasons = BTreeMap::from([("chain_fed", "a gap".to_owned())]);
        let ready = HealthReport { ok: false, reasons, waits: None };
        let why = |why| json!({"why": why, "since_ms": 1_000});
        let halted = json!({"topic": "txs", "partition": 3, "lag_messages": 5_000, "halted": why("a <bad> event")});
        let status = json!({
            "pipeline": {"partitions": [halted], "in_flight": 2, "parked": 1},
            "chain": {
                "held": true,
                "partition": {"topic": "chain", "partition": 0, "halted": why("a gap of blocks")},
                "waits_for": [{"about": "block 8", "missing": "ab".repeat(32), "since_ms": 2_000}],
            },
        });
        let rate = Rate { per_second: 12.34, over: Duration::from_secs(60) };
        let progress = |status| Progress { status, completed: 12_345, rate };
        let shown = render(&chain, &ready, &progress(status)).into_string();
        for words in [
            "Not ready",
            "chain_fed",
            "a &lt;bad&gt; event",
            "5,000 messages",
            "12.3 transactions a second, over the last 60 s",
            "12,345 transactions",
            "a gap of blocks",
            "POST /chain/retry",
            "POST /partitions/3/retry",
            "1970-01-01T00:00:02Z",
            "block 8",
            "href=\"/transactions/abab",
        ] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
        let ready = HealthReport { ok: true, reasons: BTreeMap::new(), waits: None };
        let quiet = render(&chain, &ready, &progress(json!({}))).into_string();
        assert!(!quiet.contains("Halts") && !quiet.contains("Waits") && quiet.contains("reads no events"), "{quiet}");
    }
}
