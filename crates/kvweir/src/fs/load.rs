//! Loading blocks. Bytes go straight into the slot; size, trailer, full key, namespace and checksum are compared
//! before the block is reported good (I2). What cannot be proved wrong keeps its file but is no hit any more; what
//! is provably wrong goes, file and account together. Either way the failed block is a miss until stored again.

use std::{
    io,
    path::Path,
    sync::{Arc, Mutex, atomic::Ordering},
};

use super::{
    index::State,
    layout::Location,
    progress::Progress,
    shared::Shared,
    trailer::{TRAILER_BYTES, decode, payload_sum},
};
use crate::{
    block::{Fingerprint, Key},
    error::{ErrorKind, IoClass, classify},
    evict::Id,
    io::{
        PageBuffer, SlotWrite,
        disk::{OpenMode, read_full},
        is_aligned,
        pool::Work,
    },
    metrics::EvictReason,
    sync::lock,
    tier::{BlockOutcome, Direction, LoadJob, RequestId, Verified},
};

/// A load job on its way through the workers.
pub(crate) struct LoadRun {
    shared: Arc<Shared>,
    req: RequestId,
    keys: Vec<Key>,
    fps: Vec<Fingerprint>,
    /// The entries pinned for this job; `None` where the block was not resident at submission.
    ids: Vec<Mutex<Option<Id>>>,
    slots: Vec<Mutex<Option<SlotWrite>>>,
    progress: Progress,
}

/// Why a block is not good.
enum Bad {
    /// Not there.
    Gone,
    /// Provably not the block.
    Corrupt(&'static str),
    /// The device failed; nothing is proved.
    Failed(io::Error),
}

impl LoadRun {
    /// Takes the job and its pins over.
    pub(crate) fn new(shared: &Arc<Shared>, job: LoadJob) -> Arc<Self> {
        let now = shared.clock.now();
        let progress = Progress::new(job.id, Direction::Load, job.blocks.len(), now, &shared.meter);
        let (mut keys, mut slots) = (
            Vec::with_capacity(job.blocks.len()),
            Vec::with_capacity(job.blocks.len()),
        );
        for b in job.blocks {
            keys.push(b.key);
            slots.push(Mutex::new(Some(b.slot)));
        }
        let fps: Vec<_> = keys.iter().map(|k| shared.fingerprint(k)).collect();
        let ids = {
            let mut core = lock(&shared.core);
            fps.iter()
                .map(|&fp| {
                    let id = core.ready(fp);
                    if let Some(id) = id {
                        core.pin_for_job(job.req, id);
                    }
                    Mutex::new(id)
                })
                .collect()
        };
        Arc::new(Self {
            shared: Arc::clone(shared),
            req: job.req,
            keys,
            fps,
            ids,
            slots,
            progress,
        })
    }

    fn finish(&self, unit: usize, outcome: BlockOutcome) {
        if let Some(slot) = self.slots.get(unit) {
            drop(lock(slot).take());
        }
        {
            let id = self.ids.get(unit).and_then(|i| lock(i).take());
            let mut core = lock(&self.shared.core);
            if let Some(id) = id {
                core.unpin(id);
            }
            match outcome {
                BlockOutcome::Loaded(_) => core.stats.loaded_blocks += 1,
                _ => core.stats.load_failures += 1,
            }
        }
        if let Some(report) = self.progress.finish(unit, outcome) {
            lock(&self.shared.core).stats.loaded_bytes += report.bytes;
            self.shared.report(report, self.req, &self.fps);
        }
    }

    /// Fails every block without I/O.
    pub(crate) fn refuse(&self, kind: ErrorKind) {
        (0..self.keys.len()).for_each(|u| self.finish(u, BlockOutcome::Failed(kind)));
    }

    fn load(&self, unit: usize, scratch: &mut PageBuffer) -> BlockOutcome {
        let s = &*self.shared;
        let (Some(key), Some(ids)) = (self.keys.get(unit), self.ids.get(unit)) else {
            return BlockOutcome::Failed(ErrorKind::Invalid);
        };
        let id = *lock(ids);
        if id.is_none() && s.params.bounded {
            // the index of an owned root is the truth: it was evicted or never there
            return BlockOutcome::Failed(ErrorKind::Unavailable);
        }
        let Some(mut slot) = self.slots.get(unit).and_then(|x| lock(x).take()) else {
            return BlockOutcome::Failed(ErrorKind::Invalid);
        };
        self.progress.begin_io(s.clock.now());
        let trailed = id.is_some_and(|id| lock(&s.core).index.has_trailer(id));
        let read = self.read(key, trailed, &mut slot, scratch);
        drop(slot);
        self.progress
            .end_io(s.clock.now(), read.as_ref().map_or(0, |&(n, _)| n as u64));
        match read {
            Ok((_, verified)) => BlockOutcome::Loaded(verified),
            Err(bad) => self.fail(id, key, &bad),
        }
    }

