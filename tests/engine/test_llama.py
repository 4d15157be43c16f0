"""Models as llama.cpp reads them: text and tokens, what the file says of itself, errors in words, a log that is kept."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from engine import catalog
from engine.config import ContextConfig, ModelConfig
from engine.context import StateKind, Tokenizer
from engine.errors import BadRequest, ModelError
from engine.fake import FakeTokenizer

if TYPE_CHECKING:
    from engine.llama import LlamaContext
    from engine.llama_model import Model

LoadModel = Callable[[str], "Model"]
REAL = [pytest.param(name, marks=pytest.mark.model) for name in ("tiny", "smollm2", "gemma3-270m")]
TEXTS = ["", "Hello, world", "naïve Ωmega 你好 🙂", "tabs\tand\nlines\r\n", "<|im_start|>user\nhi<|im_end|>", "a\0b", " leading"]


@pytest.fixture(params=["fake", *REAL])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param == "fake":
        return FakeTokenizer()
    model: Tokenizer = request.getfixturevalue("load_model")(request.param)
    return model


@pytest.mark.parametrize("special", [True, False])
def test_text_comes_back_byte_for_byte(tokenizer: Tokenizer, special: bool) -> None:
    for text in TEXTS:
        tokens = tokenizer.tokenize(text, special=special)
        assert tokenizer.detokenize(tokens).decode() in (text, " " + text)
        assert all(0 <= token < tokenizer.n_vocab for token in tokens)
        assert tokens == tokenizer.tokenize(text.encode(), special=special)


def test_text_that_is_no_unicode_is_taken_as_far_as_it_goes(tokenizer: Tokenizer) -> None:
    assert tokenizer.detokenize(tokenizer.tokenize("a\ud800b", special=False)).strip() == b"a?b"
    assert tokenizer.tokenize(b"a\xff\xfeb", special=False)


def test_special_text_is_one_token_only_where_it_is_asked_for(tokenizer: Tokenizer) -> None:
    assert tokenizer.eos is not None
    text = tokenizer.piece(tokenizer.eos).decode()
    assert tokenizer.tokenize(text, special=True)[-1] == tokenizer.eos
    assert tokenizer.eos not in tokenizer.tokenize(text, special=False)


def test_a_token_outside_the_vocabulary_is_a_bad_request(tokenizer: Tokenizer) -> None:
    for token in (-1, tokenizer.n_vocab, 1 << 40):
        with pytest.raises(BadRequest):
            tokenizer.piece(token)


def test_the_beginning_is_added_only_when_asked_for(tokenizer: Tokenizer) -> None:
    plain, begun = (tokenizer.tokenize("hi", special=False, add_bos=add) for add in (False, True))
    assert begun == ([] if tokenizer.bos is None else [tokenizer.bos]) + plain


def test_the_end_of_a_turn_ends_a_generation(tokenizer: Tokenizer) -> None:
    assert tokenizer.eos in tokenizer.eog
    assert all(0 <= token < tokenizer.n_vocab for token in tokenizer.eog)


@pytest.mark.model
def test_a_megabyte_of_text_is_tokenised_and_comes_back(load_model: LoadModel) -> None:
    model, text = load_model("tiny"), "word 123 \n" * 100_000
    assert model.detokenize(model.tokenize(text, special=True)).decode() == text


@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "kind", "architecture"),
    [
        ("tiny", StateKind.HYBRID, "qwen35"),
        ("smollm2", StateKind.ATTENTION, "llama"),
        ("gemma3-270m", StateKind.WINDOW, "gemma3"),
    ],
)
def test_kind_and_facts_come_from_llama_cpp(load_model: LoadModel, name: str, kind: StateKind, architecture: str) -> None:
    facts = load_model(name).facts
    assert facts.kind is kind and facts.architecture == architecture
    assert facts.parameters > 1e6 and facts.size > 1e6 and facts.n_ctx_train >= 2048 and facts.n_vocab > 300
    assert (facts.n_swa > 0) == (kind is StateKind.WINDOW)


@pytest.mark.model
def test_chat_templates_are_whole_and_missing_ones_are_missing(load_model: LoadModel) -> None:
    template = load_model("tiny").chat_templates["default"]
    assert template == (Path(catalog.__file__).parent / "qwen35.jinja").read_text(encoding="utf-8")
    assert load_model("gemma3-270m").chat_templates == {} or "default" in load_model("gemma3-270m").chat_templates


@pytest.mark.model
def test_the_fingerprint_names_the_build_and_what_decides_the_bits(load_model: LoadModel) -> None:
    facts = dict(load_model("tiny").fingerprint_facts())
    assert "llama-cpp-python" in facts["build"] and facts["repacked"] == "False" and facts["gpu_layers"] == "0"


@pytest.mark.model
def test_a_cut_model_file_is_an_error_with_llama_cpps_reason(load_model: LoadModel, tmp_path: Path) -> None:
    from engine.llama_model import Model

    whole = catalog.resolve("synthetic:tiny").path.read_bytes()
    path = tmp_path / "cut.gguf"
    for size in (60, 5000, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"cannot load .*failed to load model"):
            Model(ModelConfig(path, extra_buffers=False), load_model("tiny").backend)


@pytest.mark.model
def test_loading_reports_its_progress_and_can_be_stopped(load_model: LoadModel) -> None:
    from engine.llama_model import Model

    backend, seen = load_model("tiny").backend, []
    config = ModelConfig(catalog.resolve("synthetic:tiny").path, extra_buffers=False)
    Model(config, backend, progress=lambda fraction: seen.append(fraction) is None).close()
    assert seen[-1] == 1.0 and seen == sorted(seen)
    with pytest.raises(ModelError):
        Model(config, backend, progress=lambda fraction: False)


IMPOSSIBLE: dict[str, tuple[dict[str, object], str]] = {
    "an unknown type": ({"type_k": "q9"}, "q9"),
    "a batch off the grid": ({"batch": 100}, "grid"),
    "no slots": ({"slots": 0}, "slots"),
    "more cells than a machine holds": ({"ctx": 1 << 30}, "tokens"),
    "more cells than 32 bits count": ({"ctx": 1 << 40}, "tokens"),
}


@pytest.mark.model
@pytest.mark.parametrize(("changes", "says"), IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_a_context_that_cannot_be_made_says_why(load_model: LoadModel, changes: dict[str, object], says: str) -> None:
    from engine.llama import LlamaContext

    with pytest.raises(ModelError, match=says):
        LlamaContext(load_model("tiny"), ContextConfig(**changes))  # type: ignore[arg-type]


@pytest.mark.model
def test_a_model_whose_first_tokens_cannot_be_decoded_is_refused(load_model: LoadModel, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine import llama

    model = load_model("tiny")
    with monkeypatch.context() as patch, pytest.raises(ModelError, match="cannot be decoded"):
        patch.setattr(llama.C, "llama_decode", lambda *_: -1)
        llama.LlamaContext(model, ContextConfig(ctx=256))


@pytest.mark.model
def test_quantised_kv_and_no_flash_attention_have_their_own_sizes(make_real: Callable[..., "LlamaContext"]) -> None:
    f16, q8, transposed = make_real("tiny"), make_real("tiny", type_k="q8_0", type_v="q8_0"), make_real("tiny", flash_attn=False)
    assert q8.block_bytes(64) < f16.block_bytes(64) < transposed.block_bytes(64) + 1000
    assert q8.checkpoint_bytes == f16.checkpoint_bytes == transposed.checkpoint_bytes


@pytest.mark.model
def test_warnings_are_kept_and_the_rest_of_the_log_is_dropped(load_model: LoadModel) -> None:
    """A line may come in pieces, the later ones at level CONT."""
    backend = load_model("tiny").backend
    mark = backend.mark()
    for level, text in ((2, b"info\n"), (5, b"more\n"), (4, b"bad "), (5, b"luck\n"), (1, b"debug\n"), (3, b"careful\xff\n")):
        backend._log(level, text, ctypes.c_void_p())
    assert [(line.error, line.text) for line in backend.warnings[-2:]] == [(True, "bad luck"), (False, "careful\ufffd")]
    assert backend.errors_since(mark) == "bad luck" and backend.errors_since(backend.mark()) == ""
