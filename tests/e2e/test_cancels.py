"""Cancellation at any moment leaves the others right and nothing behind."""

from __future__ import annotations

import asyncio
import random

import httpx

from .conftest import SubjectOf
from .harness import Server
from .reference import check_first_token

REQUESTS = 200


def test_a_third_of_two_hundred_requests_cancelled_at_random_moments_harms_nobody(
    kimi_server: Server, subject_of: SubjectOf
) -> None:
    rng = random.Random(7)
    stems = [[rng.randrange(3, 250) for _ in range(rng.randrange(40, 200))] for _ in range(12)]
    prompts = [stem + [rng.randrange(3, 250) for _ in range(rng.randrange(1, 30))] for stem in stems for _ in range(3)]
    jobs = [(index, rng.choice(prompts), index % 3 == 0) for index in range(REQUESTS)]
    rng.shuffle(jobs)

    answers = asyncio.run(_storm(kimi_server.url, jobs, rng))

    reference = subject_of("kimi-KKKA").reference
    survivors = [(prompt, answer) for prompt, answer in answers if answer is not None]
    assert len(survivors) >= REQUESTS - REQUESTS // 3 - 1
    for prompt, answer in survivors:
        check_first_token(answer, reference.continuation(prompt, 1))
    kimi_server.wait_until_idle()
    again = kimi_server.prefill(prompts[0])
    check_first_token(again, reference.continuation(prompts[0], 1))
    kimi_server.release(again["handle"])


async def _storm(
    url: str, jobs: list[tuple[int, list[int], bool]], rng: random.Random
) -> list[tuple[list[int], dict | None]]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http:

        async def job(index: int, prompt: list[int], cancelled: bool, delay: float, by_call: bool) -> dict | None:
            await asyncio.sleep(index * 0.005)
            name = f"job-{index}"
            body = {"prompt": prompt, "request_id": name}
            if cancelled and not by_call:
                # An answer that is under way when the client hangs up is nobody's: its handle has to expire.
                body["ttl_s"] = 3
            task = asyncio.create_task(http.post("/v1/prefill", json=body))
            if not cancelled:
                answer = await task
                assert answer.status_code == 200, answer.text
                released = await http.delete(f"/v1/kv/{answer.json()['handle']}")
                assert released.status_code == 200, released.text
                return answer.json()
            await asyncio.wait([task], timeout=delay)
            if by_call:
                gone = await http.delete(f"/v1/prefill/{name}")
                assert gone.status_code in (200, 404), gone.text
                answer = await task
                if answer.status_code == 200:
                    # It had finished before the cancel came, which then ended its handle.
                    await http.delete(f"/v1/kv/{answer.json()['handle']}")
                else:
                    assert answer.json()["error"]["code"] == "cancelled", answer.text
            elif task.done():
                await http.delete(f"/v1/kv/{task.result().json()['handle']}")
            else:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            return None

        results = await asyncio.gather(
            *(
                job(index, prompt, cancelled, rng.random() * 1.5, rng.random() < 0.5)
                for index, prompt, cancelled in jobs
            )
        )
    return [(prompt, result) for (_, prompt, _), result in zip(jobs, results, strict=True)]
