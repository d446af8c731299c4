//! Settings of the file tier.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use super::files::cost::write_cost;
use crate::{
    error::{Error, Result},
    events::Locality,
    evict::PolicyKind,
    io::{Disk, engine::EngineKind, pool::PoolSize},
    jobs::bounce::BounceMode,
    pressure::BreakerSettings,
};

/// Bytes that every bounded root needs beside its blocks: its own directory, ledger and journal with a snapshot,
/// `config.json`, and the namespace's directories, with room to grow; and in units of allocation, where those are
/// large.
const FIXED_BYTES: u64 = 192 * 1024;
const FIXED_UNITS: u64 = 32;
/// The allocation unit assumed before a file system was asked.
pub(crate) const USUAL_FS_BLOCK: u64 = 4096;

/// The smallest bound, in bytes, below which a tier of `block_len`-byte blocks can hold one, where the file system
/// allocates in the usual units of 4096 bytes. In larger ones it is more: opening a root measures that and refuses what
/// cannot be kept.
pub fn min_bound(block_len: usize) -> u64 {
    min_bound_in(block_len, USUAL_FS_BLOCK)
}

/// As [`min_bound`], on a file system that allocates in units of `unit` bytes.
pub(crate) fn min_bound_in(block_len: usize, unit: u64) -> u64 {
    write_cost(block_len, unit) + FIXED_BYTES.max(FIXED_UNITS * unit)
}

/// The smallest bound, in bytes, below which a tier packs `block_len`-byte blocks: room for an extent of a few slots,
/// and for one block with a file of its own.
pub fn min_pack_bound(block_len: usize) -> u64 {
    min_pack_bound_in(block_len, USUAL_FS_BLOCK)
}

/// As [`min_pack_bound`], on a file system that allocates in units of `unit` bytes.
pub(crate) fn min_pack_bound_in(block_len: usize, unit: u64) -> u64 {
    min_bound_in(block_len, unit) + crate::fs::packed::least_bytes(block_len, unit)
}

/// The smallest bound for a space whose new blocks are laid out so, where the file system allocates in units of `unit`
/// bytes.
pub(crate) fn least_bound(layout: Layout, block_len: usize, unit: u64) -> u64 {
    match layout {
        Layout::Pack => min_pack_bound_in(block_len, unit),
        _ => min_bound_in(block_len, unit),
    }
}

/// The bytes of which everything below `root` takes a multiple: what the file system says, or more where a probe shows
/// that.
pub(crate) fn allocation_unit(disk: &dyn Disk, root: &Path, said: u64) -> u64 {
    match disk.unit(root) {
        Ok(unit) => unit.max(said),
        Err(error) => {
            tracing::debug!(root = %root.display(), %error, "the unit of allocation cannot be measured");
            said
        }
    }
}

/// How blocks lie below a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Layout {
    /// Packed where the root is owned (`max_bytes`, not `read_only`, a file system of this machine) and blocks are
    /// smaller than [`PACK_BELOW`] bytes; else one file per block.
    #[default]
    Auto,
    /// One file a block, in vLLM's own directory layout.
    Fs,
    /// Slots of one size in large preallocated files; needs `max_bytes`.
    Pack,
}

/// Blocks smaller than this many bytes are packed by [`Layout::Auto`].
pub const PACK_BELOW: usize = 1 << 20;

impl Layout {
    /// All layouts.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Fs, Self::Pack];

    /// The word in settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Fs => "fs",
            Self::Pack => "pack",
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Layout {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|l| l.as_str() == s);
        known.ok_or_else(|| Error::invalid("read layout", format!("{s:?} is none of auto, fs, pack")))
    }
}

