"""Qwen3.5 layers in plain PyTorch: gated delta net, gated attention every fourth layer; for training on a CPU.

Names and shapes follow llama.cpp's `qwen35` so that export.py only renames. B batch, T tokens, H heads, D head size.
"""

# mypy: disallow-subclassing-any=False
# torch is an extra: where it is not installed nn.Module is Any, which strict mode does not let a class derive from.

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHUNK = 32  # tokens that the delta rule solves at once; T must be a multiple


@dataclass(frozen=True)
class Shape:
    """Geometry; the defaults are the shipped model's 3.5 M parameters."""

    vocabulary: int = 1024
    width: int = 192
    layers: int = 8
    feed_forward: int = 512
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    linear_heads: int = 4
    linear_size: int = 32
    convolution: int = 4
    interval: int = 4
    rope_base: float = 1e6
    rotated: int = 32


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def rotate(x: Tensor, rotated: int, base: float) -> Tensor:
    """Rotary embedding of the first `rotated` dimensions, NeoX order; x is (B, H, T, D)."""
    frequency = base ** (-torch.arange(0, rotated, 2, dtype=torch.float32) / rotated)
    angle = torch.arange(x.shape[2])[:, None].float() * frequency[None]
    cos, sin = angle.cos(), angle.sin()
    a, b, rest = x[..., : rotated // 2], x[..., rotated // 2 : rotated], x[..., rotated:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


class Attention(nn.Module):
    """Grouped-query attention with normed queries and keys and an output gate."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        inner = shape.heads * shape.head_size
        self.q = nn.Linear(shape.width, 2 * inner, bias=False)
        self.k = nn.Linear(shape.width, shape.kv_heads * shape.head_size, bias=False)
        self.v = nn.Linear(shape.width, shape.kv_heads * shape.head_size, bias=False)
        self.o = nn.Linear(inner, shape.width, bias=False)
        self.q_norm = RMSNorm(shape.head_size)
        self.k_norm = RMSNorm(shape.head_size)

    def forward(self, x: Tensor) -> Tensor:
        s = self.shape
        batch, length, _ = x.shape
        query, gate = self.q(x).view(batch, length, s.heads, 2 * s.head_size).chunk(2, -1)
        key = self.k_norm(self.k(x).view(batch, length, s.kv_heads, s.head_size)).transpose(1, 2)
        value = self.v(x).view(batch, length, s.kv_heads, s.head_size).transpose(1, 2)
        query = rotate(self.q_norm(query).transpose(1, 2), s.rotated, s.rope_base).to(value.dtype)
        key = rotate(key, s.rotated, s.rope_base).to(value.dtype)
        groups = s.heads // s.kv_heads
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)
        return self.o((out * torch.sigmoid(gate)).reshape(batch, length, -1))


def delta_rule(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """Chunked gated delta rule (Yang et al. 2024, arXiv:2412.06464): (B, H, T, D) in f32; decay (log) and beta (B, H, T).

    The inverse of the unit lower triangle is a product of repeated squares, which on a CPU beats a triangular solve.
    """
    batch, heads, length, size = query.shape
    chunks = length // CHUNK
    query = query * size**-0.5
    query, key, value = (x.reshape(batch, heads, chunks, CHUNK, size) for x in (query, key, value))
    total = decay.reshape(batch, heads, chunks, CHUNK).cumsum(-1)
    beta = beta.reshape(batch, heads, chunks, CHUNK, 1)
    above = torch.ones(CHUNK, CHUNK, dtype=torch.bool).triu(1)
    fade = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(above, float("-inf")).exp()
    lower = -(key * beta @ key.transpose(-1, -2) * fade).tril(-1)
    inverse, power = torch.eye(CHUNK) + lower, lower
    for _ in range(int(math.log2(CHUNK)) - 1):
        power = power @ power
        inverse = inverse + inverse @ power
    scale = total.exp().unsqueeze(-1)
    fresh, known = inverse @ (value * beta), inverse @ (key * beta * scale)
    inside = query @ key.transpose(-1, -2) * fade
    reach, leave = query * scale, key * (total[..., -1:] - total).exp().unsqueeze(-1)
    keep = total[..., -1].exp()[..., None, None]
    state, out = torch.zeros(batch, heads, size, size), []
    for i in range(chunks):
        new = fresh[:, :, i] - known[:, :, i] @ state
        out.append(reach[:, :, i] @ state + inside[:, :, i] @ new)
        state = state * keep[:, :, i] + leave[:, :, i].transpose(-1, -2) @ new
    return torch.stack(out, 2).reshape(batch, heads, length, size)


# Compiled, its loop is unrolled into a graph of minutes for every length, and is no faster for it.
uncompiled_delta_rule = torch.compiler.disable(delta_rule)


class DeltaNet(nn.Module):
    """Gated delta net: short causal convolution, delta rule, gated norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        inner = shape.linear_heads * shape.linear_size
        self.qkv = nn.Linear(shape.width, 3 * inner, bias=False)
        self.gate = nn.Linear(shape.width, inner, bias=False)
        self.beta = nn.Linear(shape.width, shape.linear_heads, bias=False)
        self.alpha = nn.Linear(shape.width, shape.linear_heads, bias=False)
        self.conv = nn.Parameter(torch.randn(3 * inner, shape.convolution) * 0.3)
        self.conv.data[:, -1] += 0.7
        self.dt = nn.Parameter(torch.empty(shape.linear_heads).uniform_(-5, -2))
        self.log_a = nn.Parameter(torch.log(torch.empty(shape.linear_heads).uniform_(0.3, 4)))
        self.norm = nn.Parameter(torch.ones(shape.linear_size))
        self.o = nn.Linear(inner, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        s = self.shape
        batch, length, _ = x.shape
        padded = F.pad(self.qkv(x), (0, 0, s.convolution - 1, 0))
        mixed = sum(padded[:, i : i + length] * self.conv[:, i] for i in range(s.convolution))
        split = F.silu(torch.as_tensor(mixed)).float().chunk(3, -1)
        query, key, value = (t.reshape(batch, length, s.linear_heads, s.linear_size).transpose(1, 2) for t in split)
        query, key = F.normalize(query, dim=-1, eps=1e-6), F.normalize(key, dim=-1, eps=1e-6)
        beta = torch.sigmoid(self.beta(x).float()).transpose(1, 2)
        decay = (-self.log_a.exp() * F.softplus(self.alpha(x).float() + self.dt)).transpose(1, 2)
        with torch.autocast("cpu", enabled=False):  # the delta rule loses its precision in bf16
            out = uncompiled_delta_rule(query, key, value, decay, beta).transpose(1, 2)
        gate = F.silu(self.gate(x).float().view(batch, length, s.linear_heads, s.linear_size))
        out = out * torch.rsqrt(out.pow(2).mean(-1, keepdim=True) + 1e-6) * self.norm * gate
        return self.o(out.reshape(batch, length, -1))


class Layer(nn.Module):
    def __init__(self, shape: Shape, index: int) -> None:
        super().__init__()
        self.mixer_norm, self.ffn_norm = RMSNorm(shape.width), RMSNorm(shape.width)
        self.mixer = Attention(shape) if (index + 1) % shape.interval == 0 else DeltaNet(shape)
        self.gate = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.up = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.down = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(self.mixer_norm(x))
        hidden = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(hidden)) * self.up(hidden))


class LedgerModel(nn.Module):
    """The whole network with tied embeddings; (B, T) token ids to (B, T, vocabulary) logits."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.embedding.weight.data.normal_(0, 0.05)
        self.layers = nn.ModuleList(Layer(shape, i) for i in range(shape.layers))
        self.norm = RMSNorm(shape.width)
        for layer in self.layers:
            for matrix in (layer.down, layer.mixer.o):
                matrix.weight.data.mul_(1 / math.sqrt(2 * shape.layers))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(self.states(tokens)[-1])

    def states(self, tokens: Tensor) -> list[Tensor]:
        """(B, T, width) after the embedding and after each layer."""
        found = [self.embedding(tokens)]
        for layer in self.layers:
            found.append(layer(found[-1]))
        return found

    def logits(self, state: Tensor) -> Tensor:
        """What the last state predicts: (…, width) to (…, vocabulary)."""
        return self.norm(state) @ self.embedding.weight.t()
