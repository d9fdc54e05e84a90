//! Sources of events: block files, or JSON lines.

mod files;

use std::path::PathBuf;

use clap::Args;

use self::files::{block_files, read};
use crate::{
    cli::Failure,
    generate::{
        Chain, ChainCounts, DemoStep, GenerateError, LeftOutCounts, Message, Parents, PreviousOutputs, SourceFile,
        parse_demo_lines, parse_event_lines,
    },
    text::decode_utf8,
    tx::block::{FileNetwork, Scan},
};

/// Options that name the source of the events.
#[derive(Debug, Clone, Default, Args)]
#[group(id = "source", skip)]
pub struct SourceArgs {
    /// Block files of one chain, bare or framed (.blk), or a node's directory (blk*.dat, with its xor.dat)
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "events")]
    pub blocks: Vec<PathBuf>,
    /// Outputs that the blocks spend but do not create: lines of
    /// txid,vout,satoshis,height,coinbase,locking_script_hex
    #[arg(long, value_name = "CSV", conflicts_with_all = ["synthesize_prevouts", "events"])]
    pub prevouts: Option<PathBuf>,
    /// Invent the outputs that the blocks spend but do not create, with just enough satoshis
    #[arg(long, conflicts_with = "events")]
    pub synthesize_prevouts: bool,
    /// Height of the first block, if the files do not tell the height
    #[arg(long, value_name = "HEIGHT", conflicts_with = "events")]
    pub first_height: Option<u32>,
    /// File of events, one JSON object per line (see schemas/)
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
}

/// The source, read into memory.
#[derive(Debug)]
pub enum LoadedSource {
    /// Files with blocks, and the source of the outputs that the blocks do not create.
    Blocks {
        /// Contents of the block files.
        files: Vec<SourceFile>,
        /// Height of the first block, if `--first-height` was given.
        first_height: Option<u32>,
        /// Source of the outputs that the blocks spend but do not create.
        previous: PreviousOutputs,
    },
    /// Events of a file or a story.
    Lines(Vec<Message>),
}

/// Events that are ready to be produced.
#[derive(Debug)]
pub enum EventSource<'a> {
    /// Events of the blocks of one chain.
    Chain(Box<Chain<'a>>),
    /// Events in the order of the file or the story.
    Lines(&'a [Message]),
}

impl SourceArgs {
    /// Reads the file of `--events` with the pauses and raw bytes of a demo; `None`: `--events` is not given.
    ///
    /// # Errors
    /// The file cannot be read, or a line is wrong.
    pub fn load_steps(&self) -> Result<Option<Vec<DemoStep>>, Failure> {
        let Some(path) = &self.events else { return Ok(None) };
        let file = read(path)?;
        let text = decode_utf8(&file.bytes).map_err(|error| Failure::new(format!("{}: {error}", file.name)))?;
        Ok(Some(parse_demo_lines(&file.name, text)?))
    }

    /// Reads the files of the source into memory.
    ///
    /// # Errors
    /// A file cannot be read, or a line is wrong.
    pub fn load(&self) -> Result<LoadedSource, Failure> {
        if let Some(path) = &self.events {
            let file = read(path)?;
            let text = decode_utf8(&file.bytes).map_err(|error| Failure::new(format!("{}: {error}", file.name)))?;
            return Ok(LoadedSource::Lines(parse_event_lines(&file.name, text)?));
        }
        let previous = match &self.prevouts {
            Some(path) => {
                let file = read(path)?;
                PreviousOutputs::Listed(Parents::from_csv(&file.name, &file.bytes)?)
            }
            None if self.synthesize_prevouts => PreviousOutputs::Invented,
            None => PreviousOutputs::InTheFiles,
        };
        let files = block_files(&self.blocks)?;
        Ok(LoadedSource::Blocks { files, first_height: self.first_height, previous })
    }
}

impl LoadedSource {
    /// Returns the network of the blocks, if the files tell the network.
    pub fn network(&self) -> Option<FileNetwork> {
        match self {
            LoadedSource::Blocks { files, .. } => files.iter().find_map(|file| Scan::new(&file.bytes).ok()?.network()),
            LoadedSource::Lines(_) => None,
        }
    }

    /// Checks the whole source before anything is produced, and returns its events.
    pub fn event_source(&self) -> Result<EventSource<'_>, GenerateError> {
        match self {
            LoadedSource::Blocks { files, first_height, previous } => {
                Ok(EventSource::Chain(Box::new(Chain::new(files, *first_height, previous.clone())?)))
            }
            LoadedSource::Lines(messages) => Ok(EventSource::Lines(messages)),
        }
    }
}

impl EventSource<'_> {
    /// Returns the messages; parents come before their children.
    pub fn messages(&self) -> Box<dyn Iterator<Item = Message> + Send + '_> {
        match self {
            EventSource::Chain(chain) => Box::new(chain.messages()),
            EventSource::Lines(messages) => Box::new(messages.iter().cloned()),
        }
    }

    /// Returns the counts of the content of the files that is left out; `None`: nothing is left out.
    pub fn left_out(&self) -> Option<&LeftOutCounts> {
        match self {
            EventSource::Chain(chain) => Some(chain.left_out()).filter(|left_out| !left_out.is_empty()),
            EventSource::Lines(_) => None,
        }
    }

    /// Returns the counts of the blocks; `None` for events, which are not decoded.
    pub fn counts(&self) -> Option<ChainCounts> {
        match self {
            EventSource::Chain(chain) => Some(chain.counts()),
            EventSource::Lines(_) => None,
        }
    }
}
