//! The progress bar: requests or blocks, and bytes, with rates, on stderr and only where a person looks.

use std::{
    io::{IsTerminal, stderr},
    sync::{Arc, Mutex, PoisonError},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const BAR: &str = "{elapsed_precise} [{bar:32}] {human_pos}/{human_len} requests  {msg}";
const SPINNER: &str = "{elapsed_precise} {spinner} {human_pos} requests  {msg}";

const BLOCKS: &str = "{elapsed_precise} [{bar:32}] {human_pos}/{human_len} blocks  {msg}";

const PHASES: &str = "{elapsed_precise} [{bar:32}] {pos:>3} %  {msg}";

/// A handle that may be shared between threads.
#[derive(Debug, Clone)]
pub(crate) struct Progress {
    bar: ProgressBar,
    /// How far a command on a root got, whether or not the bar is shown.
    far: Arc<Mutex<kvweir::admin::Progress>>,
}

impl Progress {
    /// A bar for `total` requests, a spinner if their number is unknown.
    pub(crate) fn new(total: Option<u64>, wanted: bool) -> Self {
        if !wanted || !stderr().is_terminal() {
            return Self::hidden();
        }
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr_with_hz(8));
        let template = if total.is_some() { BAR } else { SPINNER };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self {
            bar,
            far: Arc::default(),
        }
    }

    /// A bar for blocks of a root.
    pub(crate) fn blocks(wanted: bool) -> Self {
        let progress = Self::new(Some(0), wanted);
        if let Ok(style) = ProgressStyle::with_template(BLOCKS) {
            progress.bar.set_style(style.progress_chars("=> "));
        }
        progress
    }

    /// A bar for phases of a bench.
    pub(crate) fn phases(wanted: bool) -> Self {
        let progress = Self::new(Some(100), wanted);
        if let Ok(style) = ProgressStyle::with_template(PHASES) {
            progress.bar.set_style(style.progress_chars("=> "));
        }
        progress
    }

    /// Tells which phase of a bench runs, and which share of it is over.
    pub(crate) fn phase(&self, name: &str, share: f64) {
        if self.bar.is_hidden() {
            return;
        }
        self.bar.set_position((share.clamp(0.0, 1.0) * 100.0) as u64);
        self.bar.set_message(name.to_owned());
    }

    /// Tells how far a command on a root is.
    pub(crate) fn at(&self, now: kvweir::admin::Progress) {
        *self.far.lock().unwrap_or_else(PoisonError::into_inner) = now;
        if self.bar.is_hidden() {
            return;
        }
        self.bar.set_length(now.of_blocks);
        self.bar.set_position(now.blocks);
        let gb_s = now.bytes as f64 / 1e9 / self.bar.elapsed().as_secs_f64().max(1e-3);
        self.bar.set_message(format!("{gb_s:.2} GB/s"));
    }

    /// How far a command on a root is.
    pub(crate) fn far(&self) -> kvweir::admin::Progress {
        *self.far.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells that the bound is not reached yet.
    pub(crate) fn settling(&self, above: u64) {
        if !self.bar.is_hidden() {
            let above = crate::table::bytes(above);
            self.bar
                .set_message(format!("trimming to the bound: {above} above it"));
        }
    }

    /// Tells how many of the files that were made have been removed.
    pub(crate) fn removing(&self, files: u64) {
        if !self.bar.is_hidden() {
            let files = crate::table::count(files);
            self.bar
                .set_message(format!("removing the temporary directory: {files} files"));
        }
    }

    /// A bar nobody sees.
    pub(crate) fn hidden() -> Self {
        Self {
            bar: ProgressBar::hidden(),
            far: Arc::default(),
        }
    }

    /// Tells how far the run is: requests done and bytes moved to and from the tiers, both since its start.
    pub(crate) fn update(&self, requests: u64, bytes: u64) {
        self.bar.set_position(requests);
        if !self.bar.is_hidden() {
            let seconds = self.bar.elapsed().as_secs_f64().max(1e-3);
            let mb_s = bytes as f64 / 1e6 / seconds;
            self.bar.set_message(format!(
                "{:.0} requests/s  {mb_s:.1} MB/s",
                requests as f64 / seconds
            ));
        }
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
