//! `/v1/commands`: publishes commands to the sequencer, and reads their results.

use std::time::Duration;

use axum::{
    Json,
    extract::State,
    http::HeaderMap,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::{
    context::ApiContext,
    outputs::check_count,
    params::{BoundedList, JSON, NoParams, Params, PathParts, parse_json, require_media_type},
};
use crate::{
    api::{
        byte_budget::RequestBytes,
        limits::{LimitedBody, RequestPlace},
        problem::{ExtendedProblem, Problem},
    },
    client::{CommandAnswer, CommandClient, CommandOutcome, PendingCommand},
    event::{Event, from_json},
    record::{Key, Record},
    rng::random_bytes,
};

/// Longest accepted wait for the results.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// Wait for the results of commands.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct CommandParams {
    /// Longest wait for the results, milliseconds: at most 300,000, by default 60,000.
    timeout_ms: Option<u64>,
}

/// Memory of an action while it is read, for each byte of its text: `[0],` is a list and a number.
const BYTES_PER_BYTE: u64 = 100;
/// Memory of a command besides its text.
const COMMAND_BYTES: u64 = 256;

/// Commands to publish, in their order.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandsRequest {
    /// Commands, which the sequencer handles in this order.
    #[schema(value_type = Vec<CommandRequest>)]
    commands: BoundedList<CommandRequest>,
}

/// A command. Many outputs are frozen, or many transactions unlocked, by one command each.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandRequest {
    /// Id of the command, 32 hexadecimal digits; by default a random one. The sequencer handles each id once, so that a
    /// command without an answer is sent again with its id.
    id: Option<String>,
    /// Action in the JSON form of events (`schemas/command.md`), such as `{"freeze":{"outpoint":"TXID:0"}}`.
    #[schema(value_type = Object)]
    action: Box<RawValue>,
}

/// Results of commands, in the order of the request.
#[derive(Debug, Serialize, ToSchema)]
pub struct CommandsAnswer {
    /// Results, one for each command.
    commands: Vec<CommandResultView>,
}

/// Result of a command.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommandResultView {
    /// Id of the command, 32 hexadecimal digits.
    id: String,
    /// Offset of the command in the chain log; absent: the log has not acknowledged the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    chain_offset: Option<u64>,
    /// Result of the command. `unchanged`: a `reconsider` without a change; `unanswered`: no result in time;
    /// `unacknowledged`: the command may be in the log.
    result: CommandResultName,
    /// Reason of a refusal as a code.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    /// Reason of a refusal, or of a missing acknowledgement, in one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

/// Name of the result of a command.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CommandResultName {
    /// The command is applied.
    Applied,
    /// The store had the effect of the command before.
    AlreadyApplied,
    /// The command is refused, and has changed nothing.
    Refused,
    /// The verdict stays as it was.
    Unchanged,
    /// No result was read in time.
    Unanswered,
    /// The log has not acknowledged the command.
    Unacknowledged,
}

impl CommandResultView {
    fn new(id: String, chain_offset: Option<u64>, outcome: CommandOutcome) -> Self {
        let (result, code, message) = match outcome {
            CommandOutcome::Applied => (CommandResultName::Applied, None, None),
            CommandOutcome::AlreadyApplied => (CommandResultName::AlreadyApplied, None, None),
            CommandOutcome::Refused { code, message } => (CommandResultName::Refused, Some(code), Some(message)),
            CommandOutcome::Unchanged => (CommandResultName::Unchanged, None, None),
            CommandOutcome::Unanswered => (CommandResultName::Unanswered, None, None),
            CommandOutcome::Unacknowledged { message } => (CommandResultName::Unacknowledged, None, Some(message)),
        };
        CommandResultView { id, chain_offset, result, code, message }
    }
}

