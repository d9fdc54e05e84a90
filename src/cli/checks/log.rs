//! Checks of the log: brokers, topics, permissions of the login, committed offsets.

use std::sync::Arc;

use super::{CheckReport, GroupLag, LogState};
use crate::{
    broker::{
        Broker, BrokerError, CommittedOffset,
        committed::{GroupPosition, read_positions},
        kafka::KafkaBroker,
    },
    cli::{
        Failure, topics,
        topics::{needed_log, wanted_copies},
    },
    config::Config,
    event::Topic,
    instance::{InstanceSettings, frontier::Frontier, start::check_decisions},
    preflight::{
        CheckOutcome, Finding,
        cause::Cause,
        group::{chain_position_problem, describe_halts, feed_position_warning, position_problem},
        replication::offsets_topic_problem,
        rights::{missing_group_rights, missing_topic_rights},
        topics::ObservedTopic,
    },
    sequencer::{chain_group, state::ChainState},
    store::topics::LogIdentity,
};

/// Checks the log; `None`: too little could be read to compare a store with the log.
pub(super) async fn check_log(
    config: &Config,
    settings: &InstanceSettings,
    broker: &KafkaBroker,
    report: &mut CheckReport,
) -> Result<Option<LogState>, Failure> {
    match broker.describe_cluster(&settings.pipeline.topic).await {
        Ok(cluster) => {
            let id = cluster.id.as_deref().unwrap_or("without an id");
            let message = format!("cluster {id}, {}", cluster.brokers.join(", "));
            report.add([Finding::new("brokers", CheckOutcome::Ok, message)])?;
        }
        Err(error) => {
            let reason = format!("{error} (kafka.brokers; kafka.security for logins and TLS)");
            let rest = Finding::new("topics, permissions and offsets", CheckOutcome::Skipped, "no broker answers");
            report.add([Finding::failed("brokers", reason).with_cause(Cause::Brokers), rest])?;
            return Ok(None);
        }
    }
    let existing = check_topics(config, broker, report).await?;
    report.add([check_offsets_topic(config, broker).await.with_cause(Cause::TopicSettings)])?;
    report.add([check_permissions(settings, broker, &existing).await.with_cause(Cause::Permissions)])?;
    if !settings.state_topics().iter().all(|(topic, _)| existing.contains(topic)) {
        let reason = "one of their topics does not exist, or cannot be described";
        report.add([Finding::new("offsets", CheckOutcome::Skipped, reason)])?;
        return Ok(None);
    }
    match check_offsets(settings, broker).await {
        Ok((findings, log_state)) => {
            report.add(findings)?;
            Ok(Some(log_state))
        }
        Err(error) => {
            let finding = Finding::failed(format!("group {}", settings.pipeline.group), error);
            report.add([finding.with_cause(Cause::Brokers)])?;
            Ok(None)
        }
    }
}

/// Checks each topic, and returns the topics that exist.
async fn check_topics(config: &Config, broker: &KafkaBroker, report: &mut CheckReport) -> Result<Vec<Topic>, Failure> {
    let names = &config.kafka.topics;
    let needed = Arc::new(needed_log::read(broker, config).await);
    match topics::describe_topics(broker, config, wanted_copies(config), &needed).await {
        Ok(statuses) => {
            report.add([needed.finding().with_cause(Cause::TopicSettings)])?;
            report.add(statuses.iter().map(|status| {
                let cause = if status.found.is_some() { Cause::TopicSettings } else { Cause::MissingTopic };
                status.finding(names.name(status.topic)).with_cause(cause)
            }))?;
            Ok(statuses.iter().filter(|status| status.found.is_some()).map(|status| status.topic).collect())
        }
        Err(error) => {
            report.add([Finding::failed("topics", error).with_cause(Cause::Brokers)])?;
            Ok(Vec::new())
        }
    }
}

/// Checks the copies of the cluster's own topic of committed offsets, without which no group commits.
async fn check_offsets_topic(config: &Config, broker: &KafkaBroker) -> Finding {
    const TOPIC: &str = "__consumer_offsets";
    let check = format!("topic {TOPIC}");
    match broker.describe_topic(TOPIC).await.map(|found| found.map(ObservedTopic::from_description)) {
        Ok(Some(found)) => {
            let problem = offsets_topic_problem(&found, wanted_copies(config));
            Finding::from_problems(check, &found.to_string(), problem.as_slice(), &[])
        }
        Ok(None) => Finding::new(check, CheckOutcome::Skipped, "the cluster creates the topic for its first group"),
        Err(error) => Finding::new(check, CheckOutcome::Skipped, format!("cannot be described: {error}")),
    }
}

