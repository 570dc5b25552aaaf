"""A real server whose stages take the time of a model's forward pass, and compute nothing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from wavepp.scheduler.cost_model import StageProfile, pairs_of

from .harness import Server

STAGES, SPEED, WAVE = 4, 20.0, 2_048
PROFILE = StageProfile(name="quick", wave_s=0.1, token_s=1e-4, context_s=1e-8, hop_s=0.01, shares=(1, 1, 1, 2))
PROMPT = [(7 * n) % 163_840 for n in range(20_000)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    flags = ("--device", "emulated", "--emulation-speed", f"{SPEED}", "--stage-profile", PROFILE.model_dump_json())
    waves = ("--max-wave-tokens", f"{WAVE}", "--min-wave-tokens", f"{WAVE}", "--snapshot-interval", "4096")
    with Server("emulated", STAGES, *flags, *waves) as server:
        yield server


def modelled(start: int, end: int) -> list[float]:
    """Seconds of each stage for the tokens [start, end) of one prompt that is alone."""
    seconds = 0.0
    for at in range(start, end, WAVE):
        size = min(WAVE, end - at)
        seconds += PROFILE.wave(size, pairs_of(at, size))
    return [factor * seconds for factor in PROFILE.factors(STAGES)]


def test_prompts_are_answered_reused_and_released_and_take_the_modelled_time(server: Server) -> None:
    assert "the profile quick says, 20 times as fast" in server.log
    before = server.wait_until_idle()
    cold = server.prefill(PROMPT)
    assert cold["usage"]["cached_tokens"] == 0
    assert server.http.get(f"/v1/kv/{cold['handle']}").status_code == 200
    server.release(cold["handle"])
    middle = server.wait_until_idle()
    warm = server.prefill([*PROMPT, *range(3_000)])
    assert warm["usage"]["cached_tokens"] == 19_968, "the last block boundary of the first prompt"
    server.release(warm["handle"])
    after = server.wait_until_idle()
    for earlier, later, span in ((before, middle, (0, 20_000)), (middle, after, (19_968, 23_000))):
        took = [b - a for a, b in zip(earlier["stage_seconds"], later["stage_seconds"], strict=True)]
        # What is real counts where it is longer, so only the lower bound is exact; twenty times on a busy machine.
        for seconds, least in zip(took, modelled(*span), strict=True):
            assert seconds >= least / SPEED * (1 - 1e-9)
    # No prompt is answered before its waves can have passed the slowest stage.
    assert cold["timing"]["prefill_s"] >= modelled(0, 20_000)[3] / SPEED


def test_the_same_prompt_gets_the_same_token_however_much_is_reused(server: Server) -> None:
    prompt = [*range(500, 9_000)]
    tokens = set()
    for _ in range(3):
        answer = server.prefill(prompt)
        tokens.add(answer["first_token"]["id"])
        server.release(answer["handle"])
    assert len(tokens) == 1
    assert 0 <= tokens.pop() < 163_840


def test_many_clients_at_once_leave_nothing_behind(server: Server) -> None:
    prompts = [[*PROMPT[:8_192], *[n] * 1_000] for n in range(12)]
    with ThreadPoolExecutor(6) as clients:
        answers = list(clients.map(server.prefill, prompts))
    assert [answer["usage"]["prompt_tokens"] for answer in answers] == [9_192] * 12
    for answer in answers:
        server.release(answer["handle"])
    server.wait_until_idle()


def test_text_can_be_sent_too(server: Server) -> None:
    answer = server.prefill("In the beginning")
    assert answer["usage"]["prompt_tokens"] > 1
    server.release(answer["handle"])


def test_a_million_token_ids_fit(server: Server) -> None:
    answer = server.http.post("/v1/prefill", json={"prompt": [163_839] * 1_048_600, "ttl_s": -1})
    assert answer.status_code == 400, "read and checked, and refused for the wrong life of its handle alone"
    assert "ttl_s" in answer.text
