"""Torch settings that a process that runs a model needs."""

import ctypes
import sys

import torch

_MALLOC_OPTIONS = ((-4, 0), (-1, 1 << 30), (-2, 1 << 28))
"""glibc's M_MMAP_MAX, M_TRIM_THRESHOLD and M_TOP_PAD."""


def prepare_torch(device: torch.device, num_threads: int | None) -> None:
    """Call on the thread that runs the model, before its first operation there.

    The worker threads of an operation inherit the flush-to-zero mode from the thread that starts them first.
    `num_threads`: threads of one operation on the CPU, None to leave torch's choice. Raises ValueError below 1.
    """
    if num_threads is not None and num_threads < 1:
        raise ValueError(f"the number of threads must be at least 1, not {num_threads}")
    # KDA's decay drives states into denormals, which cost a hundred times the usual on the CPU.
    torch.set_flush_denormal(True)
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    if device.type == "cpu":
        keep_freed_memory()
    if device.type == "cuda":
        torch.cuda.set_device(device)


def keep_freed_memory() -> None:
    """Have the process keep what it frees, where its allocator is glibc's.

    By default glibc returns every large buffer to the system at once, and the same one is mapped and zeroed again for
    the next operation: four fifths of the time of an element-wise operation on 32 MB.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in _MALLOC_OPTIONS:
            mallopt(option, value)
