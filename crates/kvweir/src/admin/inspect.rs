//! What lies below a root, in numbers.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

use super::{
    Admin, Holder, Pile,
    extents::Packed,
    holder::Seen,
    identity::Config,
    survey::{Expected, Facts},
};
use crate::{
    error::Result,
    namespace::dir_seed,
    root::{
        journal::parse_name,
        ledger::{Look, Page},
        names::STATE_DIR,
        trailer::TRAILER_BYTES,
    },
};

/// Looks at a root that seems to be above its bound and is held.
const LOOKS: u32 = 3;

/// What lies below a root.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inspection {
    /// The directory.
    pub root: String,
    /// All bytes, as `du` counts them.
    pub bytes: u64,
    /// By how many of them the root is above the bound that its ledger tells: it is not kept.
    pub above_bound_bytes: u64,
    /// Block files.
    pub blocks: Pile,
    /// Extents of packed blocks.
    pub extents: Pile,
    /// Blocks in extents.
    pub packed_blocks: u64,
    /// Bytes of directories.
    pub directory_bytes: u64,
    /// Bytes of kvweir's own files: identities, what lies below `.kvweir`.
    pub own_bytes: u64,
    /// By directory name.
    pub namespaces: Vec<NamespaceInfo>,
    /// Temporaries of ours. In a root that is held they are stores under way.
    pub temporaries: Pile,
    /// Directories of the layout without entries.
    pub empty_directories: u64,
    /// Files and directories that are not ours.
    pub foreign: Pile,
    /// Some of them.
    pub foreign_examples: Vec<String>,
    /// What could not be read, and why.
    pub unreadable: Vec<String>,
    /// Who owns how much.
    pub ledger: LedgerInfo,
    /// The members, dead ones included.
    pub members: Vec<MemberInfo>,
}

/// What became of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LedgerState {
    /// It is in force.
    Whole,
    /// There is none: the next start of a tier with a bound walks the root.
    None,
    /// A later version of kvweir wrote it: this one opens no tier here, and changes nothing.
    Newer,
    /// It cannot be read, or its bytes are not what was written: the next start walks the root.
    Damaged,
}

/// What the ledger says of the root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LedgerInfo {
    /// Whether it can be read.
    pub state: LedgerState,
    /// Somebody has its lock for long: an operator command.
    pub claimed: bool,
    /// The root's bound.
    pub bound_bytes: Option<u64>,
    /// Bytes that no member owns.
    pub common_bytes: Option<u64>,
    /// The member that walks the root, or died doing so.
    pub walker: Option<u32>,
}

/// A member of the root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemberInfo {
    /// Who it is.
    #[serde(flatten)]
    pub holder: Holder,
    /// Bytes that its files and reservations never exceed.
    pub lease_bytes: Option<u64>,
    /// Bytes it held when it last wrote into the ledger.
    pub held_bytes: Option<u64>,
    /// Bytes it wants and cannot have.
    pub wanted_bytes: Option<u64>,
    /// Whether it ended in order.
    pub ended_in_order: Option<bool>,
    /// Its namespace's directory, where it is there.
    pub namespace: Option<String>,
    /// Allocated bytes of its journals and snapshots.
    pub journal_bytes: u64,
    /// The generation of its newest journal.
    pub generation: Option<u32>,
}

/// Who wrote a namespace's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Writer {
    /// All have trailers.
    Kvweir,
    /// None has.
    Stock,
    /// Some have.
    Both,
    /// There are no blocks.
    Nobody,
}

/// How a namespace's blocks lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layouts {
    /// One file per block.
    Fs,
    /// In extents.
    Pack,
    /// Some in either way.
    Both,
    /// There is neither a block file nor an extent.
    None,
}

