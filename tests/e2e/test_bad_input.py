"""What a client gets wrong is said by name, and the server goes on."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from .harness import Server

LIMIT = 80 * 16
"""Tokens that the cache of each stage holds; the model's context is 1,024."""

CASES: list[tuple[str, dict[str, Any], int, str]] = [
    ("empty list", {"prompt": []}, 400, "empty"),
    ("empty text", {"prompt": ""}, 400, "empty"),
    ("no prompt at all", {}, 400, "prompt"),
    ("longer than the context", {"prompt": [5] * 1_025}, 400, "1024"),
    ("id beyond the vocabulary", {"prompt": [5, 256]}, 400, "256"),
    ("negative id", {"prompt": [5, -1]}, 400, "-1"),
    ("id that is no number", {"prompt": [5, "x"]}, 400, "prompt"),
    ("id that is a fraction", {"prompt": [5.5]}, 400, "prompt"),
    ("prompt that is a number", {"prompt": 7}, 400, "prompt"),
    ("unknown field", {"prompt": [5], "beam_width": 4}, 400, "beam_width"),
    ("unknown model", {"prompt": [5], "model": "gpt-2"}, 404, "gpt-2"),
    ("temperature of another type", {"prompt": [5], "sampling": {"temperature": "hot"}}, 400, "temperature"),
    ("temperature out of range", {"prompt": [5], "sampling": {"temperature": -1}}, 400, "temperature"),
    ("top_p out of range", {"prompt": [5], "sampling": {"top_p": 1.5}}, 400, "top_p"),
    ("unknown sampling field", {"prompt": [5], "sampling": {"guided_json": {}}}, 400, "guided_json"),
    ("life too short", {"prompt": [5], "ttl_s": 0}, 400, "ttl_s"),
    ("five megabytes of text", {"prompt": "a" * 5_000_000}, 400, "prompt"),
]


@pytest.mark.parametrize(("body", "status", "named"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_bad_request_is_refused_by_name(kimi_server: Server, body: dict, status: int, named: str) -> None:
    answer = kimi_server.http.post("/v1/prefill", json=body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert named in error["message"]
    assert error["type"] and error["code"]


@pytest.mark.parametrize(
    "content", [b'{"prompt": "\xff\xfe"}', b"\xff\xfe\x00", b"{", b"[]", b"null", b"", b'{"prompt": [1e999]}']
)
def test_a_body_that_is_no_json_object_is_a_400(kimi_server: Server, content: bytes) -> None:
    answer = kimi_server.http.post("/v1/prefill", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"]


def test_a_prompt_that_the_cache_can_never_hold_is_refused_with_the_limit(kimi_server: Server, subject_of) -> None:
    flags = ("--block-size", "16", "--max-wave-tokens", "64", "--min-wave-tokens", "16", "--snapshot-interval", "32")
    with Server(subject_of("kimi-KKKA").folder, 2, *flags, "--num-pages", "10", "--num-slots", "60") as server:
        answer = server.http.post("/v1/prefill", json={"prompt": [5] * 161})
        assert answer.status_code == 400, answer.text
        assert "160" in answer.json()["error"]["message"]
        held = server.prefill([5] * 160)
        server.release(held["handle"])
        server.wait_until_idle()


def test_unknown_and_released_handles_are_told_apart(kimi_server: Server) -> None:
    assert kimi_server.http.get("/v1/kv/nobody").status_code == 404
    assert kimi_server.http.delete("/v1/kv/nobody").status_code == 404
    handle = kimi_server.prefill([9, 8, 7])["handle"]
    assert kimi_server.http.get(f"/v1/kv/{handle}").status_code == 200
    kimi_server.release(handle)
    assert kimi_server.http.get(f"/v1/kv/{handle}").status_code == 410
    assert kimi_server.http.delete(f"/v1/kv/{handle}").status_code == 410


def test_a_name_in_use_is_a_conflict(kimi_server: Server) -> None:
    first = kimi_server.prefill([9, 8, 7], request_id="twin")
    second = kimi_server.http.post("/v1/prefill", json={"prompt": [9, 8, 7], "request_id": "twin"})
    assert second.status_code == 409, second.text
    kimi_server.release(first["handle"])


def test_a_handle_expires_by_itself(kimi_server: Server) -> None:
    handle = kimi_server.prefill([1, 2, 3, 4], ttl_s=0.5)["handle"]
    kimi_server.wait_until_idle()
    assert kimi_server.http.get(f"/v1/kv/{handle}").status_code == 410


def test_a_renewed_handle_outlives_its_first_life(kimi_server: Server) -> None:
    handle = kimi_server.prefill([1, 2, 3, 4], ttl_s=0.5)["handle"]
    renewed = kimi_server.http.post(f"/v1/kv/{handle}/renew", json={"ttl_s": 60})
    assert renewed.status_code == 200, renewed.text
    manifest = kimi_server.http.get(f"/v1/kv/{handle}").json()
    assert manifest["expires_in_s"] > 30
    kimi_server.release(handle)


def test_the_server_goes_on_after_all_that(kimi_server: Server) -> None:
    kimi_server.release(kimi_server.prefill([5, 6, 7])["handle"])
    kimi_server.wait_until_idle()
    assert kimi_server.http.get("/health").status_code == 200


def test_every_path_but_the_open_ones_asks_for_the_key(subject_of) -> None:
    with Server(subject_of("kimi-KKKA").folder, 1, "--api-key", "secret") as server:
        open_paths = ("/health", "/ready", "/metrics")
        assert [server.http.get(path).status_code for path in open_paths] == [200, 200, 200]
        assert server.http.get("/v1/models").status_code == 401
        assert server.http.post("/v1/prefill", json={"prompt": [5]}).status_code == 401
        wrong = httpx.get(f"{server.url}/v1/models", headers={"Authorization": "Bearer wrong"})
        assert wrong.status_code == 401
        right = httpx.get(f"{server.url}/v1/models", headers={"Authorization": "Bearer secret"})
        assert right.status_code == 200
