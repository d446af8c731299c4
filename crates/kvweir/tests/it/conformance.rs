//! Our tiers pass the kit, and tiers that break the contract do not.

use std::panic::{AssertUnwindSafe, catch_unwind};

use kvweir::{
    Key,
    events::{Event, Locality, Medium},
    evict::PolicyKind,
    fs::{FsBuilder, FsSettings, FsSpace, Layout, min_bound, min_pack_bound},
    metrics::TierStats,
    tier::{
        BlockOutcome, JobId, LoadJob, Lookup, MemoryTier, Report, RequestId, StoreJob, Tier, Verified,
        conformance::{self, Setup},
    },
};

use crate::support::{Root, ns};

/// Runs the kit over file tiers in one directory after the other.
fn check_fs(settings: impl Fn(FsSettings, Setup) -> FsSettings) {
    let mut root = Root::new();
    conformance::run_all(&mut |s: Setup| {
        if s.fresh {
            root = Root::new();
        }
        let settings = settings(root.settings(0), s);
        Box::new(FsBuilder::new(settings, ns("model"), s.block_len).open().unwrap())
    });
}

/// Room for the blocks with up to two directories each.
fn bound(s: Setup) -> Option<u64> {
    Some(min_bound(s.block_len) + s.capacity_blocks * (s.block_len as u64 + 3 * 4096))
}

#[test]
fn the_bounded_file_tier_passes_with_every_policy() {
    for policy in PolicyKind::ALL {
        check_fs(|f, s| FsSettings {
            max_bytes: bound(s),
            policy,
            ..f
        });
    }
}

#[test]
fn the_file_tier_passes_without_direct_io() {
    check_fs(|f, s| FsSettings {
        max_bytes: bound(s),
        direct: false,
        ..f
    });
}

#[test]
fn the_packed_tier_passes_with_every_policy() {
    for policy in PolicyKind::ALL {
        check_fs(|f, s| FsSettings {
            max_bytes: Some(pack_bound(s)),
            layout: Layout::Pack,
            policy,
            ..f
        });
    }
}

#[test]
fn the_packed_tier_passes_without_direct_io() {
    check_fs(|f, s| FsSettings {
        max_bytes: Some(pack_bound(s)),
        layout: Layout::Pack,
        direct: false,
        ..f
    });
}

/// The kit over one tier of a root that serves two, whichever it is and however the blocks of either lie.
#[test]
fn each_tier_of_a_root_with_two_passes() {
    for (layout, other_layout, first) in [
        (Layout::Fs, Layout::Fs, true),
        (Layout::Pack, Layout::Fs, false),
        (Layout::Fs, Layout::Pack, true),
        (Layout::Pack, Layout::Pack, false),
    ] {
        let mut root = Root::new();
        let mut other = Vec::new();
        conformance::run_all(&mut |s: Setup| {
            // with the last of both the root is let go
            other.clear();
            if s.fresh {
                root = Root::new();
            }
            let mut settings = root.settings(2 * pack_bound(s));
            let (a, b) = (("model", s.block_len, layout), ("other", 4096, other_layout));
            let (a, b) = if first { (a, b) } else { (b, a) };
            settings.layout = a.2;
            let beside = FsSpace::new("b", ns(b.0), b.1).layout(b.2);
            let both = FsBuilder::new(settings, ns(a.0), a.1).name("a").beside(beside);
            let mut tiers = both.open_all().unwrap();
            let tested = tiers.remove(usize::from(!first));
            other = tiers;
            Box::new(tested)
        });
    }
}

/// Room for as many slots, whatever part of the last extent is lost.
fn pack_bound(s: Setup) -> u64 {
    min_pack_bound(s.block_len) + s.capacity_blocks * (s.block_len as u64 + 3 * 4096)
}

#[test]
fn the_unbounded_file_tier_passes() {
    // misses are not remembered, so that what is stored between two lookups is found
    check_fs(|f, _| FsSettings {
        miss_ttl: std::time::Duration::from_millis(20),
        ..f
    });
}

#[test]
fn the_memory_tier_passes_at_once_and_deferred() {
    for deferred in [false, true] {
        conformance::run_all(&mut |s: Setup| {
            Box::new(MemoryTier::new("memory", s.capacity_blocks as u32).deferred(deferred))
        });
    }
}

