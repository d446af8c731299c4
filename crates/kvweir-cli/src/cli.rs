//! The command line: subcommands, and what their outcomes mean to the shell.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::{commands, interrupt, output, settings::SettingError, trace::LineError};

/// Weir for KV caches: host memory overflows to disk, each tier within its bound.
#[derive(Debug, Parser)]
#[command(name = "kvweir", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

/// One file a command, under `commands/`.
#[derive(Debug, Subcommand)]
enum Command {
    /// Run a workload through the tiers, every byte checked
    ///
    /// Replays requests of an LLM server through host memory and a bounded file tier. Every block's content is a
    /// function of its key, and every block that comes back is compared. Without TRACE a built-in workload runs:
    /// agents with long growing prompts.
    Replay(Box<commands::replay::Args>),
}

/// How a command that did its work ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Exit code 0.
    Good,
    /// It ran and found what must not be, such as wrong bytes. Exit code 1.
    Bad,
    /// A signal ended it early. Exit code 130.
    Interrupted,
}

/// The input is wrong, not the run: exit code 2, with a hint.
#[derive(Debug)]
pub(crate) struct UsageError {
    /// What is wrong.
    pub(crate) message: String,
    /// What to do instead.
    pub(crate) hint: Option<&'static str>,
}

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for UsageError {}

/// Runs the command given by the process's arguments.
pub(crate) fn main() -> ExitCode {
    let ending = match Cli::parse().command {
        Some(Command::Replay(args)) => commands::replay::run(*args),
        None => output::result(&Cli::command().render_help().to_string())
            .map(|()| Ending::Good)
            .map_err(Into::into),
    };
    match ending {
        Ok(Ending::Good) => ExitCode::SUCCESS,
        Ok(Ending::Bad) => ExitCode::FAILURE,
        Ok(Ending::Interrupted) => ExitCode::from(interrupt::EXIT),
        Err(e) => {
            let (code, hint) = judge(&e);
            output::error(&e, hint.as_deref());
            ExitCode::from(code)
        }
    }
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
    (1, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
