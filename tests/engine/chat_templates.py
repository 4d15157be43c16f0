"""Chat templates of our own with the semantics of known families, for the tests of rendering and parsing."""

from datetime import datetime
from functools import cache
from pathlib import Path

import engine
from engine.chat import ChatTemplate

QWEN35 = (Path(engine.__file__).parent / "qwen35.jinja").read_text(encoding="utf-8")

# Qwen3: system text and then tools, calls as Hermes JSON, a think block after the last question only where there was reasoning.
QWEN3 = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Functions\\n\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' + tool | tojson }}{%- endfor %}
    {{- '\\n</tools>\\n\\nCall: <tool_call>\\n{"name": NAME, "arguments": ARGUMENTS}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == 'user' and not message.content.startswith('<tool_response>') %}
        {%- set ns.searching = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last and message.reasoning_content %}
            {{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + message.content.lstrip('\\n') }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n' if message.content or not loop.first else '' }}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

# Gemma 2 and the first Mistrals: no system role, and user and assistant must take turns.
STRICT = """
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' %}{{- raise_exception('System role not supported') }}{%- endif %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant') }}
    {%- endif %}
    {{- ('[INST] ' + message.content + ' [/INST]') if message.role == 'user' else message.content + eos_token }}
{%- endfor %}
"""

# Llama 3.1: the tools stand in the first user turn, before its text; the loop starts behind the system message.
LLAMA = """
{{- bos_token + '<|start_header_id|>system<|end_header_id|>\\n\\nDate: ' + strftime_now('%d %b %Y') + '\\n\\n' }}
{%- if messages[0].role == 'system' %}
    {{- messages[0].content | trim }}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- '<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
    {%- if loop.first and tools %}
        {{- 'Functions:\\n\\n' }}
        {%- for tool in tools %}{{- tool | tojson(indent=4) + '\\n\\n' }}{%- endfor %}
    {%- endif %}
    {{- message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

# Goes over the messages by number, and opens the answer inside the loop.
BY_NUMBER = """
{%- for i in range(messages | length) %}
    {{- '### ' + messages[i].role + ':\\n' + messages[i].content + '\\n' }}
    {%- if loop.last and add_generation_prompt %}{{- '### assistant:\\n<think>\\n' }}{%- endif %}
{%- endfor %}
"""

CHATML = (Path(engine.__file__).parent / "chatml.jinja").read_text(encoding="utf-8")
GEMMA = (Path(engine.__file__).parent / "gemma.jinja").read_text(encoding="utf-8")


@cache
def template(source: str, bos: str = "", eos: str = "") -> ChatTemplate:
    """Compiled once, since that takes 50 ms; its clock stands still."""
    return ChatTemplate(source, bos, eos, clock=lambda: datetime(2026, 11, 30))


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather <now> & later",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "wind": {"type": "number"},
                "metric": {"type": "boolean"},
                "hours": {"type": "array", "items": {"type": "integer"}},
                "filter": {"type": "object"},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
            "required": ["city"],
        },
    },
}
SEARCH = {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {"z": {}, "a": {}}}}}


def system(text: str) -> dict[str, object]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, object]:
    return {"role": "user", "content": text}


def assistant(text: str | None, reasoning: str | None = None, calls: list[tuple[str, str]] | None = None) -> dict[str, object]:
    message: dict[str, object] = {"role": "assistant", "content": text}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, (name, arguments) in enumerate(calls)
        ]
    return message


def result(text: str, call: str = "c0") -> dict[str, object]:
    return {"role": "tool", "tool_call_id": call, "content": text}
