"""The embedded model's byte-level BPE, trained on episodes, with Qwen's split and special tokens; 1,095 tokens come of it."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from bench.ledger.episodes import Difficulty, make_episode
from bench.ledger.rendering import render
from bench.ledger.words import counter_names
from engine.vocabulary import CONTROL, MARKS
from keeper.notes import Notes
from keeper.notetaker import request_message
from keeper.recall import NAME as RECALL
from keeper.recall import tool_of

SPECIAL = (*CONTROL, *MARKS)
# Qwen's published pre-tokenizer; llama.cpp knows it as `qwen35`.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def corpus(episodes: int = 4000) -> Iterator[str]:
    """Names first, with and without the space before, so that each becomes one token; then episodes."""
    for name in counter_names():
        yield f"{name}\n {name} {name}\n{name}\n" * 90
    fixed = (
        json.dumps(tool_of(RECALL), ensure_ascii=False)
        + "\n"
        + request_message(None).text
        + "\n"
        + request_message(Notes(), "x").text
    )
    for _ in range(200):
        yield fixed
    for seed in range(episodes):
        text = "".join(part.text for part in render(make_episode(seed, Difficulty(12, 14)), random.Random(seed)))
        for token in SPECIAL:
            text = text.replace(token, "")
        yield text


def train_tokenizer(path: Path, vocabulary: int = 1280) -> Tokenizer:
    """Trains and writes the tokenizer; the same episodes give the same file."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=2,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return tokenizer


def load_or_train(path: Path) -> Tokenizer:
    """The tokenizer in a file, trained first where there is none."""
    return Tokenizer.from_file(str(path)) if path.exists() else train_tokenizer(path)
