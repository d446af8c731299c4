//! A namespace: everything that makes two equal keys hold different bytes. Its identity becomes one directory
//! name (the stock vLLM name wherever that is safe) and a 32-byte digest that every trailer repeats, so that even
//! a colliding or renamed directory can never serve another model's bytes (I2).

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};

/// Longest model part of a directory name, in bytes; longer names are cut and carry a longer digest.
const MAX_MODEL_BYTES: usize = 160;

/// The KV-cache groups of a model, as the stock identity lists them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheGroup {
    /// Tokens in one block of this group.
    pub tokens_per_block: u64,
    /// The layers whose KV the group holds.
    pub layer_names: Vec<String>,
}

/// The fields that name a namespace.
///
/// ```
/// use kvweir::namespace::{Identity, Namespace};
/// let ns = Namespace::new(&Identity { model_name: "org/model-7b".into(), ..Identity::default() })?;
/// assert!(ns.dir().starts_with("org_model-7b_") && ns.dir().ends_with("_r0"));
/// # Ok::<(), kvweir::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Identity {
    /// Name of the model as the engine was given it.
    pub model_name: String,
    /// Tokens that one block hash covers.
    pub tokens_per_hash: u64,
    /// Engine blocks in one stored block.
    pub blocks_per_file: u64,
    /// Tensor-parallel ranks.
    pub tp_size: u64,
    /// Pipeline-parallel ranks.
    pub pp_size: u64,
    /// Prefill-context-parallel ranks.
    pub pcp_size: u64,
    /// Decode-context-parallel ranks.
    pub dcp_size: u64,
    /// This engine's rank.
    pub rank: u64,
    /// Element type of the cache.
    pub dtype: String,
    /// The groups of the cache.
    pub kv_cache_groups: Vec<CacheGroup>,
    /// Which engine's byte layout the blocks have.
    pub inference_engine: String,
    /// Whether the bytes are the same whatever the parallelism.
    pub parallel_agnostic: bool,
    /// Whether every rank holds the same bytes.
    pub replicated_layout: bool,
    /// Name of a canonical byte format, if the blocks have one.
    pub canonical_format: Option<String>,
    /// Free text for what else distinguishes the bytes: revision, RoPE scaling, adapter... Empty changes nothing.
    pub namespace_extra: String,
}

impl Default for Identity {
    fn default() -> Self {
        Self {
            model_name: "model".into(),
            tokens_per_hash: 16,
            blocks_per_file: 1,
            tp_size: 1,
            pp_size: 1,
            pcp_size: 1,
            dcp_size: 1,
            rank: 0,
            dtype: "bfloat16".into(),
            kv_cache_groups: Vec::new(),
            inference_engine: "vllm".into(),
            parallel_agnostic: true,
            replicated_layout: false,
            canonical_format: None,
            namespace_extra: String::new(),
        }
    }
}

impl Identity {
    /// The fields as the stock layout writes and hashes them.
    fn fields(&self) -> Map<String, Value> {
        let mut m = Map::new();
        let mut put = |k: &str, v: Value| m.insert(k.into(), v);
        put("model_name", self.model_name.clone().into());
        put("tokens_per_hash", self.tokens_per_hash.into());
        put("blocks_per_file", self.blocks_per_file.into());
        put("tp_size", self.tp_size.into());
        put("pp_size", self.pp_size.into());
        put("pcp_size", self.pcp_size.into());
        put("dcp_size", self.dcp_size.into());
        put("dtype", self.dtype.clone().into());
        let groups = self.kv_cache_groups.iter().map(|g| {
            let mut group = Map::new();
            group.insert("tokens_per_block".into(), g.tokens_per_block.into());
            group.insert("layer_names".into(), g.layer_names.clone().into());
            Value::Object(group)
        });
        put("kv_cache_groups", groups.collect());
        put("inference_engine", self.inference_engine.clone().into());
        if !self.parallel_agnostic {
            put("parallel_agnostic", false.into());
        }
        if self.replicated_layout {
            put("replicated_layout", true.into());
        }
        if let Some(f) = &self.canonical_format {
            put("canonical_format", f.clone().into());
        }
        m
    }
}

/// A named and digested namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    config_dir: String,
    dir: String,
    config: String,
    digest: [u8; 32],
    seed: u64,
}

impl Namespace {
    /// The namespace of `identity`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when the model name is empty.
    pub fn new(identity: &Identity) -> Result<Self> {
        Self::from_fields(identity.fields(), identity.rank, &identity.namespace_extra)
    }

    /// The namespace of identity fields as an engine writes them to its `config.json`, with the rank (which is
    /// not part of them) and `namespace_extra` (empty: none).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) without a non-empty text field `model_name`.
    pub fn from_fields(mut fields: Map<String, Value>, rank: u64, namespace_extra: &str) -> Result<Self> {
        let model = match fields.get("model_name") {
            Some(Value::String(s)) if !s.is_empty() => s.clone(),
            _ => {
                return Err(Error::invalid(
                    "name namespace",
                    "model_name must be a non-empty text",
                ));
            }
        };
        if !namespace_extra.is_empty() {
            fields.insert("namespace_extra".into(), namespace_extra.into());
        }
        let config = canonical_json(&Value::Object(fields));
        let hex = hex(&Sha256::digest(config.as_bytes()));
        let config_dir = dir_name(&model, &hex);
        let dir = format!("{config_dir}_r{rank}");
        let digest = Sha256::new()
            .chain_update(&config)
            .chain_update(format!("\n{rank}"))
            .finalize()
            .into();
        let seed = dir_seed(&dir);
        Ok(Self {
            config_dir,
            dir,
            config,
            digest,
            seed,
        })
    }

