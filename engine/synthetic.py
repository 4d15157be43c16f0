"""Random-weight Qwen3.5 GGUFs of any size: hybrid models to test and measure with where no weights can be had.

A spec is a preset with changes, `tiny` or `custom,layers=12,embd=512,type=Q8_0`. The same spec gives the same bytes on every
machine: weights are raw PCG64 output (numpy promises that stream; it does not promise `standard_normal`'s) used as int8 times
a constant, which is exact in F32 and Q8_0 alike and about ten times as fast as drawing and quantising normal numbers.
Geometry and tensor names are those of llama.cpp's `qwen35`.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import sqrt
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from engine.errors import ModelError
from engine.vocabulary import END_OF_TURN, NORMAL, WORDS, Vocabulary, byte_alphabet, make_vocabulary

VERSION = 1  # part of the file's name in the cache: raise it when this code makes other bytes of the same spec
TEMPLATE = Path(__file__).with_name("qwen35.jinja")
UNIFORM_SPREAD = 73.9  # standard deviation of a uniform int8
LOGIT_SPREAD = 3.0  # of the final logits: peaked enough for a stable argmax, flat enough that sampling varies
MUTED = 0.1  # row scale of tokens that should not come up by themselves
CONV_KERNEL = 4
ATTENTION_EVERY = 4
Progress = Callable[[str, int, int], None]
"""Called with what is being made, bytes done, bytes in all."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """The shape of a model. Widths in numbers, `type` a weight type (F32, F16, Q8_0), `ctx` the context it declares in tokens."""

    embd: int = 256
    layers: int = 8
    ff: int = 512
    heads: int = 4
    kv: int = 2
    head_dim: int = 64
    key_heads: int = 4
    value_heads: int = 8
    state: int = 32
    vocab: int = 2048
    type: str = "F32"
    ctx: int = 262144
    seed: int = 0

    @property
    def key_width(self) -> int:
        return self.key_heads * self.state

    @property
    def value_width(self) -> int:
        return self.value_heads * self.state


@dataclass(frozen=True, slots=True)
class Constants:
    """What no size changes: the rotary embedding's base, how many dimensions of a head it turns, the short convolution's length,
    and that one layer in `interval` is attention."""

    rope_base: float
    rotated: int
    convolution: int = CONV_KERNEL
    interval: int = ATTENTION_EVERY


TINY = Geometry()
PRESETS = {
    "tiny": TINY,
    "tiny-q8": replace(TINY, type="Q8_0"),
    "custom": TINY,
    "0.8b": Geometry(1024, 24, 3584, 8, 2, 256, 16, 16, 128, 248320, "Q8_0"),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor to write: shape as numpy has it, and what fills it. `spread` is the standard deviation of random weights."""

    name: str
    shape: tuple[int, ...]
    fill: str  # ones, noise, weight, decay, step
    spread: float = 0.0


def parse_spec(spec: str) -> Geometry:
    """`preset,name=value,…` to a geometry. Raises ModelError naming what is wrong and what there is."""
    preset, *changes = spec.split(",")
    if preset not in PRESETS:
        raise ModelError(f"no synthetic model {preset!r}; there are {', '.join(PRESETS)}, each with changes such as ,layers=12")
    changed: dict[str, Any] = dict(_change(change) for change in changes)
    geometry = replace(PRESETS[preset], **changed)
    _check(geometry)
    return geometry


def _change(text: str) -> tuple[str, int | str]:
    name, _, value = text.partition("=")
    names = [field.name for field in fields(Geometry)]
    if name not in names:
        raise ModelError(f"no option {name!r} for a synthetic model; there are {', '.join(names)}")
    if name == "type":
        return name, value.upper()
    if not value.isascii() or not value.isdigit():
        raise ModelError(f"option {name} of a synthetic model wants a whole number, not {value!r}")
    return name, int(value)


def _check(geometry: Geometry) -> None:
    """What llama.cpp would refuse (or die of) later."""
    rules = {
        "type is F32, F16 or Q8_0": geometry.type in ("F32", "F16", "Q8_0"),
        "all sizes are at least 1": all(value > 0 for name, value in asdict(geometry).items() if name not in ("seed", "type")),
        "embd, ff, state and heads x head_dim are multiples of 32": not any(
            width % 32 for width in (geometry.embd, geometry.ff, geometry.state, geometry.heads * geometry.head_dim)
        ),
        "head_dim is a multiple of 32": geometry.head_dim % 32 == 0,
        "heads is a multiple of kv": geometry.kv > 0 and geometry.heads % geometry.kv == 0,
        "value_heads is a multiple of key_heads": geometry.key_heads > 0 and geometry.value_heads % geometry.key_heads == 0,
        "vocab is at least 320": geometry.vocab >= 320,
    }
    for rule, holds in rules.items():
        if not holds:
            raise ModelError(f"synthetic model: {rule}")


