"""Block keys: equal exactly where the whole prefix and the domain are."""

import struct
from hashlib import blake2b
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wavepp.cache.keys import KEY_BYTES, KeySpace

prompts = st.lists(st.integers(0, 3), max_size=40)


def encoded(tokens: list[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}i", *tokens)


@given(prompts, prompts, st.sampled_from([1, 2, 4, 8]))
def test_keys_are_equal_exactly_as_far_as_the_prefixes_are(a: list[int], b: list[int], block: int) -> None:
    space = KeySpace("model")
    keys_a, keys_b = space.block_keys(encoded(a), block), space.block_keys(encoded(b), block)
    assert len(keys_a) == len(a) // block
    for i, (key_a, key_b) in enumerate(zip(keys_a, keys_b, strict=False)):
        assert (key_a == key_b) == (a[: (i + 1) * block] == b[: (i + 1) * block])


def test_keys_are_the_chained_digest_of_the_design() -> None:
    space = KeySpace("model")
    tokens = encoded(list(range(10)))
    previous = space.domain("adapter", "salt")
    for block, key in enumerate(space.block_keys(tokens, 4, "adapter", "salt")):
        previous = blake2b(tokens[block * 16 : block * 16 + 16] + previous, digest_size=16).digest()
        assert key == previous
        assert len(key) == KEY_BYTES


def test_no_two_domains_share_a_key() -> None:
    texts = ("", "a", "b", "aa", "ab", "ba", "\x00", "a\x00", "é", "\x01\x00\x00\x00\x00\x00\x00\x00")
    domains = list(product(texts, repeat=3))
    tokens = encoded([1, 2, 3, 4])
    keys = {KeySpace(model).block_keys(tokens, 4, adapter, salt) for model, adapter, salt in domains}
    assert len(keys) == len(domains)


def test_a_block_says_where_it_stands() -> None:
    keys = KeySpace("model").block_keys(encoded([7] * 64), 4)
    assert len(set(keys)) == 16


def test_a_partly_filled_block_has_no_key() -> None:
    space = KeySpace("model")
    assert space.block_keys(encoded([1, 2, 3]), 4) == ()
    assert space.block_keys(b"", 4) == ()
    assert space.block_keys(encoded([1, 2, 3, 4, 5]), 4) == space.block_keys(encoded([1, 2, 3, 4]), 4)


def test_bytes_that_are_no_whole_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="6 bytes"):
        KeySpace("model").block_keys(b"\x00" * 6, 1)
