"""From settings to a chat template: a file that was named is used or refused, never replaced in silence."""

from pathlib import Path
from typing import Any, cast

import pytest

from server.config import ConfigError, Settings
from server.loading import template_of


class NoTemplate:
    """What template_of asks of a model: no template of its own, no special tokens."""

    def __init__(self) -> None:
        self.chat_templates: dict[str, str] = {}
        self.bos = self.eos = None

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        return list(text.encode())


@pytest.mark.parametrize("content", [b"{% if %}", b"\xff\xfe", None])
def test_a_named_chat_template_that_is_broken_or_gone_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "own.jinja"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"--chat-template .*own\.jinja"):
        template_of(Settings(chat_template=file), cast(Any, NoTemplate()))


def test_a_named_chat_template_is_used_and_without_one_there_is_a_fallback(tmp_path: Path) -> None:
    (file := tmp_path / "own.jinja").write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    rendered = template_of(Settings(chat_template=file), cast(Any, NoTemplate())).render([{"role": "user", "content": "hi"}])
    assert rendered.text == "[hi]"
    assert template_of(Settings(), cast(Any, NoTemplate())).render([{"role": "user", "content": "hi"}]).text
