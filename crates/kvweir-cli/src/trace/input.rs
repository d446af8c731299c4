//! What a trace is read from: a file, a pipe or a terminal that may keep one waiting. A signal ends it.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    os::{fd::AsFd, unix::fs::OpenOptionsExt},
    path::Path,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::OFlags,
    io::Errno,
};

use crate::interrupt;

/// Between two looks for a signal.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

pub(super) struct Input(File);

impl Input {
    pub(super) fn stdin() -> io::Result<Self> {
        Ok(Self(File::from(io::stdin().as_fd().try_clone_to_owned()?)))
    }

    pub(super) fn open(path: &Path) -> io::Result<Self> {
        // else opening a pipe would wait until somebody writes to it
        let flags = OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        if file.metadata()?.is_dir() {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, "is a directory"));
        }
        Ok(Self(file))
    }
}

impl Read for Input {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while !interrupt::came() {
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut fds, Some(&LOOK)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(e) => return Err(e.into()),
            }
            match self.0.read(buf) {
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                r => return r,
            }
        }
        Ok(0)
    }
}
