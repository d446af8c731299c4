//! What identifies a namespace below a root: its directory, and the configuration that was hashed into its name.

use std::{io, path::Path};

use crate::{
    error::{Error, ErrorKind, IoClass, Result, classify},
    fs::shared::{Served, Shared},
    io::{
        Disk,
        disk::{FileKind, OpenMode, read_full, write_full},
    },
    metrics::EvictReason,
    root::{ledger::Look, member::Member, names::CONFIG_FILE, ownership::unusable},
    sync::lock,
};

/// Makes the directories of the namespaces that are served and writes their `config.json`, within the bound; refuses a
/// directory that another identity wrote. What is not a member's own passes from its lease to the common bytes, before
/// it is made.
pub(crate) fn identify(shared: &Shared, member: &Member) -> Result<()> {
    (0..)
        .zip(&shared.served)
        .try_for_each(|(n, served)| identify_one(shared, member, n, served))
}

fn identify_one(shared: &Shared, member: &Member, number: u16, served: &Served) -> Result<()> {
    let (disk, root) = (&*shared.root.disk, &shared.root.path);
    let cost = shared.root.unit * 12;
    let config_dir = root.join(served.ns.config_dir());
    let config = config_dir.join(CONFIG_FILE);
    let own = disk.stat(shared.root.own_dir(number));
    if own.as_ref().is_ok_and(|st| st.kind != FileKind::Dir) {
        let own = shared.root.own_dir(number).display();
        return Err(Error::invalid(
            "open root",
            format!(
                "{own} is a file or a link; it must be a directory, since what lies behind a link is neither counted nor \
                 found again: use a root on that other file system"
            ),
        ));
    }
    let own_is_new = own.is_err();
    let is_there = !own_is_new && disk.stat(&config).is_ok();
    if is_there {
        let same = same_identity(disk, &config, served.ns.config());
        if !matches!(same, Ok(false)) {
            count_own(shared, number);
            return answer(shared, same.map(drop));
        }
    }
    let granted = match shared.make_room(cost, EvictReason::Trim) {
        // what it is can be told at another start
        Err(_) if is_there => {
            count_own(shared, number);
            return Ok(());
        }
        r => r,
    };
    let granted = granted.map_err(|no| {
        Error::new(
            ErrorKind::Full,
            "open root",
            format!(
                "no room within the bound for {cost} bytes: {}{}",
                no.0.as_str(),
                others(shared, member)
            ),
        )
    })?;
    let done = write_down(shared, member, (number, served), (cost, granted.keep()))?;
    count_own(shared, number);
    answer(shared, done)
}

/// Makes the directories and the configuration; `reserved` of its `cost` bytes were reserved.
fn write_down(
    shared: &Shared,
    member: &Member,
    (number, served): (u16, &Served),
    (cost, reserved): (u64, u64),
) -> Result<io::Result<()>> {
    let (disk, root) = (&*shared.root.disk, &shared.root.path);
    let config_dir = root.join(served.ns.config_dir());
    let config = config_dir.join(CONFIG_FILE);
    let touched = [root.clone(), config_dir.clone(), config.clone()];
    let measure = || {
        touched
            .iter()
            .map(|p| {
                disk.stat(p).map_or(0, |s| match s.kind {
                    FileKind::File => s.counted(shared.root.unit),
                    _ => s.allocated,
                })
            })
            .sum::<u64>()
    };
    let before = measure();
    pass(shared, member, i64::try_from(cost).unwrap_or(0), reserved)?;
    let done = (|| {
        for d in [shared.root.own_dir(number), &config_dir] {
            match disk.create_dir(d) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                _ => {}
            }
        }
        let write = || {
            let file = disk.open(&config, OpenMode::CreateNew, false)?;
            write_full(&*file, served.ns.config().as_bytes(), &[])
        };
        match write() {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                if same_identity(disk, &config, served.ns.config())? {
                    return Ok(());
                }
                disk.remove_file(&config)?;
                write()
            }
            r => r,
        }
    })();
    let grown = measure().saturating_sub(before);
    pass(
        shared,
        member,
        i64::try_from(grown).unwrap_or(0) - i64::try_from(cost).unwrap_or(0),
        0,
    )?;
    Ok(done)
}

