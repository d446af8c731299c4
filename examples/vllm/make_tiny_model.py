"""Makes a Llama of random weights that fits any machine, and a tokenizer of one token per byte. Nothing is downloaded.

    python make_tiny_model.py DIRECTORY

It answers nonsense, always the same nonsense: enough to see a prefix cache at work. A token takes 4 KiB of KV cache.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ("<bos>", "<eos>", "<pad>")
CONTEXT = 8192


def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, as byte-level BPE without merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *alphabet))}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    bos, eos, pad = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token=bos, eos_token=eos, pad_token=pad, model_max_length=CONTEXT
    )


def model(tokens: int) -> LlamaForCausalLM:
    """Four layers; 2 (K and V) x 4 layers x 2 heads x 64 numbers of 4 bytes are 4 KiB per token."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=tokens,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        dtype="float32",
    )
    return LlamaForCausalLM(config).to(torch.float32)


def main() -> None:
    """Writes both."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    place = Path(sys.argv[1])
    words = tokenizer()
    words.save_pretrained(place)
    weights = model(len(words))
    weights.save_pretrained(place)
    print(f"{sum(p.numel() for p in weights.parameters())} parameters in {place}")


if __name__ == "__main__":
    main()
