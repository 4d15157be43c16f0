"""What a chat becomes: the text, the places in it, and what happens to messages a template does not take."""

import json
from typing import Any

import pytest

from engine.chat import ChatTemplate, Place, Rendered, load_template
from engine.deltas import collect
from engine.errors import BadRequest, ModelError
from engine.request import AnchorKind
from engine.toolparse import Dialect
from tests.engine.chat_templates import (
    BY_NUMBER,
    CHATML,
    GEMMA,
    LLAMA,
    QWEN3,
    QWEN35,
    SEARCH,
    STRICT,
    WEATHER,
    assistant,
    result,
    system,
    template,
    user,
)

ASSISTANT = "<|im_start|>assistant\n"
CALL = ("weather", '{"city": "Lyon"}')
LOOP = [
    system("Be brief."),
    user("first"),
    assistant("done", "old thought"),
    user("weather?"),
    assistant("", "which city", [CALL, ("weather", '{"city": "Nice"}')]),
    result("sun", "c0"),
    result("rain", "c1"),
    assistant("", "again", [CALL]),
    result("fog"),
]


def qwen35(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, /, **settings: Any) -> Rendered:
    return template(QWEN35).render(messages, tools, **settings)


def shared(first: Rendered, second: Rendered) -> int:
    """Characters two prompts have in common from the start."""
    pairs = zip(first.text, second.text, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(first.text), len(second.text)))


def before(rendered: Rendered, kind: AnchorKind) -> list[str]:
    """The last 20 characters before each anchor of a kind."""
    return [rendered.text[: anchor.position][-20:] for anchor in rendered.anchors if anchor.kind is kind]


def test_the_parts_of_a_qwen35_prompt_stand_where_the_facts_say() -> None:
    text = qwen35(LOOP, [WEATHER]).text
    assert text.startswith("<|im_start|>system\n# Tools\n")
    assert text.index("</tools>") < text.index("Be brief.") < text.index("<|im_end|>")
    assert f"{ASSISTANT}done<|im_end|>" in text and "old thought" not in text
    assert f"{ASSISTANT}<think>\nwhich city\n</think>\n\n<tool_call>\n<function=weather>\n<parameter=city>\nLyon\n" in text
    assert "user\n<tool_response>\nsun\n</tool_response>\n<tool_response>\nrain\n</tool_response><|im_end|>" in text
    assert text.endswith(ASSISTANT + "<think>\n")


def test_thinking_off_and_thinking_kept() -> None:
    assert qwen35(LOOP, enable_thinking=False).text.endswith(ASSISTANT + "<think>\n\n</think>\n\n")
    assert "old thought" in qwen35(LOOP, preserve_thinking=True).text
    assert f"{ASSISTANT}<think>\n\n</think>\n\nyes<|im_end|>" in qwen35([user("q"), assistant(" yes ")]).text


def test_values_that_are_no_text_are_shown_as_the_real_template_does() -> None:
    text = qwen35([user("q"), assistant("", None, [("f", '{"b": true, "n": null, "o": {"z": 1, "a": "<é>"}, "x": 1.50}')])]).text
    assert "<parameter=b>\nTrue\n" in text and "<parameter=n>\nNone\n" in text and "<parameter=x>\n1.5\n" in text
    assert '<parameter=o>\n{"z": 1, "a": "<é>"}\n' in text


@pytest.mark.parametrize("source", [QWEN35, QWEN3, CHATML, GEMMA, LLAMA])
def test_the_spans_cut_the_prompt_into_its_messages(source: str) -> None:
    messages = [system("Sys text"), user("u"), assistant("answer one"), user("third"), assistant("s"), user("last")]
    rendered = template(source, "<bos>", "<eos>").render(messages)
    assert [span.index for span in rendered.spans] == [0, 1, 2, 3, 4, 5]
    for span, following in zip(rendered.spans, [*rendered.spans[1:], None], strict=True):
        content = str(messages[span.index]["content"])
        assert rendered.text[span.content :].startswith(content) and span.start <= span.content < span.end
        assert span.end == (following.start if following else len(rendered.text) - len(rendered.generation_prompt))
    assert rendered.generation_prompt and rendered.text.endswith(rendered.generation_prompt)


