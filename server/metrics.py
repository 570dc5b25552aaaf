"""Prometheus metrics, named as users of vLLM know them, with the prefix `wavepp_`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from ..admission.effects import Reuse
from ..admission.messages import Gauges
from ..engine.messages import Finished
from .engine_client import EngineClient

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_TOKENS = (1, 16, 64, 256, 1_024, 4_096, 16_384, 65_536, 131_072, 262_144, 524_288, 1_048_576)


class Metrics:
    """Counts what passes through this process. Owned by the event loop; hears of ends as the client's observer."""

    def __init__(self, version: str) -> None:
        registry = self.registry = CollectorRegistry()
        build = Gauge("wavepp_build_info", "The running version", ["version"], registry=registry)
        build.labels(version).set(1)
        self.http_requests = Counter(
            "wavepp_http_requests", "HTTP requests answered", ["method", "handler", "status"], registry=registry
        )
        self.http_seconds = Histogram(
            "wavepp_http_request_duration_seconds",
            "From the request's head to the end of its answer",
            ["method", "handler"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._success = Counter(
            "wavepp_request_success",
            "Requests that ended: `length` with their first token, `abort` cancelled",
            ["finished_reason"],
            registry=registry,
        )
        self._failures = Counter("wavepp_request_failure", "Requests that failed", ["code"], registry=registry)
        self._prompt_tokens = Counter("wavepp_prompt_tokens", "Prompt tokens of finished requests", registry=registry)
        self._generation_tokens = Counter("wavepp_generation_tokens", "First tokens sampled", registry=registry)
        self._queries = Counter(
            "wavepp_prefix_cache_queries", "Prompt tokens looked up in the prefix cache", registry=registry
        )
        self._hits = Counter("wavepp_prefix_cache_hits", "Prompt tokens found in the prefix cache", registry=registry)
        self._hinted = Counter(
            "wavepp_prefix_hinted_tokens", "Prompt tokens that the hints of all ranks promised", registry=registry
        )
        self._leased = Counter(
            "wavepp_prefix_leased_tokens", "Prompt tokens that all ranks had when they pinned them", registry=registry
        )
        self._reused = Counter("wavepp_prefix_reused_tokens", "Prompt tokens that were reused", registry=registry)
        self._limited = Counter(
            "wavepp_prefix_limited",
            "Requests that would have reused more but for this rank's window",
            ["rank", "window"],
            registry=registry,
        )
        self._held = _seconds("wavepp_request_held_time", "Waiting for another's computing of the prefix", registry)
        self._ttft = _seconds("wavepp_time_to_first_token", "From the request's arrival to its first token", registry)
        self._queue = _seconds("wavepp_request_queue_time", "Waiting for admission to begin", registry)
        self._admit = _seconds("wavepp_request_admit_time", "Being admitted", registry)
        self._prefill = _seconds("wavepp_request_prefill_time", "From admission to the first token", registry)
        self._deadlines = Counter(
            "wavepp_deadlines",
            "Finished requests that had a deadline: `met` or `missed`",
            ["outcome"],
            registry=registry,
        )
        self._prompt_size = Histogram(
            "wavepp_request_prompt_tokens", "Prompt tokens of a request", buckets=_TOKENS, registry=registry
        )
        for reason in ("length", "abort"):
            self._success.labels(reason)
        for outcome in ("met", "missed"):
            self._deadlines.labels(outcome)

    def request_finished(self, message: Finished) -> None:
        self._success.labels("length").inc()
        self._generation_tokens.inc()
        self._prompt_tokens.inc(message.prompt_tokens)
        self._queries.inc(message.prompt_tokens)
        self._hits.inc(message.cached_tokens)
        self._count_reuse(message.reuse)
        self._queue.observe(message.timing.queue_s)
        self._admit.observe(message.timing.admit_s)
        self._prefill.observe(message.timing.prefill_s)
        self._prompt_size.observe(message.prompt_tokens)
        if message.timing.deadline_met is not None:
            self._deadlines.labels("met" if message.timing.deadline_met else "missed").inc()

    def _count_reuse(self, reuse: Reuse) -> None:
        self._hinted.inc(reuse.hinted)
        self._leased.inc(reuse.leased)
        self._reused.inc(reuse.endpoint)
        self._held.observe(reuse.held_s)
        if reuse.limited_by:
            rank, _, window = reuse.limited_by.removeprefix("rank ").partition(": ")
            self._limited.labels(rank, window).inc()

    def request_failed(self, code: str) -> None:
        if code == "cancelled":
            self._success.labels("abort").inc()
        else:
            self._failures.labels(code).inc()

    def first_token_after(self, seconds: float) -> None:
        self._ttft.observe(seconds)

    def watch(self, client: EngineClient) -> None:
        """Adds the group's own numbers, as last reported by rank 0."""
        self.registry.register(GroupCollector(client))

    def render(self, accept: str) -> tuple[bytes, str]:
        """The page and its content type, in the format that `accept` prefers."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


def _seconds(name: str, text: str, registry: CollectorRegistry) -> Histogram:
    return Histogram(f"{name}_seconds", text, buckets=_SECONDS, registry=registry)


class GroupCollector(Collector):
    """The newest `GroupState`, at the moment of the scrape. A group that is down shows no ranks."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        client, state = self._client, self._client.group.last_state
        pending, admitted = client.num_pending, client.num_admitted
        yield _gauge("wavepp_group_up", "1 while the stage group serves", client.group.status == "up")
        yield _gauge("wavepp_epoch", "The stage group's life", client.group.epoch)
        yield _gauge("wavepp_requests_in_flight", "Prompts that the front end waits for", pending)
        running = state.running if state else admitted
        waiting = state.queued if state else pending - admitted
        yield _gauge("wavepp_num_requests_running", "Admitted and not finished", running)
        yield _gauge("wavepp_num_requests_waiting", "Waiting for admission", waiting)
        if state is None:
            return
        yield _gauge("wavepp_waves_in_flight", "Waves in the pipeline", state.waves_in_flight)
        yield _gauge("wavepp_live_handles", "Handles not yet released or expired", state.handles)
        yield _counter("wavepp_waves", "Waves done in this epoch", state.waves_done)
        yield _counter("wavepp_tokens_computed", "Prompt tokens computed in this epoch", state.tokens_computed)
        yield _counter("wavepp_tokens_reused", "Prompt tokens reused in this epoch", state.tokens_reused)
        busy = CounterMetricFamily("wavepp_stage_busy_seconds", "Seconds that waves kept the stage", labels=["rank"])
        for rank, seconds in enumerate(state.stage_seconds):
            busy.add_metric([str(rank)], seconds)
        yield busy
        yield from _of_caches(state.ranks)


_COUNTS = {
    "wavepp_leases": ("leases", "Leases held"),
    "wavepp_escrows": ("escrows", "Leases to which capacity is promised"),
    "wavepp_handles": ("handles", "Handles held"),
    "wavepp_pulls": ("pulls", "Pulls under way"),
    "wavepp_pages_promised": ("pages_promised", "Free or reclaimable pages that are promised"),
    "wavepp_slots_promised": ("slots_promised", "Free or reclaimable slots that are promised"),
}
_MOVED = {
    "wavepp_cache_offloaded": ("offloaded", "Blocks and snapshots copied to the host in this epoch"),
    "wavepp_cache_onboarded": ("onboarded", "Blocks and snapshots copied back from the host in this epoch"),
    "wavepp_cache_dropped": ("dropped", "Blocks and snapshots lost to make room in this epoch"),
}
_PLACES = {
    "wavepp_pages": ("pages", "Pages by state"),
    "wavepp_slots": ("slots", "Recurrent slots by state"),
    "wavepp_host_pages": ("host_pages", "Pages of the host tier by state"),
    "wavepp_host_slots": ("host_slots", "Recurrent slots of the host tier by state"),
}


def _of_caches(ranks: Sequence[Gauges]) -> Iterable[Metric]:
    """By rank, which is its place in `ranks`."""
    usage = GaugeMetricFamily("wavepp_kv_cache_usage_perc", "Referenced pages; 1 is all", labels=["rank"])
    for rank, gauges in enumerate(ranks):
        usage.add_metric([str(rank)], gauges.pages_pinned / gauges.pages_total if gauges.pages_total else 0.0)
    yield usage
    for name, (what, text) in _PLACES.items():
        family = GaugeMetricFamily(name, text, labels=["rank", "state"])
        for rank, gauges in enumerate(ranks):
            free, reclaimable = getattr(gauges, f"{what}_free"), getattr(gauges, f"{what}_reclaimable")
            referenced = getattr(gauges, f"{what}_total") - free - reclaimable
            for state, count in (("free", free), ("reclaimable", reclaimable), ("referenced", referenced)):
                family.add_metric([str(rank), state], count)
        yield family
    for kind, table in ((GaugeMetricFamily, _COUNTS), (CounterMetricFamily, _MOVED)):
        for name, (what, text) in table.items():
            family = kind(name, text, labels=["rank"])
            for rank, gauges in enumerate(ranks):
                family.add_metric([str(rank)], getattr(gauges, what))
            yield family


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=float(value))


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)
