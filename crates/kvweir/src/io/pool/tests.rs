//! What callers rely on: who goes first, and that every unit is run or cancelled once.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::Duration,
};

use super::*;
use crate::error::ErrorKind;

/// Records units as they run; the first `hold` units wait for the gate to open.
struct Probe {
    ran: Mutex<Vec<usize>>,
    cancelled: Mutex<Vec<usize>>,
    gate: Option<Mutex<Receiver<()>>>,
    begun: SyncSender<usize>,
}

fn probe(gated: bool) -> (Arc<Probe>, SyncSender<()>, Receiver<usize>) {
    let (open, gate) = sync_channel(1024);
    let (begun, begins) = sync_channel(4096);
    let gate = gated.then(|| Mutex::new(gate));
    (
        Arc::new(Probe {
            ran: Mutex::default(),
            cancelled: Mutex::default(),
            gate,
            begun,
        }),
        open,
        begins,
    )
}

impl Work for Probe {
    fn run(&self, unit: usize, _: &mut Worker) {
        self.begun.send(unit).unwrap();
        if let Some(g) = &self.gate {
            lock(g).recv().unwrap();
        }
        lock(&self.ran).push(unit);
    }
    fn cancel(&self, unit: usize) {
        lock(&self.cancelled).push(unit);
    }
}

#[test]
fn few_stores_begin_while_a_load_runs_and_all_go_on_after_it() {
    let workers = Pool::start("t", PoolSize::new(2, 8)).unwrap();
    let pool = workers.share();
    // a worker that has not started yet leaves nothing waiting
    while lock(&workers.shared.queues).waiting < 10 {
        std::thread::yield_now();
    }
    let (load, let_go, loading) = probe(true);
    pool.submit(Class::Load, Arc::clone(&load) as Arc<dyn Work>, 1)
        .unwrap();
    loading.recv().unwrap();
    let (stores, open, begun) = probe(true);
    pool.submit(Class::Store, Arc::clone(&stores) as Arc<dyn Work>, 64)
        .unwrap();
    // two of eight, and no third
    assert!((0..2).all(|_| begun.recv().is_ok()));
    assert!(begun.recv_timeout(Duration::from_millis(200)).is_err());
    assert!(pool.held_stores() > 0);
    let_go.send(()).unwrap();
    assert!((0..6).all(|_| begun.recv_timeout(Duration::from_secs(10)).is_ok()));
    (0..64).for_each(|_| open.send(()).unwrap());
    assert!(pool.wait_idle(Duration::from_secs(10)));
}

#[test]
fn a_load_passes_stores_that_saturate_the_pool() {
    let workers = Pool::start("t", PoolSize::new(1, 2)).unwrap();
    let pool = workers.share();
    let (stores, open, begun) = probe(true);
    pool.submit(Class::Store, Arc::clone(&stores) as Arc<dyn Work>, 64)
        .unwrap();
    begun.recv().unwrap();
    begun.recv().unwrap();
    let (load, _o, loaded) = probe(false);
    pool.submit(Class::Load, Arc::clone(&load) as Arc<dyn Work>, 1)
        .unwrap();
    assert_eq!(
        loaded.recv_timeout(Duration::from_secs(10)).unwrap(),
        0,
        "the load waited for stores"
    );
    assert!(lock(&stores.ran).is_empty());
    for _ in 0..64 {
        open.send(()).unwrap();
    }
    assert!(pool.wait_idle(Duration::from_secs(60)));
}

#[test]
fn every_unit_is_run_or_cancelled_once() {
    for seed in 0..20 {
        let workers = Pool::start("t", PoolSize::new(1, 2)).unwrap();
        let pool = workers.share();
        let (w, _open, _begun) = probe(false);
        for _ in 0..=seed {
            pool.submit(Class::Store, Arc::clone(&w) as Arc<dyn Work>, 37)
                .unwrap();
        }
        if seed % 2 == 0 {
            assert!(pool.wait_idle(Duration::from_secs(60)));
        }
        assert!(workers.stop(Duration::from_secs(10)));
        let mut all = [lock(&w.ran).clone(), lock(&w.cancelled).clone()].concat();
        all.sort_unstable();
        let want: Vec<usize> = (0..37).flat_map(|u| vec![u; seed + 1]).collect();
        assert_eq!(all, want);
        let e = pool.submit(Class::Load, w, 1).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Closed);
    }
}

#[test]
fn a_full_queue_refuses_and_queues_nothing() {
    let size = PoolSize {
        queue_units: 4,
        ..PoolSize::new(1, 1)
    };
    let workers = Pool::start("t", size).unwrap();
    let pool = workers.share();
    let (w, open, begun) = probe(true);
    pool.submit(Class::Store, Arc::clone(&w) as Arc<dyn Work>, 1)
        .unwrap();
    begun.recv().unwrap();
    pool.submit(Class::Store, Arc::clone(&w) as Arc<dyn Work>, 4)
        .unwrap();
    let e = pool
        .submit(Class::Store, Arc::clone(&w) as Arc<dyn Work>, 1)
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Busy);
    (0..5).for_each(|_| open.send(()).unwrap());
    assert!(pool.wait_idle(Duration::from_secs(60)));
    assert_eq!(lock(&w.ran).len() + lock(&w.cancelled).len(), 5);
}

#[test]
fn the_default_size_follows_the_cpus_of_this_process() {
    let s = PoolSize::default();
    assert!((2..=8).contains(&s.store_threads) && s.threads == 2 * s.store_threads);
    assert!(usable_cpus() >= 1);
}

#[test]
fn what_one_user_cancels_or_waits_for_is_its_own() {
    let workers = Pool::start("t", PoolSize::new(1, 1)).unwrap();
    let (one, two) = (workers.share(), workers.share());
    let (running, open, begun) = probe(true);
    one.submit(Class::Store, Arc::clone(&running) as Arc<dyn Work>, 1)
        .unwrap();
    begun.recv().unwrap();
    let (mine, _o, _b) = probe(false);
    let (theirs, _o, _b) = probe(false);
    one.submit(Class::Store, Arc::clone(&mine) as Arc<dyn Work>, 3)
        .unwrap();
    two.submit(Class::Store, Arc::clone(&theirs) as Arc<dyn Work>, 5)
        .unwrap();
    assert_eq!((one.queued(), two.queued()), (3, 5));
    two.cancel_queued(Class::Store);
    assert_eq!((one.queued(), two.queued()), (3, 0));
    assert_eq!(
        (lock(&mine.cancelled).len(), lock(&theirs.cancelled).len()),
        (0, 5)
    );
    assert!(
        two.wait_idle(Duration::from_secs(10)),
        "the other's work is no business of it"
    );
    assert!(!one.wait_idle(Duration::from_millis(10)));
    open.send(()).unwrap();
    assert!(one.wait_idle(Duration::from_secs(10)));
    assert_eq!(lock(&mine.ran).len(), 3);
}
