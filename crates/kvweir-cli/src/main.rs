//! The `kvweir` command. Floor 4: it drives the engine and holds no part of it.

mod admin;
mod bench;
mod cli;
mod commands;
mod help;
mod hitrate;
mod interrupt;
mod output;
mod progress;
mod replay;
mod report;
mod scratch;
mod settings;
mod summary;
mod trace;
mod workload;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
