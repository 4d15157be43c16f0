"""Training: seeded, resumable at a step, one report a step. Needs the extra `train`."""

# mypy: disallow-subclassing-any=False
# torch is an extra: where it is not installed nn.Module is Any, which strict mode does not let a class derive from.

import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn

from bench.errors import BenchError
from bench.ledger.batches import GRADES, Batch, Grade, Skill, make_batch, shares
from bench.ledger.lookups import Heads, Names
from bench.ledger.model import LedgerModel, Shape
from bench.ledger.optimiser import Optimiser
from bench.ledger.start import load
from bench.ledger.texts import digest

CHECKPOINT = "checkpoint.pt"
TRAIN_SEEDS = 10_000_000  # training episodes start here; evaluation uses seeds below
SEED_STRIDE = 1_000_000
SLOWEST = 0.02  # share of the full rate at the end
TAPPED = 6  # layers below the head of lookups: two are left to decide what to say
LOOKUPS = 0.5  # weight of its loss
GRAPHS = 32  # lengths times kinds of layer, which PyTorch may compile


@dataclass(frozen=True)
class Plan:
    """A training run of `steps` steps of about 4,600 tokens; the rate rises for `warm_up` steps, stays until `plateau` of the
    steps are done and falls straight to the end. `start` is a GGUF to begin from; without one the weights are random."""

    steps: int = 1400
    seed: int = 7
    start: Path | None = None
    rate: float = 1.5e-3
    warm_up: int = 50
    plateau: float = 0.5
    save_every: int = 50
    threads: int = 2

    def rate_at(self, step: int) -> float:
        falling = (1 - step / self.steps) / (1 - self.plateau)
        return self.rate * min(1.0, (step + 1) / self.warm_up, max(SLOWEST, falling))


@dataclass(frozen=True)
class Step:
    """What a step reports: its grade, mean loss of a weighted token, loss of the lookups, how often answers of each grade and
    kind were wrong lately, seconds since this run began."""

    number: int
    grade: str
    loss: float
    lookups: float
    errors: dict[str, float]
    seconds: float


class Learner(nn.Module):
    """The model with the heads that only training needs."""

    def __init__(self, model: LedgerModel, names: Names) -> None:
        super().__init__()
        self.model, self.heads, self._names = model, Heads(model.shape.width), names

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor, NDArray[np.bool_]]:
        """The weighted mean cross entropy of answers, the mean cross entropy of lookups, and which answers had the right argmax
        at every token."""
        weights = torch.from_numpy(batch.weights)
        places = weights > 0  # nothing else needs logits
        with torch.autocast("cpu", dtype=torch.bfloat16):
            states = self.model.states(torch.from_numpy(batch.inputs))
            logits = self.model.logits(states[-1][places]).float()
        targets = torch.from_numpy(batch.targets)[places]
        loss = (F.cross_entropy(logits, targets, reduction="none") * weights[places]).sum() / weights.sum()
        missed = (logits.detach().argmax(-1) != targets).numpy()
        right = np.ones(len(batch.kinds), bool)
        answers = batch.answers[places.numpy()]
        right[answers[missed & (answers >= 0)]] = False
        return loss, self.heads.loss(states[TAPPED], self._names.targets(batch.inputs)), right


def batch_at(tokenizer: Tokenizer, plan: Plan, step: int, skill: Skill) -> tuple[Grade, Batch]:
    """The grade and batch of a step: what goes wrong is practised more. The same for the same seed and skill, wherever training
    was interrupted."""
    place = plan.seed * SEED_STRIDE + step
    grade = random.Random(place).choices(GRADES, shares(skill))[0]
    return grade, make_batch(tokenizer, grade, TRAIN_SEEDS + place)


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
    learner = Learner(model, Names(tokenizer))
    optimizer, skill = Optimiser(learner, plan.rate), Skill()
    first, start = restore(folder / CHECKPOINT, learner, optimizer, skill, plan), time.monotonic()
    torch._dynamo.config.recompile_limit = GRAPHS
    if compiled:
        for layer in model.layers:  # two kinds of layer are two graphs a length, compiled in seconds
            layer.compile(dynamic=False)
    for step in range(first, plan.steps):
        grade, batch = batch_at(tokenizer, plan, step, skill)
        loss, lookups, right = learner.loss(batch)
        (loss + LOOKUPS * lookups).backward()
        nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimizer.step(plan.rate_at(step))
        for kind, answer in zip(batch.kinds, right, strict=True):
            skill.note(grade.name, kind, bool(answer))
        losses = float(loss.detach()), float(lookups.detach())
        report(Step(step, grade.name, *losses, dict(skill.errors), time.monotonic() - start))
        if (step + 1) % plan.save_every == 0 or step + 1 == plan.steps:
            save(folder / CHECKPOINT, learner, optimizer, skill, step + 1, plan)
    return model


def save(path: Path, learner: Learner, optimizer: Optimiser, skill: Skill, step: int, plan: Plan) -> None:
    """Writes a checkpoint beside, then renames it."""
    state = {
        "model": learner.model.state_dict(),
        "heads": learner.heads.state_dict(),
        "optimizer": optimizer.state_dict(),
        "errors": skill.errors,
        "step": step,
        "shape": asdict(learner.model.shape),
        "seed": plan.seed,
        "texts": digest(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def restore(path: Path, learner: Learner, optimizer: Optimiser, skill: Skill, plan: Plan) -> int:
    """Loads a checkpoint where there is one; returns the step to go on from."""
    if not path.exists():
        return 0
    state: dict[str, Any] = torch.load(path, weights_only=True)
    if state["texts"] != digest():
        raise BenchError(f"{path} was trained on other texts of the keeper: train in a new folder")
    if state["seed"] != plan.seed:
        raise BenchError(f"{path} was trained from seed {state['seed']}, not {plan.seed}: train in a new folder")
    learner.model.load_state_dict(state["model"])
    learner.heads.load_state_dict(state["heads"])
    optimizer.load_state_dict(state["optimizer"])
    skill.errors.update(state["errors"])
    return int(state["step"])
