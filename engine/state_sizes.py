"""What sizes state blobs must have, learned by measuring two of each. A blob of another size never reaches llama.cpp, which
answers some of them with an abort of the process."""

from dataclasses import dataclass

from engine.context import StateKind


@dataclass(frozen=True, slots=True)
class StateSizes:
    """Bytes of payloads. A block of n tokens takes block_fixed + n * block_token; a checkpoint that holds n window cells
    checkpoint_fixed + n * checkpoint_token, where checkpoint_token is 0 for a recurrent state, which has one size."""

    block_fixed: int
    block_token: int
    checkpoint_fixed: int
    checkpoint_token: int
    window: int

    def block(self, tokens: int) -> int:
        return self.block_fixed + tokens * self.block_token

    @property
    def checkpoint(self) -> int:
        """The largest checkpoint."""
        return self.checkpoint_fixed + self.window * self.checkpoint_token

    def is_checkpoint(self, nbytes: int, position: int) -> bool:
        """Whether a checkpoint at `position` can have that size."""
        rest = nbytes - self.checkpoint_fixed
        if self.checkpoint_token == 0:
            return rest == 0
        return rest % self.checkpoint_token == 0 and 0 < rest // self.checkpoint_token <= min(self.window, position)


def kind_seen(asked: StateKind, fulls: tuple[int, int], partials: tuple[int, int]) -> StateKind:
    """The kind, corrected by what was measured: a model whose partial blob leaves nothing out can be cut anywhere."""
    return StateKind.ATTENTION if asked is not StateKind.RECURRENT and fulls == partials else asked


def learn(kind: StateKind, fulls: tuple[int, int], partials: tuple[int, int], empty_partial: int, window: int) -> StateSizes:
    """Sizes from the full and the partial blobs of a slot of one and of two tokens and the partial blob of an empty one."""
    if kind is StateKind.RECURRENT:
        return StateSizes(0, 0, partials[0], 0, 0)
    if kind is StateKind.ATTENTION:
        token = fulls[1] - fulls[0]
        return StateSizes(fulls[0] - token, token, 0, 0, 0)
    one, two = (full - partial + empty_partial for full, partial in zip(fulls, partials, strict=True))
    state_token = partials[1] - partials[0]
    return StateSizes(2 * one - two, two - one, partials[0] - state_token, state_token, window if state_token else 0)
