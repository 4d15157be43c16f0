"""/cache and /metrics: what is held, how it was used, and numbers that agree with what replies said."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from tests.server.serving import Answers, metric, serving

KEY = {"Authorization": "Bearer k"}
CHAT = "/v1/chat/completions"


@pytest.fixture
def client() -> Iterator[TestClient]:
    with serving(script=Answers("ok"), api_key="k") as made:
        made.headers.update(KEY)
        yield made


def ask(client: TestClient, length: int, letter: str = "x") -> dict[str, int]:
    body = {"messages": [{"role": "user", "content": letter * length}], "temperature": 0}
    usage = client.post(CHAT, json=body).json()["usage"]
    return {"prompt": usage["prompt_tokens"], "cached": usage["prompt_tokens_details"]["cached_tokens"]}


def test_entries_are_listed_the_last_used_first_and_can_be_narrowed(client: TestClient) -> None:
    ask(client, 300)
    listed = client.get("/cache").json()
    assert listed["count"] == len(listed["entries"]) == listed["ram"]["blocks"] + listed["ram"]["checkpoints"]
    times = [entry["last_used"] for entry in listed["entries"]]
    assert times == sorted(times, reverse=True)
    blocks = client.get("/cache", params={"kind": "block", "tier": "ram"}).json()
    assert blocks["count"] == listed["ram"]["blocks"] > 0
    assert client.get("/cache", params={"tier": "disk"}).json()["count"] == 0
    assert len(client.get("/cache", params={"limit": 1}).json()["entries"]) == 1


def test_one_entry_is_shown_and_a_foreign_id_is_404(client: TestClient) -> None:
    ask(client, 300)
    id = client.get("/cache").json()["entries"][0]["id"]
    assert client.get(f"/cache/{id}").json()["entries"][0]["id"] == id
    assert client.get("/cache/00ff").status_code == 404
    assert client.get("/cache/no-hex").status_code == 404


def test_deleting_a_prefix_takes_all_that_stands_on_it(client: TestClient) -> None:
    ask(client, 300)
    before = client.get("/cache").json()["count"]
    first = next(e for e in client.get("/cache").json()["entries"] if e["position"] == 64)
    assert client.delete(f"/cache/{first['id']}").json()["deleted"] == before
    assert client.get("/cache").json()["count"] == 0


def test_cached_and_read_tokens_of_the_metrics_are_those_of_the_replies(client: TestClient) -> None:
    asked = [ask(client, length, letter) for length, letter in ((300, "x"), (300, "x"), (500, "x"), (200, "y"), (300, "x"))]
    prompt, cached = sum(one["prompt"] for one in asked), sum(one["cached"] for one in asked)
    assert cached > 0
    assert metric(client, "kvalet_prompt_tokens_total") == prompt
    assert metric(client, "kvalet_read_tokens_total") == prompt - cached
    assert metric(client, "kvalet_hit_rate") == pytest.approx(cached / prompt)


def test_a_budget_of_0_holds_nothing() -> None:
    with serving(script=Answers("ok"), cache_ram=0) as client:
        ask(client, 300)
        assert client.get("/cache").json()["count"] == 0
        assert metric(client, "kvalet_cache_lookups_total") == 0


def test_other_origins_are_let_in_only_where_they_were_named() -> None:
    headers = {"Origin": "http://page.example", "Access-Control-Request-Method": "POST"}
    with serving() as client:
        assert "access-control-allow-origin" not in client.options(CHAT, headers=headers).headers
    with serving(cors_origin=("http://page.example",), api_key="k") as client:
        assert client.options(CHAT, headers=headers).headers["access-control-allow-origin"] == "http://page.example"
