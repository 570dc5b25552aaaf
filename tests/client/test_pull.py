"""A pull brings everything, exactly, or raises: there is nothing in between."""

import threading
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
import torch
import zmq
from wavepp.cache.layout import LayerCache, TensorSpec, Window
from wavepp.client.errors import PullError, SinkMismatchError
from wavepp.client.pull import pull_state
from wavepp.engine.messages import Manifest
from wavepp.engine.transfer_config import TransferConfig
from wavepp.engine.transfer_messages import (
    Abandon,
    Complete,
    Data,
    FromStage,
    LayerInfo,
    Open,
    Opened,
    Read,
    Refusal,
    TensorInfo,
    ToStage,
    Valid,
)

from ..engine.transfer_stage import BLOCK, EPOCH, MIXED, PullableStage, attention_layer, recurrent_layer
from .scripted_stage import Script, ScriptedStage
from .sinks import RecordingSink


def _manifest(num_tokens: int, *stages: PullableStage | ScriptedStage, epoch: int = EPOCH) -> Manifest:
    return Manifest("h", epoch, "m", num_tokens, BLOCK, 1, 60.0, tuple(stage.manifest for stage in stages))


def _check_bytes(sink: RecordingSink, stage: PullableStage, num_tokens: int) -> None:
    pull = stage.cache.open_pull("h")
    stage.cache.close_pull(pull.id)
    for layer in stage.layers:
        for spec in layer.tensors:
            pool = stage.pools[layer.name][spec.name]
            if layer.window is Window.RECURRENT:
                assert torch.equal(sink.states[layer.name, spec.name], pool[pull.slot])
            else:
                expected = pool[list(pull.pages)].flatten(0, 1)[:num_tokens]
                assert torch.equal(sink.rows(layer.name, spec.name), expected)


@pytest.mark.parametrize("num_tokens", [1, BLOCK - 1, BLOCK, 5 * BLOCK + 1])
def test_all_stages_are_pulled_to_the_byte(num_tokens: int) -> None:
    layers = (*MIXED, attention_layer(3), recurrent_layer(4))
    config = TransferConfig(max_blocks_per_read=2)
    with (
        PullableStage(layers[:2], rank=0, seed=1, config=config) as first,
        PullableStage(layers[2:3], rank=1, seed=2) as second,
        PullableStage(layers[3:], rank=2, seed=3, config=config) as third,
    ):
        stages = (first, second, third)
        for stage in stages:
            stage.prefill("other", 3)
            stage.prefill("h", num_tokens)
        sink = RecordingSink(layers)
        stats = pull_state(_manifest(num_tokens, *stages), sink)
        assert (stats.num_tokens, stats.num_stages) == (num_tokens, 3)
        for stage in stages:
            _check_bytes(sink, stage, num_tokens)
            assert stage.cache.gauges().pulls == 0


def test_a_pull_of_many_stages() -> None:
    layers = tuple(attention_layer(index) for index in range(24))
    stages = [PullableStage((layer,), rank=index, seed=index) for index, layer in enumerate(layers)]
    try:
        for stage in stages:
            stage.server.start(EPOCH)
            stage.prefill("h", 9)
        sink = RecordingSink(layers)
        pull_state(_manifest(9, *stages), sink)
        for stage in stages:
            _check_bytes(sink, stage, 9)
    finally:
        for stage in stages:
            stage.server.stop()


def test_a_pull_waits_for_the_slowest_stage() -> None:
    with PullableStage(MIXED[:1], rank=0) as first, PullableStage(MIXED[1:], rank=1) as second:
        first.prefill("h", 6)
        request = second.begin("h", 6)
        sink = RecordingSink(MIXED)
        thread = threading.Thread(target=lambda: second.finish(request))
        thread.start()
        pull_state(_manifest(6, first, second), sink)
        thread.join()
        _check_bytes(sink, second, 6)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda m: msgspec.structs.replace(m, epoch=EPOCH + 1), "wrong_epoch"),
        (lambda m: msgspec.structs.replace(m, handle="other"), "unknown_handle"),
        (lambda m: msgspec.structs.replace(m, num_tokens=7), "mismatch"),
        (lambda m: msgspec.structs.replace(m, block_size=2 * BLOCK), "mismatch"),
        (lambda m: msgspec.structs.replace(m, stages=()), "mismatch"),
        (lambda m: msgspec.structs.replace(m, stages=m.stages[:1]), "mismatch"),
        (lambda m: msgspec.structs.replace(m, stages=(m.stages[0], m.stages[0])), "mismatch"),
        (lambda m: msgspec.structs.replace(m, stages=(m.stages[0], _moved(m, "nonsense"))), "lost"),
        (lambda m: msgspec.structs.replace(m, stages=(m.stages[0], _moved(m, "tcp://127.0.0.1:1"))), "lost"),
    ],
)
def test_a_manifest_that_is_not_true_is_refused(change: Callable[[Manifest], Manifest], code: str) -> None:
    with PullableStage(MIXED[:1], rank=0) as first, PullableStage(MIXED[1:], rank=1) as second:
        for stage in (first, second):
            stage.prefill("h", 6)
        with pytest.raises(PullError) as raised:
            pull_state(change(_manifest(6, first, second)), RecordingSink(MIXED))
        assert raised.value.code == code


