"""Tokens in and out, off the event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from transformers import AutoTokenizer
from wavepp.server.errors import BadRequestError, UnavailableError
from wavepp.server.tokenizer import TokenizerService

from .front import CONTEXT, VOCAB, OpenFront, error_of, run


@run
async def test_tokenize_and_detokenize_go_both_ways(open_front: OpenFront, tokenizer_folder: Path) -> None:
    reference = AutoTokenizer.from_pretrained(tokenizer_folder)
    text = "hello hen ünïcode\n"
    async with open_front() as front:
        body = {"prompt": text, "return_token_strs": True}
        answer = (await front.http.post("/tokenize", json=body)).json()
        assert answer["tokens"] == reference(text)["input_ids"]
        assert answer["token_strs"] == reference.convert_ids_to_tokens(answer["tokens"])
        assert (answer["count"], answer["max_model_len"]) == (len(answer["tokens"]), CONTEXT)
        back = await front.http.post("/detokenize", json={"tokens": answer["tokens"]})
        assert back.json() == {"prompt": text}


@run
async def test_tokenize_lays_out_messages(open_front: OpenFront, tokenizer_folder: Path) -> None:
    reference = AutoTokenizer.from_pretrained(tokenizer_folder)
    messages = [{"role": "user", "content": "hello"}]
    async with open_front() as front:
        for prompted in (True, False):
            body = {"messages": messages, "add_generation_prompt": prompted}
            answer = (await front.http.post("/tokenize", json=body)).json()
            expected = reference.apply_chat_template(messages, add_generation_prompt=prompted, return_dict=False)
            assert answer["tokens"] == expected
            assert answer["token_strs"] is None


@run
async def test_tokenize_counts_texts_longer_than_the_context_and_empty_ones(open_front: OpenFront) -> None:
    async with open_front() as front:
        answer = await front.http.post("/tokenize", json={"prompt": "hen! " * 1_000})
        assert answer.json()["count"] > CONTEXT
        assert (await front.http.post("/tokenize", json={"prompt": ""})).json()["count"] == 0


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": [1]}, "prompt"),
        ("/tokenize", {"prompt": "a", "more": 1}, "more"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [VOCAB]}, "tokens[0]"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [10**40]}, "tokens[0]"),
    ],
)
@run
async def test_bad_bodies_are_named(open_front: OpenFront, path: str, body: dict, named: str) -> None:
    async with open_front() as front:
        assert named in error_of(await front.http.post(path, json=body), 400)["message"]


@run
async def test_a_long_text_does_not_hold_up_the_loop(open_front: OpenFront) -> None:
    async with open_front() as front:
        order: list[str] = []

        async def note(name: str, call) -> None:
            await call
            order.append(name)

        long = note("long", front.http.post("/tokenize", json={"prompt": "the quick brown fox " * 50_000}))
        await asyncio.gather(long, note("short", front.http.get("/version")))
        assert order == ["short", "long"]


@run
async def test_a_model_without_a_tokenizer_takes_token_ids_only(tmp_path: Path) -> None:
    service = TokenizerService.load(tmp_path, max_model_len=8, vocab_size=10)
    assert (await service.prompt([1, 9], 8)).tolist() == [1, 9]
    assert service.token_text(3) == ""
    with pytest.raises(BadRequestError, match="token ids"):
        await service.prompt("hello", 8)
    with pytest.raises(BadRequestError, match="token ids"):
        await service.chat([{"role": "user", "content": "a"}], 8)
    service.close()


@run
async def test_a_model_without_a_chat_template_says_so(tokenizer_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    tokenizer.chat_template = None
    service = TokenizerService(tokenizer, max_model_len=8, vocab_size=VOCAB)
    with pytest.raises(BadRequestError, match="no chat template"):
        await service.chat([{"role": "user", "content": "a"}], 8)
    service.close()
    with pytest.raises(UnavailableError):
        await service.prompt("a", 8)


@run
async def test_only_what_is_too_long_for_certain_is_refused_without_tokenizing(tokenizer_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    longest = max(tokenizer.get_vocab(), key=len)
    service = TokenizerService(tokenizer, max_model_len=50, vocab_size=VOCAB)
    assert len(await service.prompt(longest * 50, 50)) == 50
    with pytest.raises(BadRequestError, match="51 tokens"):
        await service.prompt(longest * 51, 50)
    service.close()