    /// Reads the file and compares everything; returns the bytes read.
    fn read(
        &self,
        key: &Key,
        trailed: bool,
        slot: &mut SlotWrite,
        scratch: &mut PageBuffer,
    ) -> Result<(usize, Verified), Bad> {
        let s = &*self.shared;
        let at = Location::of(key);
        let path = s.leaf_of(&at).join(at.file_name());
        let page = scratch
            .as_mut_slice()
            .get_mut(..TRAILER_BYTES)
            .unwrap_or_default();
        let n = self.read_file(&path, slot, page)?;
        let (len, whole) = (slot.len(), slot.len() + TRAILER_BYTES);
        if n == len && !trailed {
            return Ok((n, Verified::SizeOnly));
        }
        if n != whole {
            return Err(Bad::Corrupt("the file has the wrong size"));
        }
        let t = decode(page).ok_or(Bad::Corrupt("the trailer is damaged"))?;
        if t.key != *key || t.namespace != *s.ns.digest() || t.block_len != len as u64 {
            return Err(Bad::Corrupt("the file holds another block"));
        }
        if !s.params.verify {
            return Ok((n, Verified::SizeOnly));
        }
        if payload_sum(slot) != t.payload_sum {
            return Err(Bad::Corrupt("the checksum does not match"));
        }
        Ok((n, Verified::Checksum))
    }

    fn read_file(&self, path: &Path, slot: &mut [u8], page: &mut [u8]) -> Result<usize, Bad> {
        let s = &*self.shared;
        let aligned = is_aligned(slot);
        let mut attempt = |direct: bool| -> io::Result<usize> {
            let file = s.disk.open(path, OpenMode::Read, direct)?;
            read_full(&*file, slot, page)
        };
        let mut read = Err(io::ErrorKind::Unsupported.into());
        if aligned && s.direct.load(Ordering::Relaxed) {
            read = attempt(true);
        }
        if matches!(&read, Err(e) if classify(e) == IoClass::Invalid) {
            read = attempt(false);
        }
        read.map_err(|e| match classify(&e) {
            IoClass::Gone => Bad::Gone,
            _ => Bad::Failed(e),
        })
    }

    /// Makes a block that did not load a miss.
    fn fail(&self, id: Option<Id>, key: &Key, bad: &Bad) -> BlockOutcome {
        let s = &*self.shared;
        let (kind, why) = match bad {
            Bad::Gone => (ErrorKind::Unavailable, "the file is gone".to_owned()),
            Bad::Corrupt(why) => (ErrorKind::Corrupt, (*why).to_owned()),
            Bad::Failed(e) if classify(e) == IoClass::Transient => (ErrorKind::Busy, e.to_string()),
            Bad::Failed(e) => (ErrorKind::Unavailable, e.to_string()),
        };
        tracing::warn!(tier = %s.params.name, %key, why, "a block did not load; it is a miss until it is stored again");
        let victim = {
            let mut core = lock(&s.core);
            if matches!(bad, Bad::Corrupt(_)) {
                core.stats.verification_failures += 1;
            }
            if let Some(id) = id {
                // its owner finds out for itself
                core.forget_peer(id);
            }
            match id.filter(|&id| core.index.state(id) == State::Ready) {
                Some(id) if matches!(bad, Bad::Failed(_)) => {
                    core.policy.remove(id);
                    core.keep(id, true);
                    None
                }
                Some(id) => core.begin_removal(id),
                None => None,
            }
        };
        if let Some(v) = victim {
            let reason = if kind == ErrorKind::Corrupt {
                EvictReason::Corrupt
            } else {
                EvictReason::External
            };
            s.remove_victim(&v, reason, true);
        }
        BlockOutcome::Failed(kind)
    }
}

impl Work for LoadRun {
    fn run(&self, unit: usize, scratch: &mut PageBuffer) {
        let outcome = self.load(unit, scratch);
        self.finish(unit, outcome);
    }

    fn cancel(&self, unit: usize) {
        self.finish(unit, BlockOutcome::Failed(ErrorKind::Closed));
    }
}
