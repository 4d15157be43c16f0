"""The README says what the program says: every option, every command, and examples that are valid Python."""

import ast
import re
from pathlib import Path

import pytest

from server.config import Settings

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")


@pytest.mark.parametrize("name", [name for name in Settings.model_fields if name != "model"])
def test_every_option_stands_in_the_table_with_its_help_text(name: str) -> None:
    text = Settings.model_fields[name].description or ""
    rows = [line for line in README.splitlines() if line.startswith(f"| `--{name.replace('_', '-')}`")]
    assert len(rows) == 1
    assert text.replace("|", "/") in rows[0]


def test_every_python_example_parses() -> None:
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert examples
    for example in examples:
        ast.parse(example)


def test_every_link_to_a_file_leads_somewhere() -> None:
    root = Path(__file__).parent.parent
    for target in re.findall(r"\]\(((?!http)[^)#]+)", README):
        assert (root / target).exists(), target
