//! Operations under way in a ring. Dropping a flight waits for all of them, also in a panic, so that memory is never
//! handed back while the kernel may use it (I5).

#![expect(unsafe_code, reason = "hands addresses to the kernel")]

use std::{io, time::Duration};

use io_uring::{CompletionQueue, IoUring, SubmissionQueue, Submitter, squeue};

/// The time between two looks at a ring that no longer answers.
const PAUSE: Duration = Duration::from_millis(1);

pub(super) struct Flight<'r> {
    submitter: Submitter<'r>,
    sq: SubmissionQueue<'r>,
    cq: CompletionQueue<'r>,
    /// Pushed and not seen to complete.
    under_way: usize,
    enters: u64,
    /// Set when operations are left in the queue that the kernel must never see: the ring is to be dropped.
    broken: &'r mut bool,
}

impl<'r> Flight<'r> {
    pub(super) fn new(ring: &'r mut IoUring, broken: &'r mut bool) -> Self {
        let (submitter, sq, cq) = ring.split();
        Self {
            submitter,
            sq,
            cq,
            under_way: 0,
            enters: 0,
            broken,
        }
    }

    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }

    pub(super) fn enters(&self) -> u64 {
        self.enters
    }

    /// Takes an operation; `false` if the queue is full.
    ///
    /// # Safety
    /// Memory and file that `entry` names must stay valid, and its memory unused by others as the operation needs
    /// it, until the operation completes or the flight has been dropped.
    pub(super) unsafe fn push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: as promised by the caller; dropping the flight waits.
        let pushed = unsafe { self.sq.push(entry) }.is_ok();
        self.under_way += usize::from(pushed);
        pushed
    }

    /// Hands over what was pushed and waits for `want` completions; fewer may have come when it returns.
    ///
    /// # Errors
    /// When the ring is of no use any more.
    pub(super) fn enter(&mut self, want: usize) -> io::Result<()> {
        self.sq.sync();
        self.enters += 1;
        let entered = self.submitter.submit_and_wait(want);
        self.sq.sync();
        self.cq.sync();
        match entered.map_err(|e| (e.raw_os_error(), e)) {
            Ok(_) | Err((Some(libc::EINTR), _)) => Ok(()),
            // completions must be taken first, or the kernel has no memory for more at the moment
            Err((Some(libc::EAGAIN | libc::EBUSY), _)) => {
                if self.cq.is_empty() {
                    std::thread::park_timeout(PAUSE);
                }
                Ok(())
            }
            Err((_, e)) => Err(e),
        }
    }

    /// A completion: whose, and its outcome.
    pub(super) fn next(&mut self) -> Option<(u64, io::Result<usize>)> {
        let entry = self.cq.next()?;
        self.under_way = self.under_way.saturating_sub(1);
        let outcome = usize::try_from(entry.result())
            .map_err(|_| io::Error::from_raw_os_error(entry.result().saturating_neg()));
        Some((entry.user_data(), outcome))
    }

    fn wait(&mut self) {
        loop {
            while self.next().is_some() {}
            if self.under_way == 0 {
                return;
            }
            if self.enter(self.under_way).is_err() {
                *self.broken = true;
                // what still lies in the queue was not handed over and never will be
                if self.under_way <= self.sq.len() {
                    self.under_way = 0;
                    return;
                }
                std::thread::park_timeout(PAUSE);
            }
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.wait();
    }
}