@pytest.mark.parametrize("source", [QWEN35, QWEN3])
def test_the_anchors_are_those_of_the_facts(source: str) -> None:
    rendered = template(source).render(LOOP, [WEATHER, SEARCH])
    assert before(rendered, AnchorKind.USER_END) == ["ser\nfirst<|im_end|>\n"]
    assert before(rendered, AnchorKind.LAST_USER_END)[0].endswith("weather?<|im_end|>\n")
    results = before(rendered, AnchorKind.TOOL_RESULTS_END)
    assert [text.endswith("</tool_response><|im_end|>\n"[-20:]) for text in results] == [True, True]
    assert [anchor.kind for anchor in rendered.anchors if anchor.pinned] == [AnchorKind.LAST_USER_END]
    positions = [anchor.position for anchor in rendered.anchors]
    assert positions == sorted(set(positions))
    for position in positions[1:]:
        assert rendered.text[:position].endswith("<|im_end|>\n") and rendered.text[position:].startswith("<|im_start|>")


def test_no_anchor_stands_between_parallel_tool_results() -> None:
    rendered = qwen35(LOOP, [WEATHER])
    inside = range(rendered.text.index("sun"), rendered.text.index("rain"))
    assert not [anchor for anchor in rendered.anchors if anchor.position in inside]


def test_tools_end_before_the_system_text_in_qwen35_and_after_it_in_qwen3() -> None:
    rendered = qwen35(LOOP, [WEATHER])
    anchor = next(anchor for anchor in rendered.anchors if anchor.kind is AnchorKind.TOOLS_END)
    assert rendered.text[anchor.position :].startswith("Be brief.<|im_end|>")
    other = qwen35([system("Other."), *LOOP[1:]], [WEATHER])
    assert shared(rendered, other) == anchor.position
    rendered = template(QWEN3).render(LOOP, [WEATHER])
    assert rendered.anchors[0].position == rendered.text.index("<|im_start|>user")


def test_tools_without_a_system_message_end_where_the_first_message_starts() -> None:
    rendered = qwen35(LOOP[1:], [WEATHER])
    assert rendered.anchors[0].kind is AnchorKind.TOOLS_END
    assert rendered.anchors[0].position == rendered.text.index("<|im_start|>user") == rendered.spans[0].start


def test_tools_in_the_first_user_message_end_before_its_text() -> None:
    rendered = template(LLAMA).render([system("S"), user("question")], [WEATHER])
    assert rendered.text.startswith("<|start_header_id|>system<|end_header_id|>\n\nDate: 30 Nov 2026\n\nS<|eot_id|>")
    anchor = next(anchor for anchor in rendered.anchors if anchor.kind is AnchorKind.TOOLS_END)
    assert rendered.text[anchor.position :].startswith("question<|eot_id|>")


def test_a_tool_result_wrapped_as_a_user_message_is_no_question() -> None:
    rendered = qwen35([user("q"), assistant("a", "t"), user("<tool_response>\nx\n</tool_response>"), assistant("b", "t2")])
    assert "<think>\nt\n" in rendered.text and "<think>\nt2\n" in rendered.text
    assert [anchor.kind for anchor in rendered.anchors][:2] == [AnchorKind.LAST_USER_END, AnchorKind.TOOL_RESULTS_END]


def test_where_the_client_asked_for_a_breakpoint_there_is_an_anchor() -> None:
    part = {"type": "text", "text": " long text ", "cache_control": {"type": "ephemeral"}}
    content = [part, {"type": "text", "text": "and more"}]
    rendered = qwen35([{"role": "system", "content": content}, {"role": "user", "content": "q", "cache_control": {"type": "e"}}])
    places = [rendered.text[: anchor.position] for anchor in rendered.anchors if anchor.kind is AnchorKind.CLIENT]
    assert places[0].endswith("system\nlong text ") and places[1].endswith("user\nq")


def test_the_answer_starts_at_an_anchor_after_a_tool_loop_and_after_a_question() -> None:
    for messages in (LOOP, LOOP[:2]):
        rendered = qwen35(messages)
        assert rendered.anchors[-1].position == len(rendered.text) - len(rendered.generation_prompt)
        assert rendered.generation_prompt == ASSISTANT + "<think>\n"


def test_a_template_that_counts_and_opens_the_answer_itself_still_has_its_places() -> None:
    rendered = template(BY_NUMBER).render([user("one"), assistant("two"), user("three <think> four")])
    assert [rendered.text[span.content : span.end] for span in rendered.spans] == ["one", "two", "three <think> four"]
    assert rendered.thinking


