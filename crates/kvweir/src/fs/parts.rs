//! What tiers are made of, as the builder collects it.

use std::{sync::Arc, time::Duration};

use crate::{
    clock::Clock,
    fs::settings::{FsSettings, Layout},
    io::Disk,
    namespace::Namespace,
    root::member::Joined,
    sync::Bell,
};

/// One namespace to serve from a root: a model's blocks, all of one length, in a layout of their own.
#[derive(Debug, Clone)]
pub struct FsSpace {
    pub(crate) name: String,
    pub(crate) ns: Namespace,
    pub(crate) block_len: usize,
    /// `None`: as the root's settings say.
    pub(crate) layout: Option<Layout>,
    pub(crate) bell: Arc<Bell>,
}

impl FsSpace {
    /// Blocks of `block_len` bytes of namespace `ns`; `name` is the tier's in metrics and logs.
    pub fn new(name: impl Into<String>, ns: Namespace, block_len: usize) -> Self {
        Self {
            name: name.into(),
            ns,
            block_len,
            layout: None,
            bell: Arc::default(),
        }
    }

    /// Another layout of new blocks than [`FsSettings::layout`], which the first namespace has.
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// A bell to ring whenever a report of its tier is ready.
    #[must_use]
    pub fn bell(mut self, bell: Arc<Bell>) -> Self {
        self.bell = bell;
        self
    }

    /// The root's settings, as they are for this space.
    pub(crate) fn settings(&self, root: &FsSettings) -> FsSettings {
        FsSettings {
            layout: self.layout.unwrap_or(root.layout),
            ..root.clone()
        }
    }
}

/// What the builder brings in.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) settings: FsSettings,
    pub(crate) first: FsSpace,
    pub(crate) others: Vec<FsSpace>,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) slots_outlive_reports: bool,
    /// The machine's current boot; `None`: as the system says.
    pub(crate) boot: Option<[u8; 16]>,
    pub(crate) patience: Duration,
}

impl Parts {
    /// All spaces, in the order of their numbers.
    pub(crate) fn spaces(&self) -> impl Iterator<Item = &FsSpace> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

/// A root that was entered: what is known of it before the tiers are built.
pub(crate) struct Entered {
    /// Unit of allocation of its file system, in bytes.
    pub(crate) unit: u64,
    /// The membership of a bounded root.
    pub(crate) joined: Option<Joined>,
    /// A number for this life of the process.
    pub(crate) nonce: u64,
    /// The file system is another machine's or process's.
    pub(crate) may_hang: bool,
}
