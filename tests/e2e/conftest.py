"""Models, references and decoders of the end-to-end tests, each loaded once a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from wavepp.client.config import DecoderConfig
from wavepp.client.decoder import ReferenceDecoder
from wavepp.models.demo.resolve import resolve_model

from ..conftest import TinyModelFactory
from .harness import Server
from .reference import Reference


@dataclass(frozen=True)
class Subject:
    """One model under test, with what it is compared to and a decode worker for it."""

    name: str
    folder: Path
    reference: Reference
    decoder: ReferenceDecoder

    @property
    def hybrid(self) -> bool:
        return "kimi" in self.name or self.name == "demo-hybrid"


SubjectOf = Callable[[str], Subject]


@pytest.fixture(scope="session")
def subject_of(tiny_model_factory: TinyModelFactory) -> SubjectOf:
    """`subject_of(name)`: `demo`, `demo-hybrid`, `qwen3`, or `kimi` with the pattern of its layers, as `kimi-KKKA`."""
    made: dict[str, Subject] = {}

    def subject(name: str) -> Subject:
        if name not in made:
            if name.startswith("demo"):
                folder = resolve_model(name)
            elif name.startswith("kimi"):
                folder, _ = tiny_model_factory("kimi", pattern=name.removeprefix("kimi-"))
            else:
                folder, _ = tiny_model_factory(name)
            decoder = ReferenceDecoder(folder, DecoderConfig(capacity_tokens=16_384, max_states=40, block_size=32))
            made[name] = Subject(name, folder, Reference(folder), decoder)
        return made[name]

    return subject


SMALL_CACHE = ("--block-size", "16", "--max-wave-tokens", "64", "--min-wave-tokens", "16", "--snapshot-interval", "32")
"""Prompts of a few hundred tokens make many blocks, waves and snapshots."""


@pytest.fixture(scope="module")
def kimi_server(subject_of: SubjectOf) -> Iterator[Server]:
    """A tiny hybrid on two stages, with room for a few prompts at once."""
    with Server(subject_of("kimi-KKKA").folder, 2, *SMALL_CACHE, "--num-pages", "80", "--num-slots", "60") as server:
        yield server
