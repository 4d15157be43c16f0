"""Headers that change in every request are made equal, and nothing else is touched."""

from engine.volatile import steady_messages, steady_text

HEADER = "x-billing-header: version=2.1; entry=cli; cch={};\nYou are an agent. cch=abc; stays"


def test_row_15_two_requests_that_differ_only_in_the_hash_become_equal() -> None:
    one, two = (
        [{"role": "system", "content": HEADER.format(hash)}, {"role": "user", "content": "q"}] for hash in ("a1b2c", "00f9e")
    )
    assert steady_messages(one) == steady_messages(two)
    assert len(steady_text(HEADER.format("a1b2c"))) == len(HEADER.format("a1b2c"))
    assert steady_text(HEADER.format("a1b2c")).endswith("cch=abc; stays")


def test_the_first_part_of_a_list_is_steadied_too() -> None:
    content = [{"type": "text", "text": HEADER.format("a1b2c"), "cache_control": {}}, {"type": "text", "text": "cch=1;"}]
    steady = steady_messages([{"role": "developer", "content": content}])[0]["content"]
    assert "cch=00000;" in steady[0]["text"] and steady[0]["cache_control"] == {} and steady[1] == content[1]


def test_other_messages_and_other_words_are_left_alone() -> None:
    messages = [{"role": "user", "content": "cch=a1;"}, {"role": "system", "content": "cch=a1;"}]
    assert steady_messages(messages) == messages
    for text in ("batch=a1;", "cch=xyz;", "no header\ncch=a1;", "x" * 600 + "cch=a1;", ""):
        assert steady_text(text) == text
    assert steady_messages([{"role": "system", "content": None}]) == [{"role": "system", "content": None}]
    assert steady_messages([]) == []
