"""A stage gives the exact bytes of a finished prefill to whoever holds its handle, and says no by name."""

from collections.abc import Iterator

import msgspec
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from wavepp.cache.answers import Pull
from wavepp.cache.errors import UnknownHandle
from wavepp.cache.layout import LayerCache, TensorSpec, Window
from wavepp.engine.transfer_config import TransferConfig
from wavepp.engine.transfer_messages import Complete, Data, Open, Opened, Read, Refusal, Valid

from .transfer_stage import BLOCK, EPOCH, MIXED, PullableStage, attention_layer, puller, raw, recurrent_layer


@pytest.fixture
def stage() -> Iterator[PullableStage]:
    with PullableStage() as stage:
        yield stage


def _code(answer: object) -> str:
    assert isinstance(answer, Refusal), answer
    assert answer.message
    return answer.code


class ScatteredSource:
    """Hands out given pages; nothing is really pinned."""

    def __init__(self, pull: Pull) -> None:
        self._pull = pull
        self._open = False

    def open_pull(self, handle: str) -> Pull:
        if handle != "h":
            raise UnknownHandle(handle)
        self._open = True
        return self._pull

    def close_pull(self, pull: int) -> bool:
        was, self._open = self._open and pull == self._pull.id, False
        return was


_tensors = st.lists(
    st.tuples(st.lists(st.integers(1, 5), max_size=3), st.sampled_from(["float32", "bfloat16", "float16"])),
    min_size=1,
    max_size=3,
)


@st.composite
def _layouts(draw: st.DrawFn) -> tuple[LayerCache, ...]:
    layers: list[LayerCache] = []
    for index, window in enumerate(draw(st.lists(st.sampled_from(list(Window)), min_size=1, max_size=4))):
        specs = [TensorSpec(f"t{i}", tuple(shape), dtype) for i, (shape, dtype) in enumerate(draw(_tensors))]
        make = attention_layer if window is Window.ATTENTION else recurrent_layer
        layers.append(make(index, *specs))
    return tuple(layers)


