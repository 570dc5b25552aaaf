"""Text comes out as early as it is certain, and never in halves of a character."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from wavepp.client.detokenizer import IncrementalDetokenizer


def _bytes(tokens: Sequence[int]) -> str:
    """The hardest tokenizer for this: every byte is a token."""
    return bytes(tokens).decode("utf-8", errors="replace")


def _pieces(detokenizer: IncrementalDetokenizer, tokens: Sequence[int]) -> list[str]:
    return [*(detokenizer.add(token) for token in tokens), detokenizer.finish()]


@given(text=st.text(max_size=40), context=st.text(max_size=12))
def test_the_pieces_of_any_text_make_the_text(text: str, context: str) -> None:
    pieces = _pieces(IncrementalDetokenizer(_bytes, list(context.encode())), list(text.encode()))
    assert "".join(pieces) == text


@given(text=st.text(alphabet="aé漢🚀", max_size=30))
def test_each_piece_is_whole_characters_and_comes_with_its_last_byte(text: str) -> None:
    tokens = list(text.encode())
    pieces = _pieces(IncrementalDetokenizer(_bytes), tokens)
    assert all("�" not in piece for piece in pieces)
    for count in range(len(tokens) + 1):
        certain = bytes(tokens[:count]).decode("utf-8", errors="ignore")
        assert "".join(pieces[:count]) == certain


@given(tokens=st.lists(st.integers(0, 255), max_size=60))
def test_broken_text_comes_out_too(tokens: list[int]) -> None:
    text = "".join(_pieces(IncrementalDetokenizer(_bytes), tokens))
    readable = bytes(tokens).decode("utf-8", errors="ignore")
    left = iter(text)
    assert all(character in left for character in readable)


def test_broken_text_is_not_held_back_for_ever() -> None:
    detokenizer = IncrementalDetokenizer(_bytes)
    assert "".join(detokenizer.add(0xFF) for _ in range(40))


def test_the_context_decides_about_the_space_before_the_first_word() -> None:
    vocab = {"<unk>": 0, "▁Hello": 1, "▁world": 2, "s": 3}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.decoder = decoders.Metaspace()  # pyright: ignore[reportAttributeAccessIssue]

    def decode(ids: Sequence[int]) -> str:
        return tokenizer.decode(list(ids))

    assert _pieces(IncrementalDetokenizer(decode), [1, 2, 3]) == ["Hello", " world", "s", ""]
    assert _pieces(IncrementalDetokenizer(decode, [1]), [2, 3]) == [" world", "s", ""]
