"""Torch is prepared as models need it."""

import platform
import subprocess
import sys

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


_REUSE = """
import resource, torch
from wavepp.models.runtime import keep_freed_memory
keep_freed_memory()
for _ in range(12):
    torch.ones(1 << 22)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    torch.ones(1 << 22)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator alone has these options")
def test_a_large_buffer_is_not_mapped_anew_for_every_operation() -> None:
    """16 MB have 4,096 pages; eight times as many faults when each is returned to the system."""
    faults = subprocess.run([sys.executable, "-c", _REUSE], capture_output=True, text=True, check=True).stdout
    assert int(faults) < 4_096
