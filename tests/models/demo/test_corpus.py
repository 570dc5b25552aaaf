"""The training text is read strictly, and what is held out is never trained on."""

from pathlib import Path

import pytest
from wavepp.models.demo.corpus import load_corpus, read_chapters


def test_chapters_are_documents_with_a_verse_a_line(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("Ge1:1 In the beginning.\nGe1:2 And the earth.\nGe2:1 Thus.\n1Sm2:1 And Hannah prayed.\n")
    assert read_chapters(text) == ["In the beginning.\nAnd the earth.\n", "Thus.\n", "And Hannah prayed.\n"]


def test_another_kind_of_text_is_refused_with_its_line(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("Ge1:1 In the beginning.\nno reference here\n")
    with pytest.raises(ValueError, match=r"text:2: expected"):
        read_chapters(text)


def test_held_out_chapters_are_not_in_the_training_text(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("".join(f"Ge{chapter}:1 chapter {chapter}.\n" for chapter in range(1, 201)))
    corpus = load_corpus(text)
    assert len(corpus.held_out) == 3
    assert len(corpus.train) == 197
    assert not set(corpus.held_out) & set(corpus.train)


def test_a_text_too_short_to_hold_anything_out_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("Ge1:1 In the beginning.\n")
    with pytest.raises(ValueError, match="too short"):
        load_corpus(text)
