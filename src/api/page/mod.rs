//! The page for people at `/`: the chain, transactions, outputs and blocks, rendered by the server. The page works
//! without scripts and asks no other host.
//!
//! | file | content |
//! |---|---|
//! | `layout` | the frame of every page |
//! | `home` | the chain, the instance with its rates, halts, waits |
//! | `transaction`, `history` | one transaction: inputs, outputs and conflicts; what was decided |
//! | `lists` | unmined and conflicting transactions |
//! | `docs` | the description of the API |
//! | `vault` | the page of an owner, in a process of the vault |
//! | `rate` | rate of a counter |

mod docs;
mod history;
mod home;
mod layout;
mod lists;
mod rate;
mod transaction;
#[cfg(feature = "vault")]
pub mod vault;

use std::sync::Arc;

use axum::{
    Router,
    extract::{FromRef, FromRequestParts, Request, State},
    http::{HeaderValue, header, request::Parts},
    middleware::{self, Next},
    response::{Html, IntoResponse, Redirect, Response},
    routing::get,
};
use maud::{Markup, html};
use serde::{Deserialize, de::DeserializeOwned};

use history::ShownHistory;
use home::Progress;
use rate::RateMeter;
use transaction::ShownRange;

use super::{
    access::Role,
    byte_budget::RequestBytes,
    limits::HttpLimits,
    problem::{Problem, ProblemKind},
    v1::{self, ApiContext, NoParams, Params, PathParts},
};
use crate::{
    record::BlockRecord,
    status::Health,
    store::{queries::BlockName, tx_list::TxSelection},
    telemetry::Metrics,
    text::{hex_reversed, parse_decimal},
    tx::{Outpoint, Txid},
};

/// Permits nothing but the page itself: no script, no other host, no frame around the page.
const CONTENT_SECURITY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; frame-ancestors 'none'";

/// Memory of a page: its text, and what the text is made from.
const PAGE_BYTES: u64 = 512 << 10;

/// Parts that the page uses.
#[derive(Clone)]
struct PageContext {
    api: ApiContext,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    rate: Arc<RateMeter>,
    /// The page `/docs`, rendered once at the start.
    docs: Arc<str>,
}

impl FromRef<PageContext> for HttpLimits {
    fn from_ref(context: &PageContext) -> Self {
        context.api.limits.clone()
    }
}

/// Words of a search.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SearchParams {
    /// A txid, an outpoint, the hash of a block, or a height.
    q: String,
}

/// Rows of a transaction.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RowParams {
    /// First input, by default 0.
    #[serde(default)]
    inputs: u32,
    /// First output, by default 0.
    #[serde(default)]
    outputs: u32,
}

/// Place in a list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CursorParams {
    cursor: Option<String>,
}

/// Builds the routes of the page.
pub fn router(api: ApiContext, health: Arc<Health>, metrics: Arc<Metrics>) -> Router {
    let rate = Arc::new(RateMeter::new(metrics.completed.total()));
    let docs = layout::page("The API", &docs::render(&v1::document(&api))).into();
    let context = PageContext { api, health, metrics, rate, docs };
    Router::new()
        .route("/", get(home_page))
        .route("/search", get(search))
        .route("/transactions/{txid}", get(transaction_page))
        .route("/blocks/{block}", get(block_page))
        .route("/transactions/{txid}/history", get(history_page))
        .route("/unmined", get(unmined_page))
        .route("/conflicting", get(conflicting_page))
        .route("/docs", get(docs_page))
        .route_layer(middleware::from_fn_with_state(context.clone(), require_reader))
        .with_state(context)
}

/// Refuses a request without a token of a reader. A browser asks for the token, as the password of any name.
async fn require_reader(State(context): State<PageContext>, request: Request, next: Next) -> Response {
    protect(match context.api.access.permit(request.headers(), Role::Read) {
        Ok(()) => next.run(request).await,
        Err(problem) => PageProblem(problem).into_response(),
    })
    .await
}

