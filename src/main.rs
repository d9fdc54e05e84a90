//! Arguments → configuration → command; nothing else.

use std::process::ExitCode;

use clap::Parser;
use utxo_store::cli::{Cli, report};

// The pipeline allocates in one thread and frees in another, which the system's allocator is slow at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // A usage error leaves here, with exit code 2.
    report(Cli::parse().run())
}
