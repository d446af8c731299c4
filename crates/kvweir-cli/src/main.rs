//! The `kvweir` command: it drives the engine and holds no part of it.

mod admin;
mod bench;
mod cli;
mod commands;
mod ending;
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
mod table;
mod trace;
mod usage;
mod workload;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
