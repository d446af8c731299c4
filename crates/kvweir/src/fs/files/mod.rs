//! Blocks with files of their own, in vLLM's directory layout: the payload, and a page behind it that tells whose it
//! is.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | [`Files`]: the layout |
//! | `write.rs` | a block is written and published |
//! | `read.rs`, `pieces.rs` | it is read and compared; large ones in pieces that overlap |
//! | `cost.rs` | what it takes of the bound while it is written |

use crate::{
    block::Key,
    catalog::{body::Rank, index::State},
    error::{IoClass, classify},
    evict::Id,
    fs::{
        layouts::Layout,
        space::Space,
        written::{Flaw, Fresh, Read, Wanted, Written},
    },
    io::pool::Worker,
    jobs::{LoadRun, StoreRun},
    metrics::EvictReason,
    request::RequestId,
    root::trailer::is_block_file,
    sync::lock,
};

pub(crate) mod cost;
pub(crate) mod pieces;
mod read;
mod write;

/// The layout of one file per block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Files;

impl Layout<Space> for Files {
    fn takes(&self, _key: &Key) -> bool {
        true
    }

    fn rank(&self) -> Rank {
        Rank::Whole
    }

    fn batch(&self) -> usize {
        0
    }

    fn write<'s>(
        &self,
        tier: &'s Space,
        run: &StoreRun<Space>,
        fresh: Vec<Fresh>,
        worker: &mut Worker,
    ) -> Vec<Written<'s>> {
        let page = &mut worker.scratch;
        fresh
            .into_iter()
            .map(|f| Written {
                unit: f.unit,
                id: f.id,
                end: write::write(tier, run, f.unit, page),
            })
            .collect()
    }

    fn read(
        &self,
        tier: &Space,
        run: &LoadRun<Space>,
        wanted: Vec<Wanted>,
        worker: &mut Worker,
    ) -> Vec<Read> {
        wanted
            .into_iter()
            .map(|w| Read {
                unit: w.unit,
                id: w.id,
                end: read::read(tier, run, &w, worker),
            })
            .collect()
    }

    fn must_look(&self) -> bool {
        true
    }

    fn is_there(&self, tier: &Space, key: &Key) -> bool {
        match tier.root.disk.stat(&tier.root.path_of(&tier.location(key))) {
            Ok(st) => is_block_file(st.len, tier.params.block_len as u64),
            Err(e) => !matches!(classify(&e), IoClass::Gone | IoClass::Corrupt),
        }
    }

    fn clear(&self, tier: &Space, id: Id, reason: EvictReason) {
        let victim = lock(&tier.core).begin_removal(id);
        if let Some(v) = victim {
            tier.remove_victim(&v, reason, true);
        }
    }

    fn spoil(&self, tier: &Space, id: Id, flaw: &Flaw) {
        let victim = {
            let mut core = lock(&tier.core);
            if core.catalog.state(id) != State::Ready {
                return;
            }
            let keeps = match flaw {
                Flaw::Failed(_) | Flaw::Newer(_) => true,
                Flaw::Corrupt(_) => tier.root.read_only,
                Flaw::Gone => false,
            };
            if keeps {
                core.catalog.mark_bad(id);
                return;
            }
            core.begin_removal(id)
        };
        if let Some(v) = victim {
            let reason = match flaw {
                Flaw::Corrupt(_) => EvictReason::Corrupt,
                _ => EvictReason::External,
            };
            tier.remove_victim(&v, reason, true);
        }
    }

    fn held(&self, _tier: &Space) -> u64 {
        0
    }

    fn step(&self, _tier: &Space) -> u64 {
        0
    }

    fn give_back(&self, _tier: &Space, _reason: EvictReason) -> bool {
        false
    }

    fn recover(&self, _tier: &Space) {}

    fn look(&self, _tier: &Space) {}

    fn end_request(&self, _req: RequestId) {}
}
