//! How a tier is made.

use std::{sync::Arc, time::Duration};

use crate::{
    catalog::body::Rank,
    clock::{Clock, SystemClock},
    error::Result,
    fs::{
        files::pieces::PIECE,
        open::{Opened, Parts, open},
        settings::FsSettings,
        tier::FsTier,
    },
    io::{
        Disk, OsDisk,
        engine::{EngineKind, Engines},
        pool::Pool,
    },
    namespace::Namespace,
    sync::Bell,
};

/// Longest wait, when a tier is opened, for the walk of a root without a journal.
const OPEN_PATIENCE: Duration = Duration::from_millis(500);

/// Builds an [`FsTier`]: settings are data, clock and disk are components.
#[derive(Debug)]
pub struct FsBuilder(Parts);

impl FsBuilder {
    /// A tier for blocks of `block_len` bytes of namespace `ns`.
    pub fn new(settings: FsSettings, ns: Namespace, block_len: usize) -> Self {
        Self(Parts {
            name: "fs".into(),
            settings,
            ns,
            block_len,
            disk: Arc::new(OsDisk),
            clock: SystemClock::shared(),
            bell: Arc::default(),
            slots_outlive_reports: true,
            boot: None,
            patience: OPEN_PATIENCE,
        })
    }

    /// The tier's name in metrics and logs; `fs` unless set.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.0.name = name.into();
        self
    }

    /// Another disk than the operating system's.
    #[must_use]
    pub fn disk(mut self, disk: Arc<dyn Disk>) -> Self {
        self.0.disk = disk;
        self
    }

    /// Another clock than the system's.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.0.clock = clock;
        self
    }

    /// A bell to ring whenever a report is ready.
    #[must_use]
    pub fn bell(mut self, bell: Arc<Bell>) -> Self {
        self.0.bell = bell;
        self
    }

    /// Whether the engine leaves a slot alone as long as a guard of it exists, also when the job was reported:
    /// [`Primary`](crate::primary::Primary) does. If not, a load that reads straight into a slot is not reported before
    /// its I/O has ended, however long that takes; loads through a buffer (`bounce`) and stores are reported at their
    /// deadline either way.
    #[must_use]
    pub fn slots_outlive_reports(mut self, yes: bool) -> Self {
        self.0.slots_outlive_reports = yes;
        self
    }

    /// Another id of the machine's current boot than the system's: a journal of another boot is not believed.
    #[must_use]
    pub fn boot_id(mut self, id: [u8; 16]) -> Self {
        self.0.boot = Some(id);
        self
    }

    /// How long opening waits for the walk of a root whose journal cannot be used, half a second unless set. What is
    /// not found by then is a miss until it is; stores are refused until all is found.
    #[must_use]
    pub fn walk_patience(mut self, patience: Duration) -> Self {
        self.0.patience = patience;
        self
    }

    /// Opens the root and starts the workers.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for settings or a directory that cannot work, a bound too small
    /// for what the file system gives out space in, also for a root with a bound below or above another one;
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) when another process uses the root, or one above, and its bound would
    /// not hold (its pid and host are named), or when the system gives no thread;
    /// [`ErrorKind::Full`](crate::ErrorKind::Full) when the bound has no room for the tier's own files; or the I/O error
    /// of the walk. Then nothing of the tier is left: no thread, and no claim on the root.
    pub fn open(self) -> Result<FsTier> {
        let (pool_size, engine) = (self.0.settings.pool, self.0.settings.engine);
        let (block_len, thread_name) = (self.0.block_len, format!("kvweir-{}", self.0.name));
        let Opened { shared, keeper } = open(self.0)?;
        // files of one piece are read by one call either way
        let engines = Engines::choose(match shared.layouts.first_rank() {
            Rank::Whole if block_len <= PIECE => EngineKind::Threads,
            _ => engine,
        });
        let pool = Pool::start_with(&thread_name, pool_size, &engines)?;
        Ok(FsTier::new(shared, pool, keeper))
    }
}