    /// The directory, one component below the root, that holds the blocks.
    pub fn dir(&self) -> &str {
        &self.dir
    }

    /// The directory, one component below the root, that holds `config.json`.
    pub fn config_dir(&self) -> &str {
        &self.config_dir
    }

    /// The identity as canonical JSON: sorted keys, no spaces, ASCII.
    pub fn config(&self) -> &str {
        &self.config
    }

    /// SHA-256 of the identity and rank, repeated in every trailer.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// The seed of this namespace's fingerprints.
    pub fn seed(&self) -> u64 {
        self.seed
    }
}

/// The fingerprint seed of the namespace in directory `dir`.
pub(crate) fn dir_seed(dir: &str) -> u64 {
    xxh3_64(dir.as_bytes())
}

/// `<model>_<digest>`: the stock name where that is one safe component, else a cleaned, cut name with a digest
/// long enough to tell all models apart on its own.
fn dir_name(model: &str, hex: &str) -> String {
    let stock = model.replace('/', "_");
    let safe = stock.len() <= MAX_MODEL_BYTES
        && !stock.starts_with('.')
        && !stock.chars().any(|c| c.is_control() || c == '\\');
    if safe {
        return format!("{stock}_{}", hex.get(..12).unwrap_or(hex));
    }
    let clean = |c: char| {
        if c.is_ascii_alphanumeric() || "-_".contains(c) {
            c
        } else {
            '_'
        }
    };
    let cut: String = model.chars().map(clean).take(MAX_MODEL_BYTES / 2).collect();
    format!("{cut}_{}", hex.get(..40).unwrap_or(hex))
}

/// Lower-case hexadecimal of `bytes`.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |n: u8| char::from(if n < 10 { b'0' + n } else { b'a' + n - 10 });
    let mut s = String::with_capacity(bytes.len() * 2);
    for &b in bytes {
        s.push(digit(b >> 4));
        s.push(digit(b & 15));
    }
    s
}

/// JSON with sorted keys, no spaces and non-ASCII characters escaped, as the stock layout hashes it.
fn canonical_json(v: &Value) -> String {
    let plain = v.to_string();
    if plain.is_ascii() {
        return plain;
    }
    let mut out = String::with_capacity(plain.len() + 16);
    for c in plain.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            let mut units = [0; 2];
            for u in c.encode_utf16(&mut units) {
                let _ = write!(out, "\\u{u:04x}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn named(model: &str) -> Namespace {
        Namespace::new(&Identity {
            model_name: model.into(),
            ..Identity::default()
        })
        .unwrap()
    }

    #[test]
    fn the_directory_is_the_one_the_stock_layout_computes() {
        // computed with Python's json.dumps(sort_keys=True, separators=(",", ":")) and hashlib.sha256
        let id = Identity {
            model_name: "harness/model".into(),
            kv_cache_groups: vec![CacheGroup {
                tokens_per_block: 16,
                layer_names: vec!["layer.0".into()],
            }],
            parallel_agnostic: false,
            ..Identity::default()
        };
        assert_eq!(
            Namespace::new(&id).unwrap().dir(),
            "harness_model_c5aa37a75b80_r0"
        );
        assert_eq!(named("mod\u{e8}le").config_dir(), "mod\u{e8}le_9eb773ecea7c");
    }

    #[test]
    fn names_that_the_stock_layout_confuses_get_directories_of_their_own() {
        let long = "x".repeat(300);
        let longer = "x".repeat(301);
        let names = [
            "org/model-x",
            "org/model/x",
            "org_model-x",
            "..",
            "../../etc",
            ".",
            "a\0b",
            "a\nb",
            "/abs",
            &long,
            &longer,
            "C:\\x",
            ".hidden",
        ];
        let dirs: BTreeSet<String> = names.iter().map(|n| named(n).dir().to_owned()).collect();
        assert_eq!(dirs.len(), names.len());
        for d in dirs {
            assert!(
                d.len() < 255 && !d.contains(['/', '\0', '\n', '\\']) && !d.starts_with('.'),
                "{d:?}"
            );
        }
    }

    #[test]
    fn every_field_and_the_extra_text_change_the_namespace() {
        let base = Identity::default();
        let variants = [
            Identity {
                tokens_per_hash: 32,
                ..base.clone()
            },
            Identity {
                blocks_per_file: 2,
                ..base.clone()
            },
            Identity {
                tp_size: 2,
                ..base.clone()
            },
            Identity {
                rank: 1,
                ..base.clone()
            },
            Identity {
                dtype: "fp8".into(),
                ..base.clone()
            },
            Identity {
                replicated_layout: true,
                ..base.clone()
            },
            Identity {
                canonical_format: Some("f1".into()),
                ..base.clone()
            },
            Identity {
                namespace_extra: "rope=2".into(),
                ..base.clone()
            },
            base,
        ];
        let spaces: Vec<_> = variants.iter().map(|i| Namespace::new(i).unwrap()).collect();
        let dirs: BTreeSet<_> = spaces.iter().map(Namespace::dir).collect();
        let digests: BTreeSet<_> = spaces.iter().map(Namespace::digest).collect();
        assert_eq!((dirs.len(), digests.len()), (variants.len(), variants.len()));
        assert!(
            Namespace::new(&Identity {
                model_name: String::new(),
                ..Identity::default()
            })
            .is_err()
        );
    }

    proptest! {
        #[test]
        fn any_model_name_becomes_one_bounded_component(model in "\\PC{1,400}|[\\x00-\\x7f/.]{1,300}") {
            let ns = named(&model);
            for d in [ns.dir(), ns.config_dir()] {
                prop_assert!(d.len() < 255, "{} bytes", d.len());
                prop_assert!(!d.contains(['/', '\0']) && d != "." && d != "..");
            }
        }
    }
}
