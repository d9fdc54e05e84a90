//! Where events come from: block files, or JSON lines.

mod files;

use std::path::PathBuf;

use clap::Args;

use self::files::{block_files, read};
use crate::{
    cli::Failure,
    generate::{
        Chain, ChainCounts, GenerateError, LeftOutOfFiles, Message, Parents, PreviousOutputs, SourceFile, Step,
        messages_from_lines, steps_from_lines,
    },
    text::text_of,
    tx::block::{FileNetwork, Scan},
};

/// The options that name the source.
#[derive(Debug, Clone, Default, Args)]
#[group(id = "source", skip)]
pub struct SourceArgs {
    /// Block files, bare or framed (.blk), or a node's directory of them (blk*.dat, with its xor.dat): one chain
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "events")]
    pub blocks: Vec<PathBuf>,
    /// What the blocks spend and do not make: lines of txid,vout,satoshis,height,coinbase,locking_script_hex
    #[arg(long, value_name = "CSV", conflicts_with_all = ["synthesize_prevouts", "events"])]
    pub prevouts: Option<PathBuf>,
    /// Invent what the blocks spend and do not make, with just enough in it
    #[arg(long, conflicts_with = "events")]
    pub synthesize_prevouts: bool,
    /// Height of the first block, where nothing tells it
    #[arg(long, value_name = "HEIGHT", conflicts_with = "events")]
    pub first_height: Option<u32>,
    /// Events, one JSON object a line (see schemas/)
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
}

/// The source, read into memory.
#[derive(Debug)]
pub enum Loaded {
    /// Files with blocks, and where the outputs come from that they do not make.
    Blocks {
        /// The files.
        files: Vec<SourceFile>,
        /// Height of the first block, where it was given.
        first_height: Option<u32>,
        /// What they spend and do not make.
        previous: PreviousOutputs,
    },
    /// Events.
    Lines(Vec<Message>),
}

/// What is to be produced.
#[derive(Debug)]
pub enum Feed<'a> {
    /// Blocks.
    Chain(Box<Chain<'a>>),
    /// Events as they were given.
    Lines(&'a [Message]),
}

impl SourceArgs {
    /// Reads events with the pauses and the bytes that a demo takes between them; `None`: the source is another.
    ///
    /// # Errors
    /// The file cannot be read, or a line of it is wrong.
    pub fn steps(&self) -> Result<Option<Vec<Step>>, Failure> {
        let Some(path) = &self.events else { return Ok(None) };
        let file = read(path)?;
        let text = text_of(&file.bytes).map_err(|error| Failure::new(format!("{}: {error}", file.name)))?;
        Ok(Some(steps_from_lines(&file.name, text)?))
    }

    /// Reads the files.
    ///
    /// # Errors
    /// A file that cannot be read, a line that is wrong.
    pub fn load(&self) -> Result<Loaded, Failure> {
        if let Some(path) = &self.events {
            let file = read(path)?;
            let text = text_of(&file.bytes).map_err(|error| Failure::new(format!("{}: {error}", file.name)))?;
            return Ok(Loaded::Lines(messages_from_lines(&file.name, text)?));
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
        Ok(Loaded::Blocks { files, first_height: self.first_height, previous })
    }
}

impl Loaded {
    /// Whose blocks they are, where the files tell.
    pub fn network(&self) -> Option<FileNetwork> {
        match self {
            Loaded::Blocks { files, .. } => files.iter().find_map(|file| Scan::new(&file.bytes).ok()?.network()),
            Loaded::Lines(_) => None,
        }
    }

    /// Looks at everything, so that nothing is produced of what cannot be produced whole.
    ///
    /// # Errors
    /// See [`GenerateError`].
    pub fn feed(&self) -> Result<Feed<'_>, GenerateError> {
        match self {
            Loaded::Blocks { files, first_height, previous } => {
                Ok(Feed::Chain(Box::new(Chain::new(files, *first_height, previous.clone())?)))
            }
            Loaded::Lines(messages) => Ok(Feed::Lines(messages)),
        }
    }
}

impl Feed<'_> {
    /// The messages, in an order in which a parent comes before its child.
    pub fn messages(&self) -> Box<dyn Iterator<Item = Message> + Send + '_> {
        match self {
            Feed::Chain(chain) => Box::new(chain.messages()),
            Feed::Lines(messages) => Box::new(messages.iter().cloned()),
        }
    }

    /// Counts of the files' content that the feed does not have; `None`: nothing.
    pub fn left_out(&self) -> Option<&LeftOutOfFiles> {
        match self {
            Feed::Chain(chain) => Some(chain.left_out()).filter(|left_out| !left_out.is_empty()),
            Feed::Lines(_) => None,
        }
    }

    /// What the blocks hold; events are not looked into.
    pub fn counts(&self) -> Option<ChainCounts> {
        match self {
            Feed::Chain(chain) => Some(chain.counts()),
            Feed::Lines(_) => None,
        }
    }
}
