//! Checks of the log: brokers, topics, permissions of the login, committed offsets.

use super::{CheckReport, LogState};
use crate::{
    broker::{Broker, BrokerError, TopicPartition, kafka::KafkaBroker},
    cli::{CliResult, Failure, topics},
    config::Config,
    event::Topic,
    instance::{
        InstanceSettings,
        checks::{check_decisions, read_chain_topic_id, store_topics},
        frontier::Frontier,
    },
    preflight::{
        CheckOutcome, Finding,
        group::{CommittedPosition, describe_halts},
        rights::{missing_group_rights, missing_topic_rights},
        topics::{TopicCaution, TopicProblem, find_cautions, find_problems},
    },
    sequencer::{chain_group, state::ChainState},
    store::topics::find_topics,
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
            report.print(&Finding::new("brokers", CheckOutcome::Ok, message))?;
        }
        Err(error) => {
            let reason = format!("{error} (kafka.brokers; kafka.security for logins and TLS)");
            report.print(&Finding::from_result("brokers", Err::<&str, _>(reason)))?;
            report.print(&Finding::new(
                "topics, permissions and offsets",
                CheckOutcome::Skipped,
                "no broker answers",
            ))?;
            return Ok(None);
        }
    }
    let existing = check_topics(config, broker, report).await?;
    check_permissions(settings, broker, &existing, report).await?;
    if !Topic::all().filter(|topic| topic.is_state_source()).all(|topic| existing.contains(&topic)) {
        report.print(&Finding::new(
            "offsets",
            CheckOutcome::Skipped,
            "one of their topics does not exist, or cannot be described",
        ))?;
        return Ok(None);
    }
    match check_offsets(settings, broker, report).await {
        Ok(log_state) => log_state,
        Err(error) => {
            report.print(&Finding::from_result(format!("group {}", settings.pipeline.group), Err::<&str, _>(error)))?;
            Ok(None)
        }
    }
}

/// Checks each topic, and returns the topics that exist.
async fn check_topics(config: &Config, broker: &KafkaBroker, report: &mut CheckReport) -> Result<Vec<Topic>, Failure> {
    let names = &config.kafka.topics;
    let statuses = match topics::describe_topics(broker, names).await {
        Ok(statuses) => statuses,
        Err(error) => {
            report.print(&Finding::from_result("topics", Err::<&str, _>(error)))?;
            return Ok(Vec::new());
        }
    };
    let mut existing = Vec::new();
    for topics::TopicStatus { topic, found, unknown } in statuses {
        let check = format!("topic {}", names.name(topic));
        if let (None, Some(error)) = (&found, &unknown) {
            report.print(&Finding::from_result(check, Err::<&str, _>(error)))?;
            continue;
        }
        let problems: Vec<String> = find_problems(topic, found.as_ref()).iter().map(TopicProblem::to_string).collect();
        existing.extend(found.is_some().then_some(topic));
        let found = found.unwrap_or_default();
        let mut cautions: Vec<String> = find_cautions(topic, &found).iter().map(TopicCaution::to_string).collect();
        cautions.extend(unknown.filter(|_| topic.is_state_source()).map(|error| {
            format!("whether the topic keeps every message is unknown ({error}): allow DescribeConfigs to this login")
        }));
        report.print(&Finding::from_problems(check, &found.to_string(), &problems, &cautions))?;
    }
    Ok(existing)
}

/// Checks the permissions of the login on the existing topics and on both groups.
async fn check_permissions(
    settings: &InstanceSettings,
    broker: &KafkaBroker,
    existing: &[Topic],
    report: &mut CheckReport,
) -> CliResult {
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
            return Ok(report.print(&Finding::new(CHECK, CheckOutcome::Skipped, message))?);
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
    Ok(report.print(&Finding::from_problems(CHECK, &message, &problems, unknown.as_slice()))?)
}

