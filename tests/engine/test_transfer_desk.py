"""Pulls end by their deadline, with their connection or with the stage, whatever else is open."""

from collections.abc import Sequence

import msgspec
import pytest
from wavepp.cache.answers import Pull
from wavepp.cache.errors import HandleNotSealed
from wavepp.engine.transfer_config import TransferConfig
from wavepp.engine.transfer_desk import Answer, TransferDesk
from wavepp.engine.transfer_messages import Abandon, Complete, Open, Opened, Read, Refusal, ToStage, Valid

from .transfer_stage import BLOCK, EPOCH, MIXED, PullableStage, puller


class Source:
    """Every handle is there, but for those that are `unfinished`."""

    def __init__(self) -> None:
        self.unfinished: set[str] = set()
        self.open: set[int] = set()
        self._count = 0

    def open_pull(self, handle: str) -> Pull:
        if handle in self.unfinished:
            raise HandleNotSealed(handle)
        self._count += 1
        self.open.add(self._count)
        return Pull(self._count, (0, 1), 0, BLOCK + 1)

    def close_pull(self, pull: int) -> bool:
        was = pull in self.open
        self.open.discard(pull)
        return was


class NoReader:
    def blocks(self, layer: str, pages: Sequence[int]) -> list[memoryview]:
        return [memoryview(bytes(pages))]

    def state(self, layer: str, slot: int) -> list[memoryview]:
        return [memoryview(bytes([slot]))]


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def desk(source: Source) -> TransferDesk:
    config = TransferConfig(pull_timeout_s=10, open_wait_s=5)
    return TransferDesk(config, epoch=EPOCH, rank=0, block_size=BLOCK, layers=MIXED, source=source, reader=NoReader())


def _tell(desk: TransferDesk, peer: bytes, message: ToStage, now: float) -> Answer | None:
    return desk.handle(peer, [msgspec.msgpack.encode(message)], now)


def _open(desk: TransferDesk, peer: bytes, now: float, handle: str = "h") -> int:
    answer = _tell(desk, peer, Open(handle, EPOCH), now)
    assert answer is not None
    assert isinstance(answer.message, Opened)
    return answer.message.pull


def _code(answer: Answer | None) -> str:
    assert answer is not None
    assert isinstance(answer.message, Refusal)
    return answer.message.code


def test_each_pull_ends_by_its_own_deadline(desk: TransferDesk, source: Source) -> None:
    pulls = [_open(desk, b"a", now) for now in (0.0, 1.0, 2.0)]
    assert desk.next_deadline() == 10.0
    assert desk.expire(9.9) == []
    assert source.open == set(pulls)
    desk.expire(11.0)
    assert source.open == {pulls[2]}
    assert desk.next_deadline() == 12.0
    assert _code(_tell(desk, b"a", Complete(pulls[1]), 11.0)) == "unknown_pull"
    assert _tell(desk, b"a", Complete(pulls[2]), 11.0) == Answer(b"a", Valid(pulls[2]))
    assert desk.next_deadline() is None
    assert desk.closed_pulls == 3


def test_reading_does_not_prolong_a_pull(desk: TransferDesk, source: Source) -> None:
    pull = _open(desk, b"a", 0.0)
    answer = _tell(desk, b"a", Read(pull, MIXED[1].name, 0, 2), 9.0)
    assert answer is not None
    assert [bytes(frame) for frame in answer.frames] == [bytes([0, 1])]
    desk.expire(10.0)
    assert not source.open


def test_a_waiting_open_gets_the_whole_pull_timeout_once_it_is_answered(desk: TransferDesk, source: Source) -> None:
    source.unfinished.add("h")
    assert _tell(desk, b"a", Open("h", EPOCH), 0.0) is None
    assert (desk.waiting, desk.next_deadline()) == (1, 5.0)
    assert desk.wake(1.0) == []
    assert desk.next_deadline() == 5.0
    source.unfinished.clear()
    (answer,) = desk.wake(4.0)
    assert answer.peer == b"a"
    assert isinstance(answer.message, Opened)
    assert (desk.waiting, desk.next_deadline()) == (0, 14.0)


def test_all_opens_that_waited_too_long_are_told(desk: TransferDesk, source: Source) -> None:
    source.unfinished.add("h")
    for peer, now in ((b"a", 0.0), (b"b", 1.0), (b"c", 2.0)):
        _tell(desk, peer, Open("h", EPOCH), now)
    late = desk.expire(6.0)
    assert [(answer.peer, _code(answer)) for answer in late] == [(b"a", "not_finished"), (b"b", "not_finished")]
    assert desk.next_deadline() == 7.0


@pytest.mark.parametrize("says_so", [True, False])
def test_a_connection_that_is_gone_leaves_nothing(desk: TransferDesk, source: Source, says_so: bool) -> None:
    source.unfinished.add("later")
    for peer in (b"a", b"b"):
        _open(desk, peer, 0.0)
        _open(desk, peer, 0.0)
        _tell(desk, peer, Open("later", EPOCH), 0.0)
    if says_so:
        assert _tell(desk, b"a", Abandon(), 0.5) is None
    else:
        desk.forget(b"a")
    assert (source.open, desk.waiting, desk.open_pulls) == ({3, 4}, 1, 2)
    source.unfinished.clear()
    assert [answer.peer for answer in desk.wake(1.0)] == [b"b"]


def test_a_pull_that_the_cache_ended_is_not_valid(desk: TransferDesk, source: Source) -> None:
    pull = _open(desk, b"a", 0.0)
    source.close_pull(pull)
    assert _code(_tell(desk, b"a", Complete(pull), 1.0)) == "expired"


def test_closing_ends_everything(desk: TransferDesk, source: Source) -> None:
    _open(desk, b"a", 0.0)
    source.unfinished.add("later")
    _tell(desk, b"b", Open("later", EPOCH), 0.0)
    assert [(answer.peer, _code(answer)) for answer in desk.close("over")] == [(b"b", "failed")]
    assert not source.open
    assert desk.next_deadline() is None


def test_an_error_of_one_pull_is_told_and_ends_no_other() -> None:
    class Broken(Source):
        def open_pull(self, handle: str) -> Pull:
            if handle == "bad":
                raise RuntimeError("the cache is on fire")
            return super().open_pull(handle)

    with PullableStage(source=Broken()) as stage, puller(stage) as peer:
        answer = peer.ask(Open("bad", EPOCH))
        assert isinstance(answer, Refusal)
        assert answer.code == "failed"
        assert "the cache is on fire" in answer.message
        opened = peer.open("good")
        assert peer.ask(Complete(opened.pull)) == Valid(opened.pull)
