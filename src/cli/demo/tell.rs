//! A story on the screen: what happens, and how everybody in it stands before and after.

use std::{
    io::{self, Write},
    time::Instant,
};

use indicatif::ProgressBar;

use super::{directory::Directory, log::Log, progress::Groups, rebuild, survive::survive, timeline::Timeline};
use crate::cli::output;
use crate::{
    broker::Broker,
    cli::{
        CommandResult, Failure,
        generate::produce,
        inspect::{history, transaction::Shown},
        opening,
    },
    config::Config,
    generate::Story,
    record::{SpendingData, Verdict},
    seeded::Seeded,
    store::{
        Store,
        dump::InWords,
        read::{FROZEN, TxMeta},
    },
    tx::Txid,
};

/// How somebody in the story stands.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stands {
    name: &'static str,
    txid: Txid,
    /// `None`: the store has never heard of it.
    how: Option<String>,
    outputs: Vec<String>,
}

/// Feeds one chapter after the other, and shows what came of each, where asked for with `inspect tx` of all that it has changed; in the end a rebuild from the log has to have the same digest.
///
/// # Errors
/// That it has not, or whatever keeps it from being told.
pub async fn tell(story: &Story, config: &Config, log: &Log, directory: &Directory, inspects: bool) -> CommandResult {
    let mut out = output::stdout();
    log.create_topics(config).await?;
    let broker = opening::broker(config).await?;
    let producer = broker.producer().await?;
    let groups = Groups::new(broker.clone(), config);
    let mut before: Vec<Stands> = Vec::new();
    let started = Instant::now();
    for (chapter, number) in story.chapters.iter().zip(1..) {
        let messages = chapter.messages.iter().cloned();
        produce(producer.as_ref(), &config.kafka.topics, messages, &ProgressBar::hidden()).await?;
        survive(directory, 0, &groups, 0, Seeded::new(number), &Timeline::silent()).await?;
        let store = opening::store(config, &config.store.url, &Default::default()).await?;
        let after = cast(&store, story).await?;
        write_chapter(&mut out, number, chapter.says, &before, &after)?;
        if inspects {
            for changed in after.iter().filter(|stands| stands.has_changed(&before)) {
                inspect(&store, config, broker.as_ref(), changed.txid, &mut out).await?;
            }
        }
        store.engine.close().await?;
        before = after;
    }
    let rebuilt = opening::store(config, &directory.rebuilt(), &Default::default()).await?;
    rebuild(config, broker, &rebuilt, 0, &Timeline::silent()).await?;
    let live = opening::store(config, &config.store.url, &Default::default()).await?;
    let (digest, again) = (live.survey(|_| {}).await?.digest, rebuilt.survey(|_| {}).await?.digest);
    live.engine.close().await?;
    rebuilt.engine.close().await?;
    if digest != again {
        return Err(Failure::new(format!("the store has digest {digest}, and its rebuild {again}")));
    }
    writeln!(out, "A rebuild from the log has the same digest, {digest}. {:.1} s.", started.elapsed().as_secs_f64())?;
    Ok(())
}

impl Stands {
    /// Whether it is there, and stands otherwise than before.
    fn has_changed(&self, before: &[Stands]) -> bool {
        self.how.is_some() && before.iter().all(|earlier| earlier != self)
    }
}

async fn inspect(
    store: &Store,
    config: &Config,
    broker: &dyn Broker,
    txid: Txid,
    out: &mut impl Write,
) -> CommandResult {
    let history = history::of(broker, &config.kafka.topics, txid).await?;
    Shown::read(store, txid, Some(history)).await?.write(out)?;
    writeln!(out)?;
    Ok(())
}

async fn cast(store: &Store, story: &Story) -> Result<Vec<Stands>, Failure> {
    let mut cast = Vec::new();
    for (name, txid) in &story.cast {
        let verdict = store.master(*txid).await?.and_then(|master| master.verdict());
        let meta = store.get_meta(*txid).await?;
        cast.push(stands(name, *txid, verdict, meta.as_ref(), story));
    }
    Ok(cast)
}

fn stands(name: &'static str, txid: Txid, verdict: Option<Verdict>, meta: Option<&TxMeta>, story: &Story) -> Stands {
    let Some(meta) = meta else { return Stands { name, txid, how: None, outputs: Vec::new() } };
    let mut how = match verdict {
        Some(Verdict::Conflicting(reason)) => format!("conflicting ({})", InWords(reason)),
        Some(Verdict::Pending) => "contested".to_owned(),
        Some(Verdict::Accepted) | None => meta.state.to_owned(),
    };
    if meta.state == "live" {
        how += match (meta.unmined_since, meta.block_heights.last()) {
            (Some(_), _) | (None, None) => ", unmined".to_owned(),
            (None, Some(height)) => format!(", mined at height {height}"),
        }
        .as_str();
    }
    // Nobody can spend those of the others.
    let outputs = meta.spending_data.iter().filter(|_| meta.state == "live").zip(0..);
    let outputs = outputs.map(|(spender, vout)| output(*spender, vout, story)).collect();
    Stands { name, txid, how: Some(named(how, story)), outputs }
}

fn output(spender: Option<SpendingData>, vout: u32, story: &Story) -> String {
    match spender {
        None => format!("output {vout} is free"),
        Some(FROZEN) => format!("output {vout} is frozen"),
        Some(by) => {
            let name = story.name_of(&by.txid).map_or_else(|| by.txid.to_string(), ToOwned::to_owned);
            format!("output {vout} is spent by {name}")
        }
    }
}

/// The text, with transactions called by their names.
fn named(text: String, story: &Story) -> String {
    story.cast.iter().fold(text, |text, (name, txid): &(_, Txid)| text.replace(&txid.to_string(), name))
}

fn write_chapter(out: &mut impl Write, number: u64, says: &str, before: &[Stands], after: &[Stands]) -> io::Result<()> {
    writeln!(out, "{number}. {says}\n")?;
    for stands in after.iter().filter(|stands| stands.how.is_some()) {
        let changed = stands.has_changed(before);
        let how = stands.how.as_deref().unwrap_or_default();
        writeln!(out, " {} {:<13}{how}", if changed { '*' } else { ' ' }, stands.name)?;
        stands.outputs.iter().try_for_each(|output| writeln!(out, "   {:<13}  {output}", ""))?;
    }
    writeln!(out)
}