/// Asks a browser without a token for one, and permits the page nothing but itself.
async fn protect(mut response: Response) -> Response {
    let is_unauthorized = response.status() == ProblemKind::Unauthorized.status();
    let headers = response.headers_mut();
    if is_unauthorized {
        let asks = HeaderValue::from_static("Basic realm=\"utxo-store\", charset=\"UTF-8\"");
        headers.insert(header::WWW_AUTHENTICATE, asks);
    }
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Answer of a page: the page, or a page that shows the problem.
type PageResult = Result<Html<String>, PageProblem>;

/// A problem that is shown as a page.
struct PageProblem(Problem);

impl From<Problem> for PageProblem {
    fn from(problem: Problem) -> Self {
        PageProblem(problem)
    }
}

impl IntoResponse for PageProblem {
    fn into_response(self) -> Response {
        let PageProblem(problem) = self;
        let body = html! {
            h1 { (problem.title) }
            p.problem { (problem.detail) }
        };
        let shown = Html(layout::page(&problem.title, &body)).into_response();
        // Status, `Retry-After` and the reason for the log are those of the problem.
        let mut response = problem.into_response();
        response.headers_mut().extend(shown.headers().clone());
        *response.body_mut() = shown.into_body();
        response
    }
}

/// Query parameters of a page for people: [`Params`], whose refusal is shown as a page.
struct ShownParams<T>(T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for ShownParams<T> {
    type Rejection = PageProblem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
        let Params(params) = Params::from_request_parts(parts, state).await?;
        Ok(ShownParams(params))
    }
}

/// Parts of the path of a page for people: [`PathParts`], whose refusal is shown as a page.
struct ShownPath<T>(T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for ShownPath<T> {
    type Rejection = PageProblem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
        let PathParts(parsed) = PathParts::from_request_parts(parts, state).await?;
        Ok(ShownPath(parsed))
    }
}

fn page(title: &str, body: &Markup) -> Html<String> {
    Html(layout::page(title, body))
}

async fn home_page(
    State(context): State<PageContext>,
    ShownParams(NoParams {}): ShownParams<NoParams>,
    memory: RequestBytes,
) -> PageResult {
    memory.reserve(PAGE_BYTES)?;
    let store = context.api.store()?;
    let chain = context.api.chain(&store).await?;
    let status = serde_json::to_value(context.health.status_registry().page(&context.health)).unwrap_or_default();
    let completed = context.metrics.completed.total();
    let progress = Progress { status, completed, rate: context.rate.look(completed) };
    Ok(page("utxo-store", &home::render(&chain, &context.health.ready(), &progress)))
}

/// Sends the reader to the page of what was written.
async fn search(ShownParams(SearchParams { q }): ShownParams<SearchParams>) -> Result<Redirect, PageProblem> {
    let q = q.trim();
    let is_digits = !q.is_empty() && q.bytes().all(|byte| byte.is_ascii_digit());
    if let Ok(outpoint) = q.parse::<Outpoint>() {
        Ok(Redirect::to(&layout::output_path(&outpoint)))
    } else if q.parse::<Txid>().is_ok() {
        // A hash of a block and a txid look alike: the page of the transaction looks for a block, too.
        Ok(Redirect::to(&format!("/transactions/{}", q.to_ascii_lowercase())))
    } else if is_digits && q.len() < 10 {
        Ok(Redirect::to(&format!("/blocks/height:{q}")))
    } else {
        let detail = "write a txid, an outpoint (txid:vout), the hash of a block, or a height";
        Err(Problem::bad_request(detail).into())
    }
}

async fn transaction_page(
    State(context): State<PageContext>,
    ShownPath(name): ShownPath<String>,
    ShownParams(RowParams { inputs, outputs }): ShownParams<RowParams>,
    memory: RequestBytes,
) -> Result<Response, PageProblem> {
    let txid = parse_txid(&name)?;
    let store = context.api.store()?;
    let height = context.api.next_height(&store).await?;
    let read = Box::pin(transaction::read(&store, txid, height, ShownRange { inputs, outputs }, &memory));
    match context.api.bound_store(read).await?? {
        Some(shown) => Ok(page(&format!("Transaction {txid}"), &transaction::render(&shown)).into_response()),
        None => match context.api.find_blocks(&store, BlockName::Hash(txid.0)).await?.is_empty() {
            false => Ok(Redirect::to(&format!("/blocks/{txid}")).into_response()),
            true => Err(Problem::not_found(format!("the store has neither transaction nor block {txid}")).into()),
        },
    }
}

async fn block_page(
    State(context): State<PageContext>,
    ShownPath(name): ShownPath<String>,
    ShownParams(NoParams {}): ShownParams<NoParams>,
) -> PageResult {
    let refuse = || Problem::bad_request("the page needs the hash of a block, a local id, or `height:` and a height");
    let block = match name.strip_prefix("height:") {
        Some(height) => BlockName::Height(parse_decimal(height).ok_or_else(refuse)?),
        None => name.parse().map_err(|_| refuse())?,
    };
    let store = context.api.store()?;
    let blocks = context.api.find_blocks(&store, block).await?;
    if blocks.is_empty() {
        return Err(Problem::not_found(format!("the store has no block {block}")).into());
    }
    Ok(page(&format!("Block {block}"), &render_blocks(&blocks)))
}

fn render_blocks(blocks: &[BlockRecord]) -> Markup {
    html! {
        @for block in blocks {
            h1 { "Block at height " (block.height) }
            dl {
                dt { "Hash" } dd.mono { (hex_reversed(&block.hash)) }
                dt { "Block below" } dd.mono {
                    @let previous = hex_reversed(&block.previous);
                    a href={ "/blocks/" (previous) } { (previous) }
                }
                dt { "Local id" } dd { (block.block_id) }
                dt { "Time of the header" } dd { (layout::time_text(u64::from(block.time) * 1_000)) }
                dt { "Longest chain" }
                dd { (if block.longest_chain { "yes" } else { "no: on a side chain, or disconnected" }) }
            }
        }
    }
}

fn parse_txid(name: &str) -> Result<Txid, Problem> {
    name.parse().map_err(|_| Problem::bad_request("the page needs a txid of 64 hexadecimal digits"))
}

/// Shows the history on a page of its own: the log may be slow or away, and the page of the transaction is not.
async fn history_page(
    State(context): State<PageContext>,
    ShownPath(name): ShownPath<String>,
    ShownParams(params): ShownParams<CursorParams>,
    memory: RequestBytes,
) -> PageResult {
    let txid = parse_txid(&name)?;
    let part = v1::load_history(&context.api, txid, params.cursor.as_deref(), &memory).await?;
    let history = ShownHistory { txid, part, is_continued: params.cursor.is_some() };
    Ok(page(&format!("History of {txid}"), &history::render(&history)))
}

async fn unmined_page(
    State(context): State<PageContext>,
    ShownParams(params): ShownParams<CursorParams>,
    memory: RequestBytes,
) -> PageResult {
    let selection = TxSelection::Unmined { until: u32::MAX };
    let list = lists::read(&context.api, selection, params.cursor.as_deref(), &memory).await?;
    Ok(page("Unmined transactions", &lists::render_unmined(&list)))
}

async fn conflicting_page(
    State(context): State<PageContext>,
    ShownParams(params): ShownParams<CursorParams>,
    memory: RequestBytes,
) -> PageResult {
    let selection = TxSelection::Conflicting;
    let list = lists::read(&context.api, selection, params.cursor.as_deref(), &memory).await?;
    Ok(page("Conflicting transactions", &lists::render_conflicting(&list)))
}

async fn docs_page(State(context): State<PageContext>, ShownParams(NoParams {}): ShownParams<NoParams>) -> PageResult {
    Ok(Html(context.docs.to_string()))
}
