"""Weights to start a training from: those of an exported model, whatever its tokenizer. Layers as they are, embeddings by text.

From random weights the lookup of a name's value did not form in an hour; an earlier model brings the circuit for it along.
"""

from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer

from bench.ledger.export import ATTENTION, DELTA_NET, FEED_FORWARD
from bench.ledger.model import Shape
from bench.ledger.words import counter_names

Weights = dict[str, torch.Tensor]
SPACE = "\u0120"  # how byte-level BPE writes a space


def shape_of(reader: gguf.GGUFReader, vocabulary: int) -> Shape:
    """The geometry that the file states."""

    def number(key: str) -> int:
        return int(reader.fields[f"qwen35.{key}"].contents())

    return Shape(
        vocabulary=vocabulary,
        width=number("embedding_length"),
        layers=number("block_count"),
        feed_forward=number("feed_forward_length"),
        heads=number("attention.head_count"),
        kv_heads=number("attention.head_count_kv"),
        head_size=number("attention.key_length"),
        linear_heads=number("ssm.group_count"),
        linear_size=number("ssm.state_size"),
        convolution=number("ssm.conv_kernel"),
        interval=number("full_attention_interval"),
        rope_base=float(reader.fields["qwen35.rope.freq_base"].contents()),
        rotated=number("rope.dimension_count"),
    )


def load(path: Path, tokenizer: Tokenizer) -> tuple[Shape, Weights]:
    """Shape and state of a LedgerModel for `tokenizer` from an F16 or F32 GGUF."""
    reader = gguf.GGUFReader(path)
    tensors = {t.name: torch.from_numpy(np.array(t.data, np.float32)) for t in reader.tensors}
    shape = shape_of(reader, tokenizer.get_vocab_size())
    weights: Weights = {"norm.weight": tensors["output_norm.weight"]}
    for index in range(shape.layers):
        source, target = f"blk.{index}.", f"layers.{index}."
        attention = (index + 1) % shape.interval == 0
        names = {"attn_norm": "mixer_norm", "post_attention_norm": "ffn_norm", **FEED_FORWARD}
        names |= {name: f"mixer.{own}" for name, own in (ATTENTION if attention else DELTA_NET).items()}
        if attention:
            names |= {"attn_q_norm": "mixer.q_norm", "attn_k_norm": "mixer.k_norm"}
        weights |= {f"{target}{own}.weight": tensors[f"{source}{name}.weight"] for name, own in names.items()}
        if not attention:
            weights[target + "mixer.conv"] = tensors[source + "ssm_conv1d.weight"]
            weights[target + "mixer.dt"] = tensors[source + "ssm_dt.bias"]
            weights[target + "mixer.log_a"] = torch.log(-tensors[source + "ssm_a"])
            weights[target + "mixer.norm"] = tensors[source + "ssm_norm.weight"]
    weights["embedding.weight"] = embeddings(tensors["token_embd.weight"], reader, tokenizer)
    return shape, weights


def embeddings(old: torch.Tensor, reader: gguf.GGUFReader, tokenizer: Tokenizer) -> torch.Tensor:
    """A row a token: the old one of the same text, else the mean of the longest old tokens that spell it; names apart."""
    known = {text: index for index, text in enumerate(reader.fields["tokenizer.ggml.tokens"].contents())}
    new = torch.zeros(tokenizer.get_vocab_size(), old.shape[1])
    for text, index in tokenizer.get_vocab().items():
        new[index] = old[spelt(text, known)].mean(0)
    if any(name not in known for name in counter_names()):
        tell_names_apart(new, tokenizer)
    return new


def tell_names_apart(rows: torch.Tensor, tokenizer: Tokenizer) -> None:
    """Changes the rows of the counters' names, which the old tokenizer spelt in pieces.

    Both tokens of a name, with and without the space before it, get one identity beside the mean of their side: what they are
    spelt with, two digits (the names of the first model ended with digits, and its circuits look there), and a little noise.
    """
    digits = rows[[tokenizer.token_to_id(str(digit)) for digit in range(10)]]
    digits = digits - digits.mean(0)
    sides = [[tokenizer.token_to_id(before + name) for name in counter_names()] for before in ("", SPACE)]
    means = [rows[side].mean(0) for side in sides]
    noise = torch.Generator().manual_seed(0)
    for number, pair in enumerate(zip(*sides, strict=True)):
        own = sum(rows[token] - mean for token, mean in zip(pair, means, strict=True))
        own = own + digits[number % 10] + 0.7 * digits[(number // 10 + 3 * (number % 10)) % 10]
        own = own + torch.randn(rows.shape[1], generator=noise) * 0.03
        for token, mean in zip(pair, means, strict=True):
            rows[token] = mean + own


def spelt(text: str, known: dict[str, int]) -> list[int]:
    """Old tokens that spell `text`, the longest first."""
    found: list[int] = []
    while text:
        size = next((n for n in range(len(text), 0, -1) if text[:n] in known), 0)
        found += [known[text[:size]]] if size else []
        text = text[max(size, 1) :]
    return found or [0]
