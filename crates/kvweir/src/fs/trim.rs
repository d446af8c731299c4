//! Coming below the bound: at start, after a bound was lowered, and when other members are given their share.

use std::{collections::HashSet, sync::atomic::Ordering};

use super::{shared::Shared, shares::Giver};
use crate::{metrics::EvictReason, sync::lock};

/// Victims chosen under one hold of the lock.
const TRIM_BATCH: u64 = 256;

/// Evicts oldest first until the account is within its bound; each candidate is tried once.
pub(crate) fn trim(shared: &Shared) {
    let began = shared.clock.now();
    let (tried, stuck) = evict_excess(shared, usize::MAX);
    let mut core = lock(&shared.core);
    core.catalog.stats.trim_candidates = tried;
    let excess_bytes = core.account.budget.excess();
    drop(core);
    let seconds = shared.clock.now().since(began).as_secs_f64();
    let tier = &shared.name;
    if excess_bytes > 0 && shared.stop.load(Ordering::Relaxed) {
        tracing::warn!(
            %tier, tried, seconds, excess_bytes,
            "the tier is shut down before its trim has ended: the root stays above its bound until the next start"
        );
    } else if excess_bytes > 0 {
        tracing::warn!(
            %tier, tried, stuck, seconds, excess_bytes,
            "trimmed, and still above the bound: what is left is in use or cannot be removed"
        );
    } else if tried > 0 {
        tracing::info!(%tier, tried, stuck, seconds, "trimmed to the bound");
    }
}

/// Evicts what is above the bound, at most about `most` blocks.
pub(crate) fn shed(shared: &Shared, most: usize) {
    if lock(&shared.core).account.budget.above_bound() > 0 {
        evict_excess(shared, most);
    }
}

fn evict_excess(shared: &Shared, most: usize) -> (u64, u64) {
    let (mut tried, mut stuck) = (HashSet::<u32>::new(), 0u64);
    let mut batch = Vec::new();
    while !shared.stop.load(Ordering::Relaxed) && tried.len() < most {
        if lock(&shared.core).account.budget.excess() == 0 {
            break;
        }
        // of several spaces, who has most above its share
        let files_give = match shared.first_to_give() {
            Some((Giver::Extents(s), _)) if s.give_back(EvictReason::Trim) => continue,
            Some((Giver::Files, bytes)) => bytes,
            _ => u64::MAX,
        };
        {
            let mut core = lock(&shared.core);
            let excess = core.account.budget.excess();
            if excess == 0 {
                break;
            }
            let step = (core.account.budget.resident() / core.catalog.stats.blocks.max(1))
                .saturating_mul(TRIM_BATCH);
            let now = shared.clock.now();
            let mut want = excess.min(step.max(1)).min(files_give);
            // near the end of what can be evicted, take what there is
            while want > 0 && !core.choose_victims(want, now, &mut batch) {
                want /= 2;
            }
        }
        if batch.is_empty() && shared.give_back(EvictReason::Trim) {
            continue;
        }
        // files that could not be removed come round again after a while: not in this trim
        if batch.iter().all(|v| tried.contains(&v.id)) {
            let mut core = lock(&shared.core);
            batch.drain(..).for_each(|v| core.catalog.put_back(v.id, false));
            break;
        }
        for v in batch.drain(..) {
            if shared.stop.load(Ordering::Relaxed) {
                lock(&shared.core).catalog.put_back(v.id, false);
                continue;
            }
            let failures = lock(&shared.core).catalog.stats.unlink_failures;
            tried.insert(v.id);
            shared.remove_victim(&v, EvictReason::Trim, false);
            stuck += u64::from(lock(&shared.core).catalog.stats.unlink_failures > failures);
        }
    }
    (tried.len() as u64, stuck)
}
