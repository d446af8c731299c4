//! Which namespaces can be imported, and whether there is room for them.

use super::{
    imported::{ImportOptions, ImportedNamespace},
    importer::{Importer, Target},
};
use crate::{
    admin::{identity::Config, survey::Content},
    error::{Error, ErrorKind, Result},
    root::trailer::TRAILER_BYTES,
    sync::Mutex,
};

impl Importer<'_> {
    /// Chooses the namespaces that can be imported; returns the others, with reasons.
    pub(super) fn choose(&mut self, content: &Content, options: &ImportOptions) -> Vec<ImportedNamespace> {
        let mut passed_over = Vec::new();
        for facts in content.namespaces.values() {
            let config = Config::read(&*self.from.disk, &self.from.root, &facts.name());
            let e = facts.expected(&*self.from.disk, &config);
            let len = options.block_bytes.or(e.block_len);
            let mut report = ImportedNamespace {
                directory: facts.name(),
                block_bytes: len,
                passed_over: None,
                imported: 0,
                present: 0,
                wrong_size: 0,
                damaged: 0,
                extents: facts.extents.files,
            };
            let why = match (&config, len) {
                _ if facts.blocks.files == 0 => {
                    if facts.extents.files > 0 {
                        passed_over.push(report);
                    }
                    continue;
                }
                (Config::Missing, _) => "its identity is not known: there is no config.json".into(),
                (Config::Unusable(why), _) => format!("its identity is not known: {why}"),
                (_, None) => "most of its files differ in length; say what a block has".into(),
                (Config::Known(ns, _), Some(len)) => {
                    self.targets.push(Target {
                        from: facts.path.clone(),
                        into: self.to.root.join(ns.dir()),
                        digest: *ns.digest(),
                        len,
                        report: Mutex::new(report),
                    });
                    continue;
                }
            };
            report.passed_over = Some(why);
            passed_over.push(report);
        }
        passed_over
    }

    /// Refuses an import for which there is no room.
    pub(super) fn has_room(&self, content: &Content) -> Result<()> {
        let trailer = TRAILER_BYTES as u64;
        let mut need: u64 = 0;
        for t in &self.targets {
            let facts = content.namespaces.values().find(|f| f.path == t.from);
            let files = facts.and_then(|f| f.lens.get(&t.len)).copied().unwrap_or(0);
            need = need.saturating_add(if self.in_place {
                files * trailer + (t.len + trailer) * self.to.threads as u64
            } else {
                // up to two directories per block
                files * (t.len + 3 * trailer)
            });
        }
        let space = self.to.disk.space(&self.to.root);
        let space = space.map_err(|e| Error::io("ask for space", self.to.root.display(), e))?;
        if need <= space.available {
            return Ok(());
        }
        let message = format!(
            "{} has {} bytes free; up to {need} are needed",
            self.to.root.display(),
            space.available
        );
        Err(Error::new(ErrorKind::Full, "import", message))
    }
}
