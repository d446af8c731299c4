//! `--hit-rate-only`: how many leading blocks of each request are present, by the eviction code alone. All requests
//! are in memory before the clock starts, so that the time told is that of the policy.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use comfy_table::{CellAlignment, Table, presets};
use kvweir::clock::Clock;
use serde::Serialize;

use crate::{
    settings::{Policy, TouchOrder},
    trace::Request,
};

/// A set of resident blocks of bounded size.
pub(crate) trait Resident {
    /// How many of the first `blocks` are resident without a gap.
    fn leading_hits(&self, blocks: &[u64]) -> usize;

    /// Touches or inserts all `blocks` of request number `request`.
    fn touch_request(&mut self, blocks: &[u64], order: TouchOrder, request: u64);
}

/// The outcome for one capacity.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct HitRate {
    /// Name of the policy.
    pub(crate) policy: &'static str,
    /// Touch order.
    pub(crate) order: &'static str,
    /// Blocks the set holds at most.
    pub(crate) capacity_blocks: usize,
    /// Requests replayed.
    pub(crate) requests: u64,
    /// Blocks of all requests.
    pub(crate) blocks: u64,
    /// Leading blocks found.
    pub(crate) prefix_hits: u64,
    /// Share of the blocks that were leading hits.
    pub(crate) prefix_hit_rate: f64,
    /// Seconds of the replay, without parsing.
    pub(crate) seconds: f64,
    /// Blocks touched in a second.
    pub(crate) touches_per_s: f64,
    /// Ended by a signal.
    pub(crate) interrupted: bool,
}

/// Replays `requests` on `set`, which holds `capacity` blocks.
pub(crate) fn replay(
    set: &mut dyn Resident,
    (policy, order, capacity): (Policy, TouchOrder, usize),
    requests: &[Request],
    clock: &dyn Clock,
    stop: &AtomicBool,
) -> HitRate {
    let start = clock.now();
    let (mut done, mut blocks, mut hits) = (0, 0, 0);
    let mut interrupted = false;
    for request in requests {
        if done % 64 == 0 && stop.load(Ordering::Relaxed) {
            interrupted = true;
            break;
        }
        hits += set.leading_hits(&request.blocks) as u64;
        set.touch_request(&request.blocks, order, done);
        blocks += request.blocks.len() as u64;
        done += 1;
    }
    let seconds = clock
        .now()
        .since(start)
        .max(Duration::from_nanos(1))
        .as_secs_f64();
    HitRate {
        policy: policy.as_str(),
        order: order.as_str(),
        capacity_blocks: capacity,
        requests: done,
        blocks,
        prefix_hits: hits,
        prefix_hit_rate: if blocks == 0 {
            0.0
        } else {
            hits as f64 / blocks as f64
        },
        seconds,
        touches_per_s: blocks as f64 / seconds,
        interrupted,
    }
}

/// All outcomes as one JSON object.
pub(crate) fn json(results: &[HitRate], skipped_lines: u64) -> serde_json::Value {
    serde_json::json!({ "mode": "hit_rate_only", "skipped_lines": skipped_lines, "results": results })
}

/// All outcomes as a table.
pub(crate) fn table(results: &[HitRate]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_BORDERS_ONLY_CONDENSED);
    table.set_header([
        "policy",
        "order",
        "capacity",
        "requests",
        "blocks",
        "prefix hit rate",
        "seconds",
        "touches/s",
    ]);
    for r in results {
        table.add_row([
            r.policy.to_owned(),
            r.order.to_owned(),
            r.capacity_blocks.to_string(),
            r.requests.to_string(),
            r.blocks.to_string(),
            format!("{:.4}", r.prefix_hit_rate),
            format!("{:.3}", r.seconds),
            format!("{:.3e}", r.touches_per_s),
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use kvweir::clock::ManualClock;

    use super::*;

    /// The least recently used block is at the front.
    struct NaiveLru(Vec<u64>, usize);

    impl Resident for NaiveLru {
        fn leading_hits(&self, blocks: &[u64]) -> usize {
            blocks.iter().take_while(|b| self.0.contains(b)).count()
        }

        fn touch_request(&mut self, blocks: &[u64], order: TouchOrder, _: u64) {
            let mut blocks = blocks.to_vec();
            if order == TouchOrder::LeafFirst {
                blocks.reverse();
            }
            for b in blocks {
                self.0.retain(|x| *x != b);
                self.0.push(b);
                if self.0.len() > self.1 {
                    self.0.remove(0);
                }
            }
        }
    }

    fn requests(blocks: &[&[u64]]) -> Vec<Request> {
        let request = |b: &&[u64]| Request {
            at: Duration::ZERO,
            input_tokens: 0,
            output_tokens: 0,
            blocks: b.to_vec(),
        };
        blocks.iter().map(request).collect()
    }

    fn run(order: TouchOrder, stop: bool) -> HitRate {
        // Capacity 3. Leaf first: {1,2,3} -> 3 evicted by 4 -> request 3 finds 1, 2.
        // Head first: 1 is evicted by 4 -> request 3 finds nothing.
        let requests = requests(&[&[1, 2, 3], &[4], &[1, 2, 3]]);
        let (stop, clock) = (AtomicBool::new(stop), ManualClock::new());
        replay(
            &mut NaiveLru(Vec::new(), 3),
            (Policy::Lru, order, 3),
            &requests,
            &clock,
            &stop,
        )
    }

    #[test]
    fn hand_computed() {
        let leaf = run(TouchOrder::LeafFirst, false);
        assert_eq!((leaf.requests, leaf.blocks, leaf.prefix_hits), (3, 7, 2));
        assert_eq!(leaf.prefix_hit_rate, 2.0 / 7.0);
        assert_eq!(run(TouchOrder::HeadFirst, false).prefix_hits, 0);
    }

    #[test]
    fn a_stop_is_told_and_the_rate_of_nothing_is_a_number() {
        let r = run(TouchOrder::LeafFirst, true);
        assert!(r.interrupted && r.requests == 0 && r.prefix_hit_rate == 0.0);
    }

    #[test]
    fn both_outputs() {
        let r = HitRate {
            seconds: 0.5,
            touches_per_s: 14.0,
            ..run(TouchOrder::LeafFirst, false)
        };
        insta::assert_snapshot!(table(std::slice::from_ref(&r)), @"");
        insta::assert_snapshot!(json(&[r], 2).to_string(), @"");
    }
}
