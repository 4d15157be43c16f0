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

KINDS = ("F32", "F16", "Q8_0")
CONTROL, USER_DEFINED, NORMAL = 3, 4, 1  # llama.cpp's token types
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
    describe(writer, shape)
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


def describe(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Geometry and hyperparameters."""
    writer.add_name("kvalet ledger")
    writer.add_context_length(32768)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_rope_dimension_count(shape.rotated)
    section = shape.rotated // 2
    writer.add_rope_dimension_sections([section - 2 * (section // 3), section // 3, section // 3, 0])
    writer.add_ssm_conv_kernel(shape.convolution)
    writer.add_ssm_state_size(shape.linear_size)
    writer.add_ssm_group_count(shape.linear_heads)
    writer.add_ssm_time_step_rank(shape.linear_heads)
    writer.add_ssm_inner_size(shape.linear_heads * shape.linear_size)
    writer.add_full_attention_interval(shape.interval)


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: dict[str, Any], size: int) -> None:
    """Byte-level BPE as llama.cpp's `gpt2` model with the `qwen35` split, and the chat template."""
    tokens = [""] * size
    for text, index in tokenizer["model"]["vocab"].items():
        tokens[index] = text
    types = [NORMAL] * size
    special = {added["content"]: added["id"] for added in tokenizer["added_tokens"]}
    for text, index in special.items():
        tokens[index], types[index] = text, CONTROL if text.startswith("<|") else USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(m) if isinstance(m, list) else m for m in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(special["<|im_end|>"])
    writer.add_pad_token_id(special["<|endoftext|>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE.read_text())