#[test]
fn a_memory_tier_can_hold_jobs_back_and_fail_loads() {
    let mut c = conformance::Client::new(
        Box::new(MemoryTier::new("memory", 4).hold(true).fail_next_loads(1)),
        8,
        64,
    );
    let (r, k) = (RequestId(1), conformance::key(1));
    let job = c.submit_store(r, std::slice::from_ref(&k));
    c.collect();
    assert!(c.outstanding() == 1 && c.tier.has_pending_work() && !c.region().is_free(0));
    c.tier.release();
    assert_eq!(c.wait(job).blocks, [BlockOutcome::Stored]);
    assert!(c.lookup(&k, r));
    assert!(!c.load(r, std::slice::from_ref(&k))[0].is_ok() && !c.holds(&k));
    assert_eq!(c.store(r, std::slice::from_ref(&k)), [BlockOutcome::Stored]);
    assert!(c.load(r, &[k])[0].is_ok());
    assert_eq!(c.tier.stats().pinned_blocks, 0);
}

/// How a tier breaks the contract.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Flaw {
    LosesAReport,
    ReportsTwice,
    SaysLoadedWithoutReading,
    ForgetsToUnpin,
    HitsAfterShutdown,
    DropsEvents,
}

#[derive(Debug)]
struct Broken {
    inner: MemoryTier,
    flaw: Flaw,
    closed: bool,
    reports: u64,
    swapped: Vec<JobId>,
}

impl Tier for Broken {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn medium(&self) -> Medium {
        self.inner.medium()
    }
    fn locality(&self) -> Locality {
        self.inner.locality()
    }
    fn lookup(&mut self, key: &Key, req: RequestId) -> Lookup {
        match self.inner.lookup(key, req) {
            Lookup::Miss if self.closed && self.flaw == Flaw::HitsAfterShutdown => Lookup::Hit,
            l => l,
        }
    }
    fn submit_store(&mut self, job: StoreJob) {
        self.inner.submit_store(job);
    }
    fn submit_load(&mut self, mut job: LoadJob) {
        if self.flaw == Flaw::SaysLoadedWithoutReading && job.blocks.len() > 1 {
            // nothing is read, as when a slot keeps the last request's bytes
            self.swapped.push(job.id);
            for b in &mut job.blocks {
                b.key = Key::new(b"nothing").unwrap();
            }
        }
        self.inner.submit_load(job);
    }
    fn poll(&mut self, reports: &mut Vec<Report>) {
        let mut new = Vec::new();
        self.inner.poll(&mut new);
        for mut r in new {
            self.reports += 1;
            if self.swapped.contains(&r.id) {
                r.blocks.fill(BlockOutcome::Loaded(Verified::Checksum));
            }
            match self.flaw {
                Flaw::LosesAReport if self.reports == 3 => continue,
                Flaw::ReportsTwice if self.reports == 3 => reports.push(r.clone()),
                _ => {}
            }
            reports.push(r);
        }
    }
    fn on_request_finished(&mut self, req: RequestId, keys: &[Key]) {
        if self.flaw == Flaw::ForgetsToUnpin {
            return self.inner.touch(keys, req);
        }
        self.inner.on_request_finished(req, keys);
    }
    fn take_events(&mut self, events: &mut Vec<Event>) {
        self.inner.take_events(events);
        if self.flaw == Flaw::DropsEvents {
            events.retain(|e| e.seq % 16 != 5);
        }
    }
    fn has_pending_work(&self) -> bool {
        self.inner.has_pending_work()
    }
    fn drain(&mut self) {
        self.inner.drain();
    }
    fn shutdown(&mut self) {
        self.closed = true;
        self.inner.shutdown();
    }
    fn stats(&self) -> TierStats {
        self.inner.stats()
    }
}

#[test]
fn the_kit_catches_tiers_that_break_the_contract() {
    let table = [
        (Flaw::LosesAReport, "Once (I4)"),
        (Flaw::ReportsTwice, "Once (I4)"),
        (Flaw::SaysLoadedWithoutReading, "Truth (I2)"),
        (Flaw::ForgetsToUnpin, "Pins (I3)"),
        (Flaw::HitsAfterShutdown, "Shutdown"),
        (Flaw::DropsEvents, "Events (I7)"),
    ];
    for (flaw, line) in table {
        let run = catch_unwind(AssertUnwindSafe(|| {
            let make = &mut |s: Setup| -> Box<dyn Tier> {
                let inner = MemoryTier::new("broken", s.capacity_blocks as u32);
                Box::new(Broken {
                    inner,
                    flaw,
                    closed: false,
                    reports: 0,
                    swapped: Vec::new(),
                })
            };
            if flaw == Flaw::LosesAReport {
                // waits for nothing but the drain, so that it fails at once
                conformance::drain_reports_everything(make);
            } else {
                conformance::run_all(make);
            }
        }));
        let why = run.expect_err(&format!("{flaw:?} passes the kit"));
        let text = why
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| why.downcast_ref::<&str>().map(|&s| s.to_owned()))
            .unwrap();
        assert!(
            text.contains("contract broken") && text.contains(line),
            "{flaw:?}: {text}"
        );
    }
}
