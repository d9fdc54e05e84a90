//! `utxo-store doctor`: looks for everything that needs an operator, and prints what to do first.
//!
//! The command makes the checks of `run --check`, asks the instances for their readiness, counts dead letters, and
//! verifies the store on request. The order of the answer is that of [`Cause`].

#[cfg(any(feature = "vault", feature = "web"))]
mod instances;
#[cfg(not(any(feature = "vault", feature = "web")))]
#[path = "doctor/no_instances.rs"]
mod instances;

use std::{
    collections::BTreeMap,
    io::{self, Write},
    time::Duration,
};

use clap::Args;
use serde::Serialize;

use super::{
    CliResult, ConfigArgs, block_on,
    checks::{self, CheckReport, Checked, GroupLag, Printed},
    dead_letters::count_unsettled,
    offline::StoreArgs,
    output,
};
use crate::{
    clock::Clock,
    preflight::{CheckOutcome, Finding, cause::Cause},
    store::{StateStore, recovery::Sweep, verify::verify},
};

const AFTER_HELP: &str = "\
Makes the checks of `run --check`, asks instances for /health/ready, counts the dead letters that
are not settled, and with --verify checks the invariants of the store. Joins no group and writes
nothing.

The answer begins with what to do first: a cause stands before everything that can follow from the
cause. Each entry has the finding, the first step, and the page of docs/ with all steps. Exit code
1 after a failed check, 0 with warnings alone.

Without --instance the instance at http.listen is asked, if one answers there.

Example: utxo-store doctor --config utxo-store.toml --instance http://10.0.0.1:9464 \\
    --instance http://10.0.0.2:9464";

/// Findings on instances, and how many have answered.
struct AskedInstances {
    findings: Vec<Finding>,
    answered: usize,
}

/// Messages of the topic of dead letters that the command reads at most.
const MOST_DEAD_LETTERS: u64 = 100_000;
/// Longest time to read them.
const DEAD_LETTERS_TIMEOUT: Duration = Duration::from_secs(60);
/// Violations that one finding names.
const NAMED_VIOLATIONS: usize = 3;
/// A half-created transaction that is older is a finding; a younger one may be in work.
const HALF_CREATED_MS: u64 = 120_000;

/// Arguments of the command `doctor`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct DoctorArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// URL of an instance; may be given several times
    #[arg(long = "instance", value_name = "URL", value_parser = parse_instance)]
    instances: Vec<String>,
    /// Check the invariants of the store, too: the command reads every record
    #[arg(long)]
    verify: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The answer of `doctor`.
#[derive(Debug, Serialize)]
struct Diagnosis {
    /// Number of checks that were made.
    checked: usize,
    failed: usize,
    warnings: usize,
    /// Failures, then warnings, each in the order of the work.
    entries: Vec<Entry>,
    /// Checks that were not made, with the reason.
    skipped: Vec<Finding>,
}

/// A finding with the advice on its cause.
#[derive(Debug, Serialize)]
struct Entry {
    #[serde(flatten)]
    finding: Finding,
    first_step: Option<&'static str>,
    page: Option<&'static str>,
}

impl DoctorArgs {
    pub(super) fn run(self) -> CliResult {
        let config = self.config.load();
        block_on(async {
            let mut report = CheckReport::new(Printed::Nothing);
            match Box::pin(checks::run(config, &mut report)).await {
                Ok(checked) => self.look(&checked, &mut report).await?,
                // The finding on the configuration says the same; the exit code is that of a wrong configuration.
                Err(failure) => {
                    self.print(&diagnose(report), &mut output::stdout())?;
                    return Err(failure);
                }
            }
            let result = report.result();
            self.print(&diagnose(report), &mut output::stdout())?;
            result
        })
    }

    /// Makes the checks beyond those of a start.
    async fn look(&self, checked: &Checked, report: &mut CheckReport) -> io::Result<()> {
        let asked = instances::ask(&self.instances, &checked.config).await;
        let is_running = asked.answered > 0
            || checked.log_state.as_ref().is_some_and(|state| state.groups.iter().any(|group| group.members > 0));
        expect_store_in_use(&asked, report);
        report.add(asked.findings)?;
        if let Some(log_state) = &checked.log_state {
            report.add(judge_members(&log_state.groups))?;
            report.add([check_dead_letters(checked).await])?;
        }
        if self.verify {
            report.add(self.verify_store(is_running).await)?;
        }
        Ok(())
    }