/// What lies in a namespace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NamespaceInfo {
    /// The directory's name.
    pub directory: String,
    /// Who wrote the blocks.
    pub written_by: Writer,
    /// The identity, from its `config.json`.
    pub identity: Option<Map<String, Value>>,
    /// Why the identity is not known.
    pub identity_problem: Option<String>,
    /// How its blocks lie.
    pub layout: Layouts,
    /// Block files.
    pub blocks: Pile,
    /// Extents of packed blocks: their files and what these take, whether or not their slots are.
    pub extents: Pile,
    /// Extents that cannot be used: damaged, cut, or of a later version.
    pub unusable_extents: u64,
    /// Slots of all extents.
    pub slots: u64,
    /// Slots with a record. Those of evicted blocks keep theirs until they are taken again.
    pub used_slots: u64,
    /// Slots without.
    pub free_slots: u64,
    /// Keys that have a record.
    pub packed_blocks: u64,
    /// Bytes of its directories.
    pub directory_bytes: u64,
    /// Bytes of a block, without trailer, if that can be told.
    pub block_bytes: Option<u64>,
    /// Files by length.
    pub files_by_length: BTreeMap<u64, u64>,
    /// Files as long as a block and a trailer.
    pub with_trailer: u64,
    /// Files as long as a block.
    pub without_trailer: u64,
    /// Files of any other length.
    pub other_length: u64,
    /// Trailers by version, of a sample of the files.
    pub trailer_versions: BTreeMap<String, u64>,
    /// Seconds since the oldest block was written.
    pub oldest_s: Option<u64>,
    /// Seconds since the newest was written.
    pub newest_s: Option<u64>,
    /// Half of the blocks are older.
    pub median_s: Option<u64>,
}

impl Admin {
    /// Counts what lies below the root. Reads names, lengths and times of all files, and some trailers.
    ///
    /// # Errors
    /// The I/O error of the root itself; what cannot be read below it is listed.
    pub fn inspect(&self) -> Result<Inspection> {
        self.command("inspect", |_| String::new(), Self::count)
    }

    fn count(&self) -> Result<Inspection> {
        let seen = self.see()?;
        let content = self.survey(None)?;
        let mut out = Inspection {
            root: self.root.display().to_string(),
            bytes: content.bytes(),
            above_bound_bytes: 0,
            blocks: Pile::default(),
            extents: Pile::default(),
            packed_blocks: 0,
            directory_bytes: content.root_bytes,
            own_bytes: content.own_bytes,
            namespaces: Vec::new(),
            temporaries: Pile::default(),
            empty_directories: content.empty.len() as u64,
            foreign: content.foreign,
            foreign_examples: content.foreign_paths.iter().map(|p| self.short(p)).collect(),
            unreadable: content.unreadable.iter().map(|u| u.1.clone()).collect(),
            ledger: ledger_info(&seen),
            members: Vec::new(),
        };
        let names: Vec<String> = content.namespaces.values().map(Facts::name).collect();
        out.members = self.members(seen, &names);
        content.temps.iter().for_each(|t| out.temporaries.add(t.1));
        for facts in content.namespaces.into_values() {
            out.blocks.files += facts.blocks.files;
            out.blocks.bytes += facts.blocks.bytes;
            out.directory_bytes += facts.dir_bytes;
            out.extents.files += facts.extents.files;
            out.extents.bytes += facts.extents.bytes;
            let config = Config::read(&*self.disk, &self.root, &facts.name());
            let expected = facts.expected(&*self.disk, &config);
            let packed = self.packed(&facts, &mut out.unreadable);
            out.packed_blocks += packed.blocks;
            out.namespaces.push(self.info(facts, config, expected, packed));
        }
        out.namespaces.sort_by(|a, b| a.directory.cmp(&b.directory));
        out.above_bound_bytes = self.above_bound(out.ledger.bound_bytes, out.bytes)?;
        Ok(out)
    }

    /// By how many bytes the root is above its bound, of which `bytes` were counted. Beside an engine files come and go
    /// while they are counted: the least of several looks is told.
    pub(super) fn above_bound(&self, bound: Option<u64>, bytes: u64) -> Result<u64> {
        let Some(bound) = bound else { return Ok(0) };
        let mut least = bytes;
        for _ in 1..LOOKS {
            if least <= bound || !self.see()?.is_held() {
                break;
            }
            least = least.min(self.survey(None)?.bytes());
        }
        Ok(least.saturating_sub(bound))
    }