def _moved(manifest: Manifest, address: str) -> object:
    return msgspec.structs.replace(manifest.stages[1], address=address)


def _with_tensors(layer: LayerCache, *tensors: TensorSpec) -> LayerCache:
    return replace(layer, tensors=tensors)


K, V = MIXED[1].tensors


@pytest.mark.parametrize(
    ("takes", "says"),
    [
        ((*MIXED, attention_layer(3)), r"no stage holds model\.layers\.3\.self_attn"),
        (MIXED[:2], r"stage 0 holds model\.layers\.2\.self_attn \(kda\), for which there is no place"),
        ((MIXED[0], replace(MIXED[1], kind="mla"), MIXED[2]), r"gqa \(attention\) there and mla \(attention\) here"),
        (
            (MIXED[0], replace(MIXED[1], window=Window.RECURRENT), MIXED[2]),
            r"\(attention\) there and gqa \(recurrent\)",
        ),
        ((MIXED[0], _with_tensors(MIXED[1], K), MIXED[2]), r"\['k', 'v'\] there and \['k'\] here"),
        (
            (MIXED[0], _with_tensors(MIXED[1], K, replace(V, dtype="float16")), MIXED[2]),
            "v is bfloat16 there and float16",
        ),
        (
            (MIXED[0], _with_tensors(MIXED[1], K, replace(V, shape=(4, 2))), MIXED[2]),
            r"\(2, 4\) there and \(4, 2\) here",
        ),
    ],
)
def test_what_the_sink_cannot_take_is_refused_by_name(takes: tuple[LayerCache, ...], says: str) -> None:
    with PullableStage() as stage:
        stage.prefill("h", 6)
        sink = RecordingSink(takes)
        with pytest.raises(SinkMismatchError, match=says):
            pull_state(_manifest(6, stage), sink)
        assert sink.num_tokens == -1
        assert stage.closed.acquire(timeout=20)


def test_the_order_of_a_layers_tensors_does_not_matter() -> None:
    with PullableStage() as stage:
        stage.prefill("h", 6)
        sink = RecordingSink((MIXED[0], _with_tensors(MIXED[1], V, K), MIXED[2]))
        pull_state(_manifest(6, stage), sink)
        _check_bytes(sink, stage, 6)


def test_a_sink_that_fails_ends_the_pull_and_lets_the_state_go() -> None:
    class Broken(RecordingSink):
        def put_state(self, layer: str, tensor: str, values: torch.Tensor) -> None:
            raise MemoryError("no room")

    with PullableStage() as stage:
        stage.prefill("h", 6)
        with pytest.raises(MemoryError, match="no room"):
            pull_state(_manifest(6, stage), Broken(MIXED))
        assert stage.closed.acquire(timeout=20)
        assert stage.cache.gauges().pulls == 0


def test_state_that_expired_while_it_was_read_is_not_good() -> None:
    with PullableStage(config=TransferConfig(pull_timeout_s=0.2)) as stage:
        stage.prefill("h", 6)

        class Slow(RecordingSink):
            def put_tokens(self, layer: str, tensor: str, start: int, values: torch.Tensor) -> None:
                if tensor == "k":
                    assert stage.closed.acquire(timeout=20)
                super().put_tokens(layer, tensor, start, values)

        with pytest.raises(PullError) as raised:
            pull_state(_manifest(6, stage), Slow(MIXED))
        assert raised.value.code == "unknown_pull"


def test_when_one_stage_refuses_the_others_let_go_at_once() -> None:
    with PullableStage(MIXED[:1], rank=0) as first, PullableStage(MIXED[1:], rank=1) as second:
        second.prefill("h", 6)
        for _ in range(20):
            with pytest.raises(PullError) as raised:
                pull_state(_manifest(6, first, second), RecordingSink(MIXED), timeout_s=30)
            assert (raised.value.code, raised.value.rank) == ("unknown_handle", 0)
        for _ in range(20):
            assert second.closed.acquire(timeout=20)


