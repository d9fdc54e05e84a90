//! The frame of every page: style, search, navigation; numbers, times and links.

use chrono::{DateTime, SecondsFormat};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::tx::{Outpoint, Txid};

/// Style of the pages, for wide and narrow screens, light and dark.
const STYLE: &str = include_str!("style.css");
/// Inputs, and outputs, that the page of a transaction shows at a time.
pub const ROWS: u32 = 200;

/// Renders a whole page, with search and navigation.
pub fn page(title: &str, body: &Markup) -> String {
    let navigation = html! {
        form action="/search" method="get" {
            input name="q" placeholder="txid, outpoint, block hash or height" aria-label="Search" required;
            button { "Search" }
        }
        nav {
            a href="/unmined" { "Unmined" }
            a href="/conflicting" { "Conflicting" }
            a href="/docs" { "API" }
        }
    };
    frame(title, &navigation, body).into_string()
}

/// Renders a whole page of a process without a store.
#[cfg(feature = "vault")]
pub fn plain_page(title: &str, body: &Markup) -> String {
    frame(title, &html! {}, body).into_string()
}

fn frame(title: &str, navigation: &Markup, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                // Without an icon a browser asks for `/favicon.ico`.
                link rel="icon" href="data:,";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    a.home href="/" { "utxo-store" }
                    (navigation)
                }
                main { (body) }
            }
        }
    }
}

/// Renders a link to the page of a transaction.
pub fn transaction_link(txid: &Txid) -> Markup {
    html! { a href={ "/transactions/" (txid) } { (txid) } }
}

/// Returns the path of the page that shows an output.
pub fn output_path(outpoint: &Outpoint) -> String {
    let Outpoint { txid, vout } = outpoint;
    match vout / ROWS * ROWS {
        0 => format!("/transactions/{txid}#output-{vout}"),
        first => format!("/transactions/{txid}?outputs={first}#output-{vout}"),
    }
}

/// Renders a text, in which each txid is a link to its transaction.
pub fn linked_text(text: &str) -> Markup {
    let is_word = |c: char| c.is_ascii_alphanumeric();
    let mut pieces: Vec<(&str, Option<Txid>)> = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(is_word) {
        let len = rest[start..].find(|c| !is_word(c)).unwrap_or(rest.len() - start);
        let (before, word) = rest[..start + len].split_at(start);
        pieces.push((before, None));
        pieces.push((word, word.parse().ok()));
        rest = &rest[start + len..];
    }
    pieces.push((rest, None));
    html! {
        @for (piece, txid) in &pieces {
            @match txid {
                Some(txid) => { span.mono { (transaction_link(txid)) } },
                None => { (piece) },
            }
        }
    }
}

/// Returns a number with commas between the thousands.
pub fn number_text(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in (0..digits.len()).rev().zip(digits.chars()) {
        text.push(digit);
        if place > 0 && place % 3 == 0 {
            text.push(',');
        }
    }
    text
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

    #[test]
    fn each_txid_of_a_text_is_a_link() {
        let txid = Txid([0xab; 32]);
        let shown = linked_text(&format!("loses to {txid}: <é> {txid}0")).into_string();
        let link = format!("<a href=\"/transactions/{txid}\">{txid}</a>");
        assert_eq!(shown.matches(&link).count(), 1, "{shown}");
        assert!(shown.starts_with("loses to ") && shown.ends_with(&format!(": &lt;é&gt; {txid}0")), "{shown}");
        assert_eq!(linked_text("").into_string(), "");
    }

    #[test]
    fn numbers_have_commas_and_outputs_a_page() {
        assert_eq!([0, 999, 1_000, 2_100_000_000].map(number_text), ["0", "999", "1,000", "2,100,000,000"]);
        let txid = Txid([1; 32]);
        assert_eq!(output_path(&Outpoint { txid, vout: 199 }), format!("/transactions/{txid}#output-199"));
        assert_eq!(output_path(&Outpoint { txid, vout: 401 }), format!("/transactions/{txid}?outputs=400#output-401"));
    }
}
