//! The run with real I/O: a scheduler's loop over the real manager, primary tier and file tier. Requests look their
//! blocks up, wait for promotions, read what they hit and compare it, store what they computed, and finish.
//!
//! | file | what it holds |
//! |---|---|
//! | `content.rs` | keys of block numbers, bytes of keys |
//! | `life.rs` | one life of the engine, from opening the tier to shutting it down |
//! | `notes.rs` | what to try where many blocks were not stored |
//! | `request.rs` | one request on its way |
//! | `tally.rs` | what adds up over lives: numbers, latencies |
//! | `told.rs` | residency events against what lies below the root |

mod content;
mod life;
mod notes;
mod request;
mod tally;
mod told;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

pub(crate) use self::tally::Outcome;
use self::{
    life::{Life, PATIENCE},
    request::Active,
    tally::Tally,
};
use crate::{
    progress::Progress,
    scratch::Scratch,
    settings::ReplaySettings,
    trace::{Request, Source},
    usage::UsageError,
};
use anyhow::{Context, Result};
use kvweir::{
    clock::{Clock, SystemClock},
    io::Region,
};

/// Time between two samples of the timeline.
const SAMPLE_EVERY: Duration = Duration::from_millis(50);

/// Replays `source` through the tiers `settings` describe. Ends early, with what was measured so far and
/// `summary.interrupted`, when `stop` is set or a wrong byte is found.
pub(crate) fn run(
    settings: &ReplaySettings,
    source: Source,
    progress: &Progress,
    stop: &AtomicBool,
) -> Result<Outcome> {
    let place = Place::of(settings)?;
    let clock = SystemClock::shared();
    let slots = u32::try_from(settings.primary_slots()).unwrap_or(u32::MAX - 1);
    let block_len = usize::try_from(settings.block_bytes).context("block_bytes")?;
    let region = Region::new(slots, block_len, true).context("map the primary tier")?;
    let mut tally = Tally::new(settings, Arc::clone(&clock));
    let mut feed = Feed {
        source,
        next: None,
        ended: false,
    };
    let mut done = false;
    let mut life = Life::open(settings, &place.root, &region, &clock)?;
    while !done {
        let target = settings.restart_every.map(|n| tally.requests() + n);
        let ended = live(
            &mut life, settings, &mut feed, &mut tally, target, progress, stop, &*clock,
        );
        done = !matches!(ended, Ok(Ended::Restart));
        life.close(progress, stop);
        tally.add_life(&mut life);
        if let Ended::Interrupted = ended? {
            tally.interrupted();
        }
        if !done {
            tally.restarted(settings, &place.root);
            life = Life::open(settings, &place.root, &region, &clock)?;
        }
    }
    let outcome = tally.finish(&life, settings);
    place.leave(progress)?;
    Ok(outcome)
}

/// Where the tier's files lie.
struct Place {
    root: PathBuf,
    /// Removed at the end.
    temporary: Option<Scratch>,
}

impl Place {
    fn of(settings: &ReplaySettings) -> Result<Self> {
        if let Some(root) = &settings.root {
            return Ok(Self {
                root: root.clone(),
                temporary: None,
            });
        }
        let parent = std::env::temp_dir();
        let dir = Scratch::make(&parent, "kvweir-replay-").map_err(|e| no_temporary(&parent, &e))?;
        Ok(Self {
            root: dir.path().join("kv"),
            temporary: Some(dir),
        })
    }

    /// Removes what was made.
    fn leave(self, progress: &Progress) -> Result<()> {
        let Some(dir) = self.temporary else { return Ok(()) };
        let path = dir.path().to_owned();
        dir.remove(&|n| progress.removing(n))
            .with_context(|| format!("remove {}", path.display()))
    }
}

/// A TMPDIR that cannot be used is a wrong setting.
fn no_temporary(parent: &Path, e: &io::Error) -> UsageError {
    let whose = match std::env::var_os("TMPDIR") {
        Some(_) => "which TMPDIR names",
        None => "since TMPDIR is not set",
    };
    UsageError {
        message: format!(
            "no temporary directory can be made in {}, {whose}: {e}",
            parent.display()
        ),
        hint: Some(
            "set TMPDIR to a directory that you may write to, or give the tier a directory: --root DIR",
        ),
    }
}

/// The requests still to come.
struct Feed {
    source: Source,
    next: Option<Request>,
    ended: bool,
}

impl Feed {
    /// The next request, if it is due at `elapsed`.
    fn due(&mut self, elapsed: Duration, scale: Option<f64>) -> Result<Option<Request>> {
        if self.next.is_none() && !self.ended {
            self.next = self.source.next().transpose()?;
            self.ended = self.next.is_none();
        }
        let due = self
            .next
            .as_ref()
            .is_some_and(|r| scale.is_none_or(|x| elapsed.as_secs_f64() >= r.at.as_secs_f64() / x));
        Ok(if due { self.next.take() } else { None })
    }
}

/// Why a life ended.
enum Ended {
    /// The requests are done, or a wrong byte was found.
    Done,
    /// It is time to reopen.
    Restart,
    /// A signal came.
    Interrupted,
}

/// Runs requests until the feed ends, `target` requests are done, a byte is wrong, or a signal comes.
#[expect(clippy::too_many_arguments, reason = "the loop's whole world, once")]
fn live(
    life: &mut Life,
    settings: &ReplaySettings,
    feed: &mut Feed,
    tally: &mut Tally,
    target: Option<u64>,
    progress: &Progress,
    stop: &AtomicBool,
    clock: &dyn Clock,
) -> Result<Ended> {
    let mut active: Vec<Active> = Vec::new();
    let mut begun = tally.requests();
    let mut next_sample = clock.now();
    loop {
        if stop.load(Ordering::Relaxed) {
            return Ok(Ended::Interrupted);
        }
        while active.len() < settings.concurrency && target.is_none_or(|t| begun < t) {
            let Some(request) = feed.due(tally.elapsed(), settings.time_scale)? else {
                break;
            };
            begun += 1;
            active.push(Active::begin(life, &request));
        }
        let rings = life.bell.rings();
        let mut moved = false;
        for a in &mut active {
            moved |= a.step(life, tally, settings)?;
        }
        life.manager.on_schedule_end();
        for a in &mut active {
            moved |= a.end_of_step(life);
        }
        let before = active.len();
        active.retain(|a| !a.is_finished());
        tally.finished((before - active.len()) as u64);
        tally.take_from(life);
        if tally.wrong_blocks() > 0 {
            return Ok(Ended::Done);
        }
        let now = clock.now();
        if now >= next_sample {
            next_sample = now.after(SAMPLE_EVERY);
            let bytes = tally.sample(life);
            progress.update(tally.requests(), bytes);
        }
        if active.is_empty() {
            if feed.ended {
                return Ok(Ended::Done);
            }
            if target.is_some_and(|t| begun >= t) {
                // restart only with something left to do
                if feed.next.is_none() {
                    feed.next = feed.source.next().transpose()?;
                    feed.ended = feed.next.is_none();
                }
                return Ok(if feed.ended { Ended::Done } else { Ended::Restart });
            }
        }
        if !moved {
            life.bell.wait(rings, PATIENCE);
        }
    }
}
