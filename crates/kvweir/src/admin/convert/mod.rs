//! Blocks from files into extents and back, in place and within the bound. Every block is read whole and compared with
//! its checksum; it leaves its old place only when it is durable in the new one and was read there. So a conversion
//! that ends early, killed or not, has lost nothing: a block that lies in both places is found again, and a second run
//! goes on.
//!
//! Newest blocks go first. Where the bound has no room for the rest (files take more than slots), the oldest are
//! dropped, as a store would drop them. Into extents, numbers of records keep the order in which blocks were written;
//! into files, their times do.
//!
//! | file | what it does |
//! |---|---|
//! | `place.rs` | extents that a conversion holds open, and the bytes below the root |
//! | `pack.rs`, `packing.rs` | files into extents; what that knows of a namespace |
//! | `read_files.rs`, `make_extent.rs`, `slots.rs` | its steps: blocks read, extents made, slots written |
//! | `files.rs` | extents into files |

mod converted;
mod files;
mod make_extent;
mod pack;
mod packing;
mod place;
mod read_files;
mod room;
mod slots;
mod work;

pub use converted::{Converted, ConvertedNamespace};

use self::room::Room;
use super::{Admin, Claim, OnProgress, identity::Config, temps::Temps};
use crate::{
    admin::convert::work::{Target, Work},
    error::{Error, ErrorKind, Result},
    fs::settings::{Layout, min_pack_bound},
    sync::{Mutex, atomic::AtomicU64},
};

/// What to convert.
#[derive(Debug, Clone)]
pub struct ConvertOptions<'a> {
    /// Where blocks are to lie: [`Layout::Fs`] or [`Layout::Pack`].
    pub to: Layout,
    /// Only this namespace, by its directory's name.
    pub namespace: Option<&'a str>,
    /// The bound that holds at every moment; that of the ledger unless set.
    pub max_bytes: Option<u64>,
}

impl Admin {
    /// Moves blocks into the layout of `options`; without a claim only counts them. It can be run again after it ended
    /// early, for whatever reason.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a claim of another root, a namespace that is not there, a bound that is too small or
    /// not known (a first change gives the ledger up); [`ErrorKind::Full`] when the root is above it;
    /// [`ErrorKind::Unavailable`] when part of it cannot be read, and so not counted; the I/O error of the walk. What
    /// fails below is listed.
    pub fn convert(
        &self,
        options: &ConvertOptions<'_>,
        progress: OnProgress<'_>,
        claim: Option<&Claim>,
    ) -> Result<Converted> {
        let far = |c: &Converted| match c.done {
            true => format!(
                " (after {} blocks moved; run it again to go on)",
                c.namespaces.iter().map(|n| n.moved).sum::<u64>()
            ),
            false => String::new(),
        };
        self.command("convert", far, |a| a.move_blocks(options, progress, claim))
    }

    fn move_blocks(
        &self,
        options: &ConvertOptions<'_>,
        progress: OnProgress<'_>,
        claim: Option<&Claim>,
    ) -> Result<Converted> {
        claim.map_or(Ok(()), |c| c.covers(self))?;
        let began = self.clock.now();
        let bound = self.bound(options, claim)?;
        let content = self.survey(None)?;
        content.require_whole("convert", &self.root)?;
        let before = content.bytes();
        let (mut targets, passed_over) = self.targets(options, &content, bound)?;
        // identities and headers are read by then
        self.notes.check("convert", "")?;
        let mut used = before;
        if let Some(c) = claim.filter(|_| !targets.is_empty()) {
            c.change()?;
            let content = self.survey(None)?;
            content.require_whole("convert", &self.root)?;
            used = content.bytes();
        }
        if used > bound {
            let message =
                format!("{used} bytes lie below the root, above the bound of {bound}: trim it first");
            return Err(Error::new(ErrorKind::Full, "convert", message));
        }
        let mut work = Work {
            admin: self,
            apply: claim.is_some(),
            room: Room::new(bound, used),
            unit: self.allocation_unit()?,
            temps: Temps::new(self.clock.unix_seconds()),
            progress,
            blocks: AtomicU64::new(0),
            of_blocks: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            failed: Mutex::default(),
        };
        for t in &mut targets {
            if self.notes.check("convert", "").is_err() {
                break;
            }
            let ended = match options.to {
                Layout::Pack => work.pack(t),
                _ => work.unpack(t),
            };
            if let Err(e) = ended {
                work.failed(&t.dir.clone(), e);
            }
        }
        let mut namespaces = passed_over;
        namespaces.extend(targets.into_iter().map(|t| t.report));
        namespaces.sort_by(|a, b| a.directory.cmp(&b.directory));
        let mut failed = work
            .failed
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        failed.sort_unstable();
        Ok(Converted {
            root: self.root.display().to_string(),
            to: options.to.as_str(),
            done: claim.is_some(),
            bound_bytes: bound,
            before_bytes: before,
            after_bytes: match claim.filter(|_| self.notes.check("convert", "").is_ok()) {
                Some(_) => self.survey(None)?.bytes(),
                None => work.room.used(),
            },
            peak_bytes: work.room.peak().max(before),
            namespaces,
            bytes: work.bytes.into_inner(),
            seconds: self.clock.now().since(began).as_secs_f64(),
            failed,
        })
    }

