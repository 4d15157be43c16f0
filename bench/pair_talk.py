"""The conversations of `kvalet-bench pair`: what a person says and when, and a client that measures each turn over HTTP."""

import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from bench import miniswe
from bench.errors import Unreachable
from engine.vocabulary import WORDS

Message = dict[str, Any]
MEDIAN_PAUSE, SPREAD = 107.0, 1.44
"""Seconds between an answer and the next message, lognormal: median 107 and a tenth below 17, as in the 542 pauses of people in
the kv-cache-tester sessions (docs/benchmarks.md)."""
RUN = 32
GRAMMAR = r"""root ::= "<think>\n" run{%d} "\n</think>\n\n" run{%d}
run ::= [a-z ]{32}"""
"""In runs of RUN letters: repeating the letters themselves would make a rule of each."""
POLL = 0.02


@dataclass(frozen=True, slots=True)
class Step:
    """A person's turn: words said after `pause` seconds, and how many letters the model then thinks and answers. `recorded`: the
    answer that it must give; `first`: a new conversation begins."""

    words: str
    pause: float
    thought: int = 0
    answer: int = 0
    recorded: str | None = None
    first: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn cost: prompt tokens, those read, those of the new message; ms to the first delta; tokens generated a second."""

    number: int
    prompt: int
    read: int
    new: int
    ms: float
    rate: float
    cut: bool = False

    @property
    def only_new(self) -> bool:
        return self.read <= self.new + 64


def steps(count: int, seed: int, *, scale: float = 1.0, pauses: Sequence[float] = ()) -> tuple[Step, ...]:
    """A seeded conversation; `pauses` from a trace stand in for the drawn ones, in turn."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        drawn = rng.lognormvariate(math.log(MEDIAN_PAUSE), SPREAD)
        words = " ".join(rng.choices(WORDS, k=rng.randint(8, 60)))
        thought, answer = round(scale * rng.randint(300, 1200)), round(scale * rng.randint(600, 1900))
        made.append(Step(words, pauses[number % len(pauses)] if pauses else drawn, thought, answer))
    return tuple(made)


def recorded_steps(folder: Path, sessions: int) -> tuple[Step, ...]:
    """The first sessions of a folder of full-text traces (bench/miniswe.py) as one script. Raises TraceError."""
    made = []
    for session in list(miniswe.sessions(folder).values())[:sessions]:
        for asked, answered in zip(session[::2], session[1::2], strict=False):
            made.append(Step(asked.text, MEDIAN_PAUSE, recorded=answered.text, first=asked is session[0]))
    return tuple(made)


def literally(text: str) -> str:
    """A grammar that lets a model say nothing but `text`."""
    return f"root ::= {json.dumps(text, ensure_ascii=False)}"


def trace_pauses(path: Path) -> tuple[float, ...]:
    """How long people took to answer in a kv-cache-tester session: the think time before each message that is text alone."""
    requests = json.loads(path.read_text("utf-8")).get("requests", ())
    theirs = [one for one in requests if one.get("input_types") == ["text"] and one.get("think_time", 0) > 0]
    return tuple(float(one["think_time"]) for one in theirs)


@dataclass
class Client:
    """One person talking to one server over one connection. `thinks`: answers follow GRAMMAR; else they are `answer` letters'
    worth of free text. `waited`: seconds of pauses that were really spent."""

    thinks: bool
    url: str = ""
    history: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    asked: int = 0  # turns of this conversation
    waited: float = 0.0
    http: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=600))

    def begin(self, seed: int) -> None:
        text = " ".join(random.Random(seed).choices(WORDS, k=150))
        self.history, self.turns, self.asked = [{"role": "system", "content": text}], [], 0

    def say(self, step: Step) -> None:
        """Sends the next message and reads the answer as it comes."""
        if step.first:
            self.history, self.asked = [], 0
        self.history.append({"role": "user", "content": step.words})
        body: dict[str, Any] = {"messages": self.history, "stream": True, "temperature": 0}
        if step.recorded is not None:
            body |= {"grammar": literally(step.recorded), "enable_thinking": False, "max_tokens": 4 * len(step.recorded)}
        elif self.thinks:
            body |= {
                "grammar": GRAMMAR % (step.thought // RUN + 1, step.answer // RUN + 1),
                "enable_thinking": True,
                "max_tokens": 3000,
            }
        else:
            body |= {"chat_template_kwargs": {"enable_thinking": False}, "max_tokens": step.answer // 6}
        started, first, text = time.perf_counter(), 0.0, ""
        last: dict[str, Any] = {}
        with self.http.stream("POST", f"{self.url}/v1/chat/completions", json=body) as reply:
            for line in reply.iter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise Unreachable(self.url, str(chunk["error"]))
                delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
                if not first and (delta.get("content") or delta.get("reasoning_content")):
                    first = time.perf_counter()
                text += delta.get("content") or ""
                last = chunk if "kvalet" in chunk else last
        self.history.append({"role": "assistant", "content": text})
        self._note(step, 1e3 * ((first or time.perf_counter()) - started), last)

    def _note(self, step: Step, ms: float, last: dict[str, Any]) -> None:
        timings = last["timings"]
        rate = 1e3 * timings["predicted_n"] / max(timings["predicted_ms"], 1e-3)
        cut = bool(last["kvalet"].get("keeper", {}).get("cut"))
        prompt = timings["cache_n"] + timings["prompt_n"]
        self.turns.append(Turn(self.asked, prompt, timings["prompt_n"], self._new(step), ms, rate, cut))
        self.asked += 1

    def _new(self, step: Step) -> int:
        """Tokens of the message with its markup and of the answer's opening, which everybody must read."""
        shown = f"<|im_start|>user\n{step.words}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        answer = self.http.post(f"{self.url}/tokenize", json={"content": shown, "parse_special": True})
        return len(answer.json()["tokens"])

    def pause(self, seconds: float) -> None:
        """A person's pause, cut short once nothing is left to read: what comes after changes nothing."""
        until = time.perf_counter() + seconds
        started = time.perf_counter()
        while time.perf_counter() < until and self.preread()["busy"]:
            time.sleep(POLL)
        self.waited += time.perf_counter() - started

    def preread(self) -> dict[str, Any]:
        """What the server says of its background; not busy where it has none."""
        found = self.http.get(f"{self.url}/cache?limit=0").json()
        return dict(found.get("preread", {"busy": False, "share_wasted": None}))
