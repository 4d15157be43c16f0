"""What the text so far says of each name, at every place where the name stands: a second thing to learn beside the answers.

An episode asks a dozen questions; its text names counters a hundred times, and at each of them it is known whether the text so
far set the counter and to what, whether a rule forbids to tell it, and, where a story sets it, which counter was set before.
Learnt three quarters up the network by heads that are thrown away, this builds what the answers rest on: the lookup behind
value, unknown and search, the rule, and the order in which a delta lists its lines.
"""

# mypy: disallow-subclassing-any=False
# torch is an extra: where it is not installed nn.Module is Any, which strict mode does not let a class derive from.

from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn, tensor

from bench.ledger.rendering import START
from bench.ledger.words import VALUES, counter_names

SPACE = "\u0120"
NEVER = len(VALUES)  # the class of a name that nothing set; VALUES[i] is class i
FIRST = len(counter_names())  # the class of the entry that no other comes before
NOWHERE = -100  # cross_entropy leaves it out
QUOTING = (" ARCHIVE", "<tool_response>", " exchange")
"""What stands before sentences that are quoted, to the end of their message: retrieved ones, a search's, what was noted already.
No delta lists them; where they counted as stories, deltas stopped at each of them."""


@dataclass(frozen=True)
class Known:
    """Classes at each token of a row, NOWHERE where there is nothing to tell.

    held      what the name was last set to, 0 to 89 for 10 to 99, or NEVER
    ruled     1 where a rule on the name was stated
    previous  in a story, the number of the name that the entry of a story before this one set, or FIRST
    """

    held: list[int]
    ruled: list[int]
    previous: list[int]


class Names:
    """The tokens of names, digits and of what makes an entry or a rule of them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        told = {tokenizer.token_to_id(SPACE + name): i for i, name in enumerate(counter_names())}
        self._told = set(told)  # stories write a space before a name, notes and answers begin with it
        self._number = told | {tokenizer.token_to_id(name): i for i, name in enumerate(counter_names())}
        self._digit = {tokenizer.token_to_id(str(digit)): digit for digit in range(10)}
        self._starts, self._quoting = tokenizer.token_to_id(START), {tokenizer.encode(text).ids[-1] for text in QUOTING}
        self._equals, self._is = tokenizer.encode("a =").ids[-1], tokenizer.encode("a is").ids[-1]

    def known(self, row: list[int]) -> Known:
        found = Known(*([NOWHERE] * len(row) for _ in range(3)))
        held: dict[int, int] = {}
        ruled: set[int] = set()
        last, quoted = FIRST, False
        for place, token in enumerate(row):
            quoted = (quoted or token in self._quoting) and token != self._starts
            name = self._number.get(token)
            if name is None:
                continue
            found.held[place], found.ruled[place] = held.get(name, NEVER), int(name in ruled)
            after = row[place + 1 : place + 5]
            if after[:1] == [self._is]:  # "… is confidential": questions have the name behind it
                ruled.add(name)
            if len(after) == 4 and after[0] == self._equals and after[2] in self._digit and after[3] in self._digit:
                held[name] = 10 * self._digit[after[2]] + self._digit[after[3]] - VALUES[0]
                if token in self._told and not quoted:
                    found.previous[place], last = last, name
        return found

    def targets(self, inputs: NDArray[np.int64]) -> tuple[Tensor, Tensor, Tensor]:
        """Of a batch, (rows, tokens) each: held, ruled, previous."""
        rows = [self.known(row) for row in inputs.tolist()]
        return tensor([row.held for row in rows]), tensor([row.ruled for row in rows]), tensor([row.previous for row in rows])


class Heads(nn.Module):
    """Reads the classes off a state; needed while training only."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out = nn.ModuleList(nn.Linear(width, classes) for classes in (NEVER + 1, 2, FIRST + 1))
        for linear in self.out:
            nn.init.zeros_(linear.weight)

    def loss(self, states: Tensor, targets: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """The sum of the mean cross entropies of each kind of lookup in `states` (B, T, width)."""
        total = states.new_zeros(())
        for linear, classes in zip(self.out, targets, strict=True):
            places = classes != NOWHERE
            if places.any():
                state = F.rms_norm(states[places].float(), states.shape[-1:])
                total = total + F.cross_entropy(linear(state), classes[places])
        return total
