//! The log: brokers, topics, what this login may do, where the group goes on.

use super::{Logged, Report};
use crate::{
    broker::{Broker, BrokerError, TopicPartition, kafka::KafkaBroker},
    cli::{CommandResult, Failure, topics},
    config::Config,
    event::Topic,
    instance::{
        InstanceSettings,
        checks::{check_decisions, first_of_chain, store_topics},
        frontier::Frontier,
    },
    preflight::{
        Finding, Outcome,
        group::{Stand, halts},
        rights::{missing_on_group, missing_on_topic},
        topics::{Caution, Problem, cautions, problems},
    },
    sequencer::{chain_group, state::ChainState},
    store::topics::find_topics,
};

/// Looks at the log; `None`: too little of it is there to hold a store against it.
pub(super) async fn look(
    config: &Config,
    settings: &InstanceSettings,
    broker: &KafkaBroker,
    report: &mut Report,
) -> Result<Option<Logged>, Failure> {
    match broker.describe_cluster(&settings.pipeline.topic).await {
        Ok(cluster) => {
            let id = cluster.id.as_deref().unwrap_or("without an id");
            let told = format!("cluster {id}, {}", cluster.brokers.join(", "));
            report.tell(&Finding::new("brokers", Outcome::Ok, told))?;
        }
        Err(error) => {
            let why = format!("{error} (kafka.brokers; kafka.security for logins and TLS)");
            report.tell(&Finding::of("brokers", Err::<&str, _>(why)))?;
            report.tell(&Finding::new("topics, permissions and offsets", Outcome::Skipped, "no broker answers"))?;
            return Ok(None);
        }
    }
    let are_there = all_topics(config, broker, report).await?;
    permissions(settings, broker, &are_there, report).await?;
    if !Topic::ALL.iter().filter(|topic| topic.makes_the_state()).all(|topic| are_there.contains(topic)) {
        report.tell(&Finding::new(
            "offsets",
            Outcome::Skipped,
            "a topic that they are of is not there, or may not be looked at",
        ))?;
        return Ok(None);
    }
    match stand(settings, broker, report).await {
        Ok(logged) => logged,
        Err(error) => {
            report.tell(&Finding::of(format!("group {}", settings.pipeline.group), Err::<&str, _>(error)))?;
            Ok(None)
        }
    }
}

/// Looks at each topic, and answers which are there.
async fn all_topics(config: &Config, broker: &KafkaBroker, report: &mut Report) -> Result<Vec<Topic>, Failure> {
    let names = &config.kafka.topics;
    let looked = match topics::look(broker, names).await {
        Ok(looked) => looked,
        Err(error) => {
            report.tell(&Finding::of("topics", Err::<&str, _>(error)))?;
            return Ok(Vec::new());
        }
    };
    let mut are_there = Vec::new();
    for topics::Looked { topic, found, unknown } in looked {
        let check = format!("topic {}", names.name(topic));
        if let (None, Some(error)) = (&found, &unknown) {
            report.tell(&Finding::of(check, Err::<&str, _>(error)))?;
            continue;
        }
        let problems: Vec<String> = problems(topic, found.as_ref()).iter().map(Problem::to_string).collect();
        are_there.extend(found.is_some().then_some(topic));
        let found = found.unwrap_or_default();
        let mut cautions: Vec<String> = cautions(topic, &found).iter().map(Caution::to_string).collect();
        cautions.extend(unknown.filter(|_| topic.makes_the_state()).map(|error| {
            format!("whether it keeps everything is not known ({error}): let this login do DescribeConfigs")
        }));
        report.tell(&Finding::weighed(check, &found.to_string(), &problems, &cautions))?;
    }
    Ok(are_there)
}

/// Looks at what this login may do with the topics that are there, and with the groups.
async fn permissions(
    settings: &InstanceSettings,
    broker: &KafkaBroker,
    are_there: &[Topic],
    report: &mut Report,
) -> CommandResult {
    const CHECK: &str = "permissions";
    let names: Vec<String> = are_there.iter().map(|topic| settings.topic_name(*topic).to_owned()).collect();
    let groups = vec![settings.pipeline.group.clone(), chain_group(&settings.pipeline.group)];
    let asked = async {
        let on_topics = broker.rights_on_topics(names.clone()).await?;
        Ok::<_, BrokerError>((on_topics, broker.rights_on_groups(groups.clone()).await?))
    };
    let (on_topics, on_groups) = match asked.await {
        Ok(told) => told,
        Err(error) => {
            let told = format!("the cluster does not say what this login may do ({error})");
            return Ok(report.tell(&Finding::new(CHECK, Outcome::Skipped, told))?);
        }
    };
    let unsaid = on_topics.iter().chain(&on_groups).filter(|rights| rights.is_none()).count();
    let of_topics = are_there.iter().zip(&names).zip(&on_topics);
    let mut problems: Vec<String> = of_topics
        .filter_map(|((topic, name), has)| Some(missing_on_topic(*topic, name, has.as_ref()?)))
        .flatten()
        .collect();
    let of_groups = groups.iter().zip(&on_groups);
    problems.extend(of_groups.filter_map(|(group, has)| Some(missing_on_group(group, has.as_ref()?))).flatten());
    let told = format!(
        "what an instance does with {} topics and {} groups is allowed",
        on_topics.iter().flatten().count(),
        on_groups.iter().flatten().count()
    );
    let unsaid = (unsaid > 0).then(|| format!("of {unsaid} topics or groups the cluster does not say what is allowed"));
    Ok(report.tell(&Finding::weighed(CHECK, &told, &problems, unsaid.as_slice()))?)
}

