//! Measurements of kvweir, each printed with what it is measured against, its seed and the machine it ran on.
//!
//! | file | what it measures |
//! |---|---|
//! | `index.rs` | lookups in nanoseconds a key, index bytes a block |
//! | `disk.rs`, `raw.rs` | store and load of the file tier against raw direct I/O |
//! | `manager.rs` | what the manager costs a block without I/O |
//! | `trim.rs` | opening a root far above its bound |
//! | `verify.rs` | `kvweir verify` against raw direct reads of the same files |
//! | `env.rs`, `print.rs`, `keys.rs` | the machine, tables, seeded keys |

mod disk;
mod env;
mod index;
mod keys;
mod manager;
mod print;
mod raw;
mod trim;
mod verify;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Measurements of kvweir.
#[derive(Debug, Parser)]
#[command(name = "kvweir-lab", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lookups at growing numbers of blocks, and the memory they cost.
    Index(index::Args),
    /// Stores and loads against raw I/O of the same sizes, in interleaved rounds.
    Disk(disk::Args),
    /// What the manager costs a block without I/O.
    Manager(manager::Args),
    /// Opens a root of many small files with a bound of a tenth of them.
    Trim(trim::Args),
    /// Verifying a root against raw direct reads of the same files.
    Verify(verify::Args),
}

fn main() -> Result<()> {
    let clock = kvweir::clock::SystemClock::shared();
    match Cli::parse().command {
        Command::Index(args) => index::run(&args, &*clock),
        Command::Disk(args) => disk::run(&args, &clock),
        Command::Manager(args) => manager::run(&args, &clock),
        Command::Trim(args) => trim::run(&args, &clock),
        Command::Verify(args) => verify::run(&args, &clock),
    }
}
