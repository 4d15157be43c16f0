"""Excerpts: no character is ever split, every cut shows, and the tokens that matter are in."""

from hypothesis import given
from hypothesis import strategies as st

from keeper.evidence import Candidate, choose
from keeper.excerpt import ELLIPSIS, PIECE_CHARACTERS, binary_note, clip, folded, joined, pieces, size
from keeper.graph import build
from tests.keeper.spans import reading, result, said


@given(st.text(max_size=80), st.integers(0, 120))
def test_a_clip_fits_splits_no_character_and_shows_that_it_clipped(text: str, limit: int) -> None:
    cut = clip(text, limit)
    assert size(cut) <= limit or not cut
    if cut != text:
        assert not cut or cut.endswith(ELLIPSIS)
        assert text.startswith(cut.removesuffix(ELLIPSIS))


def test_a_clip_at_every_byte_of_a_multibyte_text_is_valid() -> None:
    text = "aé→𝄞" * 5
    for limit in range(size(text) + 1):
        assert size(clip(text, limit)) <= limit


@given(st.text(max_size=600))
def test_pieces_together_are_the_folded_text(text: str) -> None:
    if binary_note(text) is None:
        assert "".join(folded(text).split()) == "".join("".join(piece.text for piece in pieces(text)).split())
        assert all(len(piece.text) <= PIECE_CHARACTERS for piece in pieces(text))


def test_every_gap_between_chosen_pieces_shows() -> None:
    cut = pieces("one\ntwo\nthree\nfour\nfive")
    assert joined(cut, {0, 1, 2, 3, 4}) == "one two three four five"
    assert joined(cut, {1, 3}) == f"{ELLIPSIS} two {ELLIPSIS} four {ELLIPSIS}"
    assert joined(cut, {0, 4}) == f"one {ELLIPSIS} five"
    assert joined(cut, set()) == ""


def test_a_huge_text_is_cut_to_bounded_pieces_from_both_ends() -> None:
    cut = pieces("\n".join(f"line {i}" for i in range(100_000)), most=100)
    assert len(cut) == 100
    assert (cut[0].text, cut[-1].text) == ("line 0", "line 99999")


def test_binary_and_encoded_results_are_named_by_size_and_not_quoted() -> None:
    assert binary_note("\x00\x01\x02" * 100) == "[binary, 300 B]"
    assert binary_note("iVBORw0KGgo" * 200) == "[encoded data, 2200 B]"
    assert binary_note("plain text with a tab\tand a\nnewline") is None
    assert [piece.text for piece in pieces("\ufffd" * 50)] == ["[binary, 150 B]"]


def test_lone_surrogates_that_json_may_carry_do_not_raise() -> None:
    assert size("\ud800") == 3
    assert clip("abc\ud800\ud800", 7) == "abc" + ELLIPSIS


def test_pieces_with_reused_tokens_are_taken_before_the_head_and_covered_tokens_do_not_count_twice() -> None:
    text = "\n".join(
        ["head line", *(f"filler {i} without names" for i in range(50)), "the key is ZEBRA-7781", "again ZEBRA-7781"]
    )
    graph = build([reading("a", "x.md"), result("a", text), said("assistant", "ZEBRA-7781")])
    found = choose(graph, [Candidate(1, 1, "- r1: ", text)], set(), 50)
    assert found[1].text.count("ZEBRA-7781") == 1
    assert found[1].clipped


@given(st.integers(0, 400))
def test_labels_headings_and_excerpts_together_stay_under_the_limit(limit: int) -> None:
    texts = ["alpha beta gamma\n" * 9, "delta ZEBRA-7781\nepsilon", "", "é" * 500]
    graph = build([reading("a", "x.md"), result("a", texts[1]), said("assistant", "ZEBRA-7781")])
    candidates = [Candidate(i, i, f"- r{i}: ", text, "HEADING\n" if i % 2 else "OTHER\n") for i, text in enumerate(texts)]
    found = choose(graph, candidates, set(), limit)
    headings = {candidates[i].section for i in found}
    body = "".join(f"{candidates[i].label}{excerpt.text}\n" for i, excerpt in found.items())
    assert size(body) + sum(map(size, headings)) <= limit
