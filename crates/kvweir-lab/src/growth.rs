//! What an operation in memory costs as the number of blocks grows: a lookup, what a store writes down, the marks of a
//! request that ends. Each should cost nearly the same at 10^7 blocks as at 10^5.

use anyhow::Result;
use kvweir::clock::Clock;

use crate::{
    env,
    index::{Ask, Bench},
    print::{heading, median, say, table},
};

/// Options of `growth`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Numbers of blocks, growing.
    #[arg(long, value_delimiter = ',', default_value = "100000,1000000,10000000")]
    blocks: Vec<u64>,
    /// Requests of 256 keys per round.
    #[arg(long, default_value_t = 200)]
    requests: u64,
    /// Rounds; each takes other keys, the median counts.
    #[arg(long, default_value_t = 7)]
    rounds: u64,
    /// Seed of keys and order.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

const OPERATIONS: [&str; 6] = [
    "lookup, hit",
    "lookup_prefix, hit",
    "lookup, miss",
    "store: index, policy, account",
    "touch",
    "finish: pins given back",
];

/// Blocks that a round of stores adds.
const STORED: u64 = 2000;

pub(crate) fn run(args: &Args, clock: &dyn Clock) -> Result<()> {
    env::tell(clock, args.seed, None);
    say(&format!(
        "asked     36-byte keys in random order, {} requests of 256 per round, ns per key, median of {} rounds\n",
        args.requests, args.rounds
    ));
    let mut columns: Vec<Vec<f64>> = Vec::new();
    for &blocks in &args.blocks {
        let (mut bench, _) = Bench::new(blocks, args.seed, args.requests, clock)?;
        let mut times: [Vec<f64>; OPERATIONS.len()] = Default::default();
        for round in 0..args.rounds {
            let (hit, finish) = bench.round(Ask::Single, round)?;
            let (batch, _) = bench.round(Ask::Batch, round)?;
            let (miss, _) = bench.round(Ask::Miss, round)?;
            let all = [
                hit,
                batch,
                miss,
                bench.store(STORED)?,
                bench.touch(round)?,
                finish,
            ];
            times.iter_mut().zip(all).for_each(|(t, ns)| t.push(ns));
        }
        columns.push(times.iter_mut().map(|t| median(t)).collect());
    }
    let mut head = heading(&["operation"]);
    head.extend(args.blocks.iter().map(|n| format!("{n} blocks")));
    head.push("last / first".into());
    let mut rows = vec![head];
    for (i, name) in OPERATIONS.iter().enumerate() {
        let values: Vec<f64> = columns.iter().filter_map(|c| c.get(i).copied()).collect();
        let mut row = vec![(*name).to_owned()];
        row.extend(values.iter().map(|ns| format!("{ns:.0}")));
        if let (Some(first), Some(last)) = (values.first(), values.last()) {
            row.push(format!("{:.2}", last / first));
        }
        rows.push(row);
    }
    table(&rows);
    Ok(())
}