def test_a_message_that_the_template_leaves_out_has_an_empty_span_in_its_place() -> None:
    source = "{% for m in messages if m.role != 'note' %}[{{ m.content }}]{% endfor %}>"
    rendered = template(source).render([user("a"), {"role": "note", "content": "x"}, user("b")])
    assert [(span.start, span.end) for span in rendered.spans] == [(0, 3), (3, 3), (3, 6)]
    assert rendered.locate(4) == Place(2, 0) and rendered.generation_prompt == ">"


def test_half_a_surrogate_pair_becomes_a_replacement_character() -> None:
    rendered = qwen35([user("a\ud83d b"), assistant("", None, [("f", '{"a": "\\udc00"}')])])
    assert "a\ufffd b" in rendered.text and rendered.text.encode()


# public-reports.md, as far as rendering goes


def test_row_1_a_turn_whose_thinking_is_dropped_diverges_behind_the_last_question() -> None:
    asked = [user("one")]
    first = qwen35(asked)
    second = qwen35([*asked, assistant("answer"), user("two")])
    pinned = next(anchor for anchor in first.anchors if anchor.pinned)
    assert pinned.position <= shared(first, second) == len(first.text) - len("<think>\n")


def test_row_9_reasoning_that_is_not_echoed_is_found_with_message_and_character() -> None:
    told = [user("q"), assistant("", "thought", [CALL]), result("sun")]
    bare = [user("q"), assistant("", None, [CALL]), result("sun")]
    with_thought, without = qwen35(told, [WEATHER]), qwen35(bare, [WEATHER])
    assert without.locate(shared(with_thought, without)) == Place(1, 0)
    assert with_thought.text[: shared(with_thought, without)].endswith(ASSISTANT + "<think>\n")


def test_row_10_with_thinking_off_only_the_empty_think_block_is_read_again() -> None:
    first = qwen35([user("one")], enable_thinking=False)
    second = qwen35([user("one"), assistant("answer"), user("two")], enable_thinking=False)
    assert len(first.text) - shared(first, second) == len("<think>\n\n</think>\n\n")


def test_row_11_a_question_after_a_tool_chain_changes_nothing_before_the_last_question() -> None:
    chain = [message for step in range(10) for message in (assistant("", f"step {step}", [CALL]), result(f"r{step}"))]
    during = qwen35([system("S"), user("start"), *chain], [WEATHER])
    after = qwen35([system("S"), user("start"), *chain, assistant("end", "t"), user("next")], [WEATHER])
    pinned = next(anchor for anchor in during.anchors if anchor.pinned)
    assert pinned.position <= shared(during, after) < pinned.position + len(ASSISTANT + "<think>")
    assert after.locate(shared(during, after)).message == 2


def test_row_12_with_thinking_kept_the_next_question_only_appends() -> None:
    chain = [user("start"), assistant("", "step", [CALL]), result("sun")]
    during = qwen35(chain, [WEATHER], preserve_thinking=True)
    answered = [*chain, assistant("end", "thought"), user("next")]
    after = qwen35(answered, [WEATHER], preserve_thinking=True)
    assert after.text.startswith(during.text + "thought\n</think>\n\nend<|im_end|>\n")


def test_row_15_a_hash_in_the_header_is_found_with_its_character() -> None:
    header = "x-billing: version=2; cch={}; entry=cli\nYou are an agent."
    one, two = qwen35([system(header.format("a1b2c")), user("q")]), qwen35([system(header.format("ffeed")), user("q")])
    assert two.locate(shared(one, two)) == Place(0, header.index("{"))


def test_row_16_a_clock_at_the_end_of_a_system_text_changes_only_its_end() -> None:
    text = "rule " * 400
    one, two = qwen35([system(text + "10:00:01"), user("q")], [SEARCH]), qwen35([system(text + "10:00:02"), user("q")], [SEARCH])
    assert two.locate(shared(one, two)) == Place(0, len(text) + len("10:00:0"))


def test_row_18_the_same_tools_render_the_same_two_hundred_times() -> None:
    texts = {qwen35(LOOP, json.loads(json.dumps([WEATHER, SEARCH]))).text for _ in range(200)}
    assert len(texts) == 1


