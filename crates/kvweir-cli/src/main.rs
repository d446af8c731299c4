//! The `kvweir` command. Floor 4: it drives the engine and holds no part of it.

#![expect(
    dead_code,
    reason = "the run with real I/O, which uses the rest, is not wired yet; remove with it"
)]

mod cli;
mod commands;
mod hitrate;
mod interrupt;
mod output;
mod progress;
mod replay;
mod report;
mod settings;
mod summary;
mod trace;
mod workload;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