/// Who else has how much of the root, for a message.
fn others(shared: &Shared, member: &Member) -> String {
    let Ok(Look::Page(page)) = member.ledger.look() else {
        return String::new();
    };
    let all: Vec<String> = page
        .used()
        .filter(|&(n, e)| n != member.number && e.lease > 0)
        .map(|(_, e)| format!("{} bytes are held by {}", e.lease, e.who()))
        .collect();
    let root = shared.root.path.display();
    match all.is_empty() {
        true => String::new(),
        false => format!(
            "; {}. What a dead one left beside living ones with a journal that cannot be used stays so until all of them \
             have ended and {root} is opened again",
            all.join(", ")
        ),
    }
}

/// Counts a namespace's own directory, unless it is counted.
fn count_own(shared: &Shared, number: u16) {
    if let Ok(st) = shared.root.disk.stat(shared.root.own_dir(number)) {
        let new = shared.root.dirs.also_top(number, st.allocated);
        lock(&shared.core).account.budget.add_resident(new);
    }
}

/// Passes bytes from this member's lease to the common ones; `reserved` of them were reserved.
fn pass(shared: &Shared, member: &Member, bytes: i64, reserved: u64) -> Result<()> {
    let moved = |n: u64, by: i64| n.saturating_add_signed(by);
    let done = member.change_within(crate::root::member::OPEN_PATIENCE, |p| {
        p.head.common = moved(p.head.common, bytes);
        if let Some(Some(e)) = p.member_mut(member.number) {
            e.lease = moved(e.lease, -bytes);
        }
        let mut core = lock(&shared.core);
        core.account.common = p.head.common;
        core.account.budget.release(reserved);
        let bound = core.account.budget.bound().unwrap_or(0);
        core.account.budget.set_bound(Some(moved(bound, -bytes)));
    });
    match done {
        Ok(Some(())) => Ok(()),
        Ok(None) => Err(Error::new(
            ErrorKind::Busy,
            "open root",
            "the ledger is held by somebody who does not let go",
        )),
        Err(e) => Err(Error::io("write the ledger", shared.root.path.display(), e)),
    }
}

fn answer(shared: &Shared, done: io::Result<()>) -> Result<()> {
    let (disk, root) = (&*shared.root.disk, &shared.root.path);
    match done {
        // stores will be refused; what is there can be served
        Err(error) if classify(&error) == IoClass::Full => {
            tracing::warn!(tier = %shared.name, %error, "the device is full; the namespace is not written down");
            Ok(())
        }
        Err(e) if e.kind() == io::ErrorKind::InvalidData => Err(Error::invalid("open root", e.to_string())),
        r => r.map_err(|e| unusable(disk, root, e)),
    }
}

/// What [`identify`] checks, without making anything.
pub(crate) fn recognise(shared: &Shared) -> Result<()> {
    shared
        .served
        .iter()
        .try_for_each(|served| recognise_one(shared, served))
}

fn recognise_one(shared: &Shared, served: &Served) -> Result<()> {
    let config = shared.root.path.join(served.ns.config_dir()).join(CONFIG_FILE);
    match same_identity(&*shared.root.disk, &config, served.ns.config()) {
        Err(e) if e.kind() == io::ErrorKind::InvalidData => Err(Error::invalid("open root", e.to_string())),
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io("open root", config.display(), e)),
        _ => Ok(()),
    }
}

/// Refuses a directory that another identity with the same short digest wrote. `false`: it is no identity, such as the
/// empty file of a crash, which the next start replaces; till then it harms nobody: trailers carry the whole digest.
fn same_identity(disk: &dyn Disk, config: &Path, ours: &str) -> io::Result<bool> {
    let file = disk.open(config, OpenMode::Read, false)?;
    let mut text = vec![0; 1 << 20];
    let n = read_full(&*file, &mut text, &mut [])?;
    let parse = |t: &[u8]| serde_json::from_slice::<serde_json::Value>(t).ok();
    match (parse(text.get(..n).unwrap_or_default()), parse(ours.as_bytes())) {
        (Some(theirs), Some(ours)) if theirs != ours => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "{} describes another namespace than this engine's; use another root, or remove that directory and the \
                 block directories beside it",
                config.display()
            ),
        )),
        (theirs, _) => Ok(theirs.is_some()),
    }
}