def test_row_19_replayed_arguments_keep_the_order_the_model_gave_them() -> None:
    chat = template(QWEN35)
    prompt = chat.render([user("edit")], [SEARCH])
    written = (
        "hm\n</think>\n\n<tool_call>\n<function=search>\n<parameter=z>\npath\n</parameter>\n"
        "<parameter=a>\nline\nline\n</parameter>\n</function>\n</tool_call>"
    )
    parser = chat.parser([SEARCH], prompt)
    message = collect([*parser.feed(written), *parser.finish()]).message()
    after = chat.render([user("edit"), message, result("ok")], [SEARCH])
    assert after.text.startswith(prompt.text + written + "<|im_end|>\n")


@pytest.mark.parametrize("source", [QWEN35, QWEN3, CHATML, GEMMA])
def test_row_52_a_system_message_in_the_middle_is_served_with_the_prefix_intact(source: str) -> None:
    chat = template(source)
    start = chat.render([system("S"), user("one")])
    rendered = chat.render([system("S"), user("one"), assistant("two"), system("Be careful now."), user("three")])
    assert shared(start, rendered) >= next(anchor.position for anchor in start.anchors if anchor.pinned)
    assert rendered.locate(rendered.text.index("careful")) == Place(3, len("Be "))
    assert bool(rendered.notes) == ("raise_exception" in source)


def test_a_template_without_a_system_role_gets_its_text_as_a_users() -> None:
    rendered = template(STRICT, "<s>", "</s>").render([system("S"), user("one"), assistant("two"), system("T"), user("three")])
    assert rendered.text == "<s>[INST] S\n\none [/INST]two</s>[INST] T\n\nthree [/INST]"
    assert rendered.notes


def test_a_template_that_takes_nothing_says_its_own_words() -> None:
    with pytest.raises(BadRequest, match="roles must alternate"):
        template(STRICT).render([assistant("first"), user("x")])
    with pytest.raises(BadRequest, match="unknown message role: judge"):
        qwen35([{"role": "judge", "content": "x"}])


def test_no_messages_at_all_are_a_bad_request_or_a_prompt_but_never_a_crash() -> None:
    assert qwen35([]).text == ASSISTANT + "<think>\n"
    with pytest.raises(BadRequest, match="refused"):
        template(LLAMA).render([])


def test_broken_arguments_stay_usable() -> None:
    for arguments in ('{"city": "Ly', "[1, 2]", "plain"):
        assert arguments in qwen35([user("q"), assistant("", None, [("weather", arguments)])]).text
        assert arguments in template(QWEN3).render([user("q"), assistant("", None, [("weather", arguments)])]).text


def test_both_forms_of_arguments_render_the_same() -> None:
    told = assistant("", None, [("weather", '{"z": 1, "city": "Lyon"}')])
    parsed = json.loads(json.dumps(told))
    parsed["tool_calls"][0]["function"]["arguments"] = {"z": 1, "city": "Lyon"}
    assert qwen35([user("q"), told]).text == qwen35([user("q"), parsed]).text


@pytest.mark.parametrize("name", ["messages", "tools", "bos_token", "kvalet_mark"])
def test_template_variables_of_ours_cannot_be_set(name: str) -> None:
    with pytest.raises(BadRequest, match=name) as caught:
        qwen35([user("q")], **{name: "x"})
    assert caught.value.param == "chat_template_kwargs"


def test_a_last_assistant_message_can_be_continued() -> None:
    rendered = qwen35([user("q"), assistant("Once upon a ")], continue_final_message=True)
    assert rendered.text.endswith(ASSISTANT + "<think>\n\n</think>\n\nOnce upon a ")
    assert rendered.continued and not rendered.thinking and rendered.generation_prompt == ""
    parser = template(QWEN35).parser(None, rendered)
    assert collect(parser.feed("<think> time")).content == "<think> time"


def test_reasoning_that_was_cut_off_can_be_continued() -> None:
    rendered = qwen35([user("q"), assistant(None, "Let me see")], continue_final_message=True)
    assert rendered.text.endswith(ASSISTANT + "<think>\nLet me see")
    parser = template(QWEN35).parser(None, rendered)
    assert collect([*parser.feed(", yes\n</think>\n\nNo"), *parser.finish()]).message()["reasoning_content"] == ", yes"


