//! `kvweir completions` and `kvweir man`: what a package installs beside the command.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Command;

use crate::{ending::Ending, help, output};

const COMPLETIONS: &str = "\
Examples:
  kvweir completions bash > ~/.local/share/bash-completion/completions/kvweir
  kvweir completions zsh > ~/.zfunc/_kvweir
  kvweir completions fish > ~/.config/fish/completions/kvweir.fish";

const MAN: &str = "\
Examples:
  mkdir -p ~/.local/share/man/man1
  kvweir man ~/.local/share/man/man1
  man kvweir-replay";

/// Flags of `kvweir completions`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = COMPLETIONS, after_help = "--help gives examples")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: clap_complete::Shell,
}

/// Flags of `kvweir man`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = MAN, after_help = "--help gives examples")]
pub(crate) struct ManArgs {
    /// An existing directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Prints completions.
pub(crate) fn completions(args: &CompletionsArgs, whole: Command) -> Result<Ending> {
    output::result(&help::completions(whole, args.shell))?;
    Ok(Ending::Good)
}

/// Writes manual pages and says which.
pub(crate) fn man(args: &ManArgs, whole: Command) -> Result<Ending> {
    let names = help::man(whole, &args.dir)
        .with_context(|| format!("write manual pages to {}", args.dir.display()))?;
    output::result(&names.join("\n"))?;
    Ok(Ending::Good)
}
