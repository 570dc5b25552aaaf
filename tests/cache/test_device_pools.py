"""The storage of pages and slots follows the layout."""

import torch
from wavepp.cache.device_pools import DevicePools
from wavepp.cache.layout import LayerCache, TensorSpec, Window, bytes_per_state, bytes_per_token

ATTENTION = LayerCache(0, "a", "gqa", Window.ATTENTION, (TensorSpec("k", (2, 8), "bfloat16"),))
RECURRENT = LayerCache(
    1,
    "r",
    "kda",
    Window.RECURRENT,
    (TensorSpec("state", (2, 4, 4), "float32"), TensorSpec("conv_q", (3, 8), "float32")),
)


def pools() -> DevicePools:
    return DevicePools((ATTENTION, RECURRENT), num_pages=5, num_slots=4, block_size=16, device=torch.device("cpu"))


def test_storage_has_the_layouts_shapes_dtypes_and_bytes() -> None:
    made = pools()
    assert made.pools["a"]["k"].shape == (5, 16, 2, 8)
    assert made.pools["a"]["k"].dtype == torch.bfloat16
    assert made.pools["r"]["state"].shape == (4, 2, 4, 4)
    assert made.num_bytes == 5 * 16 * bytes_per_token(made.layout) + 4 * bytes_per_state(made.layout)


def test_copying_a_slot_copies_every_recurrent_tensor_and_nothing_else() -> None:
    made = pools()
    for layer in made.pools.values():
        for storage in layer.values():
            storage.copy_(torch.arange(storage.numel()).view_as(storage))
    before = {name: {key: value.clone() for key, value in layer.items()} for name, layer in made.pools.items()}
    made.copy_slot(1, 3)
    assert torch.equal(made.pools["a"]["k"], before["a"]["k"])
    for name, storage in made.pools["r"].items():
        assert torch.equal(storage[3], before["r"][name][1])
        assert torch.equal(storage[:3], before["r"][name][:3])
