//! Which process this is. A fork leaves a child with all memory of its parent and none of its threads: locks that they
//! held are never released there, and their handles name nothing. So what works with threads remembers its
//! [`Home`], and does nothing in any other process. A `mark` tells a process from every other one of its machine,
//! also from one that has its number later.

#![expect(
    unsafe_code,
    reason = "a call of the C library that no safe wrapper of ours has"
)]

// of the standard library, since no schedule decides about processes
use std::sync::{
    Once,
    atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
};

use rustix::process::{Pid, test_kill_process};

/// Forks that lie between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// What `FORKS` never is: the process number is asked instead.
const UNCOUNTED: u32 = u32::MAX;

/// The process in which something was made.
#[derive(Debug)]
pub struct Home {
    pid: u32,
    forks: u32,
    told: AtomicBool,
}

impl Home {
    /// This process.
    pub fn here() -> Self {
        Self {
            pid: std::process::id(),
            forks: if counts_forks() {
                FORKS.load(Relaxed)
            } else {
                UNCOUNTED
            },
            told: AtomicBool::new(false),
        }
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether this is another process, as far as the C library was told of the fork: one load and no system call.
    #[inline]
    pub fn is_elsewhere(&self) -> bool {
        FORKS.load(Relaxed) != self.forks && self.is_surely_elsewhere()
    }

    /// Whether this is another process, however it was made.
    pub fn is_surely_elsewhere(&self) -> bool {
        let elsewhere = self.pid != std::process::id();
        if elsewhere && FORKS.load(Relaxed) == self.forks {
            // it was made without the C library
            FORKS.fetch_add(1, Relaxed);
        }
        elsewhere
    }

    /// The error elsewhere for a `thing` that was made here.
    pub fn told_elsewhere(&self, thing: &str) -> String {
        format!(
            "pid {} was forked from pid {}, which opened this {thing}: here it misses, fails and does nothing; open \
             another after the fork",
            std::process::id(),
            self.pid
        )
    }

    /// Whether this is the first time that this is asked, in this process.
    pub fn is_news(&self) -> bool {
        !self.told.swap(true, Relaxed)
    }
}

/// How many forks lie between the first process and this one, of those since it was first asked for: what one process
/// holds under this number, none that it was forked from can have locked.
pub fn forks() -> u32 {
    counts_forks();
    FORKS.load(Relaxed)
}

/// Counts forks from now on; returns whether that works.
fn counts_forks() -> bool {
    static ASKED: Once = Once::new();
    static COUNTED: AtomicBool = AtomicBool::new(false);
    ASKED.call_once(|| {
        // SAFETY: the handler is a function of this module that lives as long as the module does, and adds to an
        // atomic, which may be done between a fork and whatever comes next.
        let done = unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        COUNTED.store(done == 0, Relaxed);
    });
    COUNTED.load(Relaxed)
}

/// Called in every child.
extern "C" fn forked() {
    FORKS.fetch_add(1, Relaxed);
}

/// What tells this process from all others of this machine since its boot: in the upper half which processes it can
/// name (boot, namespaces of process numbers and time), in the lower when it began. 0: the system does not tell.
pub(crate) fn mark() -> u64 {
    let pid = std::process::id();
    match (world(), Life::of(pid)) {
        (Some(world), Some(life)) => u64::from(world) << 32 | u64::from(life.began),
        _ => 0,
    }
}

/// Whether the process `pid` with this mark has certainly ended.
pub(crate) fn is_gone(pid: u32, mark: u64) -> bool {
    let theirs = (mark >> 32) as u32;
    if theirs == 0 || world() != Some(theirs) {
        return false;
    }
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    if test_kill_process(number) == Err(rustix::io::Errno::SRCH) {
        return true;
    }
    // others may have hidden it: then it is there
    Life::of(pid).is_some_and(|l| l.ended || l.began != mark as u32)
}

/// Which processes a number can mean here; `None` where that cannot be told.
fn world() -> Option<u32> {
    let text = |p: &str| Some(std::fs::read_link(p).ok()?.into_os_string().into_encoded_bytes());
    // /proc may be another namespace's
    if text("/proc/self")? != std::process::id().to_string().into_bytes() {
        return None;
    }
    let boot = super::boot_id();
    if boot == [0; 16] {
        return None;
    }
    let mut all = boot.to_vec();
    all.extend(text("/proc/self/ns/pid")?);
    // kernels before 5.6 have one time for all
    all.extend(text("/proc/self/ns/time").unwrap_or_default());
    Some((xxhash_rust::xxh3::xxh3_64(&all) as u32).max(1))
}

/// What `/proc/<pid>/stat` tells.
struct Life {
    /// When it began: ticks since boot, the lower half.
    began: u32,
    /// It has ended, and its parent was not told yet.
    ended: bool,
}

impl Life {
    fn of(pid: u32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        // the second field is a name, in parentheses, of any characters
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |n: usize| fields.get(n - 3).copied();
        let began: u64 = field(22)?.parse().ok()?;
        let threads: u64 = field(20)?.parse().ok()?;
        Some(Self {
            began: began as u32,
            // a first thread that ended before others looks so too
            ended: matches!(field(3)?, "Z" | "X") && threads <= 1,
        })
    }
}

/// Forks; runs `child` in the child, which exits with what that returns, whatever threads there were. Returns the
/// child's process id. For tests.
///
/// # Errors
/// The system's.
#[cfg(any(test, feature = "testing"))]
pub fn fork(child: impl FnOnce() -> i32) -> std::io::Result<u32> {
    // SAFETY: the child has this thread only. It runs code that takes no lock which another thread may have held: that
    // is what is tested; the allocator takes care of its own.
    match unsafe { libc::fork() } {
        0 => {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            // SAFETY: ends the process at once, without handlers that are its parent's.
            unsafe { libc::_exit(ended.unwrap_or(101)) }
        }
        pid => u32::try_from(pid).map_err(|_| std::io::Error::last_os_error()),
    }
}

/// Waits until a child ends; what it ended with, `None` where a signal ended it.
///
/// # Errors
/// The system's.
#[cfg(any(test, feature = "testing"))]
pub fn wait_for(pid: u32) -> std::io::Result<Option<i32>> {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let ended = rustix::process::waitpid(number, rustix::process::WaitOptions::empty())?;
    Ok(ended.and_then(|(_, s)| s.exit_status()))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn this_process_is_at_home_and_has_not_ended() {
        let home = Home::here();
        assert!(!home.is_elsewhere() && !home.is_surely_elsewhere());
        assert!(home.is_news() && !home.is_news());
        let mark = mark();
        assert_ne!(mark, 0, "this system does not tell");
        assert!(!is_gone(std::process::id(), mark));
    }

    #[test]
    fn a_process_is_gone_when_it_ended_also_unreaped_or_when_its_number_was_given_away() {
        let mut child = Command::new("sleep")
            .arg("60")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id();
        let mark = u64::from(world().unwrap()) << 32 | u64::from(Life::of(pid).unwrap().began);
        assert!(!is_gone(pid, mark));
        assert!(is_gone(pid, mark ^ 1), "another process has that number now");
        // who cannot be named here, or did not say when it began, may live
        assert!(!is_gone(pid, 0) && !is_gone(pid, mark ^ 1 << 40) && !is_gone(0, mark));
        child.kill().unwrap();
        while Life::of(pid).is_some_and(|l| !l.ended) {
            std::thread::yield_now();
        }
        assert!(is_gone(pid, mark), "ended, and nobody asked how");
        child.wait().unwrap();
        assert!(is_gone(pid, mark));
    }

    #[test]
    fn a_child_is_elsewhere_and_is_told_so_once() {
        let home = Home::here();
        let pid = fork(|| {
            let elsewhere =
                home.is_elsewhere() && home.is_surely_elsewhere() && home.is_news() && !home.is_news();
            let own = Home::here();
            i32::from(!elsewhere || own.is_elsewhere() || own.pid() == home.pid())
        });
        assert_eq!(wait_for(pid.unwrap()).unwrap(), Some(0));
        assert!(!home.is_elsewhere() && home.is_news());
    }

    #[test]
    fn a_child_made_behind_the_c_librarys_back_is_elsewhere_too() {
        let home = Home {
            forks: FORKS.load(Relaxed).wrapping_add(1),
            ..Home::here()
        };
        // as in a child whose fork was counted: the number decides
        assert!(!home.is_elsewhere());
        let home = Home {
            pid: 1,
            ..Home::here()
        };
        let counted = FORKS.load(Relaxed);
        assert!(!home.is_elsewhere() && home.is_surely_elsewhere() && home.is_elsewhere());
        FORKS.store(counted, Relaxed);
    }

    #[test]
    fn a_line_of_proc_is_read_whatever_the_name_and_however_it_is_cut() {
        let line = "7 (a) b (c)) S 1 7 7 0 -1 4194304 95 0 0 0 0 0 0 0 20 0 3 0 4294967297 31 382";
        let life = Life::parse(line).unwrap();
        assert!(life.began == 1 && !life.ended);
        assert!(
            !Life::parse(&line.replace(" S ", " Z ")).unwrap().ended,
            "three threads"
        );
        for n in 0..line.len() - 8 {
            if let Some(cut) = Life::parse(&line[..n]) {
                assert!(cut.began != 1, "{n}");
            }
        }
    }
}
