"""A trained checkpoint to a GGUF (`qwen35`) with tokenizer and chat template. Needs torch and gguf, not llama.cpp."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

from bench.ledger.model import Shape
from bench.ledger.texts import TEMPLATE
from engine.synthetic import Constants, Geometry, describe_network, describe_tokens
from engine.vocabulary import CONTROL_TYPE, NORMAL, USER_DEFINED

CONTEXT = 32768  # tokens; trained on far fewer, and a stream of full context wants room
KINDS = ("F32", "F16", "Q8_0")
Weights = dict[str, NDArray[np.float32]]
ATTENTION = {"attn_q": "q", "attn_k": "k", "attn_v": "v", "attn_output": "o"}
DELTA_NET = {"attn_qkv": "qkv", "attn_gate": "gate", "ssm_beta": "beta", "ssm_alpha": "alpha", "ssm_out": "o"}
FEED_FORWARD = {"ffn_gate": "gate", "ffn_up": "up", "ffn_down": "down"}


def export(checkpoint: Path, tokenizer: Path, out: Path, kind: str = "F16") -> None:
    """Writes `out`; matrices in `kind` (F32, F16, Q8_0), vectors in F32. The embedding is tied to the output."""
    state = torch.load(checkpoint, weights_only=True)
    shape = Shape(**state["shape"])
    weights: Weights = {name: value.float().numpy() for name, value in state["model"].items()}
    writer = gguf.GGUFWriter(out, "qwen35")
    describe(writer, shape, kind)
    add_tokenizer(writer, json.loads(tokenizer.read_text()), shape.vocabulary)
    quantised = gguf.GGMLQuantizationType[kind]

    def matrix(name: str, source: str) -> None:
        writer.add_tensor(name + ".weight", gguf.quants.quantize(weights[source], quantised), raw_dtype=quantised)

    def vector(name: str, values: NDArray[np.float32]) -> None:
        writer.add_tensor(name, np.ascontiguousarray(values, np.float32))

    matrix("token_embd", "embedding.weight")
    vector("output_norm.weight", weights["norm.weight"])
    for index in range(shape.layers):
        source, target = f"layers.{index}.", f"blk.{index}."
        vector(target + "attn_norm.weight", weights[source + "mixer_norm.weight"])
        vector(target + "post_attention_norm.weight", weights[source + "ffn_norm.weight"])
        attention = (index + 1) % shape.interval == 0
        for name, own in (ATTENTION if attention else DELTA_NET).items():
            matrix(target + name, f"{source}mixer.{own}.weight")
        for name, values in mixer_vectors(weights, source + "mixer.", attention).items():
            vector(target + name, values)
        for name, own in FEED_FORWARD.items():
            matrix(target + name, f"{source}{own}.weight")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def mixer_vectors(weights: Weights, source: str, attention: bool) -> Weights:
    """The small tensors of a layer's mixer under llama.cpp's names."""
    if attention:
        return {f"attn_{x}_norm.weight": weights[f"{source}{x}_norm.weight"] for x in ("q", "k")}
    return {
        "ssm_conv1d.weight": weights[source + "conv"],
        "ssm_dt.bias": weights[source + "dt"],
        "ssm_a": -np.exp(weights[source + "log_a"]),
        "ssm_norm.weight": weights[source + "norm"],
    }


def describe(writer: gguf.GGUFWriter, shape: Shape, kind: str) -> None:
    """Geometry and hyperparameters."""
    heads = (shape.heads, shape.kv_heads, shape.head_size, shape.linear_heads, shape.linear_heads, shape.linear_size)
    geometry = Geometry(shape.width, shape.layers, shape.feed_forward, *heads, shape.vocabulary, kind, ctx=CONTEXT)
    fixed = Constants(shape.rope_base, shape.rotated, shape.convolution, shape.interval)
    describe_network(writer, "kvalet ledger", geometry, fixed)


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: dict[str, Any], size: int) -> None:
    """The byte-level BPE and the chat template."""
    tokens = [""] * size
    for text, index in tokenizer["model"]["vocab"].items():
        tokens[index] = text
    types = [NORMAL] * size
    special = {added["content"]: added["id"] for added in tokenizer["added_tokens"]}
    for text, index in special.items():
        tokens[index], types[index] = text, CONTROL_TYPE if text.startswith("<|") else USER_DEFINED
    merges = [" ".join(m) if isinstance(m, list) else m for m in tokenizer["model"]["merges"]]
    describe_tokens(writer, tokens, types, merges, (special["<|im_end|>"], special["<|endoftext|>"]))
    writer.add_chat_template(TEMPLATE.read_text())
