"""The rows of facts/llama-state.md where a stock server re-reads thousands of tokens: here at most 512 beyond the tail."""

import json
from typing import Any

import pytest

from tests.e2e.serving import Message, Server, assistant, common_text, read, said, system, user, words

pytestmark = pytest.mark.e2e
BOUND = 512
PLAIN = {"chat_template_kwargs": {"enable_thinking": False}}
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}},
}


def beyond_the_tail(server: Server, body: dict[str, Any], prompt: str, known: str) -> int:
    """Tokens read although they lie before the first character that differs from the text the server had read."""
    common = common_text(prompt, known)
    assert len(common) > len(prompt) // 4, "the test's own prompts share too little"
    return read(body) - (body["usage"]["prompt_tokens"] - server.count(common))


def rounds(count: int, seed: int) -> list[Message]:
    """Tool calls and their results, about 100 tokens a round."""
    messages: list[Message] = []
    for number in range(count):
        call = {
            "id": f"c{number}",
            "type": "function",
            "function": {"name": "look", "arguments": json.dumps({"at": f"p{number}"})},
        }
        messages.append(assistant("", tool_calls=[call]))
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": words(70, seed + number)})
    return messages


def test_an_edit_of_an_early_user_message_rereads_only_what_follows(server: Server) -> None:
    history = [system(words(300, 1))]
    for turn in range(14):
        history += [user(words(150, 10 + turn)), assistant(words(120, 50 + turn))]
    history.append(user("and now"))
    first = server.chat(history)
    assert first["usage"]["prompt_tokens"] > 3500
    known = server.prompt(history)
    history[11] = user(words(100, 15) + " instead " + words(60, 16))
    body = server.chat(history)
    assert beyond_the_tail(server, body, server.prompt(history), known) <= BOUND


def test_an_edit_at_79_percent_of_one_long_message_rereads_only_what_follows(server: Server) -> None:
    text = words(6500, 2).split()
    known = [user(" ".join(text))]
    assert server.chat(known)["usage"]["prompt_tokens"] > 5000
    edited = [user(" ".join([*text[:5135], "something", "else", *text[5137:]]))]
    body = server.chat(edited)
    assert beyond_the_tail(server, body, server.prompt(edited), server.prompt(known)) <= BOUND
    assert body["kvalet"]["diverged_at"]["message"] == 0
    assert body["kvalet"]["diverged_at"]["char"] == pytest.approx(len(" ".join(text[:5135])), abs=16)


def test_a_tool_result_trimmed_at_two_thirds_of_an_imported_run_rereads_only_what_follows(server: Server) -> None:
    history = [system("Look around."), user("Find it."), *rounds(50, 1000)]
    first = server.chat(history, tools=[TOOL])
    assert first["usage"]["prompt_tokens"] > 5000
    known = server.prompt(history, tools=[TOOL])
    trimmed = list(history)
    at = 2 + 2 * 33 + 1
    trimmed[at] = {**history[at], "content": history[at]["content"][:40] + " […]"}
    body = server.chat(trimmed, tools=[TOOL])
    assert beyond_the_tail(server, body, server.prompt(trimmed, tools=[TOOL]), known) <= BOUND


def test_a_tool_result_trimmed_in_a_run_that_grew_round_by_round_rereads_only_what_follows(server: Server) -> None:
    history = [system("Look around, slowly."), user("Find the other one."), *rounds(60, 2000)]
    for end in range(4, len(history) + 1, 2):
        server.chat(history[:end], 1, tools=[TOOL])
    known = server.prompt(history, tools=[TOOL])
    trimmed = list(history)
    at = 2 + 2 * 30 + 1
    trimmed[at] = {**history[at], "content": history[at]["content"][:40] + " […]"}
    body = server.chat(trimmed, tools=[TOOL])
    assert body["usage"]["prompt_tokens"] > 5000
    assert beyond_the_tail(server, body, server.prompt(trimmed, tools=[TOOL]), known) <= BOUND


@pytest.mark.parametrize("exact", ["append", "strict"])
def test_an_identical_request_reads_at_most_a_grid(server: Server, exact: str) -> None:
    messages = [system(words(900, 3)), user(words(600, 4))]
    first = server.chat(messages, 16, exact=exact)
    again = server.chat(messages, 16, exact=exact)
    assert read(again) <= 64
    assert said(again) == said(first)


