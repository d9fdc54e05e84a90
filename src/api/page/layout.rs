//! The frame of every page: style, search, navigation.

use chrono::{DateTime, SecondsFormat};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::tx::Txid;

/// Style of the pages, for wide and narrow screens, light and dark.
const STYLE: &str = include_str!("style.css");

/// Renders a whole page.
pub fn page(title: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    a href="/" { "utxo-store" }
                    form action="/search" method="get" {
                        input name="q" placeholder="txid, outpoint, block hash or height" aria-label="Search" required;
                        button { "Search" }
                    }
                    nav { a href="/unmined" { "Unmined" } }
                }
                main { (body) }
            }
        }
    };
    page.into_string()
}

/// Renders a link to the page of a transaction.
pub fn transaction_link(txid: &Txid) -> Markup {
    html! { a href={ "/transactions/" (txid) } { (txid) } }
}

/// Returns a time as text, from milliseconds since the epoch.
pub fn time_text(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(DateTime::from_timestamp_millis);
    time.map_or_else(|| format!("{ms} ms"), |time| time.to_rfc3339_opts(SecondsFormat::Secs, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_on_a_page_is_escaped() {
        let shown = page("<b>", &html! { p { "a < b & \"c\"" } });
        assert!(shown.contains("<title>&lt;b&gt;</title>") && shown.contains("a &lt; b &amp;"), "{shown}");
        assert!(!shown.contains("<script") && !shown.contains("http://") && !shown.contains("https://"), "{shown}");
        assert_eq!(time_text(0), "1970-01-01T00:00:00Z");
    }
}
