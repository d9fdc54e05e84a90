//! Asks instances over HTTP for their readiness.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use futures_util::future::join_all;
use serde::Deserialize;

use super::AskedInstances;
use crate::{
    config::Config,
    preflight::{CheckOutcome, Finding, cause::Cause},
    text::{causes, one_line},
};

/// Longest time for the answer of one instance.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of an answer that are read as readiness.
const MAX_ANSWER: usize = 1 << 20;

/// The JSON answer of `/health/ready`.
#[derive(Debug, Deserialize)]
struct Readiness {
    ok: bool,
    reasons: BTreeMap<String, String>,
    waits: Option<String>,
}

/// Asks the instances at these URLs; without URLs, the instance at `http.listen`, where no answer is no failure.
pub async fn ask(urls: &[String], config: &Config) -> AskedInstances {
    let default = own_url(config);
    let (urls, is_named) = if urls.is_empty() { (std::slice::from_ref(&default), false) } else { (urls, true) };
    // `reqwest` is built without a crypto provider; a provider that is already installed serves as well.
    drop(rustls::crypto::ring::default_provider().install_default());
    let client = match reqwest::Client::builder()
        .timeout(TIMEOUT)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
    {
        Ok(client) => client,
        Err(error) => {
            let finding = Finding::new("instances", CheckOutcome::Skipped, format!("no client for HTTP: {error}"));
            return AskedInstances { findings: vec![finding], answered: 0 };
        }
    };
    let answers = join_all(urls.iter().map(|url| read_readiness(&client, url))).await;
    let answered = answers.iter().filter(|answer| answer.is_ok()).count();
    let judge = |(url, answer): (&String, Result<Readiness, String>)| match answer {
        Ok(readiness) => judge_readiness(url, readiness),
        Err(reason) if is_named => vec![Finding::failed(describe(url), reason).with_cause(Cause::Instance)],
        Err(reason) => {
            let message = format!("{reason}; name the instances by --instance");
            vec![Finding::new(describe(url), CheckOutcome::Skipped, message)]
        }
    };
    AskedInstances { findings: urls.iter().zip(answers).flat_map(judge).collect(), answered }
}

fn describe(url: &str) -> String {
    format!("instance {url}")
}

/// Returns the URL of an instance with this configuration on this machine.
fn own_url(config: &Config) -> String {
    let mut address = config.http.listen;
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    let scheme = if config.http.tls_certificate_file.is_some() { "https" } else { "http" };
    format!("{scheme}://{address}")
}

async fn read_readiness(client: &reqwest::Client, url: &str) -> Result<Readiness, String> {
    let no_answer = |error: reqwest::Error| format!("does not answer: {}", causes(&error.without_url()));
    let answer = client.get(format!("{url}/health/ready")).send().await.map_err(no_answer)?;
    let status = answer.status();
    let body = answer.bytes().await.map_err(no_answer)?;
    let readiness = (body.len() <= MAX_ANSWER).then(|| serde_json::from_slice::<Readiness>(&body));
    match readiness {
        Some(Ok(readiness)) => Ok(readiness),
        _ => {
            let text = String::from_utf8_lossy(&body[..body.len().min(100)]).into_owned();
            Err(format!("is no instance: status {}, `{}`", status.as_u16(), one_line(&text)))
        }
    }
}

fn judge_readiness(url: &str, readiness: Readiness) -> Vec<Finding> {
    let check = describe(url);
    if readiness.ok {
        let waits = readiness.waits.map(|wait| format!("; an event waits: {wait}")).unwrap_or_default();
        return vec![Finding::new(check, CheckOutcome::Ok, format!("is ready{waits}"))];
    }
    let unmet = readiness.reasons.iter().map(|(condition, reason)| {
        Finding::failed(format!("{check}: {condition}"), reason).with_cause(cause_of(condition, reason))
    });
    unmet.collect()
}

/// Returns the cause behind a condition that an instance does not meet. Some reasons have a cause of their own, as
/// `docs/operating/exits.md` has them.
fn cause_of(condition: &str, reason: &str) -> Cause {
    let names = |parts: &[&str]| parts.iter().any(|part| reason.contains(part));
    match condition {
        _ if names(&["is not the one that the store was made from", "was recreated"]) => Cause::RecreatedTopic,
        _ if names(&[
            "is next, but the topic holds",
            "no longer holds offsets",
            "is out of range",
            "has no state of the chain",
        ]) =>
        {
            Cause::LostOffsets
        }
        "store_reachable" if names(&["stop-writes", "No space left"]) => Cause::FullDevice,
        "broker_reachable" => Cause::Brokers,
        "store_reachable" => Cause::StoreAway,
        "partitions_running" => Cause::HaltedPartition,
        "chain_running" => Cause::HaltedChain,
        "chain_fed" | "objects_readable" => Cause::MissingInput,
        "caught_up" => Cause::CatchingUp,
        _ => Cause::Instance,
    }
}

#[cfg(test)]
mod tests {
    use strum::IntoEnumIterator;

    use super::*;
    use crate::status::health::Condition;

    #[test]
    fn an_instance_that_is_not_ready_has_a_finding_for_each_condition() {
        let readiness = |text: &str| serde_json::from_str::<Readiness>(text).unwrap();
        let ready = judge_readiness("u", readiness(r#"{"ok":true,"reasons":{},"waits":"tx a"}"#));
        assert_eq!(ready[0].to_string(), "ok       instance u: is ready; an event waits: tx a");
        let reasons = r#"{"ok":false,"reasons":{"chain_running":"a gap","partitions_running":"x"}}"#;
        let unready = judge_readiness("u", readiness(reasons));
        assert_eq!(
            unready.iter().map(|finding| finding.cause).collect::<Vec<_>>(),
            [Some(Cause::HaltedChain), Some(Cause::HaltedPartition)]
        );
        assert_eq!(unready[0].to_string(), "FAILED   instance u: chain_running: a gap");
    }

    #[test]
    fn only_conditions_of_membership_and_commits_have_the_instance_as_cause() {
        let names = Condition::iter().map(<&str>::from);
        let of_instance: Vec<&str> = names.filter(|name| cause_of(name, "") == Cause::Instance).collect();
        assert_eq!(cause_of("chain_running", "utxo.chain/0: offset 2 is out of range"), Cause::LostOffsets);
        assert_eq!(cause_of("partitions_running", "the topic `x` was recreated"), Cause::RecreatedTopic);
        assert_eq!(of_instance, ["assigned", "offsets_committed", "chain_committed"]);
    }
}
