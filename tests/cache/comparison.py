"""What can be seen of a stage cache, beside what the model says."""

from __future__ import annotations

from wavepp.cache.moves import Moves
from wavepp.cache.stage_cache import StageCache

from .oracle import Oracle


class Storage:
    """Remembers what was written to which page and slot, on the device and on the host."""

    def __init__(self) -> None:
        self.device: dict[str, dict[int, bytes]] = {"attention": {}, "recurrent": {}}
        self.host: dict[str, dict[int, bytes]] = {"attention": {}, "recurrent": {}}

    def execute(self, moves: Moves) -> None:
        """Makes the copies: the offloads, then the onboards, each in the reverse of their order."""
        for window, item, place in reversed(moves.offloads):
            self.host[window][place] = self.device[window][item]
        for window, place, item in reversed(moves.onboards):
            self.device[window][item] = self.host[window][place]


def compare_windows(cache: StageCache, oracle: Oracle, storage: Storage) -> None:
    """What is where, who goes next, what is promised, and what the storage holds."""
    for model, window in ((oracle.pages, cache._attention), (oracle.slots, cache._recurrent)):
        if model is None or window is None:
            assert model is window is None
            continue
        assert {entry.key: entry.item for entry in window.tree if entry.item >= 0} == model.device
        assert {entry.key: entry.host for entry in window.tree if entry.host >= 0} == model.host
        assert [entry.key for entry in window.tree.device.in_order()] == model.waiting.in_order()
        assert [entry.key for entry in window.tree.host.in_order()] == model.waiting_host.in_order()
        assert [entry.key for entry in window.victims()] == oracle.victims(model)
        assert window.promised == oracle.promised(model)
        device, host = storage.device[model.name], storage.host[model.name]
        assert {key: device[item] for key, item in model.device.items()} == {key: key for key in model.device}
        assert {key: host[place] for key, place in model.host.items()} == {key: key for key in model.host}


def compare_gauges(cache: StageCache, oracle: Oracle) -> None:
    gauges = cache.gauges()
    for model, name in ((oracle.pages, "pages"), (oracle.slots, "slots")):
        if model is None:
            continue
        holders = oracle.holders(model)
        expected = {
            f"{name}_total": model.capacity,
            f"{name}_free": len(oracle.free(model)),
            f"{name}_reclaimable": oracle.reclaimable(model, holders),
            f"{name}_promised": oracle.promised(model),
            f"host_{name}_total": model.host_capacity,
            f"host_{name}_free": len(oracle.free_host(model)),
            f"host_{name}_reclaimable": sum(key not in holders for key in model.host),
        }
        assert {what: getattr(gauges, what) for what in expected} == expected
    assert gauges.leases == sum(not held.sealed for held in oracle.held)
    assert gauges.escrows == sum(
        any(oracle.outstanding(window, held) for window in oracle.windows) for held in oracle.escrowed()
    )
    assert gauges.handles == sum(held.sealed for held in oracle.held)
    assert gauges.pulls == sum(len(held.pulls) for held in oracle.held)
    assert gauges.dropped == oracle.dropped
    assert gauges.offloaded == oracle.offloaded
    assert gauges.onboarded == oracle.onboarded
