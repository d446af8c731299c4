//! A made-up workload in the shape of coding agents: a few system prompts shared by all, sessions whose prompt
//! grows with every turn and is sent again in full, and time to think between turns. A function of its seed.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use crate::trace::Request;

const TOKENS_PER_BLOCK: u64 = 64;

/// The shape of the workload.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WorkloadSettings {
    /// Equal seeds give equal workloads.
    pub(crate) seed: u64,
    /// Requests in all.
    pub(crate) requests: u64,
    /// How many different system prompts there are.
    pub(crate) system_prompts: u64,
    /// Blocks of a system prompt.
    pub(crate) system_blocks: u64,
    /// Blocks the first turn adds, from..=to.
    pub(crate) first_blocks: (u64, u64),
    /// Blocks each later turn adds: tool output, the answer, the next question.
    pub(crate) turn_blocks: (u64, u64),
    /// Turns of a session.
    pub(crate) turns: (u64, u64),
    /// Mean seconds between the starts of two sessions.
    pub(crate) session_every_s: f64,
}

impl Default for WorkloadSettings {
    fn default() -> Self {
        Self {
            seed: 0,
            requests: 600,
            system_prompts: 4,
            system_blocks: 24,
            first_blocks: (6, 22),
            turn_blocks: (4, 15),
            turns: (4, 20),
            session_every_s: 20.0,
        }
    }
}

/// The iterator over the requests, in order of time.
#[derive(Debug)]
pub(crate) struct AgentWorkload {
    settings: WorkloadSettings,
    random: SplitMix,
    given: u64,
    sessions: u64,
    next_session_at: Duration,
    /// Sessions by the time of their next turn; the session's number breaks ties.
    waiting: BinaryHeap<Reverse<(Duration, u64, Session)>>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Session {
    turns_left: u64,
    blocks: Vec<u64>,
}

impl AgentWorkload {
    /// The workload with these settings.
    pub(crate) fn new(settings: WorkloadSettings) -> Self {
        let random = SplitMix(settings.seed ^ 0x6b76_7765_6972);
        Self {
            settings,
            random,
            given: 0,
            sessions: 0,
            next_session_at: Duration::ZERO,
            waiting: BinaryHeap::new(),
        }
    }

    /// Starts every session that is due before the next turn of a running one.
    fn start_sessions(&mut self) {
        while self
            .waiting
            .peek()
            .is_none_or(|Reverse((at, ..))| self.next_session_at <= *at)
        {
            let id = self.sessions;
            self.sessions += 1;
            let prompt = self.random.below(self.settings.system_prompts.max(1));
            // The session's own blocks come with its first turn; system prompts have ids all sessions share.
            let blocks = (0..self.settings.system_blocks)
                .map(|i| SplitMix(self.settings.seed ^ (prompt << 32 | i) ^ 0x5157 << 48).next())
                .collect();
            let turns_left = self.random.between(self.settings.turns);
            self.waiting.push(Reverse((
                self.next_session_at,
                id,
                Session { turns_left, blocks },
            )));
            self.next_session_at += self.random.exponential(self.settings.session_every_s);
        }
    }

    /// Mostly a tool's answer, now and then a human's.
    fn think_time(&mut self) -> Duration {
        if self.random.below(5) == 0 {
            self.random.exponential(70.0) + Duration::from_secs(20)
        } else {
            self.random.exponential(8.0) + Duration::from_secs(2)
        }
    }
}

impl Iterator for AgentWorkload {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        if self.given >= self.settings.requests {
            return None;
        }
        self.given += 1;
        self.start_sessions();
        let Reverse((at, id, mut session)) = self.waiting.pop()?;
        let first = session.blocks.len() as u64 == self.settings.system_blocks;
        let new = if first {
            self.settings.first_blocks
        } else {
            self.settings.turn_blocks
        };
        for _ in 0..self.random.between(new) {
            session.blocks.push(self.random.next());
        }
        let request = Request {
            at,
            input_tokens: (session.blocks.len() as u64 * TOKENS_PER_BLOCK)
                .saturating_sub(self.random.below(TOKENS_PER_BLOCK)),
            output_tokens: self.random.between((20, 400)),
            blocks: session.blocks.clone(),
        };
        session.turns_left = session.turns_left.saturating_sub(1);
        if session.turns_left > 0 {
            let at = at + self.think_time();
            self.waiting.push(Reverse((at, id, session)));
        }
        Some(request)
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, seeded, good enough to make up data.
#[derive(Debug, Clone)]
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    fn between(&mut self, (from, to): (u64, u64)) -> u64 {
        from + self.below(to.saturating_sub(from) + 1)
    }

    fn exponential(&mut self, mean_s: f64) -> Duration {
        let unit = ((self.next() >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
        Duration::from_secs_f64(-unit.ln() * mean_s)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    fn all(seed: u64) -> Vec<Request> {
        AgentWorkload::new(WorkloadSettings {
            seed,
            ..WorkloadSettings::default()
        })
        .collect()
    }

    #[test]
    fn a_function_of_the_seed() {
        assert_eq!(all(7), all(7));
        assert_ne!(all(7), all(8));
    }

    #[test]
    fn the_size_the_default_run_is_made_for() {
        for seed in 0..8 {
            let requests = all(seed);
            let touched: usize = requests.iter().map(|r| r.blocks.len()).sum();
            let unique: HashSet<u64> = requests.iter().flat_map(|r| r.blocks.iter().copied()).collect();
            assert_eq!(requests.len(), 600);
            assert!(
                (50_000..75_000).contains(&touched),
                "seed {seed}: {touched} touched"
            );
            assert!(
                (5_000..7_500).contains(&unique.len()),
                "seed {seed}: {} unique",
                unique.len()
            );
        }
    }

    #[test]
    fn prefixes_grow_are_shared_and_interleave() {
        let requests = all(3);
        assert!(requests.is_sorted_by_key(|r| r.at));
        // A session is known by its first own block; each turn begins with the whole turn before.
        let mut last: HashMap<u64, &Request> = HashMap::new();
        let (mut grown, mut switches, mut previous) = (0, 0, 0);
        for r in &requests {
            let session = r.blocks[24];
            if let Some(before) = last.insert(session, r) {
                assert!(r.blocks.starts_with(&before.blocks) && r.blocks.len() > before.blocks.len());
                grown += 1;
            }
            switches += u32::from(std::mem::replace(&mut previous, session) != session);
        }
        assert!(grown > 450, "{grown} of 600 requests continue a session");
        assert!(switches > 400, "sessions interleave: {switches}");
        let prompts: HashSet<&[u64]> = requests.iter().map(|r| &r.blocks[..24]).collect();
        assert_eq!(prompts.len(), 4, "all sessions share four system prompts");
        let everything: HashSet<&u64> = requests.iter().flat_map(|r| &r.blocks).collect();
        let longest: usize = last.values().map(|r| r.blocks.len() - 24).sum();
        assert_eq!(everything.len(), longest + 4 * 24, "no other block is shared");
    }

    #[test]
    fn longer_runs_go_on_with_new_sessions() {
        let long = AgentWorkload::new(WorkloadSettings {
            requests: 3_000,
            ..WorkloadSettings::default()
        });
        let long: Vec<_> = long.collect();
        assert_eq!(long.len(), 3_000);
        assert_eq!(
            long[..600],
            all(0)[..],
            "the first requests do not depend on how many follow"
        );
    }
}