/// Values that shape a file tier.
#[derive(Debug, Clone, PartialEq)]
pub struct FsSettings {
    /// The directory that holds everything; made if missing (its parent must exist).
    pub root: PathBuf,
    /// The bound, in bytes, on all that lies below `root` (I1). `None`: unbounded; the directory may be shared with
    /// other writers, and unknown keys are looked for on disk.
    pub max_bytes: Option<u64>,
    /// Bytes of the file system to leave free, whoever fills it: below this floor blocks are evicted to store others,
    /// and where that does not help stores are refused. `None`: no floor.
    pub min_free_bytes: Option<u64>,
    /// Which block is evicted first.
    pub policy: PolicyKind,
    /// Worker threads.
    pub pool: PoolSize,
    /// Whether payload checksums are compared on load. Sizes, trailers and the keys in them always are; of a packed
    /// block the record was compared when its extent was opened, and what a load compares is one tag of checksum and
    /// key together: without `verify`, nothing.
    pub verify: bool,
    /// Whether residency events are recorded. Costs the length of the key, and some, for each block in memory.
    pub events: bool,
    /// Whether the directory is on this machine.
    pub locality: Locality,
    /// A request that has not finished for this long loses its pins.
    pub pin_ttl: Duration,
    /// In an unbounded root: for how long a key that was not found is taken as missing without looking again.
    pub miss_ttl: Duration,
    /// Whether to bypass the page cache where the file system and alignment allow it.
    pub direct: bool,
    /// A job is given up when an operation of it has run for so long, or when it has waited so long while none of the
    /// tier ended. `None` or zero: it is waited for.
    pub io_timeout: Option<Duration>,
    /// Whether loads are read into a buffer of the tier and copied, so that one that hangs can be given up.
    pub bounce: BounceMode,
    /// When a tier that fails or hangs is left alone, and for how long.
    pub breaker: BreakerSettings,
    /// Nothing is written, made, removed or locked below `root`: blocks are looked for on disk as in an unbounded root,
    /// whoever writes there, and stores are refused. `max_bytes` is then without effect.
    pub read_only: bool,
    /// How new blocks are laid out. A tier that packs serves blocks with files of their own beside packed ones; one
    /// that does not counts extents that are there, and evicts them first.
    pub layout: Layout,
    /// Who moves packed blocks, and reads those that have files of their own and are longer than 512 KiB, whatever the
    /// layout; where the kernel forbids io_uring,
    /// threads do.
    pub engine: EngineKind,
}

impl FsSettings {
    /// Defaults for the directory `root`, unbounded.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            max_bytes: None,
            min_free_bytes: None,
            policy: PolicyKind::Lru,
            pool: PoolSize::default(),
            verify: true,
            events: false,
            locality: Locality::Local,
            pin_ttl: Duration::from_secs(600),
            miss_ttl: Duration::from_secs(1),
            direct: true,
            io_timeout: Some(Duration::from_secs(30)),
            bounce: BounceMode::Auto,
            breaker: BreakerSettings::default(),
            read_only: false,
            layout: Layout::default(),
            engine: EngineKind::default(),
        }
    }

    /// Checks everything that can be checked without touching a disk.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) naming the setting, its value and what is allowed.
    pub fn validate(&self, block_len: usize) -> Result<()> {
        let no = |m: String| Err(Error::invalid("check settings", m));
        let least = min_bound(block_len);
        if block_len == 0 {
            return no("block length 0: must be at least 1 byte".into());
        }
        if let Some(max) = self.max_bytes.filter(|&m| m < least) {
            return no(format!(
                "max_bytes {max} is below one block: blocks of {block_len} bytes need at least {least} bytes with \
                 trailer, directories and lock file"
            ));
        }
        if self.layout == Layout::Pack {
            let Some(max) = self.max_bytes.filter(|_| !self.read_only) else {
                return no(
                    "layout pack: needs max_bytes, and no read_only, since extents are preallocated below a \
                           bound; use fs or auto"
                        .into(),
                );
            };
            let least = min_pack_bound(block_len);
            if max < least {
                return no(format!(
                    "max_bytes {max} is too small for layout pack: blocks of {block_len} bytes need at least {least} \
                     bytes; use fs or auto"
                ));
            }
        }
        if self.pin_ttl.is_zero() {
            return no("pin_ttl 0: must be longer than a load".into());
        }
        self.breaker.validate()?;
        if self.root.as_os_str().is_empty() {
            return no("root is empty: name a directory".into());
        }
        Ok(())
    }
}