@settings(max_examples=25, deadline=None)
@given(layers=_layouts(), block=st.sampled_from([1, 2, 8]), tokens=st.integers(1, 40), data=st.data())
def test_every_byte_of_any_layout_arrives(
    layers: tuple[LayerCache, ...], block: int, tokens: int, data: st.DataObject
) -> None:
    blocks = -(-tokens // block)
    pages = data.draw(st.permutations(range(blocks + 3)))[:blocks]
    source = ScatteredSource(Pull(1, tuple(pages), 2, tokens))
    stage = PullableStage(layers, block_size=block, num_pages=blocks + 3, num_slots=4, source=source)
    with stage, puller(stage) as peer:
        opened = peer.open("h")
        assert [info.name for info in opened.layers] == [layer.name for layer in layers]
        for layer in layers:
            pools = [stage.pools[layer.name][spec.name] for spec in layer.tensors]
            if layer.window is Window.RECURRENT:
                peer.tell(Read(1, layer.name))
                expected = [raw(pool[2]) for pool in pools]
            else:
                first = data.draw(st.integers(0, blocks - 1))
                count = data.draw(st.integers(1, blocks - first))
                peer.tell(Read(1, layer.name, first, count))
                expected = [b"".join(raw(pool[page]) for page in pages[first : first + count]) for pool in pools]
            answer, frames = peer.answer_with_frames()
            assert isinstance(answer, Data)
            assert frames == expected
        assert peer.ask(Complete(1)) == Valid(1)


def test_an_open_pull_describes_itself(stage: PullableStage) -> None:
    stage.prefill("h", 10)
    with puller(stage) as peer:
        opened = peer.open("h")
        assert (opened.epoch, opened.rank, opened.num_tokens, opened.block_size) == (EPOCH, 0, 10, BLOCK)
        assert [(info.name, info.kind, info.window) for info in opened.layers] == [
            (layer.name, layer.kind, layer.window.value) for layer in MIXED
        ]
        assert [(t.name, t.shape, t.dtype) for t in opened.layers[1].tensors] == [
            ("k", (2, 4), "float32"),
            ("v", (2, 4), "bfloat16"),
        ]
        assert stage.cache.gauges().pulls == 1
        peer.ask(Complete(opened.pull))
        assert stage.cache.gauges().pulls == 0


def test_what_is_not_there_is_refused_by_name(stage: PullableStage) -> None:
    stage.prefill("gone", 5)
    with puller(stage) as peer, puller(stage) as holder:
        opened = holder.open("gone")
        stage.cache.release_handle("gone")
        assert _code(peer.ask(Open("gone", EPOCH))) == "expired"
        holder.ask(Complete(opened.pull))
        assert _code(peer.ask(Open("gone", EPOCH))) == "unknown_handle"
        assert _code(peer.ask(Open("never", EPOCH))) == "unknown_handle"
        assert _code(peer.ask(Open("gone", EPOCH + 1))) == "wrong_epoch"
        assert _code(peer.ask(Read(1, MIXED[0].name))) == "unknown_pull"
        assert _code(peer.ask(Complete(1))) == "unknown_pull"


@pytest.mark.parametrize(
    ("layer", "first", "count"),
    [(1, 0, 0), (1, 0, 4), (1, 3, 1), (1, -1, 1), (1, 2, -1), (0, 0, 1), (0, 1, 0)],
)
def test_a_read_outside_the_state_is_refused(stage: PullableStage, layer: int, first: int, count: int) -> None:
    stage.prefill("h", 2 * BLOCK + 1)
    with puller(stage) as peer:
        opened = peer.open("h")
        assert _code(peer.ask(Read(opened.pull, MIXED[layer].name, first, count))) == "bad_range"
        assert _code(peer.ask(Read(opened.pull, "model.layers.9.self_attn", 0, 1))) == "unknown_layer"
        assert peer.ask(Complete(opened.pull)) == Valid(opened.pull)


def test_a_read_beyond_the_limit_is_refused() -> None:
    with PullableStage(config=TransferConfig(max_blocks_per_read=2)) as stage, puller(stage) as peer:
        stage.prefill("h", 5 * BLOCK)
        opened = peer.open("h")
        assert opened.max_blocks == 2
        assert _code(peer.ask(Read(opened.pull, MIXED[1].name, 0, 3))) == "bad_range"
        assert isinstance(peer.ask(Read(opened.pull, MIXED[1].name, 3, 2)), Data)


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\xc1"],
        [b"\x81\xa4type\xa4open"],
        [msgspec.msgpack.encode({"type": "open", "handle": 3, "epoch": 1})],
        [msgspec.msgpack.encode({"type": "opened", "handle": "h", "epoch": 1})],
        [msgspec.msgpack.encode(Open("h", EPOCH))[:-1]],
        [msgspec.msgpack.encode(Open("h", EPOCH)), b"more"],
        [b"", msgspec.msgpack.encode(Open("h", EPOCH))],
        [msgspec.msgpack.encode({"type": "complete", "pull": 2**63})],
    ],
)
def test_a_bad_frame_is_refused_and_does_no_harm(stage: PullableStage, frames: list[bytes]) -> None:
    stage.prefill("h", 5)
    with puller(stage) as peer:
        peer.socket.send_multipart(frames)
        assert _code(peer.answer()) in ("malformed", "unknown_pull")
        opened = peer.open("h")
        assert peer.ask(Complete(opened.pull)) == Valid(opened.pull)


@settings(max_examples=60, deadline=None)
@given(frames=st.lists(st.binary(max_size=40), min_size=1, max_size=3))
def test_noise_never_ends_the_service(frames: list[bytes]) -> None:
    with PullableStage() as stage, puller(stage) as peer:
        peer.socket.send_multipart(frames)
        assert isinstance(peer.answer(), Refusal)
        stage.prefill("h", 3)
        peer.open("h")


