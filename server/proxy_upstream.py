"""The OpenAI-compatible server behind the proxy, over httpx: chat calls for the keeper, everything else passed on as it is.

Time-outs: 10 s to connect, `read_seconds` between bytes (a long prefill sends none). Only a connection that was refused or broke
before any byte of an answer is tried again, twice: nothing was answered then, and a server that restarts is back by the next try.
An answer with an error status is the upstream's word and is passed on unchanged, retry headers included.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from keeper.chunks import reply_of
from keeper.errors import UpstreamFailed
from keeper.model import Body, Reply

HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade"}
)
NOT_SENT_ON = HOP_BY_HOP | {"host", "content-length", "accept-encoding"}
NOT_SENT_BACK = HOP_BY_HOP | {"content-length", "content-encoding"}
RETRY_AFTER_SECONDS = (0.5, 1.5)


def said(error: Exception) -> str:
    """What an error of httpx says; some say nothing."""
    return str(error) or type(error).__name__


class UpstreamAnswered(UpstreamFailed):
    """The upstream answered with an error: its status, headers and body go to the client as they are."""

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        super().__init__(f"the upstream answered {status}: {body[:500].decode('utf-8', 'replace')}", status, body)
        self.headers = {name: value for name, value in headers.items() if name.lower() not in NOT_SENT_BACK}


class Upstream:
    """One upstream. `key` replaces the clients' own authorization where it is given; where the clients' key is for the proxy
    (`keeps_keys`) it is not sent on."""

    def __init__(self, url: str, key: str | None = None, read_seconds: float = 600.0, keeps_keys: bool = False) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._key = key
        self._keeps_keys = keeps_keys
        timeout = httpx.Timeout(connect=10.0, read=read_seconds, write=60.0, pool=30.0)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
        self._client = httpx.AsyncClient(timeout=timeout, limits=limits, follow_redirects=False)

    async def close(self) -> None:
        await self._client.aclose()

    def headers(self, given: Mapping[str, str]) -> dict[str, str]:
        """A client's headers as they are sent on."""
        sent = {name: value for name, value in given.items() if name.lower() not in NOT_SENT_ON}
        if self._key or self._keeps_keys:
            sent = {name: value for name, value in sent.items() if name.lower() not in ("authorization", "x-api-key")}
        return {**sent, "authorization": f"Bearer {self._key}"} if self._key else sent

    @asynccontextmanager
    async def opened(
        self, method: str, path: str, headers: Mapping[str, str], content: bytes | AsyncIterator[bytes] | None, query: str = ""
    ) -> AsyncIterator[httpx.Response]:
        """One exchange, its body not read yet. Raises UpstreamFailed where there is no answer at all."""
        url = f"{self.url}{path}" + (f"?{query}" if query else "")
        request = self._client.build_request(method, url, headers=self.headers(headers), content=content)
        response = await self._sent(request, again=not content or isinstance(content, bytes))
        try:
            yield response
        except httpx.HTTPError as error:
            raise UpstreamFailed(f"the upstream {self.url} broke off: {said(error)}") from error
        finally:
            await response.aclose()

    async def _sent(self, request: httpx.Request, again: bool) -> httpx.Response:
        for wait in (*(RETRY_AFTER_SECONDS if again else ()), None):
            try:
                return await self._client.send(request, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.RemoteProtocolError) as error:
                if wait is None:
                    raise UpstreamFailed(f"no answer from the upstream {self.url}: {said(error)}") from error
                await asyncio.sleep(wait)
            except httpx.HTTPError as error:
                raise UpstreamFailed(f"no answer from the upstream {self.url}: {said(error)}") from error
        raise AssertionError("the last try returns or raises")


def _read_chunk(data: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except ValueError as error:
        raise UpstreamFailed("the upstream streamed something that is no JSON") from error
    if not isinstance(chunk, dict):
        raise UpstreamFailed("the upstream streamed something that is no chunk")
    return chunk


class Speaker:
    """An upstream's chat API with one client's headers: what keeper_turn speaks to."""

    def __init__(self, upstream: Upstream, path: str, headers: Mapping[str, str]) -> None:
        self._upstream = upstream
        self._path = path
        self._headers = {name: value for name, value in headers.items() if name.lower() != "content-type"}
        self._headers["content-type"] = "application/json"

    async def whole(self, body: Mapping[str, Any]) -> dict[str, Any]:
        async with self._opened(body) as response:
            content = await response.aread()
        try:
            completion = json.loads(content)
        except ValueError as error:
            raise UpstreamFailed("the upstream answered 200 with something that is no JSON") from error
        if not isinstance(completion, dict) or not completion.get("choices"):
            raise UpstreamFailed("the upstream answered 200 with something that is no chat completion")
        return completion

    async def chunks(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        async with self._opened(body) as response:
            async for line in response.aiter_lines():
                if not line.startswith("data:"):
                    continue
                data = line[5:].strip()
                if data == "[DONE]":
                    return
                chunk = _read_chunk(data)
                if "error" in chunk:
                    raise UpstreamAnswered(502, data.encode(), {"content-type": "application/json"})
                yield chunk

    @asynccontextmanager
    async def _opened(self, body: Mapping[str, Any]) -> AsyncIterator[httpx.Response]:
        content = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        async with self._upstream.opened("POST", self._path, self._headers, content) as response:
            if response.status_code >= 300:
                raise UpstreamAnswered(response.status_code, await response.aread(), response.headers)
            yield response

    async def complete(self, body: Body) -> Reply:
        """A call of the keeper's own."""
        return reply_of(await self.whole(body))
