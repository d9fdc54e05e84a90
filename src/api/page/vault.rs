//! The page of an owner in a process of the vault: the balance, the locks and the outputs.

use axum::{
    Router,
    extract::State,
    http::HeaderMap,
    middleware,
    response::{Html, IntoResponse, Redirect, Response},
    routing::get,
};
use maud::{Markup, html};
use serde::Deserialize;

use super::{PageProblem, PageResult, ShownParams, ShownPath, layout, protect};
use crate::{
    api::{
        problem::{Problem, ProblemKind},
        v1::{NoParams, VaultContext},
    },
    tx::Outpoint,
    vault::{Balance, ListedOutput, Lock, LockCondition, Owner, OwnerBalance, Standing, Sum, VaultError, address_of},
};

/// Outputs that the page shows at a time.
const SHOWN: u64 = 200;

/// Name in the form of the first page.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnerParams {
    owner: String,
}

/// Place in the list of outputs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AfterParams {
    after: Option<String>,
}

/// Builds the routes of the page.
pub fn router(context: VaultContext) -> Router {
    Router::new()
        .route("/", get(first_page))
        .route("/vault", get(find_owner))
        .route("/vault/{owner}", get(owner_page))
        .route_layer(middleware::map_response(protect))
        .with_state(context)
}

async fn first_page(ShownParams(NoParams {}): ShownParams<NoParams>) -> Html<String> {
    let body = html! {
        h1 { "Vault" }
        form action="/vault" method="get" {
            input name="owner" placeholder="name of an owner" aria-label="Owner" required;
            button { "Show" }
        }
    };
    Html(layout::plain_page("Vault", &body))
}

async fn find_owner(ShownParams(OwnerParams { owner }): ShownParams<OwnerParams>) -> Result<Response, PageProblem> {
    let owner: Owner = owner.parse().map_err(|error| Problem::bad_request(format!("{error}")))?;
    Ok(Redirect::to(&format!("/vault/{owner}")).into_response())
}

async fn owner_page(
    State(context): State<VaultContext>,
    ShownPath(name): ShownPath<String>,
    ShownParams(AfterParams { after }): ShownParams<AfterParams>,
    headers: HeaderMap,
) -> PageResult {
    context.access.permit_owner(&headers, &name)?;
    let owner: Owner = name.parse().map_err(|error| Problem::bad_request(format!("{error}")))?;
    let after = after.as_deref().map(str::parse::<Outpoint>).transpose();
    let after = after.map_err(|error| Problem::bad_request(format!("after: {error}")))?;
    let read = Box::pin(async {
        let vault = &context.vault;
        let balance = vault.balance(&owner).await?;
        let locks = vault.locks(&owner).await?;
        Ok((balance, locks, vault.outputs(&owner, &LockCondition::Any, after, SHOWN).await?))
    });
    let read: Result<_, VaultError> = context.limits.bound("the vault", read).await?;
    let (balance, locks, outputs) = read.map_err(|error| match error {
        VaultError::NoOwner(_) => Problem::not_found(error.to_string()),
        VaultError::Fatal(_) => Problem::new(ProblemKind::Internal, error.to_string()),
        error => Problem::unavailable(error.to_string()),
    })?;
    let network = context.network;
    let body = html! {
        h1 { "Outputs of " (owner) }
        (render_balance(&balance))
        (render_locks(&locks))
        h2 { "Outputs" }
        @if outputs.is_empty() { p.empty { "None" @if after.is_some() { " more" } "." } }
        @else {
            table {
                thead { tr { th { "Output" } th { "Satoshis" } th { "State" } th { "Script" } th { "Lock" } } }
                tbody { @for listed in &outputs { (render_output(listed, network)) } }
            }
            @if let Some(last) = outputs.last().filter(|_| outputs.len() as u64 == SHOWN) {
                p { a href={ "/vault/" (owner) "?after=" (last.output.outpoint) } { "Further outputs" } }
            }
        }
    };
    Ok(Html(layout::plain_page(&format!("Outputs of {owner}"), &body)))
}

fn render_balance(OwnerBalance { balance, tip, as_of }: &OwnerBalance) -> Markup {
    let Balance { available, soft_locked, immature, own_unconfirmed, foreign_unconfirmed, frozen, pending } = *balance;
    let parts: [(&str, Sum); 7] = [
        ("available", available),
        ("soft-locked", soft_locked),
        ("immature", immature),
        ("unconfirmed, of own transactions", own_unconfirmed),
        ("unconfirmed, of other transactions", foreign_unconfirmed),
        ("frozen or locked by a command", frozen),
        ("not known to the store yet", pending),
    ];
    html! {
        table {
            thead { tr { th { "Part of the balance" } th { "Satoshis" } th { "Outputs" } } }
            tbody {
                @for (name, sum) in parts {
                    tr {
                        td { (name) }
                        td data-label="Satoshis" { (layout::number_text(sum.satoshis)) }
                        td data-label="Outputs" { (layout::number_text(sum.outputs)) }
                    }
                }
            }
        }
        p {
            "Under the tip at height " (tip.height)
            @if let Some(as_of) = as_of.and_then(|as_of| u64::try_from(as_of).ok()) {
                ". The oldest answer of the store is of " (layout::time_text(as_of))
            }
            "."
        }
    }
}

fn render_locks(locks: &[Lock]) -> Markup {
    html! {
        h2 { "Soft locks" }
        @if locks.is_empty() { p.empty { "None." } }
        @else {
            table {
                thead { tr { th { "Lock" } th { "Kind" } th { "End" } } }
                tbody {
                    @for lock in locks {
                        tr {
                            td.mono { (lock.id) }
                            td data-label="Kind" { @if lock.session { "session" } @else { "lock" } }
                            td.time data-label="End" {
                                @match lock.expires_at.and_then(|end| u64::try_from(end).ok()) {
                                    Some(end) => { (layout::time_text(end)) },
                                    None => { "when released" },
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn render_output(listed: &ListedOutput, network: crate::tx::Network) -> Markup {
    let ListedOutput { output, stored, is_locked } = listed;
    let standing: &'static str = output.facts.standing.into();
    html! {
        tr {
            td.mono { (output.outpoint) }
            td data-label="Satoshis" { (layout::number_text(output.satoshis)) }
            td data-label="State" {
                (standing)
                @match output.facts.height {
                    Some(height) => { ", height " (height) },
                    None if output.facts.standing == Standing::Unspent => { ", unconfirmed" },
                    None => {},
                }
                @if let Some(from) = output.facts.spendable_from { ", spendable from height " (from) }
            }
            td.mono data-label="Script" {
                @match address_of(&stored.script, network) {
                    Some(address) => { (address) },
                    None => { (hex::encode(&stored.script)) },
                }
            }
            td.mono data-label="Lock" { @if let Some(lock) = output.lock.filter(|_| *is_locked) { (lock) } }
        }
    }
}
