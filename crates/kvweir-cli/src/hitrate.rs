//! `--hit-rate-only`: how many leading blocks of each request are present, by the eviction code alone. All requests
//! are in memory before the clock starts, so that the time told is the policy's alone.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::Result;
use kvweir::{
    clock::Clock,
    evict::{Order, PolicyKind, RequestTag, ResidentSet},
};
use serde::Serialize;

use crate::{
    settings::{ReplaySettings, order_name},
    table::Section,
    trace::{Request, Source},
};

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

/// Reads all requests, then replays them once for each capacity. A stop ends it with what is done so far.
pub(crate) fn run(
    settings: &ReplaySettings,
    source: Source,
    clock: &dyn Clock,
    stop: &AtomicBool,
) -> Result<Vec<HitRate>> {
    let stopped = || stop.load(Ordering::Relaxed);
    let requests = source.take_while(|_| !stopped()).collect::<Result<Vec<_>>>()?;
    let mut results = Vec::new();
    for &capacity in &settings.capacity_blocks {
        results.push(replay(
            settings.policy,
            settings.order,
            capacity,
            &requests,
            clock,
            stop,
        ));
        if stopped() {
            break;
        }
    }
    Ok(results)
}

fn replay(
    policy: PolicyKind,
    order: Order,
    capacity: usize,
    requests: &[Request],
    clock: &dyn Clock,
    stop: &AtomicBool,
) -> HitRate {
    let mut set = ResidentSet::new(policy, capacity);
    let start = clock.now();
    let (mut done, mut blocks, mut hits) = (0, 0, 0);
    // A stop may have cut the list of requests short.
    let mut interrupted = stop.load(Ordering::Relaxed);
    for request in requests {
        if done % 64 == 0 && stop.load(Ordering::Relaxed) {
            interrupted = true;
            break;
        }
        hits += set.leading_hits(&request.blocks) as u64;
        // Tag 0 means no request in particular.
        set.touch_request(
            &request.blocks,
            order,
            RequestTag((done % u64::from(u32::MAX)) as u32 + 1),
        );
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
        order: order_name(order),
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
pub(crate) fn section(results: &[HitRate]) -> Section {
    let head = [
        "policy, order",
        "capacity",
        "requests",
        "blocks",
        "prefix hit rate",
        "seconds",
        "touches/s",
    ];
    let row = |r: &HitRate| {
        vec![
            format!("{}, {}", r.policy, r.order),
            r.capacity_blocks.to_string(),
            r.requests.to_string(),
            r.blocks.to_string(),
            format!("{:.4}", r.prefix_hit_rate),
            format!("{:.3}", r.seconds),
            format!("{:.1} M", r.touches_per_s / 1e6),
        ]
    };
    Section {
        title: "hit rate by capacity",
        head: head.map(str::to_owned).to_vec(),
        rows: results.iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use kvweir::clock::ManualClock;

    use super::*;

    fn requests(blocks: &[&[u64]]) -> Vec<Request> {
        let request = |b: &&[u64]| Request {
            at: Duration::ZERO,
            input_tokens: 0,
            output_tokens: 0,
            blocks: b.to_vec(),
        };
        blocks.iter().map(request).collect()
    }

    fn run(order: Order, stop: bool) -> HitRate {
        // Capacity 3. Leaf first: 4 evicts 3, so the last request finds 1 and 2. Head first: 4 evicts 1, it finds
        // nothing.
        let requests = requests(&[&[1, 2, 3], &[4], &[1, 2, 3]]);
        let (stop, clock) = (AtomicBool::new(stop), ManualClock::new());
        replay(PolicyKind::Lru, order, 3, &requests, &clock, &stop)
    }

    #[test]
    fn hand_computed() {
        let leaf = run(Order::LeafFirst, false);
        assert_eq!((leaf.requests, leaf.blocks, leaf.prefix_hits), (3, 7, 2));
        assert_eq!(leaf.prefix_hit_rate, 2.0 / 7.0);
        assert_eq!(run(Order::HeadFirst, false).prefix_hits, 0);
    }

    #[test]
    fn a_stop_is_told_and_the_rate_of_nothing_is_a_number() {
        let r = run(Order::LeafFirst, true);
        assert!(r.interrupted && r.requests == 0 && r.prefix_hit_rate == 0.0);
    }

    #[test]
    fn both_outputs() {
        let r = HitRate {
            seconds: 0.5,
            touches_per_s: 14.0,
            ..run(Order::LeafFirst, false)
        };
        insta::assert_snapshot!(section(std::slice::from_ref(&r)).to_text(), @r#"
    hit rate by capacity
     policy, order    capacity  requests  blocks  prefix hit rate  seconds  touches/s
     lru, leaf-first         3         3       7           0.2857    0.500      0.0 M
    "#);
        let json = serde_json::to_string_pretty(&json(&[r], 2)).unwrap();
        insta::assert_snapshot!(json, @r#"
        {
          "mode": "hit_rate_only",
          "results": [
            {
              "blocks": 7,
              "capacity_blocks": 3,
              "interrupted": false,
              "order": "leaf-first",
              "policy": "lru",
              "prefix_hit_rate": 0.2857142857142857,
              "prefix_hits": 2,
              "requests": 3,
              "seconds": 0.5,
              "touches_per_s": 14.0
            }
          ],
          "skipped_lines": 2
        }
        "#);
    }
}
