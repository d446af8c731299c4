//! What the log tells. Three hundred files that somebody removed made three hundred warnings.

use std::{
    collections::HashMap,
    fmt::{Debug, Write},
    sync::{Mutex, MutexGuard, OnceLock},
};

use kvweir::{
    fs::{FsBuilder, Layout},
    metrics::RefuseReason,
    tier::{BlockOutcome, RequestId, Tier},
};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

use crate::{fs_faults::bench_of, support::*};

/// Warnings by the tier that they name.
struct Log;

fn lines() -> MutexGuard<'static, HashMap<String, Vec<String>>> {
    static LINES: OnceLock<Mutex<HashMap<String, Vec<String>>>> = OnceLock::new();
    LINES.get_or_init(Mutex::default).lock().unwrap()
}

#[derive(Default)]
struct Fields {
    tier: String,
    all: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "tier" {
            self.tier = format!("{value:?}").trim_matches('"').to_owned();
        }
        let _ = write!(self.all, " {}={value:?}", field.name());
    }
}

impl Subscriber for Log {
    fn enabled(&self, m: &Metadata<'_>) -> bool {
        *m.level() == Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, e: &Event<'_>) {
        let mut f = Fields::default();
        e.record(&mut f);
        lines().entry(f.tier).or_default().push(f.all);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn many_blocks_of_one_fate_are_told_in_two_lines_with_their_number() {
    let _ = tracing::subscriber::set_global_default(Log);
    let root = Root::of(Layout::Fs);
    let settings = root.settings(16 << 20);
    let mut c = client(FsBuilder::new(settings, ns("model"), LEN).name("told-many"));
    for part in keys(0..300).chunks(20) {
        all_ok(&c.store(R, part));
    }
    for k in keys(0..300) {
        std::fs::remove_file(file_of(&root.path().join(ns("model").dir()), &k)).unwrap();
    }
    let mut failed = 0;
    for part in keys(0..300).chunks(20) {
        failed += c.load(R, part).iter().filter(|o| !o.is_ok()).count();
    }
    assert_eq!(failed, 300);
    c.tier.on_request_finished(R, &[]);
    drop(c);
    let told = lines().remove("told-many").unwrap_or_default();
    assert!(!told.is_empty() && told.len() <= 3, "{told:#?}");
    assert!(told[0].contains("gone"), "{told:#?}");
    assert!(told.iter().any(|l| l.contains("299")), "{told:#?}");
}

#[test]
fn a_full_device_is_no_bound_that_is_reached() {
    for layout in [Layout::Fs, Layout::Pack] {
        let mut b = bench_of(layout, crate::fs_faults::BOUND);
        let end = match layout {
            Layout::Pack => fill_slots(&mut b.c, &b.root, 10),
            _ => 10,
        };
        assert!(keys(0..end).iter().all(|k| b.c.lookup(k, RequestId(7))));
        let full = kvweir::io::fault::Fault::Errno(28);
        use kvweir::io::fault::{Op, Rule};
        for op in [Op::Allocate, Op::Write, Op::Create] {
            b.disk.add(Rule::new(op, full).path("kv/"));
        }
        for n in 900..910 {
            let got = b.c.store(R, &keys(n..n + 1));
            assert_eq!(got, [BlockOutcome::Failed(kvweir::ErrorKind::Full)]);
        }
        let refused = b.c.tier.stats().refused_blocks;
        assert_eq!(
            refused[RefuseReason::NoSpace as usize],
            10,
            "{layout}: {refused:?}"
        );
        b.disk.heal();
    }
}
