//! Whoever would break the bound of a root does not get in, or stores nothing more: engines without a bound beside
//! members, roots below others (I1). Who reads is let in.

use std::path::{Path, PathBuf};

use kvweir::{
    Error, ErrorKind,
    admin::Admin,
    fs::{FsBuilder, FsSettings, Layout},
    tier::{BlockOutcome, Tier},
};

use crate::{
    shared_root::{join, pour},
    support::*,
};

const BOUND: u64 = 8 << 20;

fn at(root: &Path, max_bytes: Option<u64>, layout: Layout) -> FsSettings {
    FsSettings {
        max_bytes,
        layout: if max_bytes.is_some() { layout } else { Layout::Auto },
        ..FsSettings::new(root)
    }
}

fn refused(root: &Path, max_bytes: Option<u64>, layout: Layout) -> Error {
    let opened = builder(at(root, max_bytes, layout), "other", LEN).open();
    opened.expect_err("it was let in")
}

fn me() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("pid {} on {host}", std::process::id())
}

/// Everything below `dir`, with lengths.
fn listed(dir: &Path) -> Vec<(PathBuf, u64)> {
    let mut all: Vec<_> = files(dir)
        .into_iter()
        .filter(|p| !p.to_string_lossy().contains("/.kvweir/"))
        .map(|p| (p.clone(), std::fs::metadata(p).unwrap().len()))
        .collect();
    all.sort();
    all
}

fn an_engine_without_a_bound_is_told_who_holds_the_root(layout: Layout) {
    // once it joined without a word, and the root grew to ten times its bound
    let root = Root::of(layout);
    let mut a = join(&root, BOUND, "model");
    store(&mut a, &keys(0..20));
    let before = listed(&root.path());
    let e = refused(&root.path(), None, layout);
    assert_eq!(e.kind(), ErrorKind::Busy);
    for part in [me(), format!("max_bytes = {BOUND}"), "read_only".into()] {
        assert!(e.message().contains(&part), "{e}");
    }
    assert_eq!(listed(&root.path()), before, "it left something");
    // who reads is let in, and so are operators and those with the same bound
    let reader = FsSettings {
        read_only: true,
        ..at(&root.path(), None, layout)
    };
    let mut r = client(builder(reader, "model", LEN));
    if layout == Layout::Fs {
        all_ok(&r.load(R, &keys(0..20)));
    }
    assert_eq!(
        r.store(R, &keys(50..51)),
        [BlockOutcome::Failed(ErrorKind::Closed)]
    );
    assert_eq!(Admin::new(root.path()).unwrap().holders().unwrap().len(), 1);
    drop(r);
    let b = join(&root, BOUND, "other");
    drop(b);
    store(&mut a, &keys(20..30));
}

fn what_an_engine_without_a_bound_stores_is_counted_by_the_next_that_has_one(layout: Layout) {
    // once the journal that was there before was believed, and nothing that came since was counted
    let root = Root::of(layout);
    let mut a = join(&root, BOUND, "model");
    store(&mut a, &keys(0..20));
    drop(a);
    let mut u = client(builder(at(&root.path(), None, layout), "other", LEN));
    all_ok(&u.store(R, &keys(0..60)));
    drop(u);
    let mut b = join(&root, BOUND, "model");
    assert_settled(&mut b, &root);
    assert_eq!(b.tier.stats().recovered_blocks, 20);
    pour(&mut b, 1000..2000);
    assert!(root.du() <= BOUND, "{} of {BOUND}", root.du());
}

fn an_engine_without_a_bound_stops_storing_when_one_with_a_bound_comes(layout: Layout) {
    let root = Root::of(layout);
    let mut u = client(builder(at(&root.path(), None, layout), "model", LEN));
    all_ok(&u.store(R, &keys(0..20)));
    let mut b = join(&root, BOUND, "model");
    assert_eq!(b.tier.stats().recovered_blocks, 20);
    assert_eq!(
        u.store(R, &keys(30..32)),
        [BlockOutcome::Failed(ErrorKind::Closed); 2]
    );
    assert_eq!(u.tier.stats().stored_blocks, 20);
    // what is there is served to both
    all_ok(&u.load(R, &keys(0..20)));
    all_ok(&b.load(R, &keys(0..20)));
    b.tier.on_request_finished(R, &[]);
    store(&mut b, &keys(30..40));
    assert_settled(&mut b, &root);
}

