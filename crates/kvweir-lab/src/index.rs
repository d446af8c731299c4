//! What a lookup costs and what a block costs in memory, through the same calls that a scheduler makes: one
//! request is 256 keys in random order over the whole index, each looked up and pinned, and the request finished.

use anyhow::Result;
use kvweir::{
    Key,
    clock::Clock,
    fs::{FsBuilder, FsSettings, FsTier, Layout},
    namespace::{Identity, Namespace},
    tier::{Lookup, RequestId, Tier},
};

use crate::{
    env,
    keys::{key, mix},
    print::{heading, median, say, table},
};

/// Keys of one request.
const REQUEST: usize = 256;
/// Bytes a phantom block is said to have.
const BLOCK: u64 = 2 << 20;

/// Options of `index`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Numbers of blocks.
    #[arg(long, value_delimiter = ',', default_value = "10000,1000000,10000000")]
    blocks: Vec<u64>,
    /// Requests of 256 keys per round.
    #[arg(long, default_value_t = 400)]
    requests: u64,
    /// Rounds; each takes other keys, the median counts.
    #[arg(long, default_value_t = 7)]
    rounds: u64,
    /// Seed of keys and order.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// One way to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    Single,
    Batch,
    Miss,
}

pub(crate) fn run(args: &Args, clock: &dyn Clock) -> Result<()> {
    env::tell(clock, args.seed, None);
    say(&format!(
        "asked     36-byte keys in random order, {} requests of {REQUEST} a round, median of {} rounds\n",
        args.requests, args.rounds
    ));
    let mut rows = vec![heading(&[
        "blocks",
        "hit ns/key",
        "batch hit ns/key",
        "miss ns/key",
        "finish ns/key",
        "index B/block",
        "insert ns",
    ])];
    let mut hits = Vec::new();
    for &n in &args.blocks {
        let (mut bench, insert_ns) = Bench::new(n, args.seed, args.requests, clock)?;
        let (mut single, mut batch, mut miss, mut finish) = (vec![], vec![], vec![], vec![]);
        for round in 0..args.rounds {
            for (ask, out) in [
                (Ask::Single, &mut single),
                (Ask::Batch, &mut batch),
                (Ask::Miss, &mut miss),
            ] {
                let (asked, finished) = bench.round(ask, round)?;
                out.push(asked);
                if ask == Ask::Single {
                    finish.push(finished);
                }
            }
        }
        let (bytes, _) = bench.tier.index_memory();
        let hit = median(&mut single);
        hits.push((n, hit));
        rows.push(vec![
            n.to_string(),
            format!("{hit:.1}"),
            format!("{:.1}", median(&mut batch)),
            format!("{:.1}", median(&mut miss)),
            format!("{:.1}", median(&mut finish)),
            format!("{:.1}", bytes as f64 / n as f64),
            format!("{insert_ns:.0}"),
        ]);
    }
    table(&rows);
    for pair in hits.windows(2) {
        if let [(a, x), (b, y)] = pair {
            say(&format!("hit at {b} blocks / hit at {a}: {:.2}", y / x));
        }
    }
    Ok(())
}

/// A tier whose index knows so many blocks.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    tier: FsTier,
    clock: &'a dyn Clock,
    seed: u64,
    blocks: u64,
    /// Blocks that were added since.
    added: u64,
    requests: u64,
    next: u64,
    _dir: tempfile::TempDir,
}

impl<'a> Bench<'a> {
    /// Makes it; also nanoseconds per block, with the making of its key.
    pub(crate) fn new(blocks: u64, seed: u64, requests: u64, clock: &'a dyn Clock) -> Result<(Self, f64)> {
        let dir = tempfile::tempdir()?;
        let settings = FsSettings {
            max_bytes: Some(1 << 60),
            layout: Layout::Fs,
            ..FsSettings::new(dir.path().join("kv"))
        };
        let ns = Namespace::new(&Identity::default())?;
        let mut tier = FsBuilder::new(settings, ns, BLOCK as usize).open()?;
        let began = clock.now();
        let added = tier.add_phantoms((0..blocks).filter_map(|i| key(seed, i).ok()), BLOCK);
        anyhow::ensure!(added == blocks, "{added} of {blocks} keys were added");
        let insert_ns = clock.now().since(began).as_secs_f64() * 1e9 / blocks as f64;
        let bench = Self {
            tier,
            clock,
            seed,
            blocks,
            added: 0,
            requests,
            next: 1,
            _dir: dir,
        };
        Ok((bench, insert_ns))
    }

    /// Nanoseconds per key to make `keys` blocks known that are not: index, policy, account.
    pub(crate) fn store(&mut self, keys: u64) -> Result<f64> {
        // beyond those that misses ask for
        let first = self.blocks * 2 + self.added;
        self.added += keys;
        let new = (first..first + keys).map(|n| key(self.seed, n));
        let new = new.collect::<kvweir::Result<Vec<_>>>()?;
        let began = self.clock.now();
        let added = self.tier.add_phantoms(new, BLOCK);
        let took = self.clock.now().since(began).as_secs_f64();
        anyhow::ensure!(added == keys, "{added} of {keys} keys were added");
        Ok(took * 1e9 / keys as f64)
    }

    /// Nanoseconds per key to mark the blocks of requests as used.
    pub(crate) fn touch(&mut self, round: u64) -> Result<f64> {
        let batches = self.batches(mix(round << 2 | 3), false)?;
        let began = self.clock.now();
        for (keys, req) in batches.iter().zip(self.next..) {
            self.tier.touch(keys, RequestId(req));
        }
        let took = self.clock.now().since(began).as_secs_f64();
        self.next += self.requests;
        Ok(took * 1e9 / (self.requests as usize * REQUEST) as f64)
    }

    /// Keys of requests, here and there in the index or outside of it.
    fn batches(&self, salt: u64, is_miss: bool) -> Result<Vec<Vec<Key>>> {
        let key_of = |r: u64, i: u64| {
            let n = mix(salt ^ (r * REQUEST as u64 + i)) % self.blocks;
            Ok(key(self.seed, if is_miss { n + self.blocks } else { n })?)
        };
        (0..self.requests)
            .map(|r| (0..REQUEST as u64).map(|i| key_of(r, i)).collect())
            .collect()
    }

    /// Nanoseconds per key to ask, and to finish the requests.
    pub(crate) fn round(&mut self, ask: Ask, round: u64) -> Result<(f64, f64)> {
        let batches = self.batches(mix(round << 2 | ask as u64), ask == Ask::Miss)?;
        let first = self.next;
        self.next += self.requests;
        let began = self.clock.now();
        let mut hits = 0usize;
        for (keys, req) in batches.iter().zip(first..) {
            let req = RequestId(req);
            hits += match ask {
                Ask::Batch => self.tier.lookup_prefix(keys, req),
                _ => keys
                    .iter()
                    .filter(|k| self.tier.lookup(k, req) == Lookup::Hit)
                    .count(),
            };
        }
        let asked = self.clock.now();
        for req in first..self.next {
            self.tier.on_request_finished(RequestId(req), &[]);
        }
        let finished = self.clock.now();
        let n = self.requests as usize * REQUEST;
        let want = if ask == Ask::Miss { 0 } else { n };
        anyhow::ensure!(hits == want, "{hits} hits of {want}");
        anyhow::ensure!(self.tier.stats().pinned_blocks == 0, "pins are left");
        let per_key = |s: f64| s * 1e9 / n as f64;
        let ask_s = asked.since(began).as_secs_f64();
        Ok((per_key(ask_s), per_key(finished.since(asked).as_secs_f64())))
    }
}
