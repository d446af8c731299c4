//! The primary's slots against the longest prompt: arithmetic on numbers that a user knows before the engine starts.

use serde::Serialize;

use super::Mistake;

/// vLLM rounds a slot of the primary up to whole pages.
const PAGE: u64 = 4096;

/// What a model's blocks are like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Model {
    /// The longest prompt, in tokens.
    pub max_model_len: u64,
    /// KV bytes per token: all layers, all workers.
    pub bytes_per_token: u64,
    /// Tokens per block of the engine.
    pub block_tokens: u64,
}

/// How many slots the primary has, and how many the longest prompt takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PrimaryFit {
    /// Tokens per slot.
    pub slot_tokens: u64,
    /// Bytes per slot, in whole pages.
    pub slot_bytes: u64,
    /// Slots of the primary.
    pub slots: u64,
    /// Slots that the longest prompt takes.
    pub prompt_slots: u64,
    /// The least `cpu_bytes_to_use` that holds it.
    pub bytes_needed: u64,
}

impl PrimaryFit {
    /// Slots of `slot_tokens` tokens in a primary of `cpu_bytes` bytes; none where a number is zero or too large.
    pub(super) fn new(model: Model, slot_tokens: u64, cpu_bytes: u64) -> Option<Self> {
        let slot_bytes = model
            .bytes_per_token
            .checked_mul(slot_tokens)?
            .checked_next_multiple_of(PAGE)?;
        // a chunk that the prompt does not fill is not offloaded
        let prompt_slots = model.max_model_len.checked_div(slot_tokens)?;
        Some(Self {
            slot_tokens,
            slot_bytes,
            slots: cpu_bytes.checked_div(slot_bytes)?,
            prompt_slots,
            bytes_needed: prompt_slots.checked_mul(slot_bytes)?,
        })
    }

    /// Whether the longest prompt fits.
    pub fn fits(&self) -> bool {
        self.prompt_slots <= self.slots
    }

    pub(super) fn mistake(&self, model: Model, cpu_bytes: u64) -> Option<Mistake> {
        let Self {
            slot_tokens,
            slot_bytes,
            slots,
            prompt_slots,
            bytes_needed,
        } = self;
        let len = model.max_model_len;
        (!self.fits()).then(|| {
            Mistake::new(
                "cpu_bytes_to_use",
                format!(
                    "cpu_bytes_to_use = {cpu_bytes}: {slots} slots of {slot_bytes} bytes ({slot_tokens} tokens each), \
                     and a prompt of {len} tokens takes {prompt_slots}; {bytes_needed} or more is needed, or a smaller \
                     --max-model-len"
                ),
            )
        })
    }
}
