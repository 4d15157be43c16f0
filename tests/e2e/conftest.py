"""One server with default options for every test that can share it."""

from collections.abc import Iterator

import pytest

from tests.e2e.serving import Server, serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The default model with default options; parked state goes to a folder of the test run."""
    with serving(state=tmp_path_factory.mktemp("state")) as running:
        yield running
