"""Run by the peer environment's python: stock llama-server out of xllamacpp, until its standard input closes.

Arguments: one JSON object {model, ctx, parallel, threads, batch, cache_ram_mib, slots_folder}. Prints {"url": …} when it listens.
"""

import json
import sys

import xllamacpp


def main() -> None:
    asked = json.loads(sys.argv[1])
    params = xllamacpp.CommonParams()
    params.model.path = asked["model"]
    params.n_ctx = asked["ctx"] * asked["parallel"]
    params.n_parallel = asked["parallel"]
    params.kv_unified = True
    params.n_batch = params.n_ubatch = asked["batch"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = asked["threads"]
    params.no_extra_bufts = True
    params.fit_params = False
    params.port = 0
    params.verbosity = -1
    if asked["cache_ram_mib"] is not None:
        params.cache_ram_mib = asked["cache_ram_mib"]
    if asked["slots_folder"]:
        params.slot_save_path = asked["slots_folder"].rstrip("/") + "/"  # llama-server puts the file name right behind it
    server = xllamacpp.Server(params)
    print(json.dumps({"url": server.listening_address}), flush=True)  # noqa: T201
    sys.stdin.read()


if __name__ == "__main__":
    main()
