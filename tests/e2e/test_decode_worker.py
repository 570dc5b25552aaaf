"""The decode worker as users run it: `wavepp decode`, a process of its own, on text."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from transformers import AutoTokenizer

from .conftest import SubjectOf
from .harness import Server

VERSE = (
    "And it came to pass in those days, that there went out a decree from the king, that all the people of the land "
    "should be gathered together unto the city, every man with his household, and with his flocks and his herds: "
)
PROMPTS = (VERSE + "and the priests said,", VERSE + "and behold, a great")
LENGTH = 32


@pytest.fixture(scope="module")
def server(subject_of: SubjectOf) -> Iterator[Server]:
    flags = ("--block-size", "16", "--max-wave-tokens", "64", "--min-wave-tokens", "16", "--snapshot-interval", "16")
    with Server("demo-hybrid", 2, *flags) as server:
        yield server


def decode(server: Server, *flags: str) -> dict:
    command = [sys.executable, "-m", "wavepp.server.cli", "decode", "--url", server.url, "--model", "demo-hybrid"]
    command += ["--max-tokens", str(LENGTH), "--ignore-eos", "--json", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_text_goes_in_and_the_text_of_transformers_comes_out(server: Server, subject_of: SubjectOf) -> None:
    subject = subject_of("demo-hybrid")
    tokenizer = AutoTokenizer.from_pretrained(subject.folder)
    cached = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt)["input_ids"]
        expected = subject.reference.continuation(ids, LENGTH)
        outcome = decode(server, "--prompt", prompt)
        assert tuple(outcome["tokens"]) == expected.tokens
        assert prompt + outcome["text"] == tokenizer.decode([*ids, *expected.tokens])
        cached.append(outcome["cached_tokens"])
    assert cached[0] == 0
    assert cached[1] >= 48, "the verse was computed for the first prompt"
    server.wait_until_idle()


def test_a_handle_is_as_good_as_a_prompt(server: Server, subject_of: SubjectOf) -> None:
    subject = subject_of("demo-hybrid")
    answer = server.prefill(PROMPTS[0])
    outcome = decode(server, "--handle", answer["handle"])
    ids = AutoTokenizer.from_pretrained(subject.folder)(PROMPTS[0])["input_ids"]
    assert tuple(outcome["tokens"]) == subject.reference.continuation(ids, LENGTH).tokens
    server.wait_until_idle()


def test_a_stream_tells_of_admission_and_of_every_chunk(server: Server) -> None:
    server.http.post("/reset_prefix_cache").raise_for_status()
    body = {"prompt": VERSE + PROMPTS[0], "stream": True}
    with server.http.stream("POST", "/v1/prefill", json=body) as stream:
        lines = [line for line in stream.iter_lines() if line]
    events = [
        (kind.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
        for kind, data in zip(lines[::2], lines[1::2], strict=True)
    ]
    assert [kind for kind, _ in events[:-1]] == ["progress"] * (len(events) - 1)
    assert events[0][1]["phase"] == "admitted"
    computed = [event["computed"] for kind, event in events if kind == "progress"]
    assert computed == sorted(computed)
    kind, finished = events[-1]
    assert kind == "finished"
    assert computed[1] == 64, "one chunk, and so one event, for every wave of 64"
    server.release(finished["handle"])


def test_sampling_with_a_seed_repeats_itself_and_greedy_is_the_likeliest(server: Server) -> None:
    def first(**sampling: float) -> dict:
        answer = server.prefill(PROMPTS[1], sampling=sampling)
        server.release(answer["handle"])
        return answer["first_token"]

    assert first(temperature=1.5, seed=11) == first(temperature=1.5, seed=11)
    assert len({first(temperature=2.0, seed=seed)["id"] for seed in range(12)}) > 1
    greedy = first(logprobs=3)
    assert greedy["id"] == greedy["top"][0]["id"]
    assert first(temperature=1.0, top_k=1, seed=3)["id"] == greedy["id"]
    assert first(temperature=1.0, top_p=1e-6, seed=3)["id"] == greedy["id"]


def test_requests_share_prefixes_only_under_one_salt(server: Server) -> None:
    server.http.post("/reset_prefix_cache").raise_for_status()
    cached = []
    for salt in ("a", "a", "b"):
        answer = server.prefill(PROMPTS[0], cache_salt=salt)
        cached.append(answer["usage"]["cached_tokens"])
        server.release(answer["handle"])
    assert cached[0] == cached[2] == 0 < cached[1]
