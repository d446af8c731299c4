//! What the numbers of a run mean, and what to try, where many blocks were not stored.

use kvweir::fs::{Layout, PACK_BELOW};

use crate::{
    settings::ReplaySettings,
    summary::{Summary, TierSummary},
    table::{bytes, count},
};

/// One block of so many not stored is told of.
const NOTABLE: u64 = 10;

/// Notes on `summary`, whose file tier laid new blocks out as `layout`.
pub(super) fn notes(summary: &Summary, settings: &ReplaySettings, layout: Layout) -> Vec<String> {
    let of_tier = |t: &TierSummary| [not_stored(t, settings, layout), t.above_bound()];
    let mut notes: Vec<String> = summary.tiers.iter().flat_map(of_tier).flatten().collect();
    let crowded = summary.primary.without_slot;
    if crowded > 0 && crowded * NOTABLE >= summary.blocks_requested {
        notes.push(format!(
            "{} of {} blocks found no slot in the primary tier, whose {} were in use; try a larger --primary-bytes, or a \
             lower --concurrency",
            count(crowded),
            count(summary.blocks_requested),
            count(settings.primary_slots())
        ));
    }
    notes
}

fn lost(t: &TierSummary) -> u64 {
    t.drops.values().chain(t.refused.values()).sum()
}

fn not_stored(t: &TierSummary, settings: &ReplaySettings, layout: Layout) -> Option<String> {
    let lost = lost(t);
    let all = lost + t.blocks_stored;
    if lost * NOTABLE < all || lost == 0 {
        return None;
    }
    let by_reason = t.drops.iter().chain(&t.refused);
    let (reason, _) = by_reason.max_by_key(|(_, n)| **n)?;
    let small = layout == Layout::Fs && settings.block_bytes < PACK_BELOW as u64;
    let pack = match (small, settings.layout, settings.max_bytes) {
        (true, Layout::Fs, Some(_)) => Some("--layout auto, which packs blocks this small into large files"),
        (true, _, None) => Some("--max-bytes: below a bound, blocks this small are packed into large files"),
        _ => None,
    };
    let (why, attempt) = explain(reason, settings)?;
    Some(format!(
        "{} of {} blocks were not stored, most for `{reason}`: {why}; try {}",
        count(lost),
        count(all),
        pack.unwrap_or(attempt)
    ))
}

/// What a reason means, and what to try; nothing where it was asked for.
fn explain(reason: &str, settings: &ReplaySettings) -> Option<(String, &'static str)> {
    let p = &settings.pressure;
    let (why, attempt) = match reason {
        "pressure" | "cooldown" => {
            let why = format!("stores took over {} s per MiB (high_water_s)", p.high_water_s);
            return Some((
                why,
                "`kvweir bench DIR` on the device, a faster one, or a higher --high-water-s",
            ));
        }
        "inflight_full" | "job_too_large" => {
            let why = format!(
                "over {} would have waited for the device",
                bytes(settings.max_inflight())
            );
            return Some((
                why,
                "a larger --primary-bytes or --max-inflight-bytes, or a slower --time-scale",
            ));
        }
        "no_room" => (
            "all that is left within the bound is in use",
            "a larger --max-bytes, or a lower --concurrency",
        ),
        "too_large" => (
            "one block is larger than the bound in force",
            "a larger --max-bytes",
        ),
        "trimming" => (
            "the root was read or trimmed to its bound meanwhile",
            "the same again: the root is within its bound now",
        ),
        "no_space" => ("the device is full", "to free space, or a smaller --max-bytes"),
        "queue_full" => (
            "too many blocks waited for workers",
            "a lower --concurrency, or --backpressure",
        ),
        "io" | "timeout" | "breaker" => ("the device failed or hung", "`kvweir doctor ROOT`"),
        _ => return None,
    };
    Some((why.to_owned(), attempt))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::settings::Flags;

    fn told(
        stored: u64,
        drops: &[(&str, u64)],
        layout: Layout,
        bound: Option<u64>,
        resident: u64,
    ) -> Vec<String> {
        let mut settings = ReplaySettings::load(None, Flags::default()).unwrap();
        settings.layout = layout;
        settings.max_bytes = bound;
        let tier = TierSummary {
            blocks_stored: stored,
            drops: drops.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect(),
            refused: BTreeMap::new(),
            bytes_resident: resident,
            bound_bytes: bound,
            ..TierSummary::default()
        };
        let summary = Summary {
            blocks_requested: 1000,
            tiers: vec![tier],
            ..Summary::default()
        };
        notes(&summary, &settings, Layout::Fs)
    }

    #[test]
    fn a_high_drop_count_is_explained_with_what_to_try() {
        let many = [("pressure", 18_000), ("cooldown", 491)];
        let note = told(1398, &many, Layout::Fs, Some(1 << 30), 0).join("|");
        assert!(
            note.starts_with("18,491 of 19,889 blocks were not stored, most for `pressure`"),
            "{note}"
        );
        assert!(note.contains("--layout auto"), "{note}");
        let note = told(1398, &many, Layout::Auto, None, 0).join("|");
        assert!(note.contains("try --max-bytes"), "{note}");
        let note = told(0, &[("io", 5)], Layout::Auto, Some(1 << 30), 0).join("|");
        assert!(note.contains("kvweir doctor"), "{note}");
        assert_eq!(
            told(1000, &[("pressure", 99)], Layout::Fs, Some(1 << 30), 0),
            [""; 0]
        );
    }

    #[test]
    fn what_is_left_above_the_bound_is_told() {
        let note = told(1, &[], Layout::Auto, Some(10 << 20), 160 << 20).join("|");
        assert!(
            note.starts_with("150.0 MiB are left above the bound of 10.0 MiB"),
            "{note}"
        );
        assert_eq!(told(1, &[], Layout::Auto, Some(10 << 20), 10 << 20), [""; 0]);
    }
}
