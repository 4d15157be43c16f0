"""The two optimizers and the course of their rate: Muon for matrices inside the network, AdamW for everything else."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

WEIGHT_DECAY = 0.02  # of Muon, times its rate
FINAL = 0.02  # share of the full rate at the last step


@dataclass(frozen=True)
class Rates:
    """Full rates and their course in steps: a short warm-up, a plateau, a straight decay over the last `decay` steps."""

    muon: float = 0.02
    adam: float = 2e-3
    warm_up: int = 25
    decay: int = 700

    def share(self, step: int, steps: int) -> float:
        """The share of the full rates at `step` of `steps`."""
        return min(1.0, (step + 1) / self.warm_up, FINAL + (1 - FINAL) * (steps - step) / self.decay)


def orthogonal(matrix: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrix, roughly, by five Newton-Schulz steps with the coefficients Jordan et al. 2024 give."""
    x = matrix.bfloat16()
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.T if tall else x).to(matrix.dtype)


class Muon:
    """Momentum whose updates of matrices are orthogonalised (Jordan et al. 2024). Updates `parameters` in place."""

    def __init__(self, parameters: list[nn.Parameter], rate: float, momentum: float = 0.95) -> None:
        self.parameters, self.rate, self.momentum = parameters, rate, momentum
        self._momenta = [torch.zeros_like(p) for p in parameters]

    def step(self, share: float) -> None:
        """One update at `share` of the full rate."""
        rate = self.rate * share
        with torch.no_grad():
            for p, momentum in zip(self.parameters, self._momenta, strict=True):
                momentum.lerp_(p.grad, 1 - self.momentum)
                update = orthogonal(p.grad.lerp(momentum, self.momentum))
                p.mul_(1 - rate * WEIGHT_DECAY)
                p.add_(update, alpha=-rate * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)

    def state_dict(self) -> list[Tensor]:
        return self._momenta

    def load_state_dict(self, state: list[Tensor]) -> None:
        for momentum, saved in zip(self._momenta, state, strict=True):
            momentum.copy_(saved)


class Optimizers:
    """Both, as one thing that steps, saves and loads."""

    def __init__(self, model: nn.Module, rates: Rates) -> None:
        self._parameters = list(model.parameters())
        matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "conv" not in n and "embedding" not in n]
        chosen = {id(p) for p in matrices}
        self._rates = rates
        self._muon = Muon(matrices, rates.muon)
        rest = [p for p in self._parameters if id(p) not in chosen]
        self._adam = torch.optim.AdamW(rest, rates.adam, betas=(0.9, 0.95), weight_decay=0.0)

    def step(self, share: float) -> None:
        """Clips the gradients to norm 1, updates at `share` of the full rates, and clears the gradients."""
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        for group in self._adam.param_groups:
            group["lr"] = self._rates.adam * share
        self._muon.step(share)
        self._adam.step()
        for p in self._parameters:
            p.grad = None

    def state_dict(self) -> dict[str, Any]:
        return {"muon": self._muon.state_dict(), "adam": self._adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._muon.load_state_dict(state["muon"])
        self._adam.load_state_dict(state["adam"])