    /// The bound that must hold.
    fn bound(&self, options: &ConvertOptions<'_>, claim: Option<&Claim>) -> Result<u64> {
        let seen = match claim {
            Some(_) => self.see_unlocked()?,
            None => self.see()?,
        };
        let bound = options.max_bytes.or(seen.page().map(|p| p.head.bound));
        bound.ok_or_else(|| {
            let message = "the bound is not known: there is no ledger to tell it; say it (--max-bytes), as \
                 max_bytes of the engine";
            Error::invalid("convert", message)
        })
    }

    /// Namespaces with something to convert, and those that cannot be, with reasons.
    fn targets(
        &self,
        options: &ConvertOptions<'_>,
        content: &super::survey::Content,
        bound: u64,
    ) -> Result<(Vec<Target>, Vec<ConvertedNamespace>)> {
        if options.to == Layout::Auto {
            return Err(Error::invalid("convert", "layout auto: say fs or pack"));
        }
        let wanted = |name: &str| options.namespace.is_none_or(|o| o == name);
        let mut all = content.namespaces.values().filter(|f| wanted(&f.name()));
        if let Some(only) = options.namespace.filter(|_| all.clone().next().is_none()) {
            let message = format!("there is no namespace {only} below {}", self.root.display());
            return Err(Error::invalid("convert", message));
        }
        let (mut targets, mut passed_over) = (Vec::new(), Vec::new());
        let mut each = |facts: &super::survey::Facts| {
            let files = match options.to {
                Layout::Pack => facts.blocks.files,
                _ => facts.extents.files,
            };
            if files == 0 {
                return;
            }
            let config = Config::read(&*self.disk, &self.root, &facts.name());
            let e = facts.expected(&*self.disk, &config);
            let mut report = ConvertedNamespace {
                directory: facts.name(),
                block_bytes: e.block_len,
                ..ConvertedNamespace::default()
            };
            let why = match (&config, e.block_len) {
                (Config::Missing, _) => "its identity is not known: there is no config.json".into(),
                (Config::Unusable(why), _) => format!("its identity is not known: {why}"),
                (_, None) => "most of its files differ in length".into(),
                (_, Some(len))
                    if options.to == Layout::Pack
                        && bound < usize::try_from(len).map_or(u64::MAX, min_pack_bound) =>
                {
                    format!("the bound is too small for extents of blocks of {len} bytes")
                }
                (Config::Known(ns, _), Some(len)) => {
                    targets.push(Target {
                        dir: facts.path.clone(),
                        digest: *ns.digest(),
                        seed: ns.seed(),
                        len,
                        extents: facts.extent_files.clone(),
                        report,
                    });
                    return;
                }
            };
            report.passed_over = Some(why);
            passed_over.push(report);
        };
        all.by_ref().for_each(&mut each);
        Ok((targets, passed_over))
    }
}
