"""Training: seeded, resumable, Muon for matrices and AdamW for the rest, a long plateau and a decay at the end."""

import math
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from bench.ledger.batches import GRADES, Batch, make_batch, shares
from bench.ledger.model import LedgerModel, Shape

TRAIN_SEEDS = 10_000_000  # training episodes start here; evaluation uses seeds below


@dataclass(frozen=True)
class Plan:
    """A training run. `steps` of about 4,096 tokens each."""

    steps: int = 6000
    seed: int = 0
    muon_rate: float = 0.02
    adam_rate: float = 2e-3
    decay_from: float = 0.7
    save_every: int = 250
    threads: int = 2


class Muon(torch.optim.Optimizer):
    """Momentum whose matrix updates are orthogonalised by five Newton-Schulz steps (Jordan et al. 2024)."""

    def __init__(self, parameters: list[nn.Parameter], rate: float, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": rate, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonal(p.grad.lerp(momentum, group["momentum"]))
                p.mul_(1 - group["lr"] * 0.02)
                p.add_(update, alpha=-group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


def orthogonal(matrix: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrix, roughly; coefficients of the published quintic."""
    x = matrix.bfloat16()
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.T if tall else x).to(matrix.dtype)


def rate_at(progress: float, decay_from: float) -> float:
    """Share of the full learning rate: short warm-up, plateau, then a straight decay to 2 %."""
    if progress < 0.01:
        return progress / 0.01
    if progress < decay_from:
        return 1.0
    return 1.0 - 0.98 * (progress - decay_from) / (1 - decay_from)


def optimizers(model: LedgerModel, plan: Plan) -> list[torch.optim.Optimizer]:
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "conv" not in n and "embedding" not in n]
    chosen = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    return [Muon(matrices, plan.muon_rate), torch.optim.AdamW(rest, plan.adam_rate, betas=(0.9, 0.95), weight_decay=0.0)]


def loss_of(logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """The weighted mean cross entropy, and the mean over answers alone."""
    targets, weights = torch.from_numpy(batch.targets).flatten(), torch.from_numpy(batch.weights).flatten()
    each = F.cross_entropy(logits.float().flatten(0, 1), targets, reduction="none")
    return (each * weights).sum() / weights.sum(), each.detach()[weights == 1].mean()


def train(folder: Path, tokenizer: Tokenizer, plan: Plan, report: Callable[[str], None], compiled: bool = True) -> LedgerModel:
    """Trains (or goes on from folder/checkpoint.pt) and returns the model. `report` gets a line every 50 steps."""
    torch.set_num_threads(plan.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(plan.seed)
    model = LedgerModel(Shape(vocabulary=tokenizer.get_vocab_size()))
    forward: nn.Module = torch.compile(model, dynamic=False) if compiled else model  # type: ignore[assignment]
    opts = optimizers(model, plan)
    first = restore(folder / "checkpoint.pt", model, opts)
    start, seen = time.monotonic(), 0
    for step in range(first, plan.steps):
        progress = step / plan.steps
        for opt in opts:
            for group in opt.param_groups:
                group["lr"] = group.setdefault("full", group["lr"]) * rate_at(progress, plan.decay_from)
        rng = random.Random(plan.seed * 1_000_003 + step)
        grade = rng.choices(GRADES, shares(progress))[0]
        batch = make_batch(tokenizer, grade, TRAIN_SEEDS + plan.seed * 1_000_003 + step)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = forward(torch.from_numpy(batch.inputs))
        loss, answers = loss_of(logits, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt in opts:
            opt.step()
            opt.zero_grad(set_to_none=True)
        seen += batch.inputs.size
        if step % 50 == 0:
            spent = time.monotonic() - start
            left = spent / (step + 1 - first) * (plan.steps - step) / 60
            found = f"loss {loss.item():.3f} answers {answers.item():.3f}"
            report(f"{step}/{plan.steps} {grade.name} {found} {seen / spent:.0f} tok/s, {left:.0f} min left")
        if (step + 1) % plan.save_every == 0:
            save(folder / "checkpoint.pt", model, opts, step + 1)
    save(folder / "checkpoint.pt", model, opts, plan.steps)
    return model


def save(path: Path, model: LedgerModel, opts: list[torch.optim.Optimizer], step: int) -> None:
    state = {
        "model": model.state_dict(),
        "optimizers": [o.state_dict() for o in opts],
        "step": step,
        "shape": asdict(model.shape),
    }
    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def restore(path: Path, model: LedgerModel, opts: list[torch.optim.Optimizer]) -> int:
    """Loads a checkpoint when there is one; returns the step to go on from."""
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    for opt, saved in zip(opts, state["optimizers"], strict=True):
        opt.load_state_dict(saved)
    return math.floor(state["step"])
