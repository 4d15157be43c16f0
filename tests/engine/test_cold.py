"""A cold request reads its whole prompt, and what it read serves the next one."""

from engine.request import Exact, Source
from tests.engine.serving import Desk, text


def test_a_cold_request_reads_everything_and_says_the_same() -> None:
    desk, prompt = Desk(exact=False), text(500)
    first = desk.ask(prompt, exact=Exact.STRICT)
    cold = desk.ask(prompt, exact=Exact.STRICT, cold=True)
    assert (cold.reread, cold.done.resume.source) == (500, Source.NONE)
    assert cold.tokens == first.tokens


def test_after_a_cold_request_others_are_served_from_what_is_held() -> None:
    desk, prompt = Desk(), text(500)
    desk.ask(prompt, cold=True)
    assert desk.ask(prompt).reread <= 64
