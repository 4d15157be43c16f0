"""`hitrate --url`: the same measure on any OpenAI server that reports cached tokens, from the outside."""

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx

from bench.errors import BadOption, Unreachable
from bench.report import Column, Report, number, percent
from bench.talk import Conversation


def measure_url(url: str, api_key: str | None, traces: Sequence[Path], requests: int, seed: int) -> Report:
    """Sends one seeded conversation with appends, edits, branches and repeats, and adds up what the server says it had cached.

    The ceiling is what the longest common prefix with any earlier prompt would give, in characters scaled to the server's own
    token counts. Raises Unreachable, BadOption.
    """
    if traces:
        raise BadOption("--url", "traces hold ids, not texts; without TRACES a seeded conversation is sent")
    talk = Conversation(random.Random(seed))
    rows, seen = [], [""]
    with httpx.Client(base_url=url.rstrip("/"), headers=_headers(api_key), timeout=600) as client:
        model = _model(client)
        for _ in range(requests):
            kind = talk.step()
            row = _ask(client, model, talk.messages, kind)
            text = talk.text()
            common = max(_common(text, earlier) for earlier in seen)
            seen.append(text)
            rows.append({**row, "known_tokens": round(row["prompt_tokens"] * common / max(1, len(text)))})
    return _report(url, rows)


def _headers(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def _model(client: httpx.Client) -> str:
    found = _json(client, "GET", "/v1/models")
    try:
        return str(found["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise Unreachable(unquote(str(client.base_url)), "/v1/models lists no model; is this an OpenAI server?") from None


def _ask(client: httpx.Client, model: str, messages: list[dict[str, str]], kind: str) -> dict[str, Any]:
    body = {"model": model, "messages": messages, "max_tokens": 4, "temperature": 0}
    started = time.perf_counter()
    reply = _json(client, "POST", "/v1/chat/completions", body)
    seconds = time.perf_counter() - started
    usage = reply.get("usage") or {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    if cached is None:
        raise Unreachable(
            unquote(str(client.base_url)), "its replies have no usage.prompt_tokens_details.cached_tokens to measure"
        )
    return {"kind": kind, "prompt_tokens": usage["prompt_tokens"], "cached_tokens": cached, "seconds": seconds}


def _json(client: httpx.Client, method: str, path: str, body: object = None) -> dict[str, Any]:
    try:
        answer = client.request(method, path, json=body)
        answer.raise_for_status()
        value = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise Unreachable(unquote(str(client.base_url)), str(error) or type(error).__name__) from None
    if not isinstance(value, dict):
        raise Unreachable(unquote(str(client.base_url)), f"{path} does not answer with an object; is this an OpenAI server?")
    return value


def _common(one: str, other: str) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one.startswith(other[:middle]) else (low, middle - 1)
    return low


def _report(url: str, requests: list[dict[str, Any]]) -> Report:
    kinds = [*dict.fromkeys(row["kind"] for row in requests), "all"]
    rows = [_sum(kind, [row for row in requests if kind in ("all", row["kind"])]) for kind in kinds]
    columns = (
        Column("kind", "request"),
        Column("requests", "requests", number()),
        Column("prompt_tokens", "prompt tokens", number()),
        Column("hit", "hit rate", percent(2)),
        Column("ceiling", "ceiling", percent(2)),
        Column("reread", "re-read tokens", number()),
        Column("ms", "ms a request", number(1)),
    )
    return Report(
        f"hit rate of {url}",
        columns,
        rows,
        ("ceiling: by common characters, so within a token or two",),
        None,
        {"requests": requests},
    )


def _sum(kind: str, requests: list[dict[str, Any]]) -> dict[str, Any]:
    prompt = sum(row["prompt_tokens"] for row in requests)
    cached, known = sum(row["cached_tokens"] for row in requests), sum(row["known_tokens"] for row in requests)
    return {
        "kind": kind,
        "requests": len(requests),
        "prompt_tokens": prompt,
        "hit": cached / prompt if prompt else None,
        "ceiling": known / prompt if prompt else None,
        "reread": max(0, known - cached),
        "ms": 1e3 * sum(row["seconds"] for row in requests) / max(1, len(requests)),
    }
