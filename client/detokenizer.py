"""Text from tokens as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

Decode = Callable[[Sequence[int]], str]

_BROKEN = "�"
_CONTEXT = 8
# No character takes more tokens than this; what is still broken then stays broken.
_LONGEST = 16


class IncrementalDetokenizer:
    """Turns tokens into text, one at a time, without ever giving out half a character.

    The text of a token depends on those before it, so the newest tokens are decoded together with some that came
    before, and the difference is what is new. `context` are the tokens before the first, the prompt's last ones.
    """

    def __init__(self, decode: Decode, context: Sequence[int] = ()) -> None:
        self._decode = decode
        self._window = list(context[-_CONTEXT:])
        self._given = len(self._window)

    def add(self, token: int) -> str:
        """The text that is now certain; empty while a character is incomplete."""
        self._window.append(token)
        text = self._new_text()
        if text.endswith(_BROKEN) and len(self._window) - self._given < _LONGEST:
            return ""
        # Nothing may follow on from half a character that was given up.
        self._window = [] if text.endswith(_BROKEN) else self._window[-_CONTEXT:]
        self._given = len(self._window)
        return text

    def finish(self) -> str:
        """What was held back; broken characters come out as U+FFFD."""
        text = self._new_text()
        self._given = len(self._window)
        return text

    def _new_text(self) -> str:
        if self._given == len(self._window):
            return ""
        before = self._decode(self._window[: self._given])
        return self._decode(self._window)[len(before) :]


class ModelTokenizer:
    """The tokenizer of a model folder. Reads `tokenizer.json` alone where there is one, which is much faster than
    loading transformers."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError when the folder has no tokenizer."""
        path = folder / "tokenizer.json"
        if path.is_file():
            from tokenizers import Tokenizer

            fast = Tokenizer.from_file(str(path))
            self.decode: Decode = lambda ids: fast.decode(list(ids), skip_special_tokens=True)
            self.encode: Callable[[str], list[int]] = lambda text: fast.encode(text).ids
        else:
            from transformers import AutoTokenizer

            slow = AutoTokenizer.from_pretrained(folder)
            self.decode = lambda ids: str(slow.decode(list(ids), skip_special_tokens=True))
            self.encode = lambda text: list(slow.encode(text))
