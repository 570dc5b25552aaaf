"""Torch settings that a process that runs a model needs."""

import torch


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
    if device.type == "cuda":
        torch.cuda.set_device(device)