def test_a_frame_that_is_too_large_only_loses_its_own_connection(stage: PullableStage) -> None:
    stage.prefill("h", 5)
    with puller(stage) as rude, puller(stage) as peer:
        rude.socket.send(bytes(1 << 20))
        assert isinstance(peer.ask(Open("h", EPOCH)), Opened)


def test_a_pull_belongs_to_its_connection(stage: PullableStage) -> None:
    stage.prefill("h", 5)
    with puller(stage) as owner, puller(stage) as other:
        opened = owner.open("h")
        assert _code(other.ask(Read(opened.pull, MIXED[0].name))) == "unknown_pull"
        assert _code(other.ask(Complete(opened.pull))) == "unknown_pull"
        assert owner.ask(Complete(opened.pull)) == Valid(opened.pull)


def test_two_pullers_read_the_same_state_at_once(stage: PullableStage) -> None:
    stage.prefill("h", 3 * BLOCK)
    with puller(stage) as one, puller(stage) as two:
        pulls = one.open("h").pull, two.open("h").pull
        assert pulls[0] != pulls[1]
        for peer, pull in zip((one, two), pulls, strict=True):
            peer.tell(Read(pull, MIXED[1].name, 0, 3))
        assert one.answer_with_frames()[1] == two.answer_with_frames()[1]
        assert one.ask(Complete(pulls[0])) == Valid(pulls[0])
        assert stage.cache.gauges().pulls == 1
        assert two.ask(Complete(pulls[1])) == Valid(pulls[1])


def test_state_released_during_a_pull_stays_good_until_it_completes(stage: PullableStage) -> None:
    stage.prefill("h", 3 * BLOCK)
    with puller(stage) as peer:
        opened = peer.open("h")
        peer.tell(Read(opened.pull, MIXED[1].name, 0, 3))
        _, before = peer.answer_with_frames()
        stage.cache.release_handle("h")
        pinned = stage.cache.gauges().pages_pinned
        # Whatever is computed meanwhile takes other pages.
        other = stage.begin("other", 29 * BLOCK)
        for page in stage.cache.sequence(other).pages:
            for pool in stage.pools[MIXED[1].name].values():
                pool[page].zero_()
        peer.tell(Read(opened.pull, MIXED[1].name, 0, 3))
        _, after = peer.answer_with_frames()
        assert after == before
        assert peer.ask(Complete(opened.pull)) == Valid(opened.pull)
        assert stage.closed.acquire(timeout=20)
        assert stage.cache.gauges().pages_pinned == 29
        assert pinned == 3


def test_an_open_waits_until_the_prefill_is_finished(stage: PullableStage) -> None:
    request = stage.begin("h", 6)
    with puller(stage) as waiting, puller(stage) as other:
        waiting.tell(Open("h", EPOCH))
        # Answered in turn, so the first OPEN has been looked at, and found unfinished, by now.
        waiting.tell(Complete(99))
        assert _code(waiting.answer()) == "unknown_pull"
        stage.prefill("another", 3)
        assert other.open("another").num_tokens == 3
        stage.finish(request)
        opened = waiting.answer()
        assert isinstance(opened, Opened)
        assert opened.num_tokens == 6


def test_a_waiting_open_is_told_when_the_handle_ends(stage: PullableStage) -> None:
    stage.begin("h", 6)
    with puller(stage) as peer:
        peer.tell(Open("h", EPOCH))
        assert _code(peer.ask(Complete(99))) == "unknown_pull"
        stage.cache.release_handle("h")
        stage.server.notify()
        assert _code(peer.answer()) == "expired"


def test_an_open_does_not_wait_for_ever() -> None:
    with PullableStage(config=TransferConfig(open_wait_s=0.05)) as stage, puller(stage) as peer:
        stage.begin("h", 6)
        assert _code(peer.ask(Open("h", EPOCH))) == "not_finished"


