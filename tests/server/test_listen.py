"""The listening socket: what asyncio makes of the connections it takes."""

import asyncio
import socket

from server.listen import bind


def test_connections_send_at_once_and_do_not_wait_to_be_acknowledged() -> None:
    """asyncio sets TCP_NODELAY only where a protocol is named; without it every answer on a kept connection is 40 ms late."""

    async def taken() -> int:
        found: asyncio.Queue[int] = asyncio.Queue()

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            found.put_nowait(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = bind("127.0.0.1", 0)
        async with await asyncio.start_server(serve, sock=listener):
            await asyncio.open_connection(*listener.getsockname())
            return await found.get()

    assert asyncio.run(taken()) != 0
