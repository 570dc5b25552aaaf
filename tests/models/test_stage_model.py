"""Stages against transformers' models in float32: logits at every position and every layer's cache."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel
from wavepp.models.batch import SpanState, WaveBatch
from wavepp.models.stage_model import load_stage

from .harness import (
    BLOCK,
    CPU,
    Expected,
    Piece,
    Pipeline,
    assert_caches_match,
    assert_close,
    expect,
    prompt,
)

Factory = Callable[..., tuple[Path, PreTrainedModel]]

LENGTHS = {"a": 150, "b": 65, "c": 1, "d": 40}
TOKENS = {request: prompt(length, seed) for seed, (request, length) in enumerate(LENGTHS.items())}

MODELS: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", {}),
    "qwen3": ("qwen3", {}),
    "kimi": ("kimi", {}),
    "kimi-mixed": ("kimi", {"pattern": "AKKA", "published": False, "n_group": 4, "topk_group": 2, "q_lora_rank": 24}),
}

WHOLE = [[Piece(request, 0, length) for request, length in LENGTHS.items()]]
AWKWARD = [
    [Piece("a", 0, 33), Piece("b", 0, 1), Piece("d", 0, 17)],
    [Piece("b", 1, 31), Piece("a", 33, 1), Piece("c", 0, 1)],
    [Piece("a", 34, 64), Piece("d", 17, 15), Piece("b", 32, 32)],
    [Piece("d", 32, 7), Piece("b", 64, 1), Piece("a", 98, 52)],
    [Piece("d", 39, 1)],
]
SCHEDULES = {"whole": WHOLE, "awkward": AWKWARD}


@pytest.fixture(scope="module")
def expected_of(tiny_model_factory: Factory) -> Callable[[str], tuple[Path, dict[str, Expected]]]:
    known: dict[str, tuple[Path, dict[str, Expected]]] = {}

    def get(model: str) -> tuple[Path, dict[str, Expected]]:
        if model not in known:
            family, changes = MODELS[model]
            folder, reference = tiny_model_factory(family, **changes)
            known[model] = folder, {request: expect(reference, tokens) for request, tokens in TOKENS.items()}
        return known[model]

    return get


@pytest.mark.parametrize("num_stages", [1, 2, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("model", MODELS)
def test_ragged_waves_match_transformers(
    model: str, schedule: str, num_stages: int, expected_of: Callable[[str], tuple[Path, dict[str, Expected]]]
) -> None:
    folder, expected = expected_of(model)
    pipeline = Pipeline(folder, num_stages)
    logits = pipeline.run_all(TOKENS, SCHEDULES[schedule])
    for request, length in LENGTHS.items():
        assert_close(logits[request], expected[request].logits)
        assert_caches_match(pipeline, request, expected[request], length)
    assert pipeline.untouched_pages_are_nan()


@pytest.mark.parametrize("num_stages", [1, 4])
@pytest.mark.parametrize("model", ["llama", "kimi", "kimi-mixed"])
def test_decoding_step_by_step_matches_a_whole_forward(
    model: str, num_stages: int, expected_of: Callable[[str], tuple[Path, dict[str, Expected]]]
) -> None:
    folder, expected = expected_of(model)
    pipeline = Pipeline(folder, num_stages)
    waves = [[Piece("a", 0, 121), Piece("d", 0, 11)]]
    waves += [[Piece("d", 11 + step, 1), Piece("a", 121 + step, 1)] for step in range(29)]
    logits = pipeline.run_all(TOKENS, waves)
    assert_close(logits["a"], expected["a"].logits)
    assert_close(logits["d"], expected["d"].logits)
    assert_caches_match(pipeline, "a", expected["a"], 150)


@pytest.mark.parametrize("model", ["qwen3", "kimi", "kimi-mixed"])
@pytest.mark.parametrize("position", [16, 48, 96])
def test_a_request_resumed_from_anothers_snapshot_matches_its_own_forward(
    model: str, position: int, tiny_model_factory: Factory
) -> None:
    family, changes = MODELS[model]
    folder, reference = tiny_model_factory(family, **changes)
    other = torch.cat([TOKENS["a"][:position], prompt(53, 99)])
    tokens = {"a": TOKENS["a"], "e": other}
    pipeline = Pipeline(folder, 2)
    snapshots = [(16, "s16"), (48, "s48"), (96, "s96")]
    pipeline.run(tokens, [Piece("a", 0, 70, snapshots[:2])])
    pipeline.run(tokens, [Piece("a", 70, 80, snapshots[2:])])
    pipeline.fork(f"s{position}", "e", "a", position)
    expected = expect(reference, other)
    (logits,) = pipeline.run(tokens, [Piece("e", position, 53)])
    assert_close(logits, expected.logits[position:])
    assert_caches_match(pipeline, "e", expected, position + 53)


def test_snapshots_at_any_position_are_the_state_of_a_run_that_ends_there(tiny_model_factory: Factory) -> None:
    folder, reference = tiny_model_factory("kimi")
    pipeline = Pipeline(folder, 1)
    positions = [21, 64, 65, 90, 128, 150]
    tokens = {"a": TOKENS["a"]}
    pipeline.run(tokens, [Piece("a", 0, 20)])
    pipeline.run(tokens, [Piece("a", 20, 1, [(21, "s21")])])
    pipeline.run(tokens, [Piece("a", 21, 129, [(position, f"s{position}") for position in positions[1:]])])
    for position in positions:
        expected = expect(reference, TOKENS["a"][:position])
        for layer in (0, 1, 2):
            assert_close(pipeline.state(layer, "state", f"s{position}"), expected.recurrent(layer))
            convs = [pipeline.state(layer, f"conv_{part}", f"s{position}") for part in "qkv"]
            assert_close(torch.cat(convs, -1), expected.conv(layer, 4))


@pytest.mark.parametrize("layers", [range(1, 3), range(3, 4)])
def test_a_middle_stage_of_one_kind_has_only_that_window(layers: range, tiny_model_factory: Factory) -> None:
    folder, _ = tiny_model_factory("kimi")
    stage = load_stage(folder, layers, dtype=torch.float32, device=CPU)
    assert {layer.kind for layer in stage.cache_layout()} == ({"kda"} if layers.start == 1 else {"mla"})
    assert (stage.is_first, stage.is_last) == (False, layers.stop == 4)


def test_the_stages_without_embedding_or_head_refuse_tokens_and_logits(tiny_model_factory: Factory) -> None:
    folder, _ = tiny_model_factory("llama")
    first = load_stage(folder, range(2), dtype=torch.float32, device=CPU)
    batch = WaveBatch([SpanState(0, 3, [0], -1)], BLOCK)
    with pytest.raises(ValueError, match="needs the wave's tokens"):
        first.forward(batch, {}, None, {})
    with pytest.raises(ValueError, match="has 3 tokens, its activations are"):
        first.forward(batch, {}, torch.tensor([1, 2, 3, 4]), {})
    with pytest.raises(ValueError, match="only the last stage"):
        first.logits({"hidden": torch.zeros(3, 64)}, torch.tensor([0]))


@pytest.mark.parametrize(
    ("span", "message"),
    [
        (SpanState(0, 17, [0], 1), "1 pages of 16"),
        (SpanState(0, 16, [0], -1), "no recurrent slot"),
        (SpanState(0, 0, [], 1), "length 0"),
        (SpanState(0, 16, [0], 1, [(17, 2)]), "snapshots at"),
    ],
)
def test_a_span_that_does_not_fit_its_state_is_refused(
    span: SpanState, message: str, tiny_model_factory: Factory
) -> None:
    folder, _ = tiny_model_factory("kimi", pattern="KA")
    stage = load_stage(folder, range(2), dtype=torch.float32, device=CPU)
    with pytest.raises(ValueError, match=message):
        stage.forward(WaveBatch([span], BLOCK), {}, torch.zeros(span.length, dtype=torch.int64), {})


def test_hops_carry_the_hidden_state_and_the_last_stage_sends_nothing(tiny_model_factory: Factory) -> None:
    folder, _ = tiny_model_factory("llama")
    first = load_stage(folder, range(2), dtype=torch.bfloat16, device=CPU)
    last = load_stage(folder, range(2, 4), dtype=torch.bfloat16, device=CPU)
    assert [(spec.name, spec.shape, spec.dtype) for spec in first.hop_spec()] == [("hidden", (64,), "bfloat16")]
    assert last.hop_spec() == ()


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 24}),
        ("llama", {"rope_parameters": LINEAR_ROPE}),
        ("llama", {"rope_parameters": LLAMA3_ROPE}),
        ("qwen2", {}),
        ("mistral", {}),
    ],
    ids=["biases", "linear-rope", "llama3-rope", "qwen2", "mistral"],
)
def test_other_dense_models_and_options_match_transformers(
    family: str, changes: dict[str, object], tiny_model_factory: Factory
) -> None:
    folder, reference = tiny_model_factory(family, num_hidden_layers=2, **changes)
    pipeline = Pipeline(folder, 1)
    expected = expect(reference, TOKENS["a"])
    logits = pipeline.run_all(TOKENS, [[Piece("a", 0, 100)], [Piece("a", 100, 50)]])
    assert_close(logits["a"], expected.logits)
    assert_caches_match(pipeline, "a", expected, 150)


@pytest.mark.parametrize("model", ["qwen3", "kimi"])
def test_bfloat16_is_as_close_to_float32_as_transformers_own(model: str, tiny_model_factory: Factory) -> None:
    """Tolerance: the mean error of the logits is at most 1.25 times that of transformers in bfloat16."""
    family, changes = MODELS[model]
    folder, reference = tiny_model_factory(family, **changes)
    exact = expect(reference, TOKENS["a"]).logits
    theirs = expect(type(reference).from_pretrained(folder, dtype=torch.bfloat16), TOKENS["a"]).logits
    pipeline = Pipeline(folder, 2, torch.bfloat16)
    ours = pipeline.run_all(TOKENS, [[Piece("a", 0, 70)], [Piece("a", 70, 79)], [Piece("a", 149, 1)]])["a"]
    assert (ours - exact).abs().mean() <= 1.25 * (theirs - exact).abs().mean()
    if model == "kimi":
        assert pipeline.state(0, "state", "a").dtype == torch.float32
