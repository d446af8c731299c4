//! How tiers are made.

use std::{sync::Arc, time::Duration};

use crate::{
    catalog::body::Rank,
    clock::{Clock, SystemClock},
    error::{Error, Result},
    fs::{
        files::pieces::READ_PIECE,
        open::{Opened, open},
        parts::{FsSpace, Parts},
        running::Running,
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

/// Longest wait, when a root is opened, for its walk if it has no journal.
const OPEN_PATIENCE: Duration = Duration::from_millis(500);

/// Builds an [`FsTier`], or several that share a root: settings are data, clock and disk are components.
#[derive(Debug)]
pub struct FsBuilder(Parts);

impl FsBuilder {
    /// A tier for blocks of `block_len` bytes of namespace `ns`.
    pub fn new(settings: FsSettings, ns: Namespace, block_len: usize) -> Self {
        Self(Parts {
            settings,
            first: FsSpace::new("fs", ns, block_len),
            others: Vec::new(),
            disk: Arc::new(OsDisk),
            clock: SystemClock::shared(),
            slots_outlive_reports: true,
            boot: None,
            patience: OPEN_PATIENCE,
        })
    }

    /// A tier for another namespace on the same root: one bound, the same workers. The settings are for all, but
    /// [`FsSpace::layout`]; see [`open_all`](Self::open_all).
    #[must_use]
    pub fn beside(mut self, space: FsSpace) -> Self {
        self.0.others.push(space);
        self
    }

    /// The (first) tier's name in metrics and logs; `fs` unless set.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.0.first.name = name.into();
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

    /// A bell to ring whenever a report of the (first) tier is ready.
    #[must_use]
    pub fn bell(mut self, bell: Arc<Bell>) -> Self {
        self.0.first.bell = bell;
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
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for settings or a directory that cannot work, a bound too
    /// small for what the file system gives out space in, also for a root with a bound below or above another one;
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) when another process uses the root, or one above, and its bound
    /// would not hold (its pid and host are named), or when the system gives no thread;
    /// [`ErrorKind::Full`](crate::ErrorKind::Full) when the bound has no room for the tier's own files; or the I/O
    /// error of the walk. Then nothing of the tier is left: no thread, and no claim on the root. Also `Invalid` where
    /// there are namespaces [`beside`](Self::beside): those are for [`open_all`](Self::open_all).
    pub fn open(self) -> Result<FsTier> {
        let several = || Error::invalid("open root", "several namespaces are to be served: use open_all");
        if !self.0.others.is_empty() {
            return Err(several());
        }
        self.open_all()?.pop().ok_or_else(several)
    }

    /// Opens the root for its namespace and all those [`beside`](Self::beside) it: a tier for each, in that order. A
    /// manager has blocks of one length, so each tier goes to a manager of its own.
    ///
    /// They share bound, journal and workers. Blocks with files of their own are evicted in one order, whosever they
    /// are; between them and the packed blocks of each tier the bound is shared evenly where all want it, in whole
    /// extents, so it should have room for several of each. What a tier tells of bytes, blocks held and blocks evicted
    /// is the root's, of all of them together: over them it is not to be summed. What it tells of lookups, stores,
    /// loads and its breaker is its own, as are its events.
    ///
    /// Each tier is used, drained and shut down by itself; the root is let go with the last. What one held that is shut
    /// down stays and counts, and has no share any more. Who comes meanwhile, also a model that was shut down here,
    /// opens the root with a builder of its own and the same bound, and is a further member of it, in this process as
    /// in another: it has its part of the bound, and sees no blocks that others pack.
    ///
    /// A later start that has the root for itself may name the models in another order, or more of them: each finds its
    /// blocks, and those of models that are not named go first. Beside others who have the root open, what was left is
    /// found at once where the first model is the same one, after five seconds where that is among those named, and
    /// else not before room is needed. So name them in the same order each time.
    ///
    /// ```
    /// use kvweir::{fs::{FsBuilder, FsSettings, FsSpace, FsTier}, namespace::{Identity, Namespace}, tier::Tier};
    /// # fn main() -> kvweir::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// let model = |name: &str| Namespace::new(&Identity { model_name: name.into(), ..Identity::default() });
    /// let settings = FsSettings { max_bytes: Some(64 << 20), ..FsSettings::new(dir.path().join("kv")) };
    /// let large = FsBuilder::new(settings, model("large")?, 256 * 1024).name("large");
    /// let tiers = large.beside(FsSpace::new("draft", model("draft")?, 16 * 1024)).open_all()?;
    /// let [mut large, mut draft] = <[FsTier; 2]>::try_from(tiers).unwrap();
    /// assert_eq!((large.name(), draft.name()), ("large", "draft"));
    /// draft.shutdown();
    /// large.shutdown();
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`open`](Self::open), but that there are several; and [`ErrorKind::Invalid`](crate::ErrorKind::Invalid)
    /// where two namespaces or names are the same, the bound has no room for a block of each, or more than 15 of the
    /// namespaces are to be packed.
    pub fn open_all(self) -> Result<Vec<FsTier>> {
        let parts = self.0;
        let (pool_size, engine) = (parts.settings.pool, parts.settings.engine);
        let thread_name = format!("kvweir-{}", parts.first.name);
        let Opened { spaces, keeper } = open(parts)?;
        // files of one piece are read by one call either way
        let simple = spaces
            .iter()
            .all(|s| s.layouts.first_rank() == Rank::Whole && s.params.block_len <= READ_PIECE);
        let engines = Engines::choose(if simple { EngineKind::Threads } else { engine });
        let pool = Pool::start_with(&thread_name, pool_size, &engines)?;
        let running = Arc::new(Running::new(pool, keeper, spaces.len()));
        let tiers = spaces.into_iter().map(|s| FsTier::new(s, &running));
        Ok(tiers.collect())
    }
}
