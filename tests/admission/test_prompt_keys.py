"""The memo of prompts' keys."""

from wavepp.admission.prompt_keys import PromptKeys
from wavepp.admission.request import Request
from wavepp.cache.keys import KeySpace

from .one_rank import TOKENS


class CountingSpace(KeySpace):
    hashed = 0

    def block_keys(self, tokens: bytes, block_size: int, adapter: str = "", salt: str = "") -> tuple[bytes, ...]:
        self.hashed += 1
        return super().block_keys(tokens, block_size, adapter, salt)


def test_a_prompt_is_hashed_once_until_it_is_forgotten() -> None:
    space = CountingSpace("a model")
    keys = PromptKeys(space, 4)
    request = Request(1, "r", TOKENS, "h")
    assert keys.of(request) == keys.of(request) == KeySpace("a model").block_keys(TOKENS, 4)
    assert (space.hashed, len(keys)) == (1, 1)
    keys.forget(1)
    keys.forget(1)
    assert len(keys) == 0
    keys.of(request)
    assert space.hashed == 2


def test_salt_and_adapter_are_part_of_the_keys() -> None:
    keys = PromptKeys(KeySpace("a model"), 4)
    plain, salted, adapted = (
        keys.of(Request(1, "a", TOKENS, "a")),
        keys.of(Request(2, "b", TOKENS, "b", salt="s")),
        keys.of(Request(3, "c", TOKENS, "c", adapter="s")),
    )
    assert len({plain, salted, adapted}) == 3
