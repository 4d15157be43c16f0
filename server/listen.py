"""Runs a server until it is told to stop: the port first, then the model, then requests, then everything parked."""

import logging
import signal
import socket
import sys
from types import FrameType

import uvicorn

from server.app import create_app
from server.banner import banner
from server.config import ConfigError, Settings
from server.runtime import build

LOG = logging.getLogger("kvalet.server")
BACKLOG = 512


def run(settings: Settings) -> None:
    """Serves until SIGINT or SIGTERM, then parks all state and returns. Raises ConfigError, or the engine's ModelError."""
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=sys.stderr
    )
    logging.getLogger("gguf").setLevel(logging.WARNING)  # its writer tells of byte order and part files
    for sig in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sig, leave)
    listener = bind(settings.host, settings.port)  # before minutes go into loading a model
    runtime = build(settings)
    try:
        app = create_app(runtime)  # may refuse the keeper's options: before a client connects and 'ready' is said
        host, port = listener.getsockname()[:2]
        start_listening(listener, host, port)
        print(banner(runtime, address(host, port)), flush=True)  # noqa: T201
        server(runtime.settings, app).run(sockets=[listener])
    finally:
        LOG.info("closing: parking what is not parked yet")
        runtime.close()


def leave(_sig: int, _frame: FrameType | None) -> None:
    """A stop that was asked for is no failure, whenever it comes (uvicorn hands its signals on to this handler)."""
    raise SystemExit(0)


def bind(host: str, port: int) -> socket.socket:
    """A bound socket, not yet listening, so that clients are refused rather than kept waiting while the model loads."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # with its protocol named: asyncio sets TCP_NODELAY on nothing else, and each answer would wait 40 ms for an acknowledgement
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise cannot_listen(host, port, error) from error
    return listener


def start_listening(listener: socket.socket, host: str, port: int) -> None:
    """Where two servers have bound the same port, it is listening that fails for the second."""
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        raise cannot_listen(host, port, error) from error


def cannot_listen(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError(f"cannot listen on {address(host, port)}: {error.strerror or error}; choose another with --port")


def address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def server(settings: Settings, app: object) -> uvicorn.Server:
    """uvicorn as we want it: our log, no access log (turn.py logs a line for each answer), a bounded stop."""
    return uvicorn.Server(
        uvicorn.Config(
            app,  # type: ignore[arg-type]
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=round(settings.drain) + 2,
            lifespan="off",
        )
    )
