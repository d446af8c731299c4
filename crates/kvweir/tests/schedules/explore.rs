//! Runs a test under many schedules: half of them chosen at every point at random, half by PCT, which runs the most
//! urgent thread and changes urgencies a few times a run, and so finds orders that chance alone rarely meets.
//!
//! `KVWEIR_SIM_SECONDS` is how long each test goes on (three seconds unless set), `KVWEIR_SEED` the one seed to run.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Once,
    time::Duration,
};

use kvweir::clock::SystemClock;
use shuttle::{
    Config, FailurePersistence, MaxSteps, Runner,
    scheduler::{PctScheduler, RandomScheduler, Scheduler},
};

/// Steps after which a run is taken to make no progress any more.
const MOST_STEPS: usize = 20_000_000;
/// Changes of urgency in a PCT run.
const DEPTH: usize = 4;

thread_local! {
    /// Panics on this thread, which runs all of a test: workers of the engine survive theirs, and a test must not.
    static PANICS: Cell<u64> = const { Cell::new(0) };
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|n| n.parse().ok())
}

/// How long a test may go on.
pub(crate) fn seconds() -> Duration {
    Duration::from_secs(number("KVWEIR_SIM_SECONDS").unwrap_or(3))
}

/// The only seed to run, if one is named.
pub(crate) fn only_seed() -> Option<u64> {
    number("KVWEIR_SEED")
}

/// Runs `test` under schedules until its time is over; its argument is the seed.
pub(crate) fn explore(test: impl Fn(u64) + Clone + Send + Sync + 'static) {
    let clock = SystemClock::shared();
    let began = clock.now();
    let first = only_seed().unwrap_or(1);
    let mut seed = first;
    loop {
        run_seed(seed, test.clone());
        seed += 1;
        if only_seed().is_some() || clock.now().since(began) >= seconds() {
            break;
        }
    }
    println!("{} seeds, two schedules each", seed - first);
}

/// Runs `test` under the schedules of one seed.
pub(crate) fn run_seed(seed: u64, test: impl Fn(u64) + Clone + Send + Sync + 'static) {
    run(seed, RandomScheduler::new_from_seed(seed, 1), test.clone());
    // its first run learns how long one is
    run(seed, PctScheduler::new_from_seed(seed, DEPTH, 2), test);
}

/// Runs `test` as often as `scheduler` says.
pub(crate) fn run(
    seed: u64,
    scheduler: impl Scheduler + std::fmt::Debug + 'static,
    test: impl Fn(u64) + Send + Sync + 'static,
) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.set(PANICS.get() + 1);
            before(info);
        }));
    });
    PANICS.set(0);
    let told = format!("{scheduler:?}");
    let told = told.split_whitespace().next().unwrap_or_default().to_owned();
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = MaxSteps::FailAfter(MOST_STEPS);
    config.silence_warnings = true;
    let ran = catch_unwind(AssertUnwindSafe(|| {
        Runner::new(scheduler, config).run(move || test(seed));
        assert_eq!(PANICS.get(), 0, "a thread of the engine panicked");
    }));
    if let Err(why) = ran {
        eprintln!("KVWEIR_SEED={seed} fails under {told}");
        resume_unwind(why);
    }
}
