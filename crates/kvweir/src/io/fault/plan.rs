//! What happens at a call: rules, the calls that met one, and those that hang.

use std::{
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::rule::{Fault, Op, Rule};
use crate::sync::{
    Bell, Condvar, Mutex,
    atomic::{AtomicU64, Ordering},
    lock, wait,
};

/// ENOSPC.
const FULL: i32 = 28;

#[derive(Debug, Default)]
pub(super) struct Rules {
    pub(super) rules: Vec<Rule>,
    pub(super) met: Vec<(Op, PathBuf)>,
    /// Every call since recording began.
    pub(super) log: Option<Vec<(Op, PathBuf)>>,
}

/// Where calls hang.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// How often it was opened, and how many wait.
    pub(super) state: Mutex<(u64, usize)>,
    pub(super) moved: Condvar,
}

impl Gate {
    /// How often it was opened.
    fn opened(&self) -> u64 {
        lock(&self.state).0
    }

    /// Waits until it was opened more often than `seen`.
    fn pass(&self, seen: u64) {
        let mut g = lock(&self.state);
        g.1 += 1;
        self.moved.notify_all();
        while g.0 == seen {
            g = wait(&self.moved, g);
        }
        g.1 -= 1;
        self.moved.notify_all();
    }

    pub(super) fn open(&self) {
        lock(&self.state).0 += 1;
        self.moved.notify_all();
    }
}

/// Rules shared by a disk and its open files.
#[derive(Debug, Clone, Default)]
pub(super) struct Plan(pub(super) Arc<PlanState>);

#[derive(Debug, Default)]
pub(super) struct PlanState {
    pub(super) rules: Mutex<Rules>,
    pub(super) gate: Gate,
    pub(super) calls: AtomicU64,
    /// Bytes of files written, less those removed.
    pub(super) held: AtomicU64,
}

/// How much a read or write may move, and whether a bit of it is wrong.
pub(super) struct Limit {
    pub(super) bytes: usize,
    pub(super) flip: bool,
}

impl Plan {
    /// The fault that a call meets, and how often the gate was opened then: a call that is to hang goes on with the
    /// next opening, also where that comes before it waits.
    fn fault(&self, op: Op, path: &Path, direct: bool) -> Option<(Fault, u64)> {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        let mut plan = lock(&self.0.rules);
        if let Some(log) = &mut plan.log {
            log.push((op, path.to_owned()));
        }
        let hit = plan.rules.iter_mut().find_map(|r| {
            let applies = r.op.is_none_or(|o| o == op)
                && (direct || !r.direct_only)
                && r.path.as_ref().is_none_or(|p| contains(path.as_os_str(), p));
            if !applies || r.times == 0 {
                return None;
            }
            if r.skip > 0 {
                r.skip -= 1;
                return None;
            }
            if let Fault::FullAt(n) = r.fault
                && self.0.held.load(Ordering::Relaxed) < n
            {
                return None;
            }
            r.times -= 1;
            Some(r.fault)
        });
        let hit = hit?;
        plan.met.push((op, path.to_owned()));
        Some((hit, self.0.gate.opened()))
    }

    /// The call may go on, or fails with the planned errno.
    pub(super) fn check(&self, op: Op, path: &Path, direct: bool) -> io::Result<()> {
        self.limit(op, path, direct).map(|_| ())
    }

    /// How many bytes the call may move; waits where it is to hang.
    pub(super) fn limit(&self, op: Op, path: &Path, direct: bool) -> io::Result<Limit> {
        let mut limit = Limit {
            bytes: usize::MAX,
            flip: false,
        };
        let Some((fault, opened)) = self.fault(op, path, direct) else {
            return Ok(limit);
        };
        match fault {
            Fault::Errno(n) => return Err(io::Error::from_raw_os_error(n)),
            Fault::FullAt(_) if op == Op::Write => return Err(io::Error::from_raw_os_error(FULL)),
            Fault::Short(n) => limit.bytes = n,
            Fault::Hang => self.0.gate.pass(opened),
            Fault::Slow(d) => {
                Bell::default().wait(0, d);
            }
            Fault::Flip => limit.flip = true,
            Fault::FullAt(_) => {}
        }
        Ok(limit)
    }

    /// Bytes left on a disk that is to run full.
    pub(super) fn room(&self) -> Option<u64> {
        let plan = lock(&self.0.rules);
        let full_at = plan.rules.iter().find_map(|r| match r.fault {
            Fault::FullAt(n) => Some(n),
            _ => None,
        });
        full_at.map(|n| n.saturating_sub(self.0.held.load(Ordering::Relaxed)))
    }
}

/// Whether the bytes of `part` stand somewhere in `path`.
fn contains(path: &OsStr, part: &OsStr) -> bool {
    let (path, part) = (path.as_bytes(), part.as_bytes());
    part.is_empty() || path.windows(part.len()).any(|w| w == part)
}
