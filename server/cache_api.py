"""/cache: what is held and how it was used; deletion for those who have the API key."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from engine.foresight import Kind
from engine.pair import PairStats
from kvcache.entry import Tier
from kvcache.facts import EntryKind
from kvcache.views import EntryView, StoreStats, TierStats
from server.errors import ApiError
from server.runtime import Runtime, runtime_of

router = APIRouter(tags=["cache"])


@router.get("/cache")
def cache(
    request: Request,
    tier: Tier | None = None,
    kind: EntryKind | None = None,
    limit: Annotated[int, Query(ge=0, le=10_000)] = 100,
) -> dict[str, Any]:
    """Totals by tier and sessions, then entries, the last used first."""
    runtime = runtime_of(request)
    store, pair = runtime.store, runtime.pair
    entries = [entry for entry in store.entries() if tier in (None, entry.tier) and kind in (None, entry.kind)]
    entries.sort(key=lambda entry: entry.last_used, reverse=True)
    ahead = {"preread": preread(pair.pair_stats())} if pair is not None else {}
    return {**totals(store.stats()), **ahead, "count": len(entries), "entries": [entry_body(entry) for entry in entries[:limit]]}


def totals(stats: StoreStats) -> dict[str, Any]:
    return {
        "ram": tier_body(stats.ram),
        "disk": tier_body(stats.disk),
        "lookups": stats.lookups,
        "hits": stats.hits,
        "asked_tokens": stats.asked_tokens,
        "matched_tokens": stats.matched_tokens,
        "damaged": stats.damaged,
        "sessions": [
            {
                "name": one.name,
                "blocks": one.blocks,
                "checkpoints": one.checkpoints,
                "bytes": one.bytes,
                "position": one.position,
                "last_used": one.last_used,
            }
            for one in stats.sessions
        ],
    }


def preread(stats: PairStats) -> dict[str, Any]:
    """Tokens read in the background by why, and what became of them."""
    fate = stats.background.fate
    kinds = {kind.value: {name: getattr(fate, name).get(kind, 0) for name in ("read", "used", "wasted")} for kind in Kind}
    background = stats.background
    rest = {
        "share_wasted": fate.share_wasted(),
        "busy": background.busy,
        "conversations": background.conversations,
        "swaps": stats.swaps,
    }
    return {**kinds, **rest}


def tier_body(tier: TierStats) -> dict[str, int]:
    return {name: getattr(tier, name) for name in TierStats.__slots__}


def entry_body(entry: EntryView) -> dict[str, Any]:
    return {
        "id": entry.id.hex(),
        "kind": entry.kind.value,
        "tier": entry.tier.value,
        "position": entry.position,
        "bytes": entry.nbytes,
        "canonical": entry.canonical,
        "pinned": entry.pinned,
        "uses": entry.uses,
        "last_used": entry.last_used,
        "label": entry.label,
    }


def deletable(runtime: Runtime) -> None:
    """Raises ApiError 403 without a key: on a shared machine anyone could throw away what others wait for."""
    if runtime.settings.api_key is None:
        raise ApiError(403, "deletion needs a server that was started with --api-key", code="api_key_needed")


@router.get("/cache/{id}")
def entry(id: str, request: Request) -> dict[str, Any]:
    """One entry, in every tier that holds it."""
    wanted = chain_id(id)
    found = [entry_body(entry) for entry in runtime_of(request).store.entries() if entry.id == wanted]
    if not found:
        raise ApiError(404, f"nothing is held under {id[:64]!r}", code="entry_not_found")
    return {"id": id, "entries": found}


@router.delete("/cache")
def delete_all(request: Request) -> dict[str, int]:
    """Drops everything that is held of this model; needs the API key."""
    runtime = runtime_of(request)
    deletable(runtime)
    return {"deleted": runtime.store.remove()}


@router.delete("/cache/{id}")
def delete(id: str, request: Request) -> dict[str, int]:
    """Drops a prefix and all that stands on it; needs the API key."""
    runtime = runtime_of(request)
    deletable(runtime)
    return {"deleted": runtime.store.remove(chain_id(id))}


def chain_id(text: str) -> bytes:
    """The bytes of an id as listings show it. Raises ApiError 404 for what can be none."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ApiError(404, f"{text[:64]!r} is no entry's id", code="entry_not_found") from None
