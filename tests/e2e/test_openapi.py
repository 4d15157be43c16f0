"""schemathesis against our own OpenAPI: generated requests, right and wrong, get documented answers and never a 500."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.e2e.serving import Server, serving

pytestmark = pytest.mark.e2e
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]


@pytest.fixture(scope="module")
def small() -> Iterator[Server]:
    with serving("--ctx", "256") as running:
        yield running


@pytest.fixture(scope="module")
def api(small: Server) -> Any:
    return schemathesis.openapi.from_url(f"{small.url}/openapi.json")


@pytest.fixture(scope="module")
def keeper_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    archive = str(tmp_path_factory.mktemp("archive"))
    with serving("--ctx", "4096", "--keeper", "in_place", "--archive", archive) as running:
        yield schemathesis.openapi.from_url(f"{running.url}/openapi.json")


OPERATIONS = [
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "GET /v1/models",
    "GET /v1/models/{name}",
    "GET /health",
    "POST /tokenize",
    "POST /detokenize",
    "POST /apply-template",
    "GET /props",
    "GET /slots",
    "GET /cache",
    "GET /cache/{id}",
    "DELETE /cache",
    "DELETE /cache/{id}",
    "GET /metrics",
]


KEEPER_CASES = [
    ("POST /v1/chat/completions", GenerationMode.POSITIVE),
    ("POST /v1/chat/completions", GenerationMode.NEGATIVE),
    ("GET /keeper/conversations", GenerationMode.POSITIVE),
    ("GET /keeper/{conversation}/notes", GenerationMode.POSITIVE),
    ("GET /keeper/{conversation}/archive", GenerationMode.POSITIVE),
    ("GET /keeper/{conversation}/archive", GenerationMode.NEGATIVE),
]


def test_every_operation_is_tried(api: Any) -> None:
    described = {result.ok().label for result in api.get_all_operations()}
    assert described == set(OPERATIONS)


CASES = [
    *((label, GenerationMode.POSITIVE) for label in OPERATIONS),
    *((label, GenerationMode.NEGATIVE) for label in OPERATIONS if label.startswith("POST") or label == "GET /cache"),
]


@pytest.mark.parametrize(("label", "mode"), CASES)
def test_every_answer_is_one_that_the_description_promises(api: Any, label: str, mode: GenerationMode) -> None:
    try_operation(api, label, mode)


@pytest.mark.parametrize(("label", "mode"), KEEPER_CASES)
def test_the_same_holds_behind_a_keeper(keeper_api: Any, label: str, mode: GenerationMode) -> None:
    try_operation(keeper_api, label, mode)


def try_operation(api: Any, label: str, mode: GenerationMode) -> None:
    """Generated requests of one kind to one operation."""
    operation = next(result.ok() for result in api.get_all_operations() if result.ok().label == label)

    @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
    @given(case=operation.as_strategy(generation_mode=mode))
    def tried(case: Any) -> None:
        if isinstance(case.body, dict) and label.startswith("POST /v1") and mode is GenerationMode.POSITIVE:
            case.body.update({"max_tokens": 2} if "messages" in label else {"max_tokens": 2, "n": 1})
        case.call_and_validate(checks=CHECKS, timeout=60)

    tried()


def test_after_all_this_the_server_is_well(small: Server) -> None:
    health = small.http.get("/health").json()
    assert (health["status"], health["reuse"]) == ("ok", True)
