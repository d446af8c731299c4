//! Memory of another length than a block's. A longer one was stored whole and broke the bound, a shorter one was stored
//! too; a load into it was taken for damage and removed the block.

use kvweir::{
    ErrorKind,
    fs::Layout,
    tier::{BlockOutcome, RequestId, Tier, conformance::Client},
};

use crate::{fs_faults::bench_of, support::*};

const BOUND: u64 = 4 << 20;

fn a_block_of_another_length_is_refused_and_changes_nothing(layout: Layout) {
    let root = Root::of(layout);
    for len in [LEN / 2, LEN - 1, LEN + 1, LEN * 64] {
        let mut c = root.open(BOUND);
        all_ok(&c.store(R, &keys(0..10)));
        c.tier.on_request_finished(R, &[]);
        assert_settled(&mut c, &root);
        drop(c);
        let tier = builder(root.settings(BOUND), "model", LEN).open().unwrap();
        let mut odd = Client::new(Box::new(tier), 16, len);
        let before = (odd.tier.stats().resident_bytes, odd.tier.stats().blocks);
        let want = BlockOutcome::Failed(ErrorKind::Invalid);
        assert_eq!(odd.store(R, &keys(100..110)), vec![want; 10], "{len}");
        assert!(keys(0..10).iter().all(|k| odd.lookup(k, R)));
        assert_eq!(odd.load(R, &keys(0..10)), vec![want; 10], "{len}");
        odd.tier.on_request_finished(R, &[]);
        let s = odd.tier.stats();
        assert_eq!((s.resident_bytes, s.blocks), before, "{len}");
        assert_eq!((s.pinned_blocks, s.breaker_opened), (0, 0), "{len}");
        drop(odd);
        let mut c = root.open(BOUND);
        all_ok(&c.load(R, &keys(0..10)));
        c.tier.on_request_finished(R, &[]);
        assert_settled(&mut c, &root);
    }
}

/// A request ended while three load jobs of it were queued, and the block of the last was evicted before its job ran.
fn pins_of_queued_loads_stay_when_their_request_ends(layout: Layout) {
    use kvweir::io::fault::{Fault, Op, Rule};
    let mut b = bench_of(layout, crate::fs_faults::BOUND);
    let r = RequestId(7);
    let blocks = keys(0..6);
    assert!(blocks.iter().all(|k| b.c.lookup(k, r)));
    // all workers that load hang in other loads
    let other = keys(6..10);
    b.disk.add(Rule::new(Op::Read, Fault::Hang).path(".bin"));
    b.disk.add(Rule::new(Op::Open, Fault::Hang).path(".bin"));
    let mut jobs: Vec<_> = other.chunks(1).map(|k| b.c.submit_load(R, k)).collect();
    assert!(b.disk.wait_hanging(1, std::time::Duration::from_secs(10)));
    jobs.extend(blocks.chunks(1).map(|k| b.c.submit_load(r, k)));
    b.c.tier.on_request_finished(r, &[]);
    b.c.tier.on_request_finished(R, &[]);
    let pinned = b.c.tier.stats().pinned_blocks;
    assert!(pinned >= 6, "{pinned} of 6 pins are left");
    b.disk.release();
    b.disk.heal();
    for job in jobs {
        all_ok(&b.c.wait(job).blocks);
    }
    assert_eq!(b.c.tier.stats().pinned_blocks, 0);
    b.heal();
}

in_both_layouts! {
    a_block_of_another_length_is_refused_and_changes_nothing,
    pins_of_queued_loads_stay_when_their_request_ends,
}
