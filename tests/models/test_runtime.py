"""Torch is prepared as models need it."""

import pytest
import torch
from wavepp.models.runtime import prepare_torch


def test_denormals_become_zero_and_threads_are_set() -> None:
    threads = torch.get_num_threads()
    try:
        prepare_torch(torch.device("cpu"), 1)
        assert torch.get_num_threads() == 1
        assert (torch.full((8,), 1e-30) * 1e-10).eq(0).all()
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


def test_no_threads_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        prepare_torch(torch.device("cpu"), 0)
