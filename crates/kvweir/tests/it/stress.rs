//! Several clients promote and evict at once over a working set three times the bound: every loaded byte is right
//! (I2), what was a hit loads (I3), every job is reported once (I4), pins end at zero, the bound holds (I1).
//! `KVWEIR_STRESS_SECONDS` sets the length, `KVWEIR_SEED` replays.

use std::{collections::VecDeque, sync::Arc};

use kvweir::{
    Key,
    clock::{Clock, SystemClock},
    evict::PolicyKind,
    fs::{FsBuilder, FsSettings, Layout},
    io::fault::{Fault, Op, Rule},
    tier::{Direction, JobId, RequestId, Tier, conformance::key},
};

use crate::{
    fs_bound::Watcher,
    support::{FILE, LEN, Rng, Root, assert_settled, client, faulty, in_both_layouts, ns, room_for},
};

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |v| v.parse().unwrap())
}

/// A request on its way: its prefix was looked up, the load runs, then the rest is stored.
struct Flight {
    req: RequestId,
    keys: Vec<Key>,
    hits: usize,
    job: Option<JobId>,
}

fn run(layout: Layout, clients: usize, policy: PolicyKind, seed: u64, seconds: f64) {
    println!("stress: {layout}, {clients} clients, {policy}, KVWEIR_SEED={seed}");
    let (root, mut rng, clock) = (Root::of(layout), Rng(seed), SystemClock::new());
    let blocks = 60;
    let bound = room_for(blocks, layout);
    let settings = FsSettings {
        policy,
        ..root.settings(bound)
    };
    let mut c = client(FsBuilder::new(settings, ns("model"), LEN));
    let watcher = Watcher::start(root.path());
    let mut flights: VecDeque<Flight> = VecDeque::new();
    let (began, mut requests, mut loads, mut jobs, mut reported) = (clock.now(), 0u64, 0u64, 0u64, 0u64);
    let mut ending = false;
    while !ending || !flights.is_empty() {
        let took = clock.now().since(began).as_secs_f64();
        // a machine that is busy elsewhere gets the time it takes to show something
        let shown = loads > 0 && c.tier.stats().evicted_blocks.iter().any(|n| *n > 0);
        ending = took > seconds && (shown || took > seconds + 60.0);
        while flights.len() < clients && !ending {
            requests += 1;
            let req = RequestId(requests);
            let start = rng.below(blocks * 3);
            let keys: Vec<_> = (start..start + 1 + rng.below(8)).map(key).collect();
            let hits = keys.iter().take_while(|k| c.lookup(k, req)).count();
            // some never load what they were promised, some finish before the load ends
            let job = (hits > 0 && rng.below(8) > 0).then(|| c.submit_load(req, &keys[..hits]));
            jobs += u64::from(job.is_some());
            flights.push_back(Flight { req, keys, hits, job });
        }
        let Some(f) = flights.pop_front() else { continue };
        if rng.below(16) == 0 {
            c.tier.on_request_finished(f.req, &f.keys);
        }
        if let Some(job) = f.job {
            let report = c.wait(job);
            reported += 1;
            assert_eq!(report.direction, Direction::Load);
            assert!(
                report.all_ok(),
                "a block that was a hit for this request did not load (I3): {report:?}"
            );
            loads += report.blocks.len() as u64;
        }
        if f.hits < f.keys.len() {
            c.submit_store(f.req, &f.keys[f.hits..]);
            jobs += 1;
        }
        c.tier.on_request_finished(f.req, &f.keys);
        let s = c.tier.stats();
        assert!(s.resident_bytes + s.reserved_bytes <= bound && s.peak_bytes <= bound);
    }
    reported += c.wait_all().len() as u64;
    assert_eq!(reported, jobs, "every job is reported once (I4)");
    let seen = watcher.end();
    // a walk is no snapshot: a block evicted behind it and one stored before it may count both
    assert!(seen <= bound + 16 * (FILE + 8192), "{seen} of {bound}");
    assert_settled(&mut c, &root);
    let evicted: u64 = c.tier.stats().evicted_blocks.iter().sum();
    println!("  {requests} requests, {loads} blocks loaded, {evicted} evicted");
    assert!(
        loads > 0 && evicted > 0,
        "the working set was too small to prove anything"
    );
}

fn clients_promote_and_evict_at_once(layout: Layout) {
    let seconds = env("KVWEIR_STRESS_SECONDS", 3) as f64;
    let seed = env(
        "KVWEIR_SEED",
        u64::from(std::process::id()) ^ SystemClock::new().unix_seconds() << 20,
    );
    let table = [
        (1, PolicyKind::Lru),
        (2, PolicyKind::Arc),
        (4, PolicyKind::S3Fifo),
        (8, PolicyKind::Lru),
    ];
    for (clients, policy) in table {
        run(layout, clients, policy, seed, seconds / table.len() as f64);
    }
}

fn faults_at_random_under_load_leave_a_true_account(layout: Layout) {
    let seed = env("KVWEIR_SEED", 5);
    println!("faults at random: KVWEIR_SEED={seed}");
    let (root, mut rng) = (Root::of(layout), Rng(seed));
    let disk = faulty();
    let bound = room_for(40, layout);
    let mut settings = root.settings(bound);
    // faults are to meet work, however many come in a row
    settings.breaker.failures = 0;
    let mut c = client(FsBuilder::new(settings, ns("model"), LEN).disk(Arc::new(disk.clone())));
    let ops = [
        Op::Open,
        Op::Create,
        Op::Read,
        Op::Write,
        Op::Rename,
        Op::CreateDir,
        Op::Stat,
        Op::List,
        Op::Allocate,
    ];
    let errnos = [5, 13, 22, 24, 28, 110, 116];
    for round in 0..60u64 {
        for n in 0..4 {
            let op = ops[rng.below(ops.len() as u64) as usize];
            let fault = Fault::Errno(errnos[rng.below(errnos.len() as u64) as usize]);
            disk.add(Rule::new(op, fault).after(rng.below(6)).times(1 + rng.below(4)));
            let (req, at) = (RequestId(round * 4 + n), rng.below(120));
            let keys: Vec<_> = (at..at + 4).map(key).collect();
            let hits = keys.iter().take_while(|k| c.lookup(k, req)).count();
            c.submit_store(RequestId(9999), &keys[hits..]);
            c.submit_load(req, &keys[..hits]);
            c.tier.on_request_finished(req, &keys);
            let s = c.tier.stats();
            assert!(s.resident_bytes + s.reserved_bytes <= bound, "{s:?}");
        }
        c.wait_all();
        disk.heal();
        assert_settled(&mut c, &root);
    }
    drop(c);
    let mut c = root.open(bound);
    assert_settled(&mut c, &root);
}

in_both_layouts! {
    clients_promote_and_evict_at_once,
    faults_at_random_under_load_leave_a_true_account,
}
