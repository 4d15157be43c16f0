"""Training: seeded, resumable at a step, one report a step. Needs the extra `train`."""

import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from bench.errors import BenchError
from bench.ledger.batches import GRADES, Batch, make_batch, shares
from bench.ledger.model import LedgerModel, Shape
from bench.ledger.optimizers import Optimizers, Rates
from bench.ledger.texts import digest
from bench.ledger.words import counter_names

CHECKPOINT = "checkpoint.pt"
TRAIN_SEEDS = 10_000_000  # training episodes start here; evaluation uses seeds below
SEED_STRIDE = 1_000_003


@dataclass(frozen=True)
class Plan:
    """A training run of `steps` steps, about 4,600 tokens each.

    The mixture follows the step (batches.SCHEDULE) and only the decay of the rate follows `steps`, so that a run may be resumed
    with other `steps`. At step `names_shared_at` the two tokens of each name get one identity: until then half of the matching of
    names had to be learnt name by name, and was not.
    """

    steps: int = 2400
    seed: int = 0
    rates: Rates = field(default_factory=Rates)
    names_shared_at: int = 500
    save_every: int = 50
    threads: int = 2


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
    return (each * weights).sum() / weights.sum(), each.detach()[weights == 1].mean()


def batch_at(tokenizer: Tokenizer, plan: Plan, step: int) -> tuple[str, Batch]:
    """The grade and batch of a step: the same for the same seed, wherever training was interrupted."""
    place = plan.seed * SEED_STRIDE + step
    grade = random.Random(place).choices(GRADES, shares(step))[0]
    return grade.name, make_batch(tokenizer, grade, TRAIN_SEEDS + place)


def name_pairs(tokenizer: Tokenizer) -> list[tuple[int, int]]:
    """The tokens of each counter's name, without and with the space before it."""
    return [(tokenizer.token_to_id(name), tokenizer.token_to_id(f"\u0120{name}")) for name in counter_names()]


def train(folder: Path, tokenizer: Tokenizer, plan: Plan, report: Callable[[Step], None], compiled: bool = True) -> LedgerModel:
    """Trains, from folder/checkpoint.pt on where there is one, and returns the model. Raises BenchError where the checkpoint is
    of other texts or another seed. `compiled` is a third faster and needs a C++ compiler."""
    torch.set_num_threads(plan.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(plan.seed)
    model = LedgerModel(Shape(vocabulary=tokenizer.get_vocab_size()))
    if compiled:
        for layer in model.layers:  # two kinds of layer are two graphs a length, compiled in seconds
            layer.compile(dynamic=False)
    optimizers = Optimizers(model, plan.rates)
    first, start = restore(folder / CHECKPOINT, model, optimizers, plan), time.monotonic()
    for step in range(first, plan.steps):
        if step == plan.names_shared_at:
            model.share_identity(name_pairs(tokenizer))
        grade, batch = batch_at(tokenizer, plan, step)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(torch.from_numpy(batch.inputs))
        loss, answers = loss_of(logits, batch)
        loss.backward()
        optimizers.step(plan.rates.share(step, plan.steps))
        report(Step(step, grade, float(loss.detach()), float(answers), time.monotonic() - start))
        if (step + 1) % plan.save_every == 0 or step + 1 == plan.steps:
            save(folder / CHECKPOINT, model, optimizers, step + 1, plan)
    return model


def save(path: Path, model: LedgerModel, optimizers: Optimizers, step: int, plan: Plan) -> None:
    """Writes a checkpoint beside, then renames it."""
    state = {
        "model": model.state_dict(),
        "optimizers": optimizers.state_dict(),
        "step": step,
        "shape": asdict(model.shape),
        "plan": asdict(plan),
        "texts": digest(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def restore(path: Path, model: nn.Module, optimizers: Optimizers, plan: Plan) -> int:
    """Loads a checkpoint where there is one; returns the step to go on from."""
    if not path.exists():
        return 0
    state: dict[str, Any] = torch.load(path, weights_only=True)
    if state["texts"] != digest():
        raise BenchError(f"{path} was trained on other texts of the keeper: train in a new folder")
    if state["plan"]["seed"] != plan.seed:
        raise BenchError(f"{path} was trained from seed {state['plan']['seed']}, not {plan.seed}: train in a new folder")
    model.load_state_dict(state["model"])
    optimizers.load_state_dict(state["optimizers"])
    return int(state["step"])
