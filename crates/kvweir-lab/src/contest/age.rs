//! What age and company do to a tier: one that fills, one at its bound and one that was written over, side by side;
//! loads alone and beside stores that never end.

use anyhow::{Context, Result};

use super::{
    Contest, Sides,
    ours::Ours,
    side::{Side, Work, salt},
    tell::Row,
    whole,
};

/// How many times its bound is written to the churned tier.
const CHURN: u64 = 20;
/// Store jobs under way beside loads.
const BESIDE: usize = 16;

/// Bytes for the blocks of a round and half as many, with trailers and directories.
pub(super) fn bound(block_kib: u64, blocks: u32) -> u64 {
    u64::from(blocks) * (block_kib << 10) * 6 / 5 * 3 / 2 + (16 << 20)
}

impl Contest<'_> {
    /// Ours alone: a tier that fills, one at its bound, and one that was written over.
    pub(super) fn bound(&mut self) -> Result<()> {
        let (block_kib, blocks) = (64, self.blocks(1024));
        let (region, _) = self.region(block_kib, blocks)?;
        let bound = bound(block_kib as u64, blocks);
        for layout in self.layouts(block_kib) {
            let mut sides: Sides<'_> = Vec::new();
            for (name, bound, times) in [
                ("filling", self.room(&region, 1), 0),
                ("full", bound, 2),
                ("churned", bound, CHURN),
            ] {
                let settings = self.settings(layout, bound);
                let mut side = Ours::new(settings, &region, self.clock)?;
                let written = u64::from(blocks) * region.block_len() as u64;
                for round in 0..(times * bound) / written {
                    let salt = salt(self.args.seed, 100, round);
                    side.store(whole(salt, blocks, 0, 16))?;
                }
                sides.push((format!("kvweir {layout} {name}"), Box::new(side)));
            }
            let bytes = region.block_len() as u64 * u64::from(blocks);
            let mut rows: Vec<Row> = Vec::new();
            for op in ["store, 16 per job", "load, 64 per job"] {
                rows.extend(
                    sides
                        .iter()
                        .map(|(who, _)| Row::new("bound, 64 KiB", op, who, bytes)),
                );
            }
            for round in 0..self.rounds {
                let salt = salt(self.args.seed, 101, round);
                Self::fill(&region, salt)?;
                for op in 0..2 {
                    for turn in 0..sides.len() {
                        let who = (turn + round as usize) % sides.len();
                        let at = op * sides.len() + who;
                        let Some((name, side)) = sides.get_mut(who) else {
                            continue;
                        };
                        let took = if op == 0 {
                            side.store(whole(salt, blocks, 0, 16))?
                        } else {
                            Self::clear(&region)?;
                            let took = side.load(whole(salt, blocks, blocks, 64))?;
                            Self::compare(&region, name)?;
                            took
                        };
                        rows.get_mut(at).context("one row per side")?.add(took);
                    }
                }
            }
            self.end(sides, rows, Vec::new())?;
        }
        Ok(())
    }

    /// Loads of 16 blocks, one at a time, alone and beside stores that never end.
    pub(super) fn beside(&mut self) -> Result<()> {
        let (block_kib, blocks, batch) = (64, self.blocks(1024), 16);
        let (region, memory) = self.region(block_kib, blocks)?;
        // stores beside loads go on as long as those
        let room = self.room(&region, 8);
        let mut peers = self.open_peers(&region, &memory, room);
        let mut sides = self.ours(&region, block_kib, &[true], room)?;
        sides.extend(
            peers
                .iter_mut()
                .map(|(n, p)| (n.clone(), Box::new(p) as Box<dyn Side>)),
        );
        let bytes = region.block_len() as u64 * u64::from(blocks);
        let mut rows: Vec<Row> = Vec::new();
        for op in ["load alone, 16 per job", "load beside stores, 16 per job"] {
            rows.extend(
                sides
                    .iter()
                    .map(|(who, _)| Row::new("beside stores, 64 KiB", op, who, bytes)),
            );
        }
        let mut failed = Vec::new();
        for round in 0..self.rounds {
            let salts = [200, 201].map(|case| salt(self.args.seed, case, round));
            let [held, fresh] = salts;
            Self::fill(&region, held)?;
            for turn in 0..sides.len() {
                let who = (turn + round as usize) % sides.len();
                let Some((name, side)) = sides.get_mut(who) else {
                    continue;
                };
                if failed.iter().any(|(f, _): &(String, String)| f == name) {
                    continue;
                }
                let load = Work {
                    depth: 1,
                    ..whole(held, blocks, blocks, batch)
                };
                let store = Work {
                    depth: BESIDE,
                    ..whole(fresh, blocks, 0, batch)
                };
                let both = side.store(whole(held, blocks, 0, batch)).and_then(|_| {
                    let alone = side.load(load)?;
                    let loads = (blocks / batch) as usize;
                    Ok((alone, side.duel(store, load, loads)?))
                });
                let alone = match both {
                    Ok((alone, beside)) => {
                        Self::compare(&region, name)?;
                        let row = rows.get_mut(sides.len() + who);
                        row.context("one row per side")?.add(beside);
                        Ok(alone)
                    }
                    Err(e) => Err(e),
                };
                Self::note(rows.get_mut(who), alone, &sides, who, &mut failed)?;
            }
        }
        self.end(sides, rows, failed)?;
        self.peers = peers;
        Ok(())
    }
}
