"""Whether a call asks the model to think: chat_template_kwargs.enable_thinking, which llama-server, vLLM and SGLang read too."""

from typing import Any

from keeper.config import KeeperConfig, Thinking
from keeper.message import History
from keeper.questions import asked
from keeper.window import newest_exchange


def with_thinking(body: dict[str, Any], on: bool) -> dict[str, Any]:
    """The body with thinking switched; its other template arguments stay."""
    given = body.get("chat_template_kwargs")
    return {**body, "chat_template_kwargs": {**(given if isinstance(given, dict) else {}), "enable_thinking": on}}


def with_effort(body: dict[str, Any], config: KeeperConfig) -> dict[str, Any]:
    """The configured thinking effort on a call that passes; nothing where none is configured."""
    return {**body, "reasoning_effort": config.thinking_effort} if config.thinking_effort else body


def for_main_call(body: dict[str, Any], config: KeeperConfig, history: History) -> dict[str, Any]:
    """With thinking = questions: off on ordinary turns, on from a question until it is answered, searches and tool calls between
    included (lesson 3: off again after the first call, the model repeated one search 790 times)."""
    sent = with_effort(body, config)
    if config.thinking is Thinking.AS_SENT:
        return sent
    return with_thinking(sent, asked(history, question_reach(history), len(history)))


def for_own_call(body: dict[str, Any], config: KeeperConfig) -> dict[str, Any]:
    """Notes and summaries are written with thinking on: without it they looked fine and were not."""
    sent = with_effort(body, config)
    given = body.get("chat_template_kwargs")
    off = isinstance(given, dict) and given.get("enable_thinking") is False
    return with_thinking(sent, True) if off or config.thinking is Thinking.QUESTIONS else sent


def question_reach(history: History) -> int:
    """From where a waiting question can come: the last user message, at most 64 messages back."""
    start = newest_exchange(history)
    reach = max(0, len(history) - 64)
    while start > reach and history[start].role != "user":
        start -= 1
    return start
