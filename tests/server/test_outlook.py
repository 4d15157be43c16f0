"""What may come next is asked of the keeper on its own loop, and a loop that ends keeps nobody waiting."""

import asyncio
import threading

import pytest

from engine.errors import EngineStopped
from server.outlook import expected_length, result_of


async def seven() -> int:
    await asyncio.sleep(0)
    return 7


async def broken() -> int:
    raise TimeoutError("its own")


def test_the_result_comes_from_the_other_loop_and_so_does_its_error() -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        assert result_of(seven(), loop) == 7
        with pytest.raises(TimeoutError, match="its own"):
            result_of(broken(), loop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_loop_that_has_stopped_is_not_waited_for() -> None:
    loop = asyncio.new_event_loop()
    with pytest.raises(EngineStopped):
        result_of(work := seven(), loop)
    work.close()
    loop.close()


def test_the_next_message_is_taken_to_be_as_long_as_the_longest_of_the_newest_that_were_not_the_models() -> None:
    told = [{"role": role, "content": "x" * length} for role, length in (("user", 90), ("tool", 3), ("assistant", 50))]
    assert expected_length([*told, {"role": "user", "content": None}]) == 90
    assert expected_length([{"role": "assistant", "content": "long"}]) == 1
