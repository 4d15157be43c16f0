"""Synthetic models: the same bytes every time, a tokenizer that works, and generation that varies."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ModelError
from engine.synthetic import Geometry, digest, parameters, parse_spec, write_model
from engine.vocabulary import byte_alphabet, join_pair, make_vocabulary

REPEATABLE = settings(deadline=None, derandomize=True)

SMALL = "custom,embd=64,layers=4,ff=64,heads=2,kv=1,head_dim=32,key_heads=1,value_heads=2,vocab=320"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def built(folder: Path, spec: str, name: str = "model.gguf") -> Path:
    path = folder / name
    write_model(path, parse_spec(spec))
    return path


def test_tiny_has_the_pinned_bytes(tmp_path: Path) -> None:
    """Raw PCG64 output and integer arithmetic: no numpy or libm version can change it, only gguf's layout or this code."""
    assert sha256(built(tmp_path, "tiny")) == "81895b31722c5684f964a5fb43f4b7b192a88eda22a66ba4287705ed5d3acbbb"


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0"])
def test_two_builds_in_processes_with_other_hash_seeds_are_the_same_file(kind: str, tmp_path: Path) -> None:
    spec = f"{SMALL},type={kind}"
    code = "import sys; from pathlib import Path; from engine.synthetic import parse_spec, write_model\n"
    code += "write_model(Path(sys.argv[1]), parse_spec(sys.argv[2]))"
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", code, str(tmp_path / seed), spec], check=True, env=environment)
    assert sha256(tmp_path / "1") == sha256(tmp_path / "2")


def test_another_seed_gives_other_weights_and_another_name(tmp_path: Path) -> None:
    first, second = SMALL, SMALL + ",seed=1"
    assert sha256(built(tmp_path, first, "a")) != sha256(built(tmp_path, second, "b"))
    assert digest(parse_spec(first)) != digest(parse_spec(second))


def test_the_presets_have_their_sizes() -> None:
    assert 4e6 < parameters(parse_spec("tiny")) < 6e6
    assert parameters(parse_spec("0.8b")) == 752_393_024  # Qwen3.5-0.8B without its vision tower and draft head
    assert parse_spec("tiny-q8") == parse_spec("tiny,type=q8_0")


def test_the_file_holds_the_shapes_and_the_metadata_it_promises(tmp_path: Path) -> None:
    reader = gguf.GGUFReader(built(tmp_path, SMALL + ",type=Q8_0"))
    shapes = {tensor.name: (tuple(int(n) for n in tensor.shape), tensor.tensor_type.name) for tensor in reader.tensors}
    assert shapes["token_embd.weight"] == ((64, 320), "Q8_0")
    assert shapes["blk.0.ssm_conv1d.weight"] == ((4, 128), "F32")
    assert shapes["blk.3.attn_q.weight"] == ((64, 128), "Q8_0")
    assert "blk.3.ssm_a" not in shapes
    assert reader.fields["general.architecture"].contents() == "qwen35"
    assert "<function=" in reader.fields["tokenizer.chat_template"].contents()
    assert sum(reader.fields["qwen35.rope.dimension_sections"].contents()) == 32 // 8


def test_q8_weights_equal_the_f32_weights_but_for_the_rounded_scale(tmp_path: Path) -> None:
    exact, packed = (gguf.GGUFReader(built(tmp_path, f"{SMALL},type={kind}", kind)) for kind in ("F32", "Q8_0"))
    for one, other in zip(exact.tensors, packed.tensors, strict=True):
        values = gguf.quants.dequantize(other.data, other.tensor_type)
        assert np.allclose(values.reshape(one.data.shape), one.data, rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("huge", "no synthetic model 'huge'"),
        ("tiny,depth=3", "no option 'depth'"),
        ("tiny,layers=many", "whole number"),
        ("tiny,layers=-1", "whole number"),
        ("tiny,layers=0", "at least 1"),
        ("tiny,embd=100", "multiples of 32"),
        ("tiny,heads=3", "multiple of kv"),
        ("tiny,value_heads=6", "multiple of key_heads"),
        ("tiny,vocab=100", "vocab"),
        ("tiny,type=Q4_K", "F32, F16 or Q8_0"),
    ],
)
def test_a_spec_that_cannot_be_made_says_why(spec: str, part: str) -> None:
    with pytest.raises(ModelError, match=part):
        parse_spec(spec)


