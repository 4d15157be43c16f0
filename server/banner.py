"""What a person reads when the server is up: where, what, and what may be relied on."""

from engine.context import StateKind
from server.runtime import Runtime, check_text
from server.sizes import show_size

KINDS = {
    StateKind.ATTENTION: "attention only: history is cut anywhere, exactly",
    StateKind.WINDOW: "sliding window: history is cut at checkpoints",
    StateKind.HYBRID: "hybrid (attention + running state): history is cut at checkpoints",
    StateKind.RECURRENT: "recurrent: history is cut at checkpoints",
}


def banner(runtime: Runtime, address: str) -> str:
    """Lines for the terminal."""
    settings, stats = runtime.settings, runtime.engine.stats()
    rows = [
        ("address", f"{address}/v1  (OpenAI API{', key needed' if settings.api_key else ''})"),
        ("model", f"{runtime.card.id}: {runtime.card.description}"),
        ("kind", KINDS[runtime.kind]),
        ("context", f"{runtime.n_ctx} tokens x {settings.parallel} slot{'s' if settings.parallel > 1 else ''}"),
        ("cache", cache_line(runtime, stats.checkpoint_interval)),
        ("exactness", exactness(runtime)),
    ]
    return "\n".join(["kvalet is ready.", *(f"  {name:10} {text}" for name, text in rows)])


def cache_line(runtime: Runtime, interval: int) -> str:
    settings = runtime.settings
    if not runtime.check.ok:
        return f"OFF, the self-check failed: {check_text(runtime.check)}"
    found = runtime.store.stats()
    trouble = found.disk_detail.warning if found.disk_detail else None
    disk = settings.cache_disk if found.disk.budget or not trouble else 0  # while the weights are hashed there is neither
    tiers = [f"{show_size(n)} {name}" for name, n in (("RAM", settings.cache_ram), ("disk", disk)) if n]
    every = f", a checkpoint every {interval} tokens and at message ends" if interval else ""
    return (" + ".join(tiers) or "off: only the live state of a slot is reused") + every + (f"; {trouble}" if trouble else "")


def exactness(runtime: Runtime) -> str:
    """The promise that holds with these settings, in one line."""
    if runtime.settings.exact == "append":
        return 'append: goes on from the live state; a request may ask for {"exact": "strict"}'
    if runtime.settings.parallel > 1:
        return "strict: answers never depend on what was cached; bit for bit only while one slot is in use"
    return "strict: logits never depend on what was cached"
