"""A prompt that was computed elsewhere goes on as if it had been computed here."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel
from wavepp.client.config import DecoderConfig
from wavepp.client.decode_state import DecodeState
from wavepp.client.decoder import ReferenceDecoder
from wavepp.client.errors import DecoderFullError, SinkMismatchError
from wavepp.client.pull import pull_state

from ..conftest import TinyModelFactory
from .prefill_group import PrefillGroup

PROMPTS = [[5], list(range(3, 11)), [(7 * i + 3) % 251 + 3 for i in range(45)]]
"""One token, exactly one block, and several blocks with a partly filled last one."""

FAMILIES = [("llama", (0, 2, 4)), ("qwen3", (0, 1, 4)), ("kimi", (0, 2, 4)), ("kimi", (0, 1, 2, 3, 4))]


def _reference(model: PreTrainedModel, prompt: Sequence[int], count: int) -> list[int]:
    """Greedy, step by step: the next token of the whole sequence, computed anew each time."""
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            logits = model(input_ids=torch.tensor([tokens])).logits[0, -1]
            tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


def _pulled(decoder: ReferenceDecoder, group: PrefillGroup, prompt: Sequence[int]) -> tuple[DecodeState, int]:
    manifest = group.prefill(prompt)
    state = decoder.new_state()
    pull_state(manifest, state)
    # Nothing may depend on the prefill side any more.
    group.release(manifest.handle)
    for stage in group.stages:
        for tensors in stage.pools.pools.values():
            for pool in tensors.values():
                pool.zero_()
    return state, manifest.first_token


@pytest.mark.parametrize(("family", "cuts"), FAMILIES)
def test_pulled_state_continues_as_transformers_does(
    tiny_model_factory: TinyModelFactory, family: str, cuts: tuple[int, ...]
) -> None:
    folder, reference = tiny_model_factory(family)
    decoder = ReferenceDecoder(folder, DecoderConfig(block_size=16, capacity_tokens=256, threads=1))
    for prompt in PROMPTS:
        with PrefillGroup(folder, cuts) as group:
            state, first = _pulled(decoder, group, prompt)
            tokens = list(decoder.generate(state, first, 16, ignore_eos=True))
            state.free()
        assert tokens == _reference(reference, prompt, 16)


@pytest.mark.parametrize("block_size", [1, 4, 8, 64])
def test_the_block_sizes_of_the_two_sides_need_not_agree(tiny_model_factory: TinyModelFactory, block_size: int) -> None:
    folder, reference = tiny_model_factory("llama")
    decoder = ReferenceDecoder(folder, DecoderConfig(block_size=block_size, capacity_tokens=256, threads=1))
    with PrefillGroup(folder, (0, 2, 4)) as group:
        state, first = _pulled(decoder, group, PROMPTS[2])
        assert list(decoder.generate(state, first, 8, ignore_eos=True)) == _reference(reference, PROMPTS[2], 8)


def test_two_prompts_are_continued_in_turns(tiny_model_factory: TinyModelFactory) -> None:
    folder, reference = tiny_model_factory("kimi")
    decoder = ReferenceDecoder(folder, DecoderConfig(block_size=8, capacity_tokens=256, threads=1))
    prompts = PROMPTS[1:]
    with PrefillGroup(folder, (0, 2, 4)) as group:
        pulled = [_pulled(decoder, group, prompt) for prompt in prompts]
        generators = [decoder.generate(state, first, 8, ignore_eos=True) for state, first in pulled]
        tokens = list(zip(*zip(*generators, strict=True), strict=True))
    assert [list(line) for line in tokens] == [_reference(reference, prompt, 8) for prompt in prompts]


def _decoded(folder: Path, eos: int | None, **options: object) -> list[int]:
    decoder = ReferenceDecoder(folder, DecoderConfig(block_size=8, capacity_tokens=256, threads=1))
    if eos is not None:
        decoder.spec = decoder.spec.model_copy(update={"eos_token_ids": (eos,)})
    with PrefillGroup(folder, (0, 4)) as group:
        state, first = _pulled(decoder, group, PROMPTS[2])
        return list(decoder.generate(state, first, 12, **options))  # pyright: ignore[reportArgumentType]


def test_decoding_ends_with_the_end_of_sequence_unless_told_otherwise(tiny_model_factory: TinyModelFactory) -> None:
    folder, reference = tiny_model_factory("llama")
    expected = _reference(reference, PROMPTS[2], 12)
    eos = expected[5]
    assert _decoded(folder, eos) == expected[: expected.index(eos) + 1]
    assert _decoded(folder, eos, ignore_eos=True) == expected


def test_sampling_depends_on_the_seed_alone(tiny_model_factory: TinyModelFactory) -> None:
    folder, _ = tiny_model_factory("llama")
    one = _decoded(folder, None, temperature=2.0, seed=11, ignore_eos=True)
    assert one == _decoded(folder, None, temperature=2.0, seed=11, ignore_eos=True)
    assert one != _decoded(folder, None, temperature=2.0, seed=12, ignore_eos=True)
    cold = _decoded(folder, None, temperature=1e-9, seed=11, ignore_eos=True)
    assert cold == _decoded(folder, None, ignore_eos=True)


def test_what_does_not_fit_is_refused_and_nothing_leaks(tiny_model_factory: TinyModelFactory) -> None:
    folder, _ = tiny_model_factory("kimi")
    decoder = ReferenceDecoder(folder, DecoderConfig(block_size=8, capacity_tokens=48, max_states=1, threads=1))
    with PrefillGroup(folder, (0, 2, 4)) as group:
        state, first = _pulled(decoder, group, PROMPTS[2])
        other = decoder.new_state()
        with pytest.raises(DecoderFullError, match="recurrent slots"):
            pull_state(group.prefill(PROMPTS[1]), other)
        other.free()
        with pytest.raises(DecoderFullError, match="pages"):
            list(decoder.generate(state, first, 100, ignore_eos=True))
        state.free()
        state.free()
        assert all(stage.cache.gauges().pulls <= 1 for stage in group.stages)
        again, first = _pulled(decoder, group, PROMPTS[2])
        assert len(list(decoder.generate(again, first, 4, ignore_eos=True))) == 4


def test_state_of_another_dtype_is_refused_by_name(tiny_model_factory: TinyModelFactory) -> None:
    folder, _ = tiny_model_factory("llama")
    decoder = ReferenceDecoder(folder, DecoderConfig(capacity_tokens=256, threads=1))
    with PrefillGroup(folder, (0, 2, 4), dtype=torch.bfloat16) as group:
        manifest = group.prefill(PROMPTS[1])
        with pytest.raises(SinkMismatchError, match=r"model\.layers\.0\.self_attn \w+ is bfloat16 there and float32"):
            pull_state(manifest, decoder.new_state())


def test_bfloat16_state_is_pulled_exactly(tiny_model_factory: TinyModelFactory) -> None:
    folder, _ = tiny_model_factory("llama")
    decoder = ReferenceDecoder(folder, DecoderConfig(capacity_tokens=256, dtype="bfloat16", threads=1))
    with PrefillGroup(folder, (0, 2, 4), dtype=torch.bfloat16) as group:
        manifest = group.prefill(PROMPTS[2])
        state = decoder.new_state()
        pull_state(manifest, state)
        one_process = PrefillGroup(folder, (0, 4), block_size=64, dtype=torch.bfloat16)
        with one_process:
            local = one_process.prefill(PROMPTS[2])
            other = decoder.new_state()
            pull_state(local, other)
            assert list(decoder.generate(state, manifest.first_token, 8, ignore_eos=True)) == list(
                decoder.generate(other, local.first_token, 8, ignore_eos=True)
            )
