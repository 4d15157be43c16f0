"""A bench that is told to stop ends the servers it has started."""

import os
import signal
import subprocess
import sys
import time

import pytest

HOLD = """
import sys, time
from bench import cli
from bench.servers import Setup, kvalet
from engine import catalog

@cli.app.command("hold")
def hold() -> None:
    with kvalet(Setup(catalog.resolve("synthetic:tiny").path, ctx=512, threads=1)) as running:
        print(running.process.pid, flush=True)
        time.sleep(600)

sys.argv = ["kvalet-bench", "hold"]
cli.main()
"""


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.e2e
def test_a_bench_that_gets_sigterm_ends_its_servers() -> None:
    bench = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True)
    assert bench.stdout is not None
    server = int(bench.stdout.readline())
    assert is_running(server)
    bench.send_signal(signal.SIGTERM)
    assert bench.wait(60) == 128 + signal.SIGTERM
    deadline = time.monotonic() + 10
    while is_running(server) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(server)
