//! Set-up of logging: format, filter and destination of log records.

use std::io::{self, IsTerminal};

use tracing::Subscriber;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt::MakeWriter, layer::SubscriberExt, util::SubscriberInitExt};

use crate::text::not_one_of;

/// Format of log records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display, strum::EnumString, strum::VariantNames)]
#[strum(serialize_all = "lowercase", parse_err_ty = String, parse_err_fn = not_one_of::<Self>)]
pub enum LogFormat {
    /// Pretty on a terminal, JSON otherwise.
    Auto,
    /// Readable text, a line for each record.
    Pretty,
    /// JSON, an object on each line.
    Json,
}

/// Error of the set-up of logging.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum LoggingError {
    #[error("{filter:?} is no log filter")]
    Filter { filter: String, source: tracing_subscriber::filter::ParseError },
    #[error("logging is set up already")]
    Twice(#[from] tracing_subscriber::util::TryInitError),
}

/// Sends log records to standard error from now on, those of the `log` crate (rdkafka's) too.
///
/// # Errors
/// An unusable filter, or a second call in one process.
pub fn init_logging(format: LogFormat, filter: &str) -> Result<(), LoggingError> {
    let pretty = match format {
        LogFormat::Auto => io::stderr().is_terminal(),
        LogFormat::Pretty => true,
        LogFormat::Json => false,
    };
    // `try_init` bridges the `log` crate by itself (feature `tracing-log`).
    subscriber(pretty, filter, io::stderr)?.try_init()?;
    Ok(())
}

pub(super) fn subscriber<W>(
    pretty: bool,
    filter: &str,
    writer: W,
) -> Result<impl Subscriber + Send + Sync, LoggingError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter =
        EnvFilter::try_new(filter).map_err(|source| LoggingError::Filter { filter: filter.to_owned(), source })?;
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match pretty {
        true => lines.compact().with_ansi(io::stderr().is_terminal()).with_filter(filter).boxed(),
        false => lines.json().flatten_event(true).with_filter(filter).boxed(),
    };
    Ok(tracing_subscriber::registry().with(lines))
}