def digest(geometry: Geometry) -> str:
    """Names in file names what a model is made from (geometry, template, word list, this code's version), 12 hex digits."""
    made_from = (VERSION, asdict(geometry), TEMPLATE.read_text(encoding="utf-8"), WORDS)
    return hashlib.blake2b(repr(made_from).encode(), digest_size=6).hexdigest()


def parameters(geometry: Geometry) -> int:
    """How many weights the model has."""
    return sum(int(np.prod(tensor.shape)) for tensor in tensors(geometry))


def tensors(geometry: Geometry) -> Iterator[Tensor]:
    """Every tensor in file order. The output matrix is the embedding (tied), as in Qwen3.5-0.8B."""
    g = geometry
    yield Tensor("token_embd.weight", (g.vocab, g.embd), "weight", LOGIT_SPREAD / sqrt(g.embd))
    yield Tensor("output_norm.weight", (g.embd,), "ones")
    for number in range(g.layers):
        layer = f"blk.{number}."
        yield Tensor(layer + "attn_norm.weight", (g.embd,), "ones")
        yield Tensor(layer + "post_attention_norm.weight", (g.embd,), "ones")
        yield from _attention(g, layer) if (number + 1) % ATTENTION_EVERY == 0 else _delta_net(g, layer)
        yield _matrix(layer + "ffn_gate", g.ff, g.embd)
        yield _matrix(layer + "ffn_down", g.embd, g.ff)
        yield _matrix(layer + "ffn_up", g.ff, g.embd)


def _matrix(name: str, rows: int, columns: int) -> Tensor:
    """A projection that keeps the size of what goes through it: standard deviation columns^-1/2."""
    return Tensor(name + ".weight", (rows, columns), "weight", 1 / sqrt(columns))


def _attention(g: Geometry, layer: str) -> Iterator[Tensor]:
    """Gated attention: the query projection also makes the gate, hence twice the rows."""
    yield _matrix(layer + "attn_q", g.heads * g.head_dim * 2, g.embd)
    yield _matrix(layer + "attn_k", g.kv * g.head_dim, g.embd)
    yield _matrix(layer + "attn_v", g.kv * g.head_dim, g.embd)
    yield _matrix(layer + "attn_output", g.embd, g.heads * g.head_dim)
    yield Tensor(layer + "attn_q_norm.weight", (g.head_dim,), "ones")
    yield Tensor(layer + "attn_k_norm.weight", (g.head_dim,), "ones")


def _delta_net(g: Geometry, layer: str) -> Iterator[Tensor]:
    """A gated delta rule layer with its short convolution over queries, keys and values."""
    channels = 2 * g.key_width + g.value_width
    yield _matrix(layer + "attn_qkv", channels, g.embd)
    yield _matrix(layer + "attn_gate", g.value_width, g.embd)
    yield Tensor(layer + "ssm_conv1d.weight", (channels, CONV_KERNEL), "noise", 0.3)
    yield Tensor(layer + "ssm_dt.bias", (g.value_heads,), "step")
    yield Tensor(layer + "ssm_a", (g.value_heads,), "decay")
    yield _matrix(layer + "ssm_beta", g.value_heads, g.embd)
    yield _matrix(layer + "ssm_alpha", g.value_heads, g.embd)
    yield Tensor(layer + "ssm_norm.weight", (g.state,), "ones")
    yield _matrix(layer + "ssm_out", g.embd, g.value_width)


