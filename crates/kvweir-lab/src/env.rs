//! Where and when a measurement was made.

use std::path::Path;

use kvweir::clock::Clock;
use rustix::time::{ClockId, clock_gettime};

use crate::print::say;

/// Prints machine, date and seed; `dir` adds its file system.
pub(crate) fn tell(clock: &dyn Clock, seed: u64, dir: Option<&Path>) {
    let u = rustix::system::uname();
    let model = std::fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|t| {
            t.lines().find_map(|l| {
                l.strip_prefix("model name")
                    .map(|r| r.trim_start_matches([' ', '\t', ':']).to_owned())
            })
        })
        .unwrap_or_else(|| "unknown CPU".into());
    say(&format!(
        "machine   {} usable CPUs, {model}, {} {}",
        kvweir::io::pool::usable_cpus(),
        u.sysname().to_string_lossy(),
        u.release().to_string_lossy()
    ));
    if let Some(dir) = dir {
        say(&format!("directory {} on {}", dir.display(), file_system(dir)));
    }
    say(&format!("date      {}, seed {seed}", date(clock.unix_seconds())));
    if cfg!(debug_assertions) {
        say("note      built without optimisation: numbers mean nothing");
    }
}

/// CPU time of this process, all threads, user and system; the kernel's workers of a ring are threads of it.
pub(crate) fn cpu_seconds() -> f64 {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

/// Type and source of the file system of `dir`: the longest mount point that leads to it.
fn file_system(dir: &Path) -> String {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|l| {
            let mut f = l.split(' ');
            let (source, at, kind) = (f.next()?, f.next()?, f.next()?);
            dir.starts_with(at)
                .then(|| (at.len(), format!("{kind} ({source} at {at})")))
        })
        .max()
        .map_or_else(|| "unknown file system".into(), |(_, text)| text)
}

/// `YYYY-MM-DD hh:mm UTC`, by the civil calendar.
fn date(unix: u64) -> String {
    let (mut days, secs) = (unix / 86_400, unix % 86_400);
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for len in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < len {
            break;
        }
        days -= len;
        month += 1;
    }
    format!(
        "{year}-{month:02}-{:02} {:02}:{:02} UTC",
        days + 1,
        secs / 3600,
        secs / 60 % 60
    )
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (unix, want) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59 UTC"),
        ] {
            assert_eq!(date(unix), want);
        }
    }
}