    fn members(&self, seen: Seen, namespaces: &[String]) -> Vec<MemberInfo> {
        let mut journals: BTreeMap<u32, (u64, Option<u32>)> = BTreeMap::new();
        let dir = self.root.join(STATE_DIR);
        // one that is not there has no journals
        let _ = self.disk.list(&dir, &mut |name, _| {
            let Some((snapshot, member, generation)) = name.to_str().and_then(parse_name) else {
                return;
            };
            let (bytes, newest) = journals.entry(member).or_default();
            *bytes += self.disk.stat(&dir.join(name)).map_or(0, |s| s.allocated);
            if !snapshot {
                *newest = (*newest).max(Some(generation));
            }
        });
        let page = seen.page().cloned();
        let of = |holder: Holder| {
            let entry = page.as_ref().and_then(|p| p.member(holder.number));
            let (journal_bytes, generation) = journals.get(&holder.number).copied().unwrap_or_default();
            MemberInfo {
                lease_bytes: entry.map(|e| e.lease),
                held_bytes: entry.map(|e| e.held),
                wanted_bytes: entry.map(|e| e.want),
                ended_in_order: entry.map(|e| e.clean),
                namespace: entry.and_then(|e| namespaces.iter().find(|n| dir_seed(n) == e.seed).cloned()),
                journal_bytes,
                generation,
                holder,
            }
        };
        seen.holders.into_iter().map(of).collect()
    }

    fn info(&self, mut facts: Facts, config: Config, e: Expected, packed: Packed) -> NamespaceInfo {
        let files = |len: Option<u64>| len.and_then(|l| facts.lens.get(&l)).copied().unwrap_or(0);
        let with_trailer = files(
            e.block_len
                .filter(|_| e.has_trailers)
                .map(|n| n + TRAILER_BYTES as u64),
        );
        let without_trailer = files(e.block_len);
        let written_by = match (facts.blocks.files, with_trailer, without_trailer) {
            (0, ..) if packed.records > 0 => Writer::Kvweir,
            (0, ..) => Writer::Nobody,
            (_, 0, _) if packed.records > 0 => Writer::Both,
            (_, _, 0) if e.has_trailers => Writer::Kvweir,
            _ if e.has_trailers => Writer::Both,
            _ => Writer::Stock,
        };
        let layout = match (facts.blocks.files, facts.extents.files) {
            (0, 0) => Layouts::None,
            (_, 0) => Layouts::Fs,
            (0, _) => Layouts::Pack,
            _ => Layouts::Both,
        };
        facts.times.extend(packed.times);
        facts.times.sort_unstable();
        let now = self.clock.unix_seconds();
        let age = |t: Option<&u32>| t.map(|&t| now.saturating_sub(u64::from(t)));
        let (identity, identity_problem) = match config {
            Config::Known(_, fields) => (Some(fields), None),
            Config::Missing => (None, Some("there is no config.json".into())),
            Config::Unusable(why) => (None, Some(why)),
        };
        NamespaceInfo {
            directory: facts.name(),
            written_by,
            identity,
            identity_problem,
            layout,
            blocks: facts.blocks,
            extents: facts.extents,
            unusable_extents: packed.unusable,
            slots: packed.slots,
            used_slots: packed.records,
            free_slots: packed.slots - packed.records,
            packed_blocks: packed.blocks,
            directory_bytes: facts.dir_bytes,
            block_bytes: e.block_len,
            other_length: facts.blocks.files - with_trailer - without_trailer,
            with_trailer,
            without_trailer,
            trailer_versions: e.versions,
            oldest_s: age(facts.times.first()),
            newest_s: age(facts.times.last()),
            median_s: age(facts.times.get(facts.times.len() / 2)),
            files_by_length: facts.lens,
        }
    }
}

fn ledger_info(seen: &Seen) -> LedgerInfo {
    let page: Option<&Page> = seen.page();
    LedgerInfo {
        state: match seen.ledger {
            Look::Page(_) => LedgerState::Whole,
            Look::Empty => LedgerState::None,
            Look::Newer(_) => LedgerState::Newer,
            Look::Damaged => LedgerState::Damaged,
        },
        claimed: seen.claimed,
        bound_bytes: page.map(|p| p.head.bound),
        common_bytes: page.map(|p| p.head.common),
        walker: page.and_then(|p| p.head.walker),
    }
}