    /// Checks the invariants of the store, and counts half-created transactions. A store that is being written can show
    /// violations that do not exist.
    async fn verify_store(&self, is_running: bool) -> Vec<Finding> {
        const CHECK: &str = "records";
        let arguments = StoreArgs { config: self.config.clone(), ..StoreArgs::default() };
        let (store, _) = match arguments.open_whole().await {
            Ok(opened) => opened,
            Err(failure) => {
                let message = format!("the store is not open: {}", failure.message());
                return vec![Finding::new(CHECK, CheckOutcome::Skipped, message)];
            }
        };
        let mut findings = vec![check_invariants(&store).await, check_half_created(&store).await];
        if is_running {
            for finding in findings.iter_mut().filter(|finding| finding.outcome == CheckOutcome::Failed) {
                let message = format!("{}; instances run: repeat the check at rest", finding.message);
                *finding = Finding::new(finding.check.clone(), CheckOutcome::Warning, message)
                    .with_cause(Cause::DamagedRecords);
            }
        }
        if let Err(error) = store.engine.close().await {
            findings.push(Finding::failed("store", error).with_cause(Cause::StoreAway));
        }
        findings
    }

    fn print(&self, diagnosis: &Diagnosis, out: &mut impl Write) -> io::Result<()> {
        if self.json {
            return output::write_json(diagnosis, out);
        }
        let Diagnosis { checked, failed, warnings, entries, skipped } = diagnosis;
        writeln!(out, "{checked} checks: {failed} failed, {warnings} with a warning")?;
        if entries.is_empty() {
            writeln!(out, "\nnothing to do")?;
        }
        for (number, Entry { finding, first_step, page }) in entries.iter().enumerate() {
            writeln!(out, "\n{}. {finding}", number + 1)?;
            if let (Some(first_step), Some(page)) = (first_step, page) {
                writeln!(out, "   first: {first_step}\n   page:  {page}")?;
            }
        }
        if !skipped.is_empty() {
            writeln!(out, "\nnot checked:")?;
            skipped.iter().try_for_each(|finding| writeln!(out, "- {}: {}", finding.check, finding.message))?;
        }
        Ok(())
    }
}

/// Parses the URL of an instance. The URL is printed, so that it must have no password.
fn parse_instance(text: &str) -> Result<String, String> {
    let url = url::Url::parse(text).map_err(|error| format!("{error}; write for example http://10.0.0.1:9464"))?;
    match (url.scheme(), url.username(), url.password()) {
        ("http" | "https", "", None) => Ok(text.trim_end_matches('/').to_owned()),
        ("http" | "https", ..) => Err("the URL must have no user and no password".to_owned()),
        (scheme, ..) => Err(format!("`{scheme}` is not http or https; write for example http://10.0.0.1:9464")),
    }
}

/// Sorts the findings into the order of the work. Failures come before warnings.
fn diagnose(report: CheckReport) -> Diagnosis {
    let (failed, warnings) = (report.count(CheckOutcome::Failed), report.count(CheckOutcome::Warning));
    let (skipped, checked): (Vec<Finding>, Vec<Finding>) =
        report.findings.into_iter().partition(|finding| finding.outcome == CheckOutcome::Skipped);
    let count = checked.len();
    let mut entries: Vec<Finding> = checked.into_iter().filter(|finding| finding.outcome != CheckOutcome::Ok).collect();
    // A stable sort: findings of one cause keep the order of their checks.
    entries.sort_by_key(|finding| (finding.outcome != CheckOutcome::Failed, finding.cause.is_none(), finding.cause));
    let entry = |finding: Finding| Entry {
        first_step: finding.cause.map(Cause::first_step),
        page: finding.cause.map(Cause::page),
        finding,
    };
    Diagnosis { checked: count, failed, warnings, entries: entries.into_iter().map(entry).collect(), skipped }
}

