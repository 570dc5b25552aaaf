"""Fixtures that all tests share."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from .tiny_models import tiny_kimi, tiny_llama, tiny_mistral, tiny_qwen2, tiny_qwen3

TinyModelFactory = Callable[..., tuple[Path, PreTrainedModel]]

_MAKERS = {
    "kimi": tiny_kimi,
    "llama": tiny_llama,
    "mistral": tiny_mistral,
    "qwen2": tiny_qwen2,
    "qwen3": tiny_qwen3,
}


@pytest.fixture(scope="session")
def tiny_model_factory(tmp_path_factory: pytest.TempPathFactory) -> TinyModelFactory:
    """`factory("llama", **changes)` -> (model folder, transformers' model), made once a session; see _MAKERS."""
    made: dict[str, tuple[Path, PreTrainedModel]] = {}

    def factory(family: str, **changes: Any) -> tuple[Path, PreTrainedModel]:
        key = f"{family} {sorted(changes.items())}"
        if key not in made:
            transformers_logging.set_verbosity_error()
            transformers_logging.disable_progress_bar()
            folder = tmp_path_factory.mktemp(family)
            made[key] = folder, _MAKERS[family](folder, **changes)
        return made[key]

    return factory


@pytest.fixture(autouse=True)
def _torch_settings_end_with_the_test() -> Iterator[None]:
    """A decoder in the test's process prepares torch for itself: denormals flushed, threads limited."""
    threads = torch.get_num_threads()
    yield
    torch.set_flush_denormal(False)
    torch.set_num_threads(threads)
