"""Many prompts with one long beginning arrive at once at a cold cache: it is computed once."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from wavepp.engine.messages import Finished, Progress

from ..conftest import TinyModelFactory
from .by_hand import StagesByHand
from .conftest import SubjectOf
from .harness import Server
from .reference import Reference, check_first_token

LENGTH, SHARED, HERD = 2048, 1843, 16
"""Tokens of a prompt, and those of them, nine tenths, that all have; so many prompts."""
BLOCK = 16
FLAGS = ("--block-size", str(BLOCK), "--max-wave-tokens", "256", "--min-wave-tokens", "128")


def herd(rng: random.Random, length: int = LENGTH, shared: int = SHARED, count: int = HERD) -> list[list[int]]:
    stem = [rng.randrange(3, 250) for _ in range(shared)]
    return [stem + [rng.randrange(3, 250) for _ in range(length - shared)] for _ in range(count)]


@pytest.mark.parametrize("name", ["demo-hybrid", "qwen3"])
def test_a_herd_computes_what_it_shares_once(
    name: str, subject_of: SubjectOf, tiny_model_factory: TinyModelFactory
) -> None:
    if name == "qwen3":
        folder, _ = tiny_model_factory("qwen3", max_position_embeddings=4096)
        reference = Reference(folder)
    else:
        folder, reference = subject_of(name).folder, subject_of(name).reference
    prompts = herd(random.Random(5))
    with Server(folder, 2, *FLAGS) as server, ThreadPoolExecutor(HERD) as pool:
        answers = list(pool.map(server.prefill, prompts))
        computed = server.state()["tokens_computed"]
        for prompt, answer in zip(prompts[:3], answers, strict=False):
            check_first_token(answer, reference.continuation(prompt, 1))
        for answer in answers:
            server.release(answer["handle"])
        server.wait_until_idle()
    suffix = LENGTH - SHARED // BLOCK * BLOCK
    least = LENGTH + (HERD - 1) * suffix
    assert computed <= 1.3 * least, f"{computed} tokens computed, {least} is the least"
    held = [answer["usage"]["reuse"]["held_s"] for answer in answers]
    assert sum(seconds > 0 for seconds in held) >= HERD - 2, "those that came second were meant to wait for the first"


def test_prompts_that_share_nothing_with_a_herd_are_admitted_past_it(subject_of: SubjectOf) -> None:
    rng = random.Random(6)
    together = herd(rng, 640, 576, 6)
    strangers = [[rng.randrange(3, 250) for _ in range(96)] for _ in range(3)]
    with StagesByHand(subject_of("kimi-KKKA").folder, 2, *FLAGS, "--snapshot-interval", "64") as group:
        for number, prompt in enumerate(together):
            group.submit(f"herd {number}", prompt)
        for number, prompt in enumerate(strangers):
            group.submit(f"stranger {number}", prompt)
        admitted: list[str] = []
        finished: list[Finished] = []
        while len(finished) < len(together) + len(strangers):
            match group.next():
                case Progress(name=name, phase="admitted"):
                    admitted.append(name)
                case Finished() as done:
                    finished.append(done)
                case _:
                    pass
    assert admitted[:4] == ["herd 0", "stranger 0", "stranger 1", "stranger 2"]
    assert [name for name in admitted if name.startswith("herd")] == [f"herd {number}" for number in range(6)]
    reuse = {done.name: done.reuse for done in finished}
    assert all(reuse[f"stranger {number}"].held_s == 0 for number in range(3))
    assert all(reuse[f"herd {number}"].held_s > 0 for number in range(1, 6))
    assert all(reuse[f"herd {number}"].endpoint > 0 for number in range(1, 6))
