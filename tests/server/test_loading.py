"""From settings to a model: what was asked for is used, refused or warned of, never replaced in silence."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.errors import ModelError
from server.config import ConfigError, Settings
from server.loading import load_model, template_of


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


@pytest.mark.parametrize(("offloads", "warned"), [(False, True), (True, False)])
def test_layers_for_a_gpu_that_this_build_cannot_use_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, offloads: bool, warned: bool
) -> None:
    def refuse(*_: Any) -> None:
        raise ModelError("this is as far as the test goes")

    (model := tmp_path / "m.gguf").write_bytes(b"GGUF and no more")
    monkeypatch.setattr("engine.llama_backend.Backend", lambda: SimpleNamespace(offloads=offloads))
    monkeypatch.setattr("engine.llama_model.Model", refuse)
    with caplog.at_level(logging.WARNING), pytest.raises(ModelError, match="as far as the test goes"):
        load_model(Settings(model=str(model), gpu_layers=5, repack=False))
    assert ("built without a GPU" in caplog.text) is warned
