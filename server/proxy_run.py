"""Runs a proxy until it is told to stop."""

import logging
import signal
import sys

from keeper.config import KeeperConfig
from keeper.errors import KeeperError
from server.config import ConfigError, Settings
from server.listen import address, bind, leave, server
from server.proxy import Proxy, create_app
from server.proxy_upstream import Upstream


def run(
    config: KeeperConfig, upstream: str, key: str | None, read_seconds: float, host: str, port: int, api_key: str | None
) -> None:
    """Serves until SIGINT or SIGTERM. Raises ConfigError where the port or the archive cannot be had."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it writes a line for every call
    for sig in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sig, leave)
    listener = bind(host, port)
    try:
        proxy = Proxy(Upstream(upstream, key, read_seconds, keeps_keys=api_key is not None), config)
    except KeeperError as error:
        raise ConfigError(f"--archive: {error}") from error
    where = address(*listener.getsockname()[:2])
    print(banner(where, proxy), flush=True)  # noqa: T201
    server(Settings(), create_app(proxy, api_key)).run(sockets=[listener])


def banner(where: str, proxy: Proxy) -> str:
    """Lines for the terminal."""
    config = proxy.keeper.config
    rows = [
        ("address", f"{where}/v1  (OpenAI API)"),
        ("upstream", proxy.upstream.url),
        ("keeper", f"{config.strategy}, a window of {config.window} tokens"),
        ("archive", str(proxy.keeper.archive.path)),
    ]
    return "\n".join(["kvalet proxy is ready.", *(f"  {name:10} {text}" for name, text in rows)])
