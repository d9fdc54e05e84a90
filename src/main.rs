//! Entry point: reads the arguments, runs the command, returns its exit code.

use std::process::ExitCode;

use clap::Parser;
use utxo_store::{Cli, report};

// The pipeline allocates in one thread and frees in another: the system's allocator is slow at that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // `parse` ends the process with exit code 2 on a usage error.
    report(Cli::parse().run())
}
