"""Muon for the matrices of the layers and AdamW for everything else, at one rate.

Muon (Jordan et al. 2024): the momentum of a matrix is replaced by the nearest matrix with equal singular values, by five
Newton-Schulz steps; scaled to the size of AdamW's steps (Liu et al. 2025, arXiv:2502.16982), so that one rate serves both.
"""

from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM, SCALE, DECAY = 0.95, 0.2, 0.01
BETAS = (0.9, 0.95)
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic, as published
STEPS = 5


def orthogonal(batch: Tensor) -> Tensor:
    """(N, rows, columns) matrices with all singular values near 1, in bf16."""
    a, b, c = COEFFICIENTS
    x = batch.bfloat16()
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if tall else x
    x = x / (x.float().norm(dim=(1, 2), keepdim=True).bfloat16() + 1e-7)
    for _ in range(STEPS):
        square = x @ x.transpose(1, 2)
        x = a * x + (b * square + c * square @ square) @ x
    return x.transpose(1, 2) if tall else x


class Optimiser:
    """Both, for a module whose layers are under the name `layers`."""

    def __init__(self, module: nn.Module, rate: float) -> None:
        matrices, rest = {}, []
        for name, parameter in module.named_parameters():
            if "layers." in name and name.endswith(".weight") and parameter.ndim == 2:
                matrices[name] = parameter
            else:
                rest.append(parameter)
        self._matrices = matrices
        self._momenta = {name: torch.zeros_like(matrix) for name, matrix in matrices.items()}
        self._adam = torch.optim.AdamW(rest, rate, betas=BETAS, weight_decay=DECAY)

    def step(self, rate: float) -> None:
        """One step along the gradients, which are cleared."""
        self._adam.param_groups[0]["lr"] = rate
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        by_shape: dict[tuple[int, ...], list[str]] = {}
        for name, matrix in self._matrices.items():
            by_shape.setdefault(tuple(matrix.shape), []).append(name)
        with torch.no_grad():
            for names in by_shape.values():  # matrices of one shape together: many small products are slow
                self._muon(names, rate)

    def _muon(self, names: list[str], rate: float) -> None:
        gradients = []
        for name in names:
            gradient = self._matrices[name].grad
            self._momenta[name].lerp_(gradient, 1 - MOMENTUM)
            gradients.append(gradient.lerp(self._momenta[name], MOMENTUM))
        updates = orthogonal(torch.stack(gradients))
        for name, update in zip(names, updates, strict=True):
            matrix = self._matrices[name]
            size = rate * SCALE * max(matrix.shape) ** 0.5
            matrix.mul_(1 - rate * DECAY).add_(update.to(matrix.dtype), alpha=-size)
            matrix.grad = None

    def state_dict(self) -> dict[str, Any]:
        return {"adam": self._adam.state_dict(), "momenta": self._momenta}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._adam.load_state_dict(state["adam"])
        for name, momentum in state["momenta"].items():
            self._momenta[name].copy_(momentum)