/// Checks the permissions of the login on the existing topics and on both groups.
async fn check_permissions(settings: &InstanceSettings, broker: &KafkaBroker, existing: &[Topic]) -> Finding {
    const CHECK: &str = "permissions";
    let names: Vec<String> = existing.iter().map(|topic| settings.topic_name(*topic).to_owned()).collect();
    let groups = vec![settings.pipeline.group.clone(), chain_group(&settings.pipeline.group)];
    let rights = async {
        let on_topics = broker.rights_on_topics(names.clone()).await?;
        Ok::<_, BrokerError>((on_topics, broker.rights_on_groups(groups.clone()).await?))
    };
    let (on_topics, on_groups) = match rights.await {
        Ok(rights) => rights,
        Err(error) => {
            let message = format!("the cluster does not report the rights of this login ({error})");
            return Finding::new(CHECK, CheckOutcome::Skipped, message);
        }
    };
    let unknown = on_topics.iter().chain(&on_groups).filter(|rights| rights.is_none()).count();
    let topic_rights = existing.iter().zip(&names).zip(&on_topics);
    let mut problems: Vec<String> = topic_rights
        .filter_map(|((topic, name), has)| Some(missing_topic_rights(*topic, name, has.as_ref()?)))
        .flatten()
        .collect();
    let group_rights = groups.iter().zip(&on_groups);
    problems.extend(group_rights.filter_map(|(group, has)| Some(missing_group_rights(group, has.as_ref()?))).flatten());
    let message = format!(
        "an instance has the rights that it needs on {} topics and {} groups",
        on_topics.iter().flatten().count(),
        on_groups.iter().flatten().count()
    );
    let unknown =
        (unknown > 0).then(|| format!("the cluster does not report the rights on {unknown} topics or groups"));
    Finding::from_problems(CHECK, &message, &problems, unknown.as_slice())
}

/// Checks that the topics have the committed offsets of both groups, and the decisions of the chain.
async fn check_offsets(
    settings: &InstanceSettings,
    broker: &KafkaBroker,
) -> Result<(Vec<Finding>, LogState), BrokerError> {
    let group = &settings.pipeline.group;
    let chain_group = chain_group(group);
    let frontier = Frontier::read(settings, broker).await?;
    let members = [broker.member_count(group).await?, broker.member_count(&chain_group).await?];

    let validated = read_positions(broker, group, settings.topic_name(Topic::ValidatedTxs)).await?;
    let problems: Vec<_> = validated.iter().filter_map(|position| position_problem(group, position)).collect();
    let chain = read_positions(broker, &chain_group, settings.topic_name(Topic::Chain)).await?;
    let mut chain_problems: Vec<_> =
        chain.iter().filter_map(|position| chain_position_problem(&chain_group, position)).collect();
    let mut chain_warnings = Vec::new();
    match read_chain_state(&frontier) {
        Err(problem) => chain_problems.push(problem),
        Ok(state) if frontier.chain_commit.is_some() => {
            let feeds = [
                (Topic::BlockMined, state.block_mined_next),
                (Topic::Reorgs, state.reorgs_next),
                (Topic::Decisions, state.decisions_from),
            ];
            for (topic, next) in feeds {
                let at = settings.partition(topic, 0);
                let (low, high) = broker.watermarks(&at).await?;
                let committed = Some(CommittedOffset { offset: next, metadata: String::new() });
                let position = GroupPosition { at, low, high, committed };
                match feed_position_warning(&position).filter(|_| topic.is_fed()) {
                    Some(warning) => chain_warnings.push(warning),
                    None => chain_problems.extend(chain_position_problem(&chain_group, &position)),
                }
            }
        }
        Ok(_) => {}
    }
    let decisions = check_decisions(settings, broker, &frontier).await;
    let identity = LogIdentity::read(broker, &settings.state_topics()).await?;
    let described = format!("members: {}; of {chain_group}: {}", members[0], members[1]);
    let lag = |positions: &[GroupPosition]| positions.iter().map(GroupPosition::lag).sum::<u64>();
    let validated_lag = format!("{} partitions, {} messages to read", validated.len(), lag(&validated));
    let chain_lag = format!("{} messages to read", lag(&chain));
    let halts = describe_halts(&frontier.commits);
    let findings = vec![
        Finding::new(format!("group {group}"), CheckOutcome::Ok, described),
        Finding::from_problems("offsets of the validated transactions", &validated_lag, &problems, &[])
            .with_cause(Cause::LostOffsets),
        Finding::from_problems("offsets of the chain", &chain_lag, &chain_problems, &chain_warnings)
            .with_cause(if chain_problems.is_empty() { Cause::MissingInput } else { Cause::LostOffsets }),
        Finding::from_problems("halts", "no partition is halted", &[], &halts).with_cause(Cause::HaltedPartition),
        Finding::from_result("decisions", decisions.map(|()| "the decisions were made on this chain"))
            .with_cause(Cause::RecreatedTopic),
    ];
    let groups = [(members[0], lag(&validated)), (members[1], lag(&chain))];
    let groups = groups.map(|(members, lag)| GroupLag { members, lag });
    Ok((findings, LogState { identity, frontier, groups }))
}

fn read_chain_state(frontier: &Frontier) -> Result<ChainState, String> {
    let metadata = frontier.chain_commit.as_ref().map_or("", |committed| &committed.metadata);
    ChainState::from_metadata(metadata).map_err(|error| error.to_string())?.checked()
}
