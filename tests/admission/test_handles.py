import random

from wavepp.admission.handles import HandleInfo, HandleRegistry


def info(handle: str, expires_at: float) -> HandleInfo:
    return HandleInfo(handle, f"name of {handle}", 10, 1, expires_at)


def test_handles_expire_in_the_order_of_their_times_and_not_before() -> None:
    handles = HandleRegistry(10)
    for name, at in (("b", 2.0), ("a", 1.0), ("c", 3.0)):
        handles.add(info(name, at))
    assert handles.next_expiry() == 1.0
    assert handles.expire(0.999) == []
    assert handles.expire(2.0) == ["a", "b"]
    assert (len(handles), handles.next_expiry()) == (1, 3.0)


def test_a_renewed_handle_outlives_its_first_expiry() -> None:
    handles = HandleRegistry(10)
    handles.add(info("a", 1.0))
    handles.renew("a", 5.0)
    assert handles.expire(4.9) == []
    assert handles.next_expiry() == 5.0
    assert handles.expire(5.0) == ["a"]


def test_renewing_never_shortens_a_life() -> None:
    handles = HandleRegistry(10)
    handles.add(info("a", 9.0))
    handles.renew("a", 5.0)
    assert handles.expire(8.0) == []


def test_a_released_handle_leaves_no_deadline() -> None:
    handles = HandleRegistry(10)
    handles.add(info("a", 1.0))
    handles.end("a")
    assert handles.next_expiry() is None
    assert handles.named("name of a") is None
    assert handles.ended("a")


def test_only_the_last_ended_handles_are_remembered() -> None:
    handles = HandleRegistry(2)
    for name in "abc":
        handles.add(info(name, 1.0))
        handles.end(name)
    assert [handles.ended(name) for name in "abcd"] == [False, True, True, False]


def test_every_handle_expires_exactly_once_whatever_is_renewed_and_released() -> None:
    rng = random.Random(5)
    handles = HandleRegistry(10_000)
    due: dict[str, float] = {}
    for step in range(4000):
        now, name = step / 10, f"h{rng.randrange(step + 1)}"
        match rng.randrange(4):
            case 0:
                due[f"h{step}"] = now + rng.randrange(1, 20)
                handles.add(info(f"h{step}", due[f"h{step}"]))
            case 1 if name in due:
                due[name] = max(due[name], now + 8)
                handles.renew(name, now + 8)
            case 2 if name in due:
                del due[name]
                handles.end(name)
            case _:
                expected = {handle for handle, at in due.items() if at <= now}
                expired = handles.expire(now)
                assert sorted(expired) == sorted(expected)
                due = {handle: at for handle, at in due.items() if at > now}
        assert len(handles) == len(due)
