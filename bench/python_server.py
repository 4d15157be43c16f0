"""Run by a peer environment's python: llama-cpp-python's own server with its disk cache, until SIGTERM.

Arguments: one JSON object {model, ctx, threads, batch, folder, port}. Its replies do not say what was cached, so the tokens
that go through Llama.eval are counted here and written to folder/read.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from llama_cpp import Llama
from llama_cpp.server.app import create_app
from llama_cpp.server.settings import ModelSettings, ServerSettings


def main() -> None:
    asked = json.loads(sys.argv[1])
    folder = Path(asked["folder"])
    os.chdir(folder)  # LlamaDiskCache keeps its files in ./.cache
    count_tokens(folder / "read")
    model = ModelSettings(
        model=asked["model"],
        n_ctx=asked["ctx"],
        n_threads=asked["threads"],
        n_threads_batch=asked["threads"],
        n_batch=asked["batch"],
        n_ubatch=asked["batch"],
        cache=True,
        cache_type="disk",
        cache_size=8 << 30,
        verbose=False,
    )
    app = create_app(server_settings=ServerSettings(port=asked["port"]), model_settings=[model])
    uvicorn.run(app, host="127.0.0.1", port=asked["port"], log_level="info")


def count_tokens(path: Path) -> None:
    """Counts what is decoded from now on."""
    read = 0
    decode = Llama.eval

    def counted(self: Llama, tokens: Sequence[int]) -> None:
        nonlocal read
        decode(self, tokens)
        read += len(tokens)
        path.write_text(str(read), "utf-8")

    setattr(Llama, "eval", counted)  # noqa: B010


if __name__ == "__main__":
    main()
