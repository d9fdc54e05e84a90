//! The API under `/v1`: questions about the store, transactions and commands for the log, and outcomes as they come
//! (`docs/reference/api.md`, `schemas/openapi.json`).
//!
//! | file | routes |
//! |---|---|
//! | `transactions` | a transaction, its raw bytes, its previous outputs, unmined and conflicting transactions |
//! | `batches` | many transactions |
//! | `outputs` | the state of an output, a batch |
//! | `chain` | the chain, a block |
//! | `conflicts` | the transactions in conflict with one, the history of one |
//! | `submit`, `commands` | publish transactions and commands |
//! | `outcomes` | the outcomes as server-sent events |
//! | `description` | what the description of all routes shares |
//! | `binary` | the binary form of the batches (`schemas/api-batches.md`) |
//! | `vault` | outputs of owners, soft locks and coin selection, where the process has a vault |
//! | `log` | the log: publisher and outcomes |
//! | `params`, `memory` | parameters and bodies of requests; the memory that answers need |

mod batches;
pub mod binary;
mod chain;
mod commands;
mod conflicts;
mod context;
mod description;
mod log;
mod memory;
mod model;
mod outcomes;
mod outputs;
mod params;
mod submit;
mod transactions;
#[cfg(feature = "vault")]
mod vault;

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderMap, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use utoipa::{OpenApi, openapi};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    access::{AccessControl, Role},
    problem::{Problem, ProblemKind},
};

pub use conflicts::load_history;
pub use context::{ApiContext, StoreSource};
#[cfg(feature = "vault")]
pub use log::LogAccess;
pub use memory::estimate_body;
pub use model::{OutputStatus, OutputView};
pub use params::{NoParams, Params, PathParts};
pub use transactions::{ListPart, begin_list};
#[cfg(feature = "vault")]
pub use vault::{VaultContext, router as vault_router};

#[derive(OpenApi)]
#[openapi(info(
    title = "utxo-store",
    description = "Reads a store of Bitcoin transaction outputs, and publishes transactions and commands to its log. \
                   Every failure is a problem document (RFC 9457). Unknown query parameters and fields are refused."
))]
struct ApiDocument;

/// Builds the routes of the API and their description.
fn routes(context: &ApiContext) -> (Router<ApiContext>, openapi::OpenApi) {
    let read = OpenApiRouter::new()
        .routes(routes!(transactions::get_transaction))
        .routes(routes!(transactions::get_raw_transaction))
        .routes(routes!(transactions::get_previous_outputs))
        .routes(routes!(transactions::list_transactions))
        .routes(routes!(batches::post_transactions_batch))
        .routes(routes!(outputs::get_output))
        .routes(routes!(outputs::post_outputs_batch))
        .routes(routes!(conflicts::get_conflicts))
        .routes(routes!(conflicts::get_history))
        .routes(routes!(chain::get_chain))
        .routes(routes!(chain::get_block))
        .routes(routes!(commands::get_command))
        .routes(routes!(outcomes::get_outcomes));
    let submit = OpenApiRouter::new().routes(routes!(submit::post_transactions));
    let command = OpenApiRouter::new().routes(routes!(commands::post_commands));
    OpenApiRouter::with_openapi(ApiDocument::openapi())
        .merge(with_role(read, context, Role::Read))
        .merge(with_role(submit, context, Role::Submit))
        .merge(with_role(command, context, Role::Command))
        .split_for_parts()
}

/// Requires a role for each of these routes, and says so in the description.
fn with_role(mut routes: OpenApiRouter<ApiContext>, context: &ApiContext, role: Role) -> OpenApiRouter<ApiContext> {
    description::require_role(routes.get_openapi_mut(), role.into());
    routes.route_layer(middleware::from_fn_with_state((context.clone(), role), require_role))
}

/// Builds the router of the API, with its description at `/openapi.json`.
pub fn router(context: ApiContext) -> Router {
    let (router, document) = routes(&context);
    let json = document_text(&description::complete(&document));
    let content_type = (header::CONTENT_TYPE, "application/json");
    router
        .route("/openapi.json", get(move |Params(NoParams {}): Params<NoParams>| async move { ([content_type], json) }))
        .with_state(context)
}

/// Returns the description of the API.
pub fn document(context: &ApiContext) -> serde_json::Value {
    description::complete(&routes(context).1)
}

fn document_text(document: &serde_json::Value) -> String {
    format!("{document:#}\n")
}

/// Refuses a request whose token has not the role. Without tokens a web page in a browser on this machine must not be
/// able to publish, so that a request with an `Origin` is refused there.
async fn require_role(State((context, role)): State<(ApiContext, Role)>, request: Request, next: Next) -> Response {
    if let Err(problem) = context.access.permit(request.headers(), role) {
        return problem.into_response();
    }
    if role > Role::Read
        && let Err(problem) = refuse_web_pages(&context.access, request.headers())
    {
        return problem.into_response();
    }
    next.run(request).await
}

/// Refuses a request of a web page where the server has no tokens.
fn refuse_web_pages(access: &AccessControl, headers: &HeaderMap) -> Result<(), Problem> {
    if access.needs_token() || !headers.contains_key(header::ORIGIN) {
        return Ok(());
    }
    let detail = "requests of web pages are refused where the API has no tokens (http.tokens_file)";
    Err(Problem::new(ProblemKind::Forbidden, detail))
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::{
        api::{access::AccessControl, limits::HttpLimits},
        config::Config,
        store::testing,
    };

    /// `UPDATE_OPENAPI=1` writes the file.
    #[cfg(feature = "vault")]
    #[test]
    fn the_description_in_schemas_is_that_of_the_routes() {
        let config = Config::default();
        let store = StoreSource::Reader(Box::new(testing::store(7)));
        let context = ApiContext::new(&config, HttpLimits::new(&config.http), AccessControl::open(), store, None);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas/openapi.json");
        let mut document = document(&context);
        // One file describes the routes of all processes.
        let vault = vault::document();
        for part in ["/paths", "/components/schemas"] {
            let further = vault.pointer(part).and_then(|part| part.as_object()).unwrap();
            document.pointer_mut(part).and_then(|part| part.as_object_mut()).unwrap().extend(further.clone());
        }
        let document = document_text(&document);
        if std::env::var_os("UPDATE_OPENAPI").is_some() {
            fs::write(&path, &document).unwrap();
        }
        assert!(fs::read_to_string(path).unwrap() == document, "run the test again with UPDATE_OPENAPI=1");
    }
}
