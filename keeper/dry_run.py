"""What an edit of a stored conversation would do now, without a model: tokens are estimated as bytes / 4, prices are assumed."""

import math
from collections.abc import Sequence

from keeper.edit import Budget, EditPlan, assumed
from keeper.excerpt import size
from keeper.graph import build
from keeper.message import Message
from keeper.plan import plan_edit
from keeper.strategies.tope import TARGET_SHARE
from keeper.unfold import allowance

BYTES_A_TOKEN = 4
REPLY_SHARE = 0.25


def dry_run(messages: Sequence[Message], window: int) -> EditPlan:
    """The plan for a window of `window` tokens, a quarter of which is kept for the reply, as the keeper does."""
    limit = int(window * (1 - REPLY_SHARE))
    carried = math.ceil(allowance(limit * BYTES_A_TOKEN) / BYTES_A_TOKEN)
    costs = assumed([_tokens(message) for message in messages])
    return plan_edit(messages, build(messages), costs, Budget(limit, int(limit * TARGET_SHARE), carried))


def _tokens(message: Message) -> int:
    arguments = sum(size(call.name) + size(call.arguments) for call in message.tool_calls)
    return math.ceil((size(message.text) + arguments + 24) / BYTES_A_TOKEN)