/// Where the group goes on, and whether what it goes on with is there. The outer error is the broker's.
async fn stand(
    settings: &InstanceSettings,
    broker: &KafkaBroker,
    report: &mut Report,
) -> Result<Result<Option<Logged>, Failure>, BrokerError> {
    let group = &settings.pipeline.group;
    let chain_group = chain_group(group);
    let frontier = Frontier::committed(settings, broker).await?;
    let members = [broker.member_count(group).await?, broker.member_count(&chain_group).await?];

    let validated = (0..frontier.validated.len() as i32).map(|number| {
        let next = frontier.commits.iter().find(|(at, _)| *at == number).map(|(_, committed)| committed.offset);
        (number, next)
    });
    let (mut problems, mut behind) = (Vec::new(), 0);
    for (partition, next) in validated {
        let stand = held(broker, group, settings.topic_name(Topic::ValidatedTxs), partition, next).await?;
        behind += stand.holds.1.saturating_sub(next.unwrap_or(stand.holds.0));
        problems.extend(stand.problem());
    }
    let next = frontier.chain_commit.as_ref().map(|committed| committed.offset);
    let on_chain = held(broker, &chain_group, settings.topic_name(Topic::Chain), 0, next).await?;
    let mut chain_problems: Vec<String> = on_chain.problem().into_iter().collect();
    match chain_state(&frontier) {
        Err(why) => chain_problems.push(why),
        Ok(state) => {
            let (block_mined, reorgs) = state.handled();
            let feeds =
                [(Topic::BlockMined, block_mined), (Topic::Reorgs, reorgs), (Topic::Decisions, state.decisions_from)];
            for (topic, next) in feeds.into_iter().filter(|_| next.is_some()) {
                let stand = held(broker, &chain_group, settings.topic_name(topic), 0, Some(next)).await?;
                chain_problems.extend(stand.problem());
            }
        }
    }
    let decisions = check_decisions(settings, broker).await;
    let chain_id = first_of_chain(settings, broker).await?;
    let topics = find_topics(broker, &store_topics(settings)).await?;
    let logged = Logged {
        partitions: frontier.validated.len() as u32,
        chain_id,
        topics,
        any: frontier.any(),
        from: frontier.stands_at(),
        consumed: frontier.consumed,
    };
    let told = || {
        let who = format!("members: {}; of {chain_group}: {}", members[0], members[1]);
        report.tell(&Finding::new(format!("group {group}"), Outcome::Ok, who))?;
        let told = format!("{} partitions, {behind} messages are to be read", logged.partitions);
        report.tell(&Finding::weighed("offsets of the validated transactions", &told, &problems, &[]))?;
        let told = format!("{} messages are to be read", on_chain.holds.1.saturating_sub(next.unwrap_or(0)));
        report.tell(&Finding::weighed("offsets of the chain", &told, &chain_problems, &[]))?;
        report.tell(&Finding::weighed("halts", "no partition is halted", &[], &halts(&frontier.commits)))?;
        report.tell(&Finding::of("decisions", decisions.map(|()| "they are those that were made on this chain")))?;
        Ok(Some(logged))
    };
    Ok(told())
}

fn chain_state(frontier: &Frontier) -> Result<ChainState, String> {
    let metadata = frontier.chain_commit.as_ref().map_or("", |committed| &committed.metadata);
    ChainState::from_metadata(metadata).map_err(|error| error.to_string())?.checked()
}

async fn held<'a>(
    broker: &KafkaBroker,
    group: &'a str,
    topic: &'a str,
    partition: i32,
    next: Option<u64>,
) -> Result<Stand<'a>, BrokerError> {
    let holds = broker.watermarks(&TopicPartition { topic: topic.into(), partition }).await?;
    Ok(Stand { group, topic, partition, next, holds })
}