def test_continuing_an_empty_answer_starts_one() -> None:
    assert qwen35([user("q"), assistant(" ")], continue_final_message=True).text == qwen35([user("q")]).text


@pytest.mark.parametrize("source", [CHATML, GEMMA, QWEN3])
def test_a_continued_text_ends_in_what_was_said_whatever_the_template(source: str) -> None:
    rendered = template(source).render([user("time time"), assistant("time")], continue_final_message=True)
    assert rendered.text.endswith("\ntime") and rendered.spans[-1].end == len(rendered.text)


def test_what_is_no_unfinished_answer_cannot_be_continued() -> None:
    for messages in ([user("q")], [], [user("q"), assistant("", None, [CALL])]):
        with pytest.raises(BadRequest, match="continued"):
            qwen35(messages, continue_final_message=True)
    with pytest.raises(BadRequest, match="does not show"):
        template(CHATML).render([user("q"), assistant("", "thought")], continue_final_message=True)


def test_a_template_without_tools_has_them_shown_as_text_and_reads_calls_back() -> None:
    chat = template(CHATML)
    rendered = chat.render([user("q"), assistant("I look", None, [CALL]), result("sun")], [WEATHER])
    assert rendered.text.startswith("<|im_start|>system\nThese functions can be called:")
    assert 'I look\n<tool_call>\n{"name": "weather", "arguments": {"city": "Lyon"}}\n</tool_call><|im_end|>' in rendered.text
    assert "user\n<tool_response>\nsun\n</tool_response><|im_end|>" in rendered.text
    assert rendered.locate(5) == Place(None, 5) and rendered.locate(rendered.text.index("user\nq") + 5).message == 0
    parser = chat.parser([WEATHER], rendered)
    text = '<tool_call>\n{"name": "weather", "arguments": {"city": "Nice"}}\n</tool_call>'
    assert collect([*parser.feed(text), *parser.finish()]).calls[0].arguments == '{"city": "Nice"}'
    assert chat.render([system("S"), user("q")], [WEATHER]).text.count("<|im_start|>system") == 1


def test_a_model_without_a_template_gets_the_one_of_its_tokens() -> None:
    for token, start in (("<start_of_turn>", "<bos><start_of_turn>user\nq"), ("<|im_start|>", "<|im_start|>user\nq")):
        loaded = load_template(None, {token}.__contains__, "<bos>")
        assert loaded.note and "no chat template" in loaded.note
        assert loaded.render([user("q")]).text.startswith(start)
    assert load_template(None, lambda name: name == "<|start_header_id|>").render([user("q")]).text.startswith("<|start_header")
    assert load_template("", lambda name: False).render([user("q")]).text.startswith("<|im_start|>user")


def test_gemma_markup_puts_the_system_text_into_the_first_turn() -> None:
    rendered = template(GEMMA, "<bos>").render([system("S"), user("q"), assistant("a"), user("r")])
    assert rendered.text == (
        "<bos><start_of_turn>user\nS\n\nq<end_of_turn>\n<start_of_turn>model\na<end_of_turn>\n"
        "<start_of_turn>user\nr<end_of_turn>\n<start_of_turn>model\n"
    )


def test_a_broken_template_falls_back_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ModelError):
        ChatTemplate("{% if %}")
    loaded = load_template("{% if %}", lambda name: True)
    assert loaded.note and "broken" in loaded.note and loaded.note in caplog.text


def test_a_template_knows_what_it_can_do() -> None:
    assert (template(QWEN35).dialect, template(QWEN35).thinks, template(QWEN35).takes_tools) == (
        Dialect.XML,
        True,
        True,
    )
    assert (template(QWEN3).dialect, template(CHATML).thinks, template(CHATML).takes_tools) == (
        Dialect.HERMES,
        False,
        False,
    )
    assert (template(LLAMA).dialect, template(LLAMA).takes_tools) == (Dialect.NONE, True)


@pytest.mark.parametrize("source", [QWEN35, QWEN3])
def test_a_long_history_renders_with_every_span_in_order(source: str) -> None:
    messages = [message for turn in range(200) for message in (user(f"q{turn}"), assistant(f"a{turn}", "t"))]
    rendered = template(source).render(messages)
    assert [rendered.text[span.content : span.end] for span in rendered.spans] == [
        f"{m['content']}<|im_end|>\n" for m in messages
    ]
