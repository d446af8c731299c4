//! Measurements of kvweir, each printed with what it is measured against, its seed and the machine it ran on.
//!
//! | file | what it measures |
//! |---|---|
//! | `index.rs`, `growth.rs` | lookups in nanoseconds per key, index bytes per block; what grows with the blocks |
//! | `disk.rs`, `raw.rs` | store and load of the file tier against raw direct I/O |
//! | `engine.rs` | threads against io_uring, on one file |
//! | `contest/` | the tier beside vLLM's own, LMCache's and the raw device |
//! | `counts.rs` | work whose instructions `scripts/counts` counts |
//! | `manager.rs` | what the manager costs per block without I/O |
//! | `pinned.rs` | evictions while most blocks are pinned |
//! | `trim.rs`, `start.rs` | opening a root far above its bound; opening by journal and by walk |
//! | `packed.rs` | opening a root of many packed blocks |
//! | `share.rs` | processes that share a root, killed and restarted, watched from outside |
//! | `verify.rs` | `kvweir verify` against raw direct reads of the same files |
//! | `env.rs`, `print.rs`, `keys.rs`, `files.rs` | the machine, tables, seeded keys, files of them |

mod contest;
mod counts;
mod disk;
mod engine;
mod env;
mod files;
mod growth;
mod index;
mod keys;
mod manager;
mod packed;
mod pinned;
mod print;
mod raw;
mod share;
mod start;
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
    /// What operations in memory cost at 10^5, 10^6 and 10^7 blocks.
    Growth(growth::Args),
    /// Stores and loads against raw I/O of the same sizes, in interleaved rounds.
    Disk(disk::Args),
    /// Threads against io_uring: direct reads and writes of blocks of one file.
    Engine(engine::Args),
    /// Ours, vLLM's own file tier, LMCache's local disk and the raw device, in interleaved rounds.
    Contest(contest::Args),
    /// What the manager costs per block without I/O.
    Manager(manager::Args),
    /// Evictions while most blocks are pinned.
    Pinned(pinned::Args),
    /// Work whose instructions `scripts/counts` counts.
    #[command(hide = true)]
    Counts(counts::Args),
    /// Opens a root of many small files with a bound of a tenth of them.
    Trim(trim::Args),
    /// Opens a root of many large sparse files by its journal, by a walk, and with a tenth of the bound.
    Start(start::Args),
    /// Opens a root of many packed blocks.
    Packed(packed::Args),
    /// Processes that share one root under load, one killed and restarted now and then, watched from outside.
    Share(share::Args),
    /// One of them.
    #[command(hide = true)]
    ShareWorker(share::WorkerArgs),
    /// Verifying a root against raw direct reads of the same files.
    Verify(verify::Args),
}

fn main() -> Result<()> {
    let clock = kvweir::clock::SystemClock::shared();
    match Cli::parse().command {
        Command::Index(args) => index::run(&args, &*clock),
        Command::Growth(args) => growth::run(&args, &*clock),
        Command::Disk(args) => disk::run(&args, &clock),
        Command::Engine(args) => engine::run(&args, &clock),
        Command::Contest(args) => contest::run(&args, &clock),
        Command::Manager(args) => manager::run(&args, &clock),
        Command::Pinned(args) => pinned::run(&args, &clock),
        Command::Counts(args) => counts::run(&args),
        Command::Trim(args) => trim::run(&args, &clock),
        Command::Start(args) => start::run(&args, &clock),
        Command::Packed(args) => packed::run(&args, &clock),
        Command::Share(args) => share::run(&args, &clock),
        Command::ShareWorker(args) => share::work(&args, &clock),
        Command::Verify(args) => verify::run(&args, &clock),
    }
}
