//! SIGINT, SIGTERM and SIGHUP: the first asks the run to end cleanly; one that comes more than a second later ends the
//! process at once. Those within a second count as one: `timeout` sends two, and so does a hasty finger.

use std::{
    fs, io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
    thread,
    time::Duration,
};

use kvweir::clock::{Clock, SystemClock};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::{
    output,
    progress::Progress,
    table::{bytes, count},
};

/// Signals that come within this time of the first are one with it.
const ONE: Duration = Duration::from_secs(1);

/// The last signal that came; 0: none.
static CAUGHT: AtomicI32 = AtomicI32::new(0);

/// Whether the first signal's listener was called.
static TOLD: AtomicBool = AtomicBool::new(false);

/// Exit code of a run that a signal ended, as shells know it: 128 and the signal's number.
pub(crate) fn exit_code() -> u8 {
    let signal = match CAUGHT.load(Ordering::Relaxed) {
        0 => SIGINT,
        n => n,
    };
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// Whether a signal came and its listener was called.
pub(crate) fn came() -> bool {
    TOLD.load(Ordering::Acquire)
}

/// Starts listening; the flag is set by the first signal.
pub(crate) fn listen() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&stop);
    on_signal(move || set.store(true, Ordering::Relaxed))?;
    Ok(stop)
}

/// Calls `first`, on a thread of its own, when a signal comes; a later one ends the process.
pub(crate) fn on_signal(first: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let ignored = ignored();
    // under nohup, or in the background of a script, a signal is not for us
    let heeded = [SIGHUP, SIGINT, SIGTERM]
        .into_iter()
        .filter(|s| ignored >> (s - 1) & 1 == 0);
    let mut signals = Signals::new(heeded)?;
    let clock = SystemClock::new();
    let mut first = Some(first);
    let mut began = clock.now();
    let listen = move || {
        for signal in signals.forever() {
            let again = clock.now().since(began) >= ONE;
            if first.is_none() && again {
                CAUGHT.store(signal, Ordering::Relaxed);
                std::process::exit(i32::from(exit_code()));
            }
            if let Some(first) = first.take() {
                CAUGHT.store(signal, Ordering::Relaxed);
                began = clock.now();
                first();
                TOLD.store(true, Ordering::Release);
            }
        }
    };
    thread::Builder::new()
        .name("kvweir-signals".into())
        .spawn(listen)?;
    Ok(())
}

/// For commands on a root, which may be killed at any time: a signal ends the process, once it was said how far the
/// command got.
pub(crate) fn tell_how_far(progress: &Progress) -> io::Result<()> {
    let progress = progress.clone();
    on_signal(move || {
        let far = progress.far();
        progress.finish();
        let rest = "what was done stays, and the same command goes on from there";
        let blocks = match far.of_blocks {
            0 => String::new(),
            all => format!(
                " after {} of {} blocks, {} read",
                count(far.blocks),
                count(all),
                bytes(far.bytes)
            ),
        };
        let message = format!("interrupted{blocks}: {rest}");
        output::error(&message, None, exit_code());
        std::process::exit(i32::from(exit_code()));
    })
}

/// The signals that our parent wants ignored, as a mask.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok())
        .unwrap_or_default()
}
