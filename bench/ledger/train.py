"""Training: seeded, resumable at a step, one report a step. Needs the extra `train`."""

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

from bench.errors import BenchError
from bench.ledger.batches import GRADES, Batch, make_batch, shares
from bench.ledger.model import LedgerModel, Shape
from bench.ledger.start import load
from bench.ledger.texts import digest

CHECKPOINT = "checkpoint.pt"
TRAIN_SEEDS = 10_000_000  # training episodes start here; evaluation uses seeds below
SEED_STRIDE = 1_000_000
SLOWEST = 0.02  # share of the full rate at the end


@dataclass(frozen=True)
class Plan:
    """A training run of `steps` steps of about 4,600 tokens; the rate rises for `warm_up` steps and falls straight to the end.

    `start` is a GGUF to begin from; without one the weights are random. AdamW for everything. From random weights, six layers
    and Muon for the matrices learnt the format sooner, and in 950 steps not how to look up a name's value.
    """

    steps: int = 760
    seed: int = 7
    start: Path | None = None
    rate: float = 1.8e-3
    warm_up: int = 20
    save_every: int = 50
    threads: int = 2

    def rate_at(self, step: int) -> float:
        return self.rate * min(1.0, (step + 1) / self.warm_up) * max(SLOWEST, 1 - step / self.steps)


@dataclass(frozen=True)
class Step:
    """What a step reports: mean loss a weighted token, over answers alone, and seconds since this run began."""

    number: int
    grade: str
    loss: float
    answers: float
    seconds: float


def loss_of(logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """The weighted mean cross entropy, and the mean over answers alone."""
    targets, weights = torch.from_numpy(batch.targets).flatten(), torch.from_numpy(batch.weights).flatten()
    each = F.cross_entropy(logits.float().flatten(0, 1), targets, reduction="none")
    return (each * weights).sum() / weights.sum(), each.detach()[weights >= 1].mean()


def batch_at(tokenizer: Tokenizer, plan: Plan, step: int) -> tuple[str, Batch]:
    """The grade and batch of a step: the same for the same seed, wherever training was interrupted."""
    place = plan.seed * SEED_STRIDE + step
    grade = random.Random(place).choices(GRADES, shares(step))[0]
    return grade.name, make_batch(tokenizer, grade, TRAIN_SEEDS + place)


def begin(tokenizer: Tokenizer, plan: Plan) -> LedgerModel:
    """The model before the first step."""
    torch.manual_seed(plan.seed)
    if plan.start is None:
        return LedgerModel(Shape(vocabulary=tokenizer.get_vocab_size()))
    shape, weights = load(plan.start, tokenizer)
    model = LedgerModel(shape)
    model.load_state_dict(weights)
    return model


def train(folder: Path, tokenizer: Tokenizer, plan: Plan, report: Callable[[Step], None], compiled: bool = True) -> LedgerModel:
    """Trains, from folder/checkpoint.pt on where there is one, and returns the model. Raises BenchError where the checkpoint is
    of other texts or another seed. `compiled` is a third faster and needs a C++ compiler."""
    torch.set_num_threads(plan.threads)
    torch.set_flush_denormal(True)
    model = begin(tokenizer, plan)
    optimizer = torch.optim.AdamW(model.parameters(), plan.rate, betas=(0.9, 0.95), weight_decay=0.01)
    first, start = restore(folder / CHECKPOINT, model, optimizer, plan), time.monotonic()
    if compiled:
        for layer in model.layers:  # two kinds of layer are two graphs a length, compiled in seconds
            layer.compile(dynamic=False)
    for step in range(first, plan.steps):
        grade, batch = batch_at(tokenizer, plan, step)
        for group in optimizer.param_groups:
            group["lr"] = plan.rate_at(step)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(torch.from_numpy(batch.inputs))
        loss, answers = loss_of(logits, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        report(Step(step, grade, float(loss.detach()), float(answers), time.monotonic() - start))
        if (step + 1) % plan.save_every == 0 or step + 1 == plan.steps:
            save(folder / CHECKPOINT, model, optimizer, step + 1, plan)
    return model


def save(path: Path, model: LedgerModel, optimizer: torch.optim.Optimizer, step: int, plan: Plan) -> None:
    """Writes a checkpoint beside, then renames it."""
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": step,
        "shape": asdict(model.shape),
        "seed": plan.seed,
        "texts": digest(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def restore(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, plan: Plan) -> int:
    """Loads a checkpoint where there is one; returns the step to go on from."""
    if not path.exists():
        return 0
    state: dict[str, Any] = torch.load(path, weights_only=True)
    if state["texts"] != digest():
        raise BenchError(f"{path} was trained on other texts of the keeper: train in a new folder")
    if state["seed"] != plan.seed:
        raise BenchError(f"{path} was trained from seed {state['seed']}, not {plan.seed}: train in a new folder")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])