def test_three_thinking_turns_without_echo_reread_only_from_the_last_real_user_message(server: Server) -> None:
    history = [system(words(800, 5))]
    for turn in range(3):
        history.append(user(words(300, 60 + turn)))
        body = server.chat(history, 120)
        if turn:
            # What changed is the thinking of the turn before: all up to the user message before it must be kept.
            stable = server.prompt(history[:-2], add_generation_prompt=False)
            assert body["usage"]["prompt_tokens_details"]["cached_tokens"] >= server.count(stable) - 64
        history.append(assistant(words(40, 70 + turn)))


def test_thinking_off_rereads_only_the_answer_and_the_new_message(server: Server) -> None:
    history = [system(words(700, 6)), user(words(100, 7))]
    answer = said(server.chat(history, 60, **PLAIN))
    before = server.count(server.prompt(history, add_generation_prompt=False))
    history += [answer, user(words(50, 8))]
    body = server.chat(history, **PLAIN)
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] >= before - 64


def test_a_tool_added_and_taken_away_again_finds_the_first_state(server: Server) -> None:
    messages = [system(words(700, 9)), user(words(400, 10))]
    other = {"type": "function", "function": {"name": "other", "parameters": {"type": "object", "properties": {}}}}
    server.chat(messages, tools=[TOOL])
    server.chat(messages, tools=[TOOL, other])
    third = server.chat(messages, tools=[TOOL])
    assert read(third) <= 64


def test_a_new_question_after_a_tool_chain_rereads_from_the_last_real_user_message(server: Server) -> None:
    start = [system(words(600, 11)), user(words(300, 12))]
    chain = rounds(10, 3000)
    server.chat([*start, *chain], tools=[TOOL])
    asked = [*start, *chain, assistant("There it is."), user("And what else?")]
    body = server.chat(asked, tools=[TOOL])
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] >= server.count(server.prompt(start, tools=[TOOL])) - 64 - 8


def test_with_preserved_thinking_a_new_question_after_a_tool_chain_reads_only_what_is_new(server: Server) -> None:
    keep = {"tools": [TOOL], "chat_template_kwargs": {"preserve_thinking": True}}
    start = [system(words(600, 13)), user(words(300, 14)), *rounds(10, 4000)]
    server.chat(start, **keep)
    asked = [*start, assistant("There it is.", reasoning_content="hm"), user(words(40, 15))]
    body = server.chat(asked, **keep)
    new = server.count(server.prompt(asked, **keep)) - server.count(server.prompt(start, add_generation_prompt=False, **keep))
    assert read(body) <= new + 64


def test_a_block_inserted_in_the_middle_rereads_from_the_nearest_checkpoint(server: Server) -> None:
    text = words(4000, 16).split()
    server.chat([user(" ".join(text))])
    known = server.prompt([user(" ".join(text))])
    edited = [user(" ".join([*text[:2000], words(50, 17), *text[2000:]]))]
    body = server.chat(edited)
    assert beyond_the_tail(server, body, server.prompt(edited), known) <= BOUND


def test_a_clock_at_the_end_of_a_long_system_prompt_costs_only_what_follows_it(server: Server) -> None:
    def at(second: int) -> list[Message]:
        return [system(f"{words(2000, 18)} The time is 12:00:{second:02d}."), user("What now?")]

    server.chat(at(1))
    assert read(server.chat(at(2))) <= BOUND


def test_a_hash_at_the_start_of_the_system_prompt_is_found_by_the_report(server: Server) -> None:
    def with_hash(cch: str) -> list[Message]:
        return [system(f"x-client: cc; cch={cch};\n{words(500, 19)}"), user("Go.")]

    server.chat(with_hash("1a2b3"))
    place = server.chat(with_hash("9f8e7"))["kvalet"]["diverged_at"]
    assert (place["message"], place["char"]) == (0, len("x-client: cc; cch="))


def test_branches_resume_from_one_parked_prefix_any_number_of_times(server: Server) -> None:
    base = [system(words(1500, 20))]
    server.chat([*base, user("first")])
    for branch in range(6):
        body = server.chat([*base, user(words(30, 80 + branch))])
        assert read(body) <= 64 + 64
