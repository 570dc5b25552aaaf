"""Loading a model folder with transformers, strictly."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM


def load_whole(folder: Path) -> Any:
    """The model in fp32, ready to evaluate. Fails when a tensor is missing, unknown or of the wrong shape."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    model, info = loaded
    assert not any(info.values()), f"transformers does not load {folder} cleanly: {info}"
    return model.eval()
