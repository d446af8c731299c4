//! In progress.
use kvweir::clock::Clock;
use std::sync::Arc;
/// Options.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}
pub(crate) fn run(_: &Args, _: &Arc<dyn Clock>) -> anyhow::Result<()> {
    Ok(())
}
