//! Loading blocks, whatever their layout: each is read into the engine's memory and compared before it is reported good
//! (I2). What cannot be proved wrong keeps its bytes but is no hit any more; what is provably wrong goes. Either way
//! the failed block is a miss until it is stored again (I10).

use std::ops::Range;

use crate::{
    block::Key,
    catalog::body::Body,
    error::{ErrorKind, IoClass, classify},
    evict::Id,
    fs::{
        layouts::Layout,
        space::Space,
        written::{Flaw, Read, Wanted},
    },
    io::pool::Worker,
    jobs::LoadRun,
    sync::lock,
    tier::BlockOutcome,
};

impl Space {
    /// Loads `units` of a job.
    pub(crate) fn load_units(&self, run: &LoadRun<Self>, units: Range<usize>, worker: &mut Worker) {
        let mut wanted: Vec<Vec<Wanted>> = Vec::new();
        wanted.resize_with(self.layouts.len(), Vec::new);
        let mut refused = Vec::new();
        let started = run.progress.start_all(units, self.clock.now());
        {
            let core = lock(&self.core);
            for unit in started {
                let id = run.id(unit);
                if !run.fits(unit) {
                    // says nothing of what lies there
                    refused.push((unit, ErrorKind::Invalid));
                    continue;
                }
                if id.is_none() && self.root.bounded {
                    // the index of an owned root is the truth: it was evicted or never there
                    refused.push((unit, ErrorKind::Unavailable));
                    continue;
                }
                let body = id.map_or(Body::default(), |id| core.catalog.body(id));
                if let Some(w) = wanted.get_mut(self.layouts.of_body(&body)) {
                    w.push(Wanted { unit, id, body });
                }
            }
        }
        for (unit, kind) in refused {
            run.finish(unit, BlockOutcome::Failed(kind));
        }
        for (n, wanted) in wanted.into_iter().enumerate() {
            if let Some(layout) = self.layouts.get(n).filter(|_| !wanted.is_empty()) {
                let read = layout.read(self, run, wanted, worker);
                self.settle_read(run, layout, read);
            }
        }
    }

    /// Tells how blocks were read, and makes those that were not misses.
    fn settle_read(&self, run: &LoadRun<Self>, layout: &dyn Layout<Self>, read: Vec<Read>) {
        let (mut loaded, mut flawed) = (Vec::with_capacity(read.len()), Vec::new());
        for r in read {
            match r.end {
                Ok(verified) => loaded.push((r.unit, BlockOutcome::Loaded(verified))),
                Err(flaw) => flawed.push((r.unit, r.id, flaw)),
            }
        }
        if !loaded.is_empty() {
            run.finish_all(&loaded);
        }
        for (unit, id, flaw) in flawed {
            if matches!(&flaw, Flaw::Failed(e) if classify(e).blames_device()) {
                run.progress.blame();
            }
            let kind = self.fail(run.keys.get(unit), layout, id, &flaw);
            run.finish(unit, BlockOutcome::Failed(kind));
        }
    }

    /// Makes a block that did not load a miss; returns what it is reported as.
    fn fail(&self, key: Option<&Key>, layout: &dyn Layout<Self>, id: Option<Id>, flaw: &Flaw) -> ErrorKind {
        let (kind, what, why) = match flaw {
            Flaw::Gone => (
                ErrorKind::Unavailable,
                "a block's file is gone: a miss until it is stored again",
                String::new(),
            ),
            Flaw::Corrupt(why) => (
                ErrorKind::Corrupt,
                "a block is damaged: a miss until it is stored again",
                (*why).to_owned(),
            ),
            Flaw::Newer(version) => (
                ErrorKind::Unavailable,
                "a block was written by a later version in a format that this one does not read: a miss until it is stored \
                 again",
                version.clone(),
            ),
            Flaw::Failed(e) => (
                match classify(e) {
                    IoClass::Transient => ErrorKind::Busy,
                    _ => ErrorKind::Unavailable,
                },
                "a block could not be read: a miss until it is stored again",
                e.to_string(),
            ),
        };
        if let Some(key) = key
            && self.root.told.is_new(what, self.clock.now(), 1)
        {
            tracing::warn!(tier = %self.params.name, %key, why, "{what}");
        }
        {
            let mut core = lock(&self.core);
            core.catalog.space(self.id).stats.verification_failures += u64::from(kind == ErrorKind::Corrupt);
            if let Some(id) = id {
                // its owner finds out for itself
                core.catalog.forget_peer(id);
            }
        }
        if let Some(id) = id {
            layout.spoil(self, id, flaw);
        }
        kind
    }
}