/// Checks that the topics have the committed offsets of both groups, and the decisions of the chain. The outer error is
/// an error of the brokers, the inner one an error of printing.
async fn check_offsets(
    settings: &InstanceSettings,
    broker: &KafkaBroker,
    report: &mut CheckReport,
) -> Result<Result<Option<LogState>, Failure>, BrokerError> {
    let group = &settings.pipeline.group;
    let chain_group = chain_group(group);
    let frontier = Frontier::read(settings, broker).await?;
    let members = [broker.member_count(group).await?, broker.member_count(&chain_group).await?];

    let validated = (0..frontier.validated.len() as i32).map(|number| {
        let next = frontier.commits.iter().find(|(at, _)| *at == number).map(|(_, committed)| committed.offset);
        (number, next)
    });
    let (mut problems, mut behind) = (Vec::new(), 0);
    for (partition, next) in validated {
        let position = read_position(broker, group, settings.topic_name(Topic::ValidatedTxs), partition, next).await?;
        behind += position.offset_range.1.saturating_sub(next.unwrap_or(position.offset_range.0));
        problems.extend(position.problem());
    }
    let next = frontier.chain_commit.as_ref().map(|committed| committed.offset);
    let chain_position = read_position(broker, &chain_group, settings.topic_name(Topic::Chain), 0, next).await?;
    let mut chain_problems: Vec<String> = chain_position.problem().into_iter().collect();
    match read_chain_state(&frontier) {
        Err(problem) => chain_problems.push(problem),
        Ok(state) => {
            let (block_mined, reorgs) = state.handled_offsets();
            let feeds =
                [(Topic::BlockMined, block_mined), (Topic::Reorgs, reorgs), (Topic::Decisions, state.decisions_from)];
            for (topic, next) in feeds.into_iter().filter(|_| next.is_some()) {
                let position = read_position(broker, &chain_group, settings.topic_name(topic), 0, Some(next)).await?;
                chain_problems.extend(position.problem());
            }
        }
    }
    let decisions = check_decisions(settings, broker).await;
    let chain_id = read_chain_topic_id(settings, broker).await?;
    let topics = find_topics(broker, &store_topics(settings)).await?;
    let log_state = LogState {
        partitions: frontier.validated.len() as u32,
        chain_id,
        topics,
        has_commits: frontier.has_commits(),
        resume: frontier.resume_offsets(),
        consumed: frontier.consumed,
    };
    let print = || {
        let message = format!("members: {}; of {chain_group}: {}", members[0], members[1]);
        report.print(&Finding::new(format!("group {group}"), CheckOutcome::Ok, message))?;
        let message = format!("{} partitions, {behind} messages to read", log_state.partitions);
        report.print(&Finding::from_problems("offsets of the validated transactions", &message, &problems, &[]))?;
        let message = format!("{} messages to read", chain_position.offset_range.1.saturating_sub(next.unwrap_or(0)));
        report.print(&Finding::from_problems("offsets of the chain", &message, &chain_problems, &[]))?;
        report.print(&Finding::from_problems(
            "halts",
            "no partition is halted",
            &[],
            &describe_halts(&frontier.commits),
        ))?;
        report
            .print(&Finding::from_result("decisions", decisions.map(|()| "the decisions were made on this chain")))?;
        Ok(Some(log_state))
    };
    Ok(print())
}

fn read_chain_state(frontier: &Frontier) -> Result<ChainState, String> {
    let metadata = frontier.chain_commit.as_ref().map_or("", |committed| &committed.metadata);
    ChainState::from_metadata(metadata).map_err(|error| error.to_string())?.checked()
}

async fn read_position<'a>(
    broker: &KafkaBroker,
    group: &'a str,
    topic: &'a str,
    partition: i32,
    next: Option<u64>,
) -> Result<CommittedPosition<'a>, BrokerError> {
    let offset_range = broker.watermarks(&TopicPartition { topic: topic.into(), partition }).await?;
    Ok(CommittedPosition { group, topic, partition, next, offset_range })
}
