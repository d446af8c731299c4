//! A claim on a root and the thread that holds it. The claim ends with the last tier: whoever owns a [`Keeping`] and
//! goes, on whatever path, takes the thread along, and the thread the claim. And the tiers end with the claim: a keeper
//! that panics closes them first, and lets the root go when no I/O of theirs runs any more (I1).

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::{
    error::{Error, ErrorKind, Result},
    fs::{
        keeper::{
            end::End,
            state::{Keeper, TICK},
        },
        phase::Phase,
        recover::opening::Opening,
        shared::Shared,
        space::Space,
    },
    root::names::STATE_DIR,
    sync::{
        Bell, lock,
        thread::{Builder, JoinHandle},
    },
};

/// Longest wait for the keeper when the last tier ends.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is looked whether the keeper has ended.
const LOOK: Duration = Duration::from_millis(5);

/// The keeper, as the tiers of its root have it.
pub(crate) struct Keeping {
    shared: Arc<Shared>,
    end: Arc<End>,
    thread: Option<JoinHandle<()>>,
}

impl Keeping {
    /// Starts the keeper.
    pub(crate) fn start(opening: Opening, spaces: Vec<Arc<Space>>) -> Result<Self> {
        let keeper = Keeper::new(opening, spaces);
        let (shared, end) = (Arc::clone(&keeper.shared), Arc::clone(&keeper.end));
        let thread = Builder::new()
            .name("kvweir-keeper".into())
            .spawn(move || run(keeper))
            .map_err(|e| Error::io("start the keeper", "thread", e))?;
        Ok(Self {
            shared,
            end,
            thread: Some(thread),
        })
    }

    /// Ends it. Unless all I/O has `ended`, the root stays claimed until this process ends: whoever owned it would race
    /// our own writer (I1).
    pub(crate) fn end(&mut self, ended: bool) {
        let Some(thread) = self.thread.take() else { return };
        self.end.ask(ended);
        self.shared.keeper.ring();
        let pause = Bell::default();
        // by the waits themselves: the clock may stand still
        let mut looks = PATIENCE.as_millis() / LOOK.as_millis();
        while !thread.is_finished() && looks > 0 {
            pause.wait(pause.rings(), LOOK);
            looks -= 1;
        }
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        if self.thread.is_some() {
            // the tiers did not come to be: nothing else was begun
            self.shared.stop.store(true, Ordering::Relaxed);
            self.end(true);
        }
    }
}

/// The thread's life.
fn run(mut keeper: Keeper) {
    let lived = catch_unwind(AssertUnwindSafe(|| keeper.live()));
    let root = keeper.shared.root.path.display();
    let why = match lived {
        Ok(true) if keeper.end.keeps() => return std::mem::forget(keeper.opening.member),
        Ok(true) => return keeper.finish(),
        Ok(false) => format!(
            "{root}: its ledger does not know this tier any more, since the root or its {STATE_DIR} was removed; the \
             tier is closed: open it again"
        ),
        Err(panic) => format!(
            "the keeper of {root} panicked ({}); the tier is closed: open it again, and report this",
            text_of(&*panic)
        ),
    };
    close(keeper, why);
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or(panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// Closes the tiers and, when none of their I/O runs any more, lets the root go: as if its process had been killed
/// then.
fn close(keeper: Keeper, why: String) {
    let s = &*keeper.shared;
    {
        let mut core = lock(&s.core);
        core.catalog.close_all();
        core.catalog.note_uses(false);
        core.account.keeps_journal(false);
    }
    tracing::error!(tier = %s.name, "{why}");
    s.set_phase(Phase::Failed(Some(Error::new(
        ErrorKind::Unavailable,
        "open root",
        why,
    ))));
    let (mut seen, mut idle) = (0, 0);
    // a job is known to the guard a moment after it passed the closed gate
    while keeper.end.is_far() && idle < 2 {
        seen = s.keeper.wait(seen, TICK);
        let quiet = keeper.spaces.iter().all(|s| s.runner.watchdog.is_quiet());
        idle = if quiet { idle + 1 } else { 0 };
    }
    if keeper.end.keeps() {
        std::mem::forget(keeper.opening.member);
    }
}