/// Publish commands to the sequencer, and wait for their results.
///
/// A command without an answer in time is still handled: send the same command again with its id, which changes nothing
/// and returns the first result.
#[utoipa::path(
    post,
    path = "/v1/commands",
    tag = "commands",
    params(CommandParams),
    request_body(content((CommandsRequest = "application/json"))),
    responses(
        (status = 200, description = "The results", body = CommandsAnswer),
        (status = 400, description = "A command is malformed; none is published", body = Problem),
        (status = 413, description = "Too many commands", body = Problem),
        (
            status = 503,
            description = "The log has not acknowledged every command, or the results cannot be read; the problem has \
                           these further members",
            body = CommandsAnswer,
            content_type = "application/problem+json"
        ),
    )
)]
pub async fn post_commands(
    State(context): State<ApiContext>,
    Params(params): Params<CommandParams>,
    place: RequestPlace,
    headers: HeaderMap,
    memory: RequestBytes,
    LimitedBody(body): LimitedBody,
) -> Result<Response, Problem> {
    require_media_type(&headers, JSON)?;
    let wait = Duration::from_millis(params.timeout_ms.unwrap_or(60_000));
    if wait > LONGEST_WAIT {
        return Err(Problem::bad_request(format!("timeout_ms: at most {}", LONGEST_WAIT.as_millis())));
    }
    let CommandsRequest { commands: BoundedList(commands) } = parse_json(&body)?;
    if commands.is_empty() {
        return Err(Problem::bad_request("the request has no command"));
    }
    check_count(&context, commands.len())?;
    memory.reserve(commands.len() as u64 * COMMAND_BYTES)?;
    // The actions are texts, and are read one after the other.
    let reading = memory.begin_part();
    let longest = commands.iter().map(|command| command.action.get().len() as u64).max();
    reading.reserve(longest.unwrap_or(0) * BYTES_PER_BYTE)?;
    let commands: Vec<PendingCommand> = commands.into_iter().zip(0..).map(to_pending).collect::<Result<_, _>>()?;
    drop(reading);
    let log = context.log()?;
    let publisher = log.publisher(&context.limits).await?;
    let _permit = context.limits.open_stream()?;
    let sharing = (publisher.producer(), &log.outcomes);
    let client = CommandClient::following(log.broker.as_ref(), sharing, &context.topics, &commands);
    let client = context.limits.bound("the log", client).await?;
    let client = client.map_err(|error| Problem::unavailable(error.to_string()))?;
    place.leave();
    let publish_within = context.limits.timeout;
    let (answers, failure) = client.submit(&commands, publish_within, wait).await;
    if answers.iter().any(|answer| answer.is_client_unusable) {
        log.give_up_publisher(&publisher).await;
    }
    let published = answers.iter().filter(|answer| answer.chain_offset.is_some()).count();
    let all = answers.len();
    let view = |answer: CommandAnswer| CommandResultView::new(answer.id, answer.chain_offset, answer.outcome);
    let members = CommandsAnswer { commands: answers.into_iter().map(view).collect() };
    let reason = match failure {
        None if published == all => return Ok(Json(members).into_response()),
        Some(error) if published == all => format!("the results cannot be read: {error}"),
        _ => format!(
            "the log has acknowledged {published} of {all} commands within {publish_within:?} (http.timeout_ms)"
        ),
    };
    let detail = format!("{reason}; send the same commands again, with their ids: a repeat changes nothing");
    Ok(ExtendedProblem { problem: Problem::unavailable(detail), members }.into_response())
}

fn to_pending((request, number): (CommandRequest, usize)) -> Result<PendingCommand, Problem> {
    let refuse = |why: &dyn std::fmt::Display| Problem::bad_request(format!("commands[{number}]: {why}"));
    let id = match request.id {
        Some(id) => parse_id(&id).map_err(|problem| refuse(&problem.detail))?,
        None => random_bytes().map_err(|error| refuse(&error))?,
    };
    let text = format!(r#"{{"event":"command","id":"{}","action":{}}}"#, hex::encode(id), request.action.get());
    let bytes = from_json(&text).map_err(|error| refuse(&error))?;
    match Event::decode(&bytes) {
        Ok(Event::Command(command)) => Ok(PendingCommand::new(id, command.action)),
        _ => Err(refuse(&"the action is no command")),
    }
}

fn parse_id(text: &str) -> Result<[u8; 16], Problem> {
    let mut id = [0; 16];
    let problem = |_| Problem::bad_request("the id of a command has 32 hexadecimal digits");
    hex::decode_to_slice(text, &mut id).map_err(problem)?;
    Ok(id)
}

/// Read the result of a command that the sequencer has handled.
#[utoipa::path(
    get,
    path = "/v1/commands/{id}",
    tag = "commands",
    params(("id" = String, Path, description = "Id of the command, 32 hexadecimal digits")),
    responses(
        (status = 200, description = "The result", body = CommandResultView),
        (status = 404, description = "The sequencer has handled no such command", body = Problem),
        (status = 503, description = "The store does not answer", body = Problem),
    )
)]
pub async fn get_command(
    State(context): State<ApiContext>,
    PathParts(id): PathParts<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<CommandResultView>, Problem> {
    let id = parse_id(&id)?;
    let store = context.store()?;
    let record = context.bound_store(store.read(vec![Key::Command(id)])).await??.pop().flatten();
    match record {
        Some(Record::Command(command)) => {
            Ok(Json(CommandResultView::new(hex::encode(id), Some(command.chain_offset), command.result.into())))
        }
        _ => {
            let detail = format!(
                "the sequencer has handled no command {}; a reconsider is in the history of its transaction",
                hex::encode(id)
            );
            Err(Problem::not_found(detail))
        }
    }
}