def test_progress_ends_at_the_whole(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    write_model(tmp_path / "m", Geometry(layers=1, vocab=320), lambda _, done, total: seen.append((done, total)))
    assert seen == sorted(seen) and seen[-1][0] == seen[-1][1]


def test_the_vocabulary_has_no_token_twice_and_every_merge_makes_a_token() -> None:
    for size in (320, 2048, 12_000):
        vocabulary = make_vocabulary(size)
        assert len(set(vocabulary.tokens)) == len(vocabulary.types) == size
        made = {merge.replace(" ", "") for merge in vocabulary.merges}
        assert made <= set(vocabulary.tokens)


def test_ordinary_english_takes_a_few_characters_a_token() -> None:
    merges = [tuple(merge.split(" ")) for merge in make_vocabulary(2048).merges]
    rank = {pair: number for number, pair in enumerate(merges)}
    sentence = "the server should keep the history of every customer and answer the last question before Monday"
    words = sentence.split()
    count = 0
    for word in words:
        symbols = list("Ġ" + word)
        while pairs := [pair for pair in pairwise(symbols) if pair in rank]:
            symbols = join_pair(symbols, min(pairs, key=lambda pair: rank[pair]))
        count += len(symbols)
    assert count <= 1.5 * len(words)


@REPEATABLE
@given(st.lists(st.sampled_from("ab"), max_size=12))
def test_joining_a_pair_keeps_the_text_and_leaves_no_pair_behind(symbols: list[str]) -> None:
    joined = join_pair(symbols, ("a", "b"))
    assert "".join(joined) == "".join(symbols)
    assert ("a", "b") not in list(pairwise(joined))


def test_the_byte_alphabet_has_a_letter_for_each_byte() -> None:
    assert len(set(byte_alphabet())) == 256
    assert byte_alphabet()[ord(" ")] == "Ġ" and byte_alphabet()[ord("\n")] == "Ċ"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """tiny (F32: no weight repacking, which crashes on some virtual CPUs) in llama.cpp, one thread."""
    llama_cpp = pytest.importorskip("llama_cpp")
    path = built(tmp_path_factory.mktemp("model"), "tiny")
    model = llama_cpp.Llama(str(path), n_ctx=1024, n_threads=1, n_threads_batch=1, verbose=False)
    yield model
    model.close()


PROMPTS = ["Hello", "What is the balance of the account?", "List three rules, please."]


@pytest.mark.model
def test_llama_cpp_reads_specials_as_one_token_and_english_in_few(llama: Any) -> None:
    assert len(llama.tokenize(b"<|im_start|><think>\n</tool_call>", add_bos=False, special=True)) == 4
    text = b"The manager said that every customer should pay the invoice before Monday morning."
    tokens = llama.tokenize(text, add_bos=False)
    assert len(tokens) < len(text) / 3
    assert llama.detokenize(tokens) == text


@pytest.mark.model
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_tiny_model_says_different_words_and_does_not_stop_at_once(llama: Any, temperature: float) -> None:
    answers = []
    for prompt in PROMPTS:
        text = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        reply = llama.create_completion(text, max_tokens=40, temperature=temperature, seed=1)["choices"][0]
        answers.append(reply["text"])
        assert len(set(llama.tokenize(reply["text"].encode(), add_bos=False))) >= 20
        assert reply["text"].isascii()
    assert len(set(answers)) == len(PROMPTS)
