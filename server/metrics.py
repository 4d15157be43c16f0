"""/metrics for Prometheus: read from the engine's and the store's own counters at each scrape, so nothing is counted twice."""

from collections.abc import Iterable, Iterator, Mapping

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.foresight import Kind
from engine.pair import PairStats
from engine.stats import EngineStats
from kvcache.views import StoreStats, TierStats
from server import keeper_api
from server.runtime import Runtime

router = APIRouter(tags=["server"])


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(request: Request) -> PlainTextResponse:
    """Counters and gauges in Prometheus' text format."""
    registry = CollectorRegistry()
    for collector in (RuntimeCollector(request.app.state.runtime), *keeper_api.collectors(request)):
        registry.register(collector)
    return PlainTextResponse(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")


class RuntimeCollector(Collector):
    """All metrics of one Runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def collect(self) -> Iterable[Metric]:
        stats = self._runtime.engine.stats()
        yield from token_metrics(stats)
        yield from load_metrics(stats)
        yield from store_metrics(self._runtime.store.stats())
        if self._runtime.pair is not None:
            yield from pair_metrics(self._runtime.pair.pair_stats())
        yield labelled("kvalet_http_responses", "Answers by route and status.", ("route", "status"), self._answers())

    def _answers(self) -> dict[tuple[str, ...], float]:
        return {(route, str(status)): count for (route, status), count in self._runtime.answers.items()}


def token_metrics(stats: EngineStats) -> Iterator[Metric]:
    """What prompts cost: read, cached by where it was, read again."""
    count = stats.counters
    cached: dict[tuple[str, ...], float] = {
        ("live",): count.cached_live,
        ("ram",): count.cached_ram,
        ("disk",): count.cached_disk,
    }
    yield counter("kvalet_prompt_tokens", "Prompt tokens of all requests.", count.prompt_tokens)
    yield labelled("kvalet_cached_tokens", "Prompt tokens that needed no reading.", ("tier",), cached)
    yield counter("kvalet_restored_tokens", "Prompt tokens whose state was copied back from a tier.", count.restored_tokens)
    yield counter("kvalet_read_tokens", "Prompt tokens that were read.", count.read_tokens)
    yield counter("kvalet_reread_tokens", "Prompt tokens read although an earlier request had read them.", count.reread_tokens)
    yield counter("kvalet_generated_tokens", "Tokens generated.", count.generated_tokens)
    hits = sum(cached.values()) / count.prompt_tokens if count.prompt_tokens else 0.0
    yield gauge("kvalet_hit_rate", "Cached prompt tokens / prompt tokens.", hits)
    yield counter("kvalet_prefill_seconds", "Time spent reading prompts.", count.read_ms / 1e3)
    yield counter("kvalet_decode_seconds", "Time spent in batches that only generate.", count.decode_ms / 1e3)
    yield counter("kvalet_restore_seconds", "Time spent copying state back.", count.restore_ms / 1e3)
    yield gauge("kvalet_prefill_tokens_per_second", "Mean since start.", per_second(count.read_tokens, count.read_ms))
    yield gauge("kvalet_decode_tokens_per_second", "Mean since start.", per_second(count.generated_tokens, count.decode_ms))


def per_second(tokens: int, ms: float) -> float:
    return 1e3 * tokens / ms if ms > 0 else 0.0


def load_metrics(stats: EngineStats) -> Iterator[Metric]:
    """Requests, the queue, and what went wrong."""
    count = stats.counters
    ends: dict[tuple[str, ...], float] = {
        ("done",): count.done,
        ("failed",): count.failed,
        ("cancelled",): count.cancelled,
        ("refused",): count.refused,
    }
    yield labelled("kvalet_requests", "Requests by how they ended.", ("end",), ends)
    yield counter("kvalet_requests_diverged", "Requests whose history differed from what was known.", count.diverged)
    yield gauge("kvalet_requests_waiting", "Requests in the queue.", stats.waiting)
    yield gauge("kvalet_requests_running", "Requests on a slot.", stats.running)
    yield gauge("kvalet_slots", "Slots.", stats.slots)
    yield counter("kvalet_decodes_failed", "Batches that llama.cpp refused.", count.decodes_failed)
    yield counter("kvalet_restores_failed", "Restores that llama.cpp refused.", count.restores_failed)
    yield counter("kvalet_park_failures", "Blocks or checkpoints that could not be parked.", stats.park_failures)
    yield gauge("kvalet_reuse_enabled", "0 after a failed self-check.", stats.reuse)
    yield gauge("kvalet_engine_alive", "Whether the engine's thread runs.", stats.alive)


def store_metrics(stats: StoreStats) -> Iterator[Metric]:
    """What is held, by tier."""
    tiers = {"ram": stats.ram, "disk": stats.disk}
    for name, text, field in (
        ("kvalet_cache_budget_bytes", "Byte budget.", "budget"),
        ("kvalet_cache_used_bytes", "Bytes used, bookkeeping included.", "used"),
        ("kvalet_cache_blocks", "Blocks held.", "blocks"),
        ("kvalet_cache_checkpoints", "Checkpoints held.", "checkpoints"),
    ):
        yield labelled_gauge(name, text, tiers, field)
    for name, text, field in (
        ("kvalet_cache_loads", "Blocks and checkpoints loaded.", "loads"),
        ("kvalet_cache_loaded_bytes", "Bytes loaded.", "loaded_bytes"),
        ("kvalet_cache_evictions", "Entries dropped for room.", "evictions"),
        ("kvalet_cache_refused", "Entries that found no room.", "refused"),
    ):
        yield labelled(name, text, ("tier",), {(tier,): getattr(one, field) for tier, one in tiers.items()})
    yield counter("kvalet_cache_lookups", "Prompts looked up.", stats.lookups)
    yield counter("kvalet_cache_hits", "Lookups that found something to resume from.", stats.hits)
    yield counter("kvalet_cache_damaged", "Damaged entries set aside.", stats.damaged)
    if stats.disk_detail:
        yield counter("kvalet_disk_written_bytes", "Bytes this process wrote.", stats.disk_detail.written_bytes)
        yield gauge("kvalet_disk_queued_bytes", "Bytes that wait for the writer.", stats.disk_detail.queued_bytes)


def pair_metrics(stats: PairStats) -> Iterator[Metric]:
    """What was read ahead of being asked for, by why, and what became of it."""
    found = stats.background
    for name, text, tokens in (
        ("kvalet_preread_tokens", "Prompt tokens read in the background.", found.fate.read),
        ("kvalet_preread_used_tokens", "Of them, those that a request went on from.", found.fate.used),
        ("kvalet_preread_wasted_tokens", "Of them, those that no request will go on from.", found.fate.wasted),
    ):
        yield labelled(name, text, ("kind",), {(kind.value,): tokens.get(kind, 0) for kind in Kind})
    ends: dict[tuple[str, ...], float] = {("begun",): found.jobs, ("preempted",): found.preempted, ("failed",): found.failed}
    yield labelled("kvalet_background_reads", "Background reads, and those that were dropped or failed.", ("event",), ends)
    yield counter("kvalet_engine_swaps", "Requests answered by another engine than their conversation's last.", stats.swaps)
    yield counter("kvalet_engine_rescues", "Requests that one engine failed and another answered.", stats.rescued)
    alive = GaugeMetricFamily("kvalet_engines_alive", "Whether each engine's thread runs.", labels=("engine",))
    for number, one in enumerate(stats.alive):
        alive.add_metric((str(number),), one)
    yield alive


def counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def labelled(name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def labelled_gauge(name: str, text: str, tiers: dict[str, TierStats], field: str) -> Metric:
    family = GaugeMetricFamily(name, text, labels=("tier",))
    for tier, one in tiers.items():
        family.add_metric((tier,), getattr(one, field))
    return family
