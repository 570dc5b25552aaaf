"""The storage of pages and slots follows the layout."""

import torch
from wavepp.cache.device_pools import DevicePools
from wavepp.cache.layout import LayerCache, TensorSpec, Window, bytes_per_state, bytes_per_token
from wavepp.cache.moves import Moves

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


def test_what_leaves_for_the_host_comes_back_as_it_was() -> None:
    made = DevicePools(
        (ATTENTION, RECURRENT),
        num_pages=5,
        num_slots=4,
        block_size=16,
        device=torch.device("cpu"),
        host_pages=3,
        host_slots=2,
    )
    assert made.num_host_bytes == 3 * 16 * bytes_per_token(made.layout) + 2 * bytes_per_state(made.layout)
    for layer in made.pools.values():
        for storage in layer.values():
            storage.copy_(torch.randn(storage.shape))
    before = {name: {key: value.clone() for key, value in layer.items()} for name, layer in made.pools.items()}
    attention, recurrent = Window.ATTENTION, Window.RECURRENT
    made.execute(Moves(offloads=((attention, 4, 0), (recurrent, 1, 1), (attention, 2, 2))))
    for layer in made.pools.values():
        for storage in layer.values():
            storage.zero_()
    # One step: page 3 leaves for a place that is free, and the two that had left come back elsewhere.
    made.execute(Moves(((attention, 3, 1),), ((attention, 2, 0), (attention, 0, 1), (recurrent, 1, 3))))
    assert torch.equal(made.pools["a"]["k"][0], before["a"]["k"][2])
    assert torch.equal(made.pools["a"]["k"][1], before["a"]["k"][4])
    for name, storage in made.pools["r"].items():
        assert torch.equal(storage[3], before["r"][name][1])
        assert not storage[:3].any()


def test_a_step_moves_what_leaves_before_what_comes() -> None:
    made = DevicePools((ATTENTION,), num_pages=2, num_slots=0, block_size=4, device=torch.device("cpu"), host_pages=2)
    storage = made.pools["a"]["k"]
    storage[0], storage[1] = 1.0, 2.0
    made.execute(Moves(offloads=((Window.ATTENTION, 0, 0),)))
    made.execute(Moves(offloads=((Window.ATTENTION, 1, 1),), onboards=((Window.ATTENTION, 0, 1),)))
    assert storage[1].eq(1.0).all()
    made.execute(Moves(onboards=((Window.ATTENTION, 1, 0),)))
    assert storage[0].eq(2.0).all()
