"""The leader takes in whoever fits, and tells the others why not."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
import zmq
from wavepp.admission.messages import Hello, Welcome
from wavepp.engine.handshake import HandshakeError, gather, join, mismatch, welcome


def hello(rank: int, /, **changes: object) -> Hello:
    plain = Hello(
        rank=rank,
        version="0.1.0",
        fingerprint="f",
        config="c",
        layers=(rank, rank + 1),
        windows=("attention",),
        num_pages=8,
        num_slots=0,
        cache_bytes=1,
        weight_bytes=1,
        transfer_address="tcp://127.0.0.1:1",
    )
    return msgspec.structs.replace(plain, **changes)


@pytest.fixture
def meeting_place(tmp_path: Path):
    address = f"ipc://{tmp_path}/rounds"
    with ExitStack() as opened:
        context = opened.enter_context(zmq.Context())
        leader = opened.enter_context(context.socket(zmq.ROUTER))
        leader.bind(address)

        def follower() -> zmq.Socket[bytes]:
            socket = opened.enter_context(context.socket(zmq.DEALER))
            socket.linger = 0
            socket.connect(address)
            return socket

        yield leader, follower


def test_all_ranks_meet_in_any_order(meeting_place) -> None:
    leader, follower = meeting_place
    with ThreadPoolExecutor(3) as pool:
        joining = [pool.submit(join, follower(), hello(rank), 10, lambda: True) for rank in (3, 1, 2)]
        joined = gather(leader, hello(0), 4, timeout_s=10, still_wanted=lambda: True)
        welcome(leader, joined, Welcome(5, "127.0.0.1", 1234))
        words = [future.result(10) for future in joining]
    assert [h.rank for h in joined.hellos] == [0, 1, 2, 3]
    assert sorted(joined.routes) == [1, 2, 3]
    assert words == [Welcome(5, "127.0.0.1", 1234)] * 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fingerprint": "another"}, "rank 1 has another model"),
        ({"version": "9.9.9"}, "rank 1 has another wavepp version: 9.9.9"),
        ({"config": "x"}, "rank 1 has another configuration"),
        ({"rank": 7}, "rank 7 does not exist in a group of 2"),
        ({"rank": 0}, "rank 0 does not exist in a group of 2"),
    ],
)
def test_a_stage_that_does_not_fit_is_refused_by_name_and_another_taken(meeting_place, changes, said) -> None:
    leader, follower = meeting_place
    with ThreadPoolExecutor(2) as pool:
        gathering = pool.submit(gather, leader, hello(0), 2, 10, lambda: True)
        with pytest.raises(HandshakeError, match=said):
            join(follower(), hello(1, **changes), 10, lambda: True)
        late = pool.submit(join, follower(), hello(1), 10, lambda: True)
        joined = gathering.result(10)
        welcome(leader, joined, Welcome(1, "h", 1))
        assert late.result(10).epoch == 1


def test_a_rank_that_never_comes_is_named(meeting_place) -> None:
    leader, _ = meeting_place
    with pytest.raises(HandshakeError, match=r"ranks \[1, 2\] did not join within 0.2 s"):
        gather(leader, hello(0), 3, timeout_s=0.2, still_wanted=lambda: True)


def test_ranks_of_one_kind_fit() -> None:
    assert mismatch(hello(0), hello(1), 2) == ""