def test_an_expired_pull_lets_its_state_go_and_is_not_valid() -> None:
    with PullableStage(config=TransferConfig(pull_timeout_s=0.2)) as stage, puller(stage) as peer:
        stage.prefill("h", 6)
        opened = peer.open("h")
        assert opened.deadline_s == 0.2
        stage.cache.release_handle("h")
        assert stage.closed.acquire(timeout=20)
        assert stage.cache.gauges().pages_pinned == 0
        assert _code(peer.ask(Read(opened.pull, MIXED[0].name))) == "unknown_pull"
        assert _code(peer.ask(Complete(opened.pull))) == "unknown_pull"


def test_more_pulls_than_allowed_are_refused() -> None:
    with PullableStage(config=TransferConfig(max_open_pulls=2)) as stage, puller(stage) as peer:
        stage.prefill("h", 6)
        stage.begin("unfinished", 6)
        first = peer.open("h")
        peer.tell(Open("unfinished", EPOCH))
        assert _code(peer.ask(Open("h", EPOCH))) == "busy"
        peer.ask(Complete(first.pull))
        peer.open("h")


def test_a_puller_that_does_not_read_is_stopped_and_nobody_else_is() -> None:
    wide = attention_layer(0, TensorSpec("k", (4096,), "float32"))
    config = TransferConfig(max_reads_in_flight=2)
    with PullableStage((wide,), config=config, num_pages=64) as stage, puller(stage) as peer:
        stage.prefill("h", 64 * BLOCK)
        greedy = zmq.Context.instance().socket(zmq.DEALER)
        greedy.linger, greedy.rcvhwm, greedy.rcvbuf = 0, 1, 4096
        greedy.connect(stage.server.address)
        greedy.send(msgspec.msgpack.encode(Open("h", EPOCH)))
        opened = msgspec.msgpack.decode(greedy.recv(), type=Opened)
        for _ in range(40):
            greedy.send(msgspec.msgpack.encode(Read(opened.pull, wide.name, 0, 64)))
        mine = peer.open("h")
        assert isinstance(peer.ask(Read(mine.pull, wide.name, 63, 1)), Data)
        answers = [msgspec.msgpack.decode(greedy.recv_multipart()[0], type=Data | Refusal) for _ in range(40)]
        assert any(isinstance(answer, Data) for answer in answers)
        assert {answer.code for answer in answers if isinstance(answer, Refusal)} == {"busy"}
        greedy.close()


def test_stopping_closes_pulls_and_tells_those_who_wait() -> None:
    stage = PullableStage()
    stage.server.start(EPOCH)
    stage.prefill("h", 6)
    stage.begin("unfinished", 6)
    with puller(stage) as peer, puller(stage) as waiting:
        peer.open("h")
        waiting.tell(Open("unfinished", EPOCH))
        assert _code(waiting.ask(Complete(99))) == "unknown_pull"
        stage.server.stop()
        assert _code(waiting.answer()) == "failed"
        assert stage.cache.gauges().pulls == 0
        stage.server.stop()
        stage.server.notify()


def test_opens_that_come_before_the_epoch_begins_are_answered_when_it_does() -> None:
    stage = PullableStage()
    stage.prefill("h", 6)
    with puller(stage) as peer:
        peer.tell(Open("h", EPOCH))
        with stage:
            assert isinstance(peer.answer(), Opened)


def test_a_server_that_never_started_can_be_stopped() -> None:
    PullableStage().server.stop()


def test_listening_everywhere_needs_a_name_to_connect_to() -> None:
    with pytest.raises(ValidationError, match="advertise_host"):
        TransferConfig(host="0.0.0.0")
    stage = PullableStage(config=TransferConfig(host="0.0.0.0", advertise_host="stage-3"))
    assert stage.server.address.startswith("tcp://stage-3:")
    stage.server.stop()