def test_a_stage_that_stops_in_the_middle_is_noticed_at_once() -> None:
    second = PullableStage(MIXED[1:], rank=1)

    class Stopping(RecordingSink):
        def begin(self, num_tokens: int) -> None:
            second.server.stop()

    with PullableStage(MIXED[:1], rank=0) as first:
        second.server.start(EPOCH)
        for stage in (first, second):
            stage.prefill("h", 6)
        with pytest.raises(PullError) as raised:
            pull_state(_manifest(6, first, second), Stopping(MIXED), timeout_s=600)
        assert (raised.value.code, raised.value.rank) == ("lost", 1)
        assert first.closed.acquire(timeout=20)


LAYER = LayerInfo("a", "gqa", "attention", (TensorInfo("k", (2,), "float32"),))
SINK = (LayerCache(0, "a", "gqa", Window.ATTENTION, (TensorSpec("k", (2,), "float32"),)),)
OPENED = Opened(5, EPOCH, 0, 6, BLOCK, (LAYER,), 1, 8, 60.0)


def _good(request: ToStage) -> list[bytes] | None:
    match request:
        case Open():
            return _frames(OPENED)
        case Read():
            return _frames(Data(5, "a", request.first, request.count), bytes(4 * 2 * BLOCK * request.count))
        case Complete():
            return _frames(Valid(5))
        case Abandon():
            return None


def _frames(message: FromStage, *raw: bytes) -> list[bytes]:
    return [msgspec.msgpack.encode(message), *raw]


def _instead(kind: type[ToStage], answer: list[bytes] | None) -> Script:
    return lambda request: answer if isinstance(request, kind) else _good(request)


def test_a_scripted_stage_that_is_right_is_believed() -> None:
    with ScriptedStage(_good, layers=("a",)) as stage:
        sink = RecordingSink(SINK)
        assert pull_state(_manifest(6, stage), sink).num_bytes == 4 * 2 * BLOCK * 2
        assert torch.equal(sink.rows("a", "k"), torch.zeros(6, 2))


@pytest.mark.parametrize(
    ("kind", "answer", "code"),
    [
        (Open, [b"\xc1"], "protocol"),
        (Open, _frames(Valid(5)), "protocol"),
        (Open, _frames(OPENED, b"more"), "protocol"),
        (Open, _frames(msgspec.structs.replace(OPENED, epoch=EPOCH + 1)), "mismatch"),
        (Open, _frames(msgspec.structs.replace(OPENED, rank=1)), "mismatch"),
        (Open, _frames(msgspec.structs.replace(OPENED, layers=())), "mismatch"),
        (Read, _frames(Data(5, "a", 1, 1), bytes(32)), "protocol"),
        (Read, _frames(Data(6, "a", 0, 1), bytes(32)), "protocol"),
        (Read, _frames(Data(5, "a", 0, 1), bytes(31)), "protocol"),
        (Read, _frames(Data(5, "a", 0, 1)), "protocol"),
        (Read, _frames(Data(5, "a", 0, 1), bytes(32), bytes(32)), "protocol"),
        (Read, _frames(Valid(5)), "protocol"),
        (Read, _frames(Refusal("failed", "the device is gone")), "failed"),
        (Complete, _frames(Valid(6)), "protocol"),
        (Complete, _frames(Data(5, "a", 0, 1), bytes(32)), "protocol"),
        (Complete, _frames(Refusal("expired", "too late")), "expired"),
    ],
)
def test_a_stage_that_answers_wrongly_fails_the_pull(kind: type[ToStage], answer: list[bytes], code: str) -> None:
    with ScriptedStage(_instead(kind, answer), layers=("a",)) as stage:
        with pytest.raises(PullError) as raised:
            pull_state(_manifest(6, stage), RecordingSink(SINK))
        assert (raised.value.code, raised.value.rank) == (code, 0)


@pytest.mark.parametrize("kind", [Open, Read, Complete])
def test_a_stage_that_falls_silent_costs_no_more_than_the_deadline(kind: type[ToStage]) -> None:
    with ScriptedStage(_instead(kind, None), layers=("a",)) as stage:
        with pytest.raises(PullError, match="stage 0 took too long") as raised:
            pull_state(_manifest(6, stage), RecordingSink(SINK), timeout_s=0.2)
        assert raised.value.code == "timeout"


def test_no_socket_is_left_behind_by_pulls_that_fail() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with ScriptedStage(_instead(Read, None), layers=("a",)) as stage:
        for _ in range(3):
            with pytest.raises(PullError):
                pull_state(_manifest(6, stage), RecordingSink(SINK), timeout_s=0.05, context=context)
    # Would wait for ever if a socket were open.
    context.term()