def write_model(path: Path, geometry: Geometry, progress: Progress | None = None) -> None:
    """Writes the GGUF at `path`, one tensor in memory at a time. Not atomic: engine/catalog.py renames it into place."""
    vocabulary = make_vocabulary(geometry.vocab)
    writer = gguf.GGUFWriter(path, "qwen35")
    _describe(writer, geometry, vocabulary)
    plan = list(tensors(geometry))
    for tensor in plan:
        kind = _stored_type(tensor, geometry)
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), _stored_bytes(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    done, total = 0, sum(_stored_bytes(tensor, _stored_type(tensor, geometry)) for tensor in plan)
    for tensor in plan:
        data = _weights(tensor, geometry, vocabulary)
        writer.write_tensor_data(data)
        done += data.nbytes
        if progress:
            progress(f"making {path.name}", done, total)
    writer.close()


def _describe(writer: gguf.GGUFWriter, g: Geometry, vocabulary: Vocabulary) -> None:
    """The metadata: hyperparameters with Qwen3.5's constants, tokenizer, chat template."""
    name = f"kvalet synthetic Qwen3.5, {g.layers} layers of {g.embd}, random weights"
    describe_network(writer, name, g, Constants(1e7, g.head_dim // 4))
    describe_tokens(writer, vocabulary.tokens, vocabulary.types, vocabulary.merges, vocabulary.ids(END_OF_TURN, "<|endoftext|>"))
    writer.add_chat_template(TEMPLATE.read_text(encoding="utf-8"))


def describe_network(writer: gguf.GGUFWriter, name: str, g: Geometry, fixed: Constants) -> None:
    """The name and hyperparameters of a `qwen35` file."""
    writer.add_name(name)
    writer.add_context_length(g.ctx)
    writer.add_embedding_length(g.embd)
    writer.add_block_count(g.layers)
    writer.add_feed_forward_length(g.ff)
    writer.add_head_count(g.heads)
    writer.add_head_count_kv(g.kv)
    writer.add_key_length(g.head_dim)
    writer.add_value_length(g.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(fixed.rope_base)
    writer.add_rope_dimension_count(fixed.rotated)
    pairs = fixed.rotated // 2
    third = (pairs + 2) // 3
    writer.add_rope_dimension_sections([third, third, pairs - 2 * third, 0])
    writer.add_ssm_conv_kernel(fixed.convolution)
    writer.add_ssm_state_size(g.state)
    writer.add_ssm_group_count(g.key_heads)
    writer.add_ssm_time_step_rank(g.value_heads)
    writer.add_ssm_inner_size(g.value_width)
    writer.add_full_attention_interval(fixed.interval)


def describe_tokens(
    writer: gguf.GGUFWriter, tokens: Sequence[str], types: Sequence[int], merges: Sequence[str], ends: Sequence[int]
) -> None:
    """A byte-level BPE as llama.cpp's `gpt2` model with the `qwen35` split; `ends`: the ids that end a turn and that fill up."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list(list(tokens))
    writer.add_token_types(list(types))
    writer.add_token_merges(list(merges))
    writer.add_eos_token_id(ends[0])
    writer.add_pad_token_id(ends[1])
    writer.add_add_bos_token(False)


def _stored_type(tensor: Tensor, geometry: Geometry) -> gguf.GGMLQuantizationType:
    """Matrices in the geometry's type; vectors and the convolution in F32, as llama.cpp's own conversion keeps them."""
    return gguf.GGMLQuantizationType[geometry.type if tensor.fill == "weight" else "F32"]


def _stored_bytes(tensor: Tensor, kind: gguf.GGMLQuantizationType) -> int:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return int(np.prod(tensor.shape)) // block * size


def _weights(tensor: Tensor, geometry: Geometry, vocabulary: Vocabulary) -> NDArray[np.generic]:
    """The tensor's values as they are stored."""
    if tensor.fill == "ones":
        return np.ones(tensor.shape, np.float32)
    noise = _noise(f"{geometry.seed} {tensor.name}", tensor.shape)
    unit = (noise.astype(np.float32) + 127) / np.float32(254)  # 0 to 1, used where a sign or a range matters
    if tensor.fill == "step":  # softplus of it: 0.02 to 0.3, so some heads remember for long and some shortly
        return np.float32(-4) + np.float32(3) * unit
    if tensor.fill == "decay":
        return -(np.float32(0.125) + np.float32(2.5) * unit * unit)
    scale = np.full(tensor.shape[0], tensor.spread / UNIFORM_SPREAD, np.float32)
    if tensor.name == "token_embd.weight":
        scale[_muted(vocabulary)] *= np.float32(MUTED)
    kind = "F32" if tensor.fill == "noise" else geometry.type
    return _pack_q8(noise, scale) if kind == "Q8_0" else _scaled(noise, scale, kind)


def _noise(seed: str, shape: tuple[int, ...]) -> NDArray[np.int8]:
    """Uniform int8 in [-127, 127]; -128 is left out because ggml's kernels take its absolute value."""
    count = int(np.prod(shape))
    key = int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=16).digest(), "little")
    raw = np.random.PCG64(key).random_raw((count + 7) // 8)
    values = np.asarray(raw, "<u8").view(np.int8)[:count].reshape(shape)
    return np.maximum(values, np.int8(-127))


def _scaled(noise: NDArray[np.int8], scale: NDArray[np.float32], kind: str) -> NDArray[np.generic]:
    values = noise * scale[:, None]
    return values.astype(np.float16 if kind == "F16" else np.float32)


def _pack_q8(noise: NDArray[np.int8], scale: NDArray[np.float32]) -> NDArray[np.uint8]:
    """ggml's Q8_0: per 32 values a float16 scale, then the int8 values; shape (rows, columns / 32 * 34) bytes."""
    rows, columns = noise.shape
    packed = np.empty((rows, columns // 32, 34), np.uint8)
    packed[:, :, :2] = scale.astype("<f2").view(np.uint8).reshape(rows, 1, 2)
    packed[:, :, 2:] = noise.reshape(rows, columns // 32, 32).view(np.uint8)
    return packed.reshape(rows, -1)


def _muted(vocabulary: Vocabulary) -> NDArray[np.intp]:
    """Tokens that random logits should all but never choose: specials other than the end of a turn, and bytes that are not
    printable ASCII, which would make broken UTF-8 that no client can echo back.
    """
    alphabet = byte_alphabet()
    odd = {alphabet[byte] for byte in range(256) if not 32 <= byte < 127 and byte != ord("\n")}
    special = {token for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True) if kind != NORMAL} - {END_OF_TURN}
    return np.array([number for number, token in enumerate(vocabulary.tokens) if token in odd or token in special], np.intp)
