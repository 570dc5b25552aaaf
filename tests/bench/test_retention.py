"""Made-up traffic shares what it says, and the comparison of retentions counts every token once."""

import json

import pytest
from wavepp.bench.full_cache import BLOCK
from wavepp.bench.retention import main, replayed
from wavepp.bench.traffic import DOCUMENT, MIXES, Prompt, trace
from wavepp.cache.eviction import Retention

INTERVAL = 1_024
BY_NAME = {mix.name: mix for mix in MIXES}


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return trace(BY_NAME["mixed"], 60, seed=5)


def test_the_same_seed_makes_the_same_traffic(prompts: list[Prompt]) -> None:
    assert trace(BY_NAME["mixed"], 60, seed=5) == prompts
    assert trace(BY_NAME["mixed"], 60, seed=6) != prompts


def test_what_a_prompt_shares_is_what_an_earlier_one_had(prompts: list[Prompt]) -> None:
    earlier: set[bytes] = set()
    for prompt in prompts:
        assert len(prompt.keys) == prompt.num_tokens // BLOCK
        usable = prompt.keys[: (prompt.num_tokens - 1) // BLOCK]
        assert prompt.seen == BLOCK * sum(key in earlier for key in usable)
        assert prompt.kind != DOCUMENT or prompt.seen == 0
        earlier.update(prompt.keys)
    assert any(prompt.seen for prompt in prompts)


@pytest.mark.parametrize("retention", ["lru", "cost"])
def test_every_token_seen_before_is_either_reused_or_computed_again(
    prompts: list[Prompt], retention: Retention
) -> None:
    kept = replayed(prompts, 16, INTERVAL, retention)
    assert kept.reused + kept.recomputed == sum(prompt.seen for prompt in prompts)
    assert kept.reused > 0
    assert kept.recomputed > 0


def test_with_room_for_everything_both_retentions_keep_the_same(prompts: list[Prompt]) -> None:
    assert replayed(prompts, 5_000, INTERVAL, "lru") == replayed(prompts, 5_000, INTERVAL, "cost")


def test_the_last_line_is_what_the_table_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--slots", "16", "--requests", "40", "--seeds", "2", "--json"]) == 0
    *rows, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert [one["traffic"] for one in found["comparisons"]] == [mix.name for mix in MIXES]
    assert len(rows) == 2 + len(MIXES)
    for one, row in zip(found["comparisons"], rows[2:], strict=True):
        cells = [cell.strip() for cell in row.split("|")[1:-1]]
        assert cells[:2] == [one["traffic"], "16"]
        assert one["lowest"] <= one["ratio"] <= one["highest"]