/// A store in a directory is open in its instance while the instance runs: the check of such a store is not a failure
/// where an instance has answered.
fn expect_store_in_use(asked: &AskedInstances, report: &mut CheckReport) {
    if asked.answered == 0 {
        return;
    }
    for finding in report.findings.iter_mut().filter(|finding| finding.cause == Some(Cause::StoreInUse)) {
        *finding =
            Finding::new(finding.check.clone(), CheckOutcome::Skipped, "the running instance has the store open");
    }
}

/// Judges the members of both groups: messages wait, and no instance reads them.
fn judge_members(groups: &[GroupLag; 2]) -> Vec<Finding> {
    let judge = |(name, group): (&str, &GroupLag)| {
        let GroupLag { members, lag } = *group;
        let message = match members {
            0 => format!("no instance reads {name}, and {lag} messages wait"),
            members => format!("{members} members, {lag} messages to read"),
        };
        let outcome = if members == 0 && lag > 0 { CheckOutcome::Warning } else { CheckOutcome::Ok };
        Finding::new(format!("members for {name}"), outcome, message).with_cause(Cause::Instance)
    };
    ["the validated transactions", "the chain"].into_iter().zip(groups).map(judge).collect()
}

async fn check_dead_letters(checked: &Checked) -> Finding {
    const CHECK: &str = "dead letters";
    let counted = count_unsettled(&checked.broker, &checked.config.kafka.topics, MOST_DEAD_LETTERS);
    match tokio::time::timeout(DEAD_LETTERS_TIMEOUT, counted).await {
        Ok(Ok(Some(counts))) => judge_dead_letters(CHECK, &counts),
        Ok(Ok(None)) => {
            let message = format!("the topic has more than {MOST_DEAD_LETTERS} messages, which were not read");
            Finding::new(CHECK, CheckOutcome::Warning, message).with_cause(Cause::DeadLetters)
        }
        Ok(Err(error)) => Finding::new(CHECK, CheckOutcome::Skipped, format!("cannot be read: {error}")),
        Err(_) => Finding::new(CHECK, CheckOutcome::Skipped, format!("were not read within {DEAD_LETTERS_TIMEOUT:?}")),
    }
}

fn judge_dead_letters(check: &str, counts: &BTreeMap<&'static str, usize>) -> Finding {
    let total: usize = counts.values().sum();
    let classes: Vec<String> = counts.iter().map(|(class, count)| format!("{count} {class}")).collect();
    match total {
        0 => Finding::new(check, CheckOutcome::Ok, "every dead letter is settled"),
        1 => Finding::new(check, CheckOutcome::Warning, format!("1 is not settled: {}", classes.join(", "))),
        n => Finding::new(check, CheckOutcome::Warning, format!("{n} are not settled: {}", classes.join(", "))),
    }
    .with_cause(Cause::DeadLetters)
}

async fn check_invariants(store: &StateStore) -> Finding {
    const CHECK: &str = "records";
    let (mut violations, mut named) = (0_usize, Vec::new());
    let found = |violation| {
        violations += 1;
        if named.len() < NAMED_VIOLATIONS {
            named.push(format!("{violation}"));
        }
    };
    match verify(store, |_| {}, found).await {
        Err(error) => Finding::failed(CHECK, error).with_cause(Cause::StoreAway),
        Ok(transactions) if violations == 0 => {
            Finding::new(CHECK, CheckOutcome::Ok, format!("{transactions} transactions have no violation"))
        }
        Ok(transactions) => {
            let named = named.join("; ");
            let message = format!("violations in {transactions} transactions: {violations}, among them: {named}");
            Finding::new(CHECK, CheckOutcome::Failed, message).with_cause(Cause::DamagedRecords)
        }
    }
}