fn an_engine_without_a_bound_stops_storing_when_a_root_above_gets_one(layout: Layout) {
    // once it stored on: du of a root of 64 MiB, opened above its own, was 533 MB
    let root = Root::of(layout);
    let inner = root.path().join("a/sub");
    std::fs::create_dir_all(inner.parent().unwrap()).unwrap();
    let mut u = client(builder(at(&inner, None, layout), "model", LEN));
    all_ok(&u.store(R, &keys(0..20)));
    let mut b = join(&root, BOUND, "model");
    assert_eq!(
        u.store(R, &keys(30..32)),
        [BlockOutcome::Failed(ErrorKind::Closed); 2]
    );
    all_ok(&u.load(R, &keys(0..20)));
    u.tier.on_request_finished(R, &[]);
    pour(&mut b, 1000..2000);
    assert!(root.du() <= BOUND, "{} of {BOUND}", root.du());
    // where nobody lives any more, the next one without a bound stores
    drop((b, u));
    let mut u = client(builder(at(&inner, None, layout), "model", LEN));
    all_ok(&u.store(R, &keys(30..32)));
}

fn roots_with_bounds_do_not_lie_in_each_other(layout: Layout) {
    // once `outer` and `outer/sub` were both opened, and du of the outer was 72.5 MB of 64
    let root = Root::of(layout);
    let outer = root.path();
    let inner = outer.join("sub");
    let mut a = join(&root, BOUND, "model");
    store(&mut a, &keys(0..3));
    let link = root.0.path().join("link");
    std::os::unix::fs::symlink(&outer, &link).unwrap();
    for below in [inner.clone(), outer.join("a/b"), link.join("sub")] {
        std::fs::create_dir_all(below.parent().unwrap()).unwrap();
        let e = refused(&below, Some(BOUND), layout);
        assert!(
            e.kind() == ErrorKind::Busy && e.message().contains(&me()),
            "{below:?}: {e}"
        );
        assert!(!below.exists(), "nothing was made");
        // an engine without a bound breaks it all the more
        let e = refused(&below, None, layout);
        assert!(
            e.kind() == ErrorKind::Busy && e.message().contains(&me()),
            "{below:?}: {e}"
        );
    }
    // nor does an operator get a part of it
    let inside = outer.join("a");
    let e = Admin::new(&inside).unwrap().claim().unwrap_err();
    assert!(e.kind() == ErrorKind::Busy && e.message().contains(&me()), "{e}");
    drop(a);
    drop(Admin::new(&inside).unwrap().claim().unwrap());
    // nobody lives there; it is a root all the same
    let e = refused(&inner, Some(BOUND), layout);
    assert_eq!(e.kind(), ErrorKind::Invalid);
    let told = format!("remove {}", outer.join(".kvweir").display());
    assert!(e.message().contains(&told), "{e}");
    // one that is no root any more
    std::fs::remove_dir_all(outer.join(".kvweir")).unwrap();
    let mut c = client(builder(at(&inner, Some(BOUND), layout), "model", LEN));
    store(&mut c, &keys(0..3));
    // and now the other way round: alive or not, also deep below, but not where only a link leads to it
    for alive in [true, false] {
        for above in [outer.clone(), outer.parent().unwrap().to_owned()] {
            let before = listed(&above);
            let e = refused(&above, Some(BOUND), layout);
            assert_eq!(e.kind(), ErrorKind::Invalid);
            assert!(
                e.message().contains(&*inner.join(".kvweir").to_string_lossy()),
                "{e}"
            );
            assert_eq!(listed(&above), before);
        }
        if alive {
            c.tier.shutdown();
        }
    }
    drop(c);
    let beside = root.0.path().join("beside");
    std::fs::create_dir(&beside).unwrap();
    std::os::unix::fs::symlink(&inner, beside.join("link")).unwrap();
    drop(client(builder(at(&beside, Some(BOUND), layout), "model", LEN)));
    // side by side they go on
    drop(client(builder(at(&inner, Some(BOUND), layout), "model", LEN)));
}

in_both_layouts! {
    an_engine_without_a_bound_is_told_who_holds_the_root,
    what_an_engine_without_a_bound_stores_is_counted_by_the_next_that_has_one,
    an_engine_without_a_bound_stops_storing_when_one_with_a_bound_comes,
    an_engine_without_a_bound_stops_storing_when_a_root_above_gets_one,
    roots_with_bounds_do_not_lie_in_each_other,
}

#[test]
fn engines_without_a_bound_share_a_root_with_anybody_who_has_none() {
    let root = Root::new();
    let mut all: Vec<Fs> = (0..3)
        .map(|_| client(FsBuilder::new(root.settings(0), ns("model"), LEN)))
        .collect();
    for (n, c) in (0..).zip(&mut all) {
        all_ok(&c.store(R, &keys(n * 10..n * 10 + 10)));
    }
    until("each finds all", || {
        all.iter_mut().all(|c| keys(0..30).iter().all(|k| c.holds(k)))
    });
    assert!(!root.path().join(".kvweir").exists());
    // an operator's claim makes an empty ledger, which is nobody's bound
    drop(Admin::new(root.path()).unwrap().claim().unwrap());
    all_ok(&all[0].store(R, &keys(40..50)));
    let below = root.path().join("sub");
    drop(client(builder(at(&below, Some(BOUND), Layout::Fs), "model", LEN)));
}
