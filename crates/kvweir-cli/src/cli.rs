//! The command line: subcommands, and what their outcomes mean to the shell.

use std::{process::ExitCode, sync::Arc};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::{
    admin, commands, ending::Ending, help, interrupt, output, settings::SettingError, trace::LineError,
    usage::UsageError,
};

/// Weir for KV caches: host memory overflows to disk, each tier within its bound.
#[derive(Debug, Parser)]
#[command(
    name = "kvweir",
    version,
    about,
    max_term_width = 100,
    args_override_self = true
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

/// One file per command, under `commands/`.
#[derive(Debug, Subcommand)]
enum Command {
    /// Run a workload through the tiers, every byte checked
    ///
    /// Replays requests of an LLM server through host memory and a bounded file tier. Every block's content is a
    /// function of its key, and every block that comes back is compared. Without TRACE a built-in workload runs:
    /// agents with long growing prompts.
    Replay(Box<commands::replay::Args>),
    /// Measure a device, and a tier on it: stores, loads and both at once
    ///
    /// A small fio for KV tiers. Measures what the device gives without a tier, then a real tier with the same sizes:
    /// rates, percentiles of jobs, CPU time per GiB. Every loaded block is checked.
    Bench(Box<commands::bench::Args>),
    /// Show what lies below a root: namespaces, blocks, bytes, ages, who holds it
    ///
    /// Reads names, lengths and times of all files and the trailers of some. Changes nothing; may run beside engines.
    Inspect(commands::inspect::Args),
    /// Compare every block with its trailer or record, name and namespace; remove bad ones
    ///
    /// Reads every byte of block files and of used slots in extents, bypassing the page cache. Without --repair it
    /// changes nothing and may run beside engines: files that vanish meanwhile are no fault.
    Verify(commands::verify::Args),
    /// Remove the oldest blocks down to a size
    ///
    /// Oldest by time of writing, across all namespaces, until `du` of the root is at most the size. Extents of packed
    /// blocks are removed whole.
    Trim(commands::trim::Args),
    /// Remove what nobody needs: leftovers, unused namespaces, shared memory of dead engines
    ///
    /// Removes temporaries that nobody is writing and empty directories; with --older-than also namespaces that nothing
    /// was written to for that long; and vLLM's regions in /dev/shm that no process maps or has open.
    Gc(commands::gc::Args),
    /// Check whether a machine and a directory suit a tier, or whether settings are right
    ///
    /// Looks at the file system, direct I/O, space, limits, cgroup, shared memory, clock, locks and permissions; with
    /// --stanza, at settings for vLLM instead. Changes nothing.
    Doctor(commands::doctor::Args),
    /// Give the blocks that a stock vLLM tier wrote trailers with checksums
    ///
    /// With --into, the source is never changed; in place, each file is replaced by a rename. A crash leaves the old
    /// file or the new one; run it again to go on. A checksum proves what was there when it was made, not what was
    /// once stored.
    Import(commands::import::Args),
    /// Move blocks from files into extents, or back
    ///
    /// Works in place, always within the bound, and compares every block with its checksum. If it is killed, nothing is
    /// lost; run it again to go on.
    Convert(commands::convert::Args),
    /// Print shell completions
    Completions(commands::front::CompletionsArgs),
    /// Write the manual pages into a directory
    Man(commands::front::ManArgs),
}

/// The whole command line, as help, completions and manual pages show it.
pub(crate) fn command() -> clap::Command {
    help::flowing(Cli::command())
}

/// Runs the command given by the process's arguments.
pub(crate) fn main() -> ExitCode {
    output::want_json(asks_for_json(std::env::args_os()));
    // under a limit on file sizes a write is to fail (EFBIG), not to end the process
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    let parsed = command()
        .try_get_matches()
        .and_then(|m| Cli::from_arg_matches(&m));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(e) => return refused(&e),
    };
    let ending = match cli.command {
        Some(Command::Replay(args)) => commands::replay::run(*args),
        Some(Command::Bench(args)) => commands::bench::run(&args),
        Some(Command::Inspect(args)) => commands::inspect::run(&args),
        Some(Command::Verify(args)) => commands::verify::run(&args),
        Some(Command::Trim(args)) => commands::trim::run(&args),
        Some(Command::Gc(args)) => commands::gc::run(&args),
        Some(Command::Doctor(args)) => commands::doctor::run(&args),
        Some(Command::Import(args)) => commands::import::run(&args),
        Some(Command::Convert(args)) => commands::convert::run(&args),
        Some(Command::Completions(args)) => commands::front::completions(&args, command()),
        Some(Command::Man(args)) => commands::front::man(&args, command()),
        None => output::result(&command().render_help().to_string())
            .map(|()| Ending::Good)
            .map_err(Into::into),
    };
    match ending {
        Ok(Ending::Good) => ExitCode::SUCCESS,
        Ok(Ending::Bad) => ExitCode::FAILURE,
        Ok(Ending::Untidy) => ExitCode::from(3),
        Ok(Ending::Interrupted) => ExitCode::from(interrupt::exit_code()),
        Err(e) => {
            let (code, hint) = judge(&e);
            let message = output::line(&e);
            output::error(&message, hint.as_deref(), code);
            ExitCode::from(code)
        }
    }
}

/// Whether the command line asks for JSON; also one that cannot be read.
fn asks_for_json(args: impl Iterator<Item = std::ffi::OsString>) -> bool {
    let words = args.take_while(|a| a != "--");
    // of a repeated flag the last counts
    words
        .filter_map(|a| match a.to_str()? {
            "--json" | "--json=true" => Some(true),
            "--json=false" => Some(false),
            _ => None,
        })
        .last()
        .unwrap_or(false)
}

/// The command line cannot be read, or asks for help.
fn refused(e: &clap::Error) -> ExitCode {
    let code = u8::try_from(e.exit_code()).unwrap_or(2);
    // in the parser's own words, with its hints
    let _ = e.print();
    if code != 0 {
        let text = e.to_string();
        let first = text.lines().next().unwrap_or_default();
        output::error_object(first.trim_start_matches("error: "), None, code);
    }
    ExitCode::from(code)
}

/// Exit code and hint of an error: 2 if the user can mend it by other input, else 1.
fn judge(e: &anyhow::Error) -> (u8, Option<String>) {
    if let Some(e) = e.downcast_ref::<SettingError>() {
        return (2, e.hint().map(str::to_owned));
    }
    if let Some(e) = e.downcast_ref::<UsageError>() {
        return (2, e.hint.map(str::to_owned));
    }
    if let Some(e) = e.downcast_ref::<LineError>() {
        let hint = "--skip-bad-lines passes over such lines and counts them";
        return (2, e.skippable().then(|| hint.to_owned()));
    }
    let errno = |c: &(dyn std::error::Error + 'static)| c.downcast_ref::<std::io::Error>()?.raw_os_error();
    if let Some(hint) = e.chain().find_map(|c| admin::spent(errno(c))) {
        return (2, Some(hint.to_owned()));
    }
    (1, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }
}
