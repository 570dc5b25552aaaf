"""The public-domain text that the demo hybrid is trained on, cut into documents and split once and for all."""

import re
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_EVERY = 60
HELD_OUT_OFFSET = 30
_VERSE = re.compile(r"^(?P<book>\w+?)(?P<chapter>\d+):(?P<verse>\d+) (?P<text>.+)$")


@dataclass(frozen=True)
class Corpus:
    """Documents (one chapter each, a verse a line). `held_out` shares no chapter with `train`."""

    train: list[str]
    held_out: list[str]


def read_chapters(path: Path) -> list[str]:
    """Chapters of a text with one `Book1:2 words` verse a line, as `bible -f` prints it, without the references.

    Raises ValueError when a line has another form, so that a different text is never trained on by accident.
    """
    chapters: dict[tuple[str, str], list[str]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        match = _VERSE.match(line)
        if match is None:
            raise ValueError(f"{path}:{number}: expected 'Book1:2 words', found {line[:60]!r}")
        chapters.setdefault((match["book"], match["chapter"]), []).append(match["text"])
    return ["\n".join(verses) + "\n" for verses in chapters.values()]


def load_corpus(path: Path) -> Corpus:
    """Every sixtieth chapter is held out: the split depends on nothing but the order of the text."""
    chapters = read_chapters(path)
    held_out = [text for index, text in enumerate(chapters) if index % HELD_OUT_EVERY == HELD_OUT_OFFSET]
    train = [text for index, text in enumerate(chapters) if index % HELD_OUT_EVERY != HELD_OUT_OFFSET]
    if not held_out:
        raise ValueError(f"{path}: too short to hold anything out ({len(chapters)} chapters)")
    return Corpus(train=train, held_out=held_out)
