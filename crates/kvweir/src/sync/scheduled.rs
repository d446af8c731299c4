//! What [`crate::sync`] gives the engine under `--cfg kvweir_shuttle`: every lock, atomic and thread is a point at
//! which the test's scheduler says who runs next, all on one thread of the system. A run is told by its seed, and ends
//! with an error when all wait for each other.
//!
//! Time: a wait of n milliseconds ends after it gave way n times. So nothing waits for ever that has a deadline, waits
//! that are long in truth are long here, and no clock is read.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::{
        LockResult, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

pub(crate) use shuttle::sync::atomic;

/// A lock that knows itself from its guard, so that a wait can give it back and take it again.
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    #[expect(clippy::unnecessary_wraps, reason = "as the standard library's")]
    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        Ok(MutexGuard {
            of: self,
            held: Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)),
        })
    }

    pub(crate) fn into_inner(self) -> LockResult<T> {
        self.0.into_inner()
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// As the standard library's.
pub(crate) struct MutexGuard<'a, T> {
    of: &'a Mutex<T>,
    /// Always there, but while a wait takes the guard apart.
    held: Option<shuttle::sync::MutexGuard<'a, T>>,
}

impl<'a, T> MutexGuard<'a, T> {
    /// Gives the lock back; what is returned takes it again.
    fn unlock(mut self) -> &'a Mutex<T> {
        self.held = None;
        self.of
    }

    fn retake(of: &'a Mutex<T>) -> Self {
        of.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[expect(
    clippy::expect_used,
    reason = "only a wait takes it, and with the whole guard"
)]
impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_deref().expect("the lock is held")
    }
}

#[expect(
    clippy::expect_used,
    reason = "only a wait takes it, and with the whole guard"
)]
impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_deref_mut().expect("the lock is held")
    }
}

/// A condition whose waits end when they are to, which shuttle's own do not.
#[derive(Debug, Default)]
pub(crate) struct Condvar {
    inner: shuttle::sync::Condvar,
    /// Told to those whose waits have an end.
    rang: AtomicU64,
}

impl Condvar {
    pub(crate) const fn new() -> Self {
        Self {
            inner: shuttle::sync::Condvar::new(),
            rang: AtomicU64::new(0),
        }
    }

    pub(crate) fn notify_one(&self) {
        self.rang.fetch_add(1, Ordering::Relaxed);
        self.inner.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.rang.fetch_add(1, Ordering::Relaxed);
        self.inner.notify_all();
    }

    #[expect(clippy::unnecessary_wraps, reason = "as the standard library's")]
    pub(crate) fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        guard.held = guard
            .held
            .take()
            .map(|g| self.inner.wait(g).unwrap_or_else(PoisonError::into_inner));
        Ok(guard)
    }

    /// Also tells whether the time was over.
    #[expect(clippy::unnecessary_wraps, reason = "as the standard library's")]
    pub(crate) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, bool)> {
        let mut left = turns(timeout);
        let guard = self.pass(guard, &mut left);
        Ok((guard, left == 0))
    }

    pub(crate) fn wait_timeout_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        timeout: Duration,
        mut holds: impl FnMut(&mut T) -> bool,
    ) -> LockResult<(MutexGuard<'a, T>, bool)> {
        let mut left = turns(timeout);
        loop {
            if !holds(&mut guard) {
                return Ok((guard, false));
            }
            if left == 0 {
                return Ok((guard, true));
            }
            guard = self.pass(guard, &mut left);
        }
    }

    /// Gives way until it rings or nothing is left.
    fn pass<'a, T>(&self, guard: MutexGuard<'a, T>, left: &mut u128) -> MutexGuard<'a, T> {
        let seen = self.rang.load(Ordering::Relaxed);
        let of = guard.unlock();
        while *left > 0 && self.rang.load(Ordering::Relaxed) == seen {
            *left -= 1;
            shuttle::thread::yield_now();
        }
        MutexGuard::retake(of)
    }
}

/// How often a wait gives way: once a millisecond.
fn turns(timeout: Duration) -> u128 {
    timeout.as_millis().max(1)
}

/// A cell that is set once; who finds it being made waits for that.
pub(crate) struct OnceLock<T> {
    cell: std::sync::OnceLock<T>,
    making: shuttle::sync::Mutex<()>,
}

impl<T> OnceLock<T> {
    pub(crate) const fn new() -> Self {
        Self {
            cell: std::sync::OnceLock::new(),
            making: shuttle::sync::Mutex::new(()),
        }
    }

    pub(crate) fn get(&self) -> Option<&T> {
        self.cell.get()
    }

    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        let _alone = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        self.cell.set(value)
    }

    pub(crate) fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(made) = self.cell.get() {
            return made;
        }
        let _alone = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if self.cell.get().is_none() {
            // nobody else sets it meanwhile
            let _ = self.cell.set(make());
        }
        self.cell.get_or_init(|| unreachable!("it was set above"))
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cell.fmt(f)
    }
}

/// Threads, as far as the engine uses them.
pub(crate) mod thread {
    use std::{
        io,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
        time::Duration,
    };

    pub(crate) use shuttle::thread::{Scope, ScopedJoinHandle, scope, yield_now};

    /// Gives way, once a millisecond.
    pub(crate) fn park_timeout(timeout: Duration) {
        (0..super::turns(timeout)).for_each(|_| yield_now());
    }

    /// As the standard library's; a scoped thread loses its name.
    #[derive(Debug)]
    pub(crate) struct Builder(shuttle::thread::Builder);

    impl Builder {
        pub(crate) fn new() -> Self {
            Self(shuttle::thread::Builder::new())
        }

        pub(crate) fn name(self, name: String) -> Self {
            Self(self.0.name(name))
        }

        pub(crate) fn spawn<T: Send + 'static>(
            self,
            run: impl FnOnce() -> T + Send + 'static,
        ) -> io::Result<JoinHandle<T>> {
            let ended = Ended(Arc::default());
            let over = Arc::clone(&ended.0);
            let thread = self.0.spawn(move || {
                let _ended = ended;
                run()
            })?;
            Ok(JoinHandle { thread, over })
        }

        #[expect(clippy::unnecessary_wraps, reason = "as the standard library's")]
        pub(crate) fn spawn_scoped<'scope, T: Send + 'scope>(
            self,
            scope: &'scope Scope<'scope, '_>,
            run: impl FnOnce() -> T + Send + 'scope,
        ) -> io::Result<ScopedJoinHandle<'scope, T>> {
            Ok(scope.spawn(run))
        }
    }

    /// Told when the thread is done, also by a panic.
    struct Ended(Arc<AtomicBool>);

    impl Drop for Ended {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// As the standard library's.
    #[derive(Debug)]
    pub(crate) struct JoinHandle<T> {
        thread: shuttle::thread::JoinHandle<T>,
        over: Arc<AtomicBool>,
    }

    impl<T> JoinHandle<T> {
        pub(crate) fn is_finished(&self) -> bool {
            self.over.load(Ordering::Relaxed)
        }

        pub(crate) fn join(self) -> shuttle::thread::Result<T> {
            self.thread.join()
        }
    }
}