async fn check_half_created(store: &StateStore) -> Finding {
    const CHECK: &str = "half-created transactions";
    let sweep = Sweep { now_ms: Clock::System.now_ms(), older_than_ms: HALF_CREATED_MS, dry_run: true };
    match sweep.run(store).await {
        Err(error) => Finding::failed(CHECK, error).with_cause(Cause::StoreAway),
        Ok(swept) => {
            let damaged = swept.damaged.iter().map(|damage| format!("{}: {}", damage.txid, damage.problem));
            let damaged: Vec<String> = damaged.take(NAMED_VIOLATIONS).collect();
            let half = (!swept.completed.is_empty())
                .then(|| format!("{} wait for `recover` or their instance", swept.completed.len()));
            Finding::from_problems(CHECK, "none is older than two minutes", &damaged, half.as_slice())
                .with_cause(Cause::DamagedRecords)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(outcome: CheckOutcome, check: &str, cause: Cause) -> Finding {
        Finding::new(check, outcome, "words").with_cause(cause)
    }

    fn diagnosis_of(findings: Vec<Finding>) -> Diagnosis {
        let mut report = CheckReport::new(Printed::Nothing);
        report.add(findings).unwrap();
        diagnose(report)
    }

    #[test]
    fn a_cause_comes_before_its_consequences_and_failures_before_warnings() {
        let diagnosis = diagnosis_of(vec![
            finding(CheckOutcome::Warning, "one copy", Cause::TopicSettings),
            finding(CheckOutcome::Failed, "halted", Cause::HaltedPartition),
            finding(CheckOutcome::Warning, "configuration", Cause::Configuration),
            finding(CheckOutcome::Failed, "offsets", Cause::LostOffsets),
            finding(CheckOutcome::Failed, "recreated", Cause::RecreatedTopic),
            finding(CheckOutcome::Ok, "brokers", Cause::Brokers),
            finding(CheckOutcome::Skipped, "blobs", Cause::Blobs),
        ]);
        let checks: Vec<&str> = diagnosis.entries.iter().map(|entry| entry.finding.check.as_str()).collect();
        assert_eq!(checks, ["recreated", "offsets", "halted", "configuration", "one copy"]);
        assert_eq!((diagnosis.checked, diagnosis.failed, diagnosis.warnings, diagnosis.skipped.len()), (6, 3, 2, 1));
    }

    #[test]
    fn the_url_of_an_instance_has_a_scheme_and_no_password() {
        assert_eq!(parse_instance("http://10.0.0.1:9464/").unwrap(), "http://10.0.0.1:9464");
        for (url, problem) in [
            ("10.0.0.1:9464", "write for example http://"),
            ("localhost:9464", "`localhost` is not http or https"),
            ("http://user:secret@host", "no user and no password"),
        ] {
            let refusal = parse_instance(url).unwrap_err();
            assert!(refusal.contains(problem) && !refusal.contains("secret"), "{refusal}");
        }
    }

    #[test]
    fn the_answer_begins_with_the_first_step() {
        let args = DoctorArgs { config: ConfigArgs { config: None }, instances: vec![], verify: false, json: false };
        let text = |findings| {
            let mut out = Vec::new();
            args.print(&diagnosis_of(findings), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let sound = text(vec![finding(CheckOutcome::Ok, "brokers", Cause::Brokers)]);
        assert_eq!(sound, "1 checks: 0 failed, 0 with a warning\n\nnothing to do\n");
        let lost = text(vec![
            finding(CheckOutcome::Failed, "store", Cause::LostNamespace),
            Finding::new("blob store", CheckOutcome::Skipped, "not set"),
        ]);
        let expected = [
            "1 checks: 1 failed, 0 with a warning\n",
            "1. FAILED   store: words",
            "   first: stop every instance; do not delete anything",
            "   page:  docs/operating/exits/lost-namespace.md\n",
            "not checked:\n- blob store: not set\n",
        ];
        assert_eq!(lost, expected.join("\n"));
    }

    #[test]
    fn waiting_messages_without_an_instance_and_dead_letters_are_warnings() {
        let outcome = |finding: Finding| (finding.outcome, finding.message);
        let judged = |members, lag| {
            let group = GroupLag { members, lag };
            judge_members(&[GroupLag { members: 1, lag: 0 }, group]).into_iter().map(outcome).next_back().unwrap()
        };
        assert_eq!(judged(0, 0).0, CheckOutcome::Ok);
        assert_eq!(judged(2, 9), (CheckOutcome::Ok, "2 members, 9 messages to read".to_owned()));
        let nobody = "no instance reads the chain, and 9 messages wait".to_owned();
        assert_eq!(judged(0, 9), (CheckOutcome::Warning, nobody));
        let letters = judge_dead_letters("dead letters", &[("decode", 2), ("invalid", 1)].into());
        assert_eq!(outcome(letters), (CheckOutcome::Warning, "3 are not settled: 2 decode, 1 invalid".to_owned()));
    }
}
