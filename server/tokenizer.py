"""Text to token ids and back, off the event loop, with the limits that a prompt must keep."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from .errors import ApiError, BadRequestError, UnavailableError

log = logging.getLogger(__name__)

TokenArray = npt.NDArray[np.int32]
T = TypeVar("T")

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "tiktoken.model", "vocab.json")
_SHRINKING = 4
"""How much shorter, at most, a normalizer is taken to make a text (NFKC and whitespace cleaning shrink)."""


class TokenizerService:
    """One tokenizer, shared by `threads` workers. `max_model_len` and `vocab_size` are the model's. Without a
    tokenizer only token ids can be served. Everything here raises `BadRequestError` for what a client got wrong."""

    def __init__(self, tokenizer: Any | None, *, max_model_len: int, vocab_size: int, threads: int = 2) -> None:
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self._tokenizer = tokenizer
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tokenizer")
        self._slow_lock = Lock()
        self._fast = getattr(tokenizer, "backend_tokenizer", None) if tokenizer is not None else None
        self._max_bytes_per_token = 0
        if self._fast is not None:
            # Set once here: the library sets them on every call otherwise, which threads must not share.
            self._fast.no_truncation()
            self._fast.no_padding()
        if tokenizer is not None:
            longest = max((len(token.encode()) for token in tokenizer.get_vocab()), default=1)
            shrinking = 1 if self._fast is not None and self._fast.normalizer is None else _SHRINKING
            self._max_bytes_per_token = longest * shrinking

    @classmethod
    def load(cls, folder: Path, *, max_model_len: int, vocab_size: int, threads: int = 2) -> TokenizerService:
        """Reads the tokenizer of a local model folder; code that comes with a model is never run."""
        if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
            log.warning("%s has no tokenizer: only prompts of token ids can be served", folder)
            return cls(None, max_model_len=max_model_len, vocab_size=vocab_size, threads=threads)
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        return cls(tokenizer, max_model_len=max_model_len, vocab_size=vocab_size, threads=threads)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def prompt(self, prompt: str | list[int], limit: int, where: str = "prompt") -> TokenArray:
        """The tokens of one prompt, int32 `[n]`, with `0 < n <= limit` and every id in the vocabulary."""
        if isinstance(prompt, str):
            return await self.text(prompt, limit, where)
        if not prompt:
            raise BadRequestError(f"{where}: the prompt is empty", "empty_prompt")
        self._check_length(len(prompt), limit, where)
        return self.check_ids(prompt, where)

    async def text(
        self, text: str, limit: int, where: str = "prompt", *, add_special_tokens: bool = True
    ) -> TokenArray:
        if not text:
            raise BadRequestError(f"{where}: the prompt is empty", "empty_prompt")
        self._refuse_hopeless(text, limit, where)
        ids = await self._in_thread(self._encode, text, add_special_tokens)
        if not len(ids):
            raise BadRequestError(f"{where}: the prompt has no tokens", "empty_prompt")
        self._check_length(len(ids), limit, where)
        return ids

    async def chat(self, messages: list[dict[str, Any]], limit: int) -> TokenArray:
        """The tokens of a conversation, as the model's own chat template lays it out."""
        text = await self._in_thread(self._render, messages, True)
        return await self.text(text, limit, "messages", add_special_tokens=False)

    async def encode_any_length(self, text: str, add_special_tokens: bool) -> list[int]:
        return (await self._in_thread(self._encode, text, add_special_tokens)).tolist()

    async def render(self, messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
        return await self._in_thread(self._render, messages, add_generation_prompt)

    async def decode(self, ids: list[int]) -> str:
        self.check_ids(ids, "tokens")
        return await self._in_thread(self._decode, ids)

    def token_text(self, token: int) -> str:
        """One token's text; empty without a tokenizer."""
        return "" if self._tokenizer is None else self._decode([token])

    def token_strings(self, ids: list[int]) -> list[str]:
        """The vocabulary's own spelling of each token."""
        return [str(token) for token in self._need().convert_ids_to_tokens(ids)]

    def check_ids(self, ids: list[int], where: str) -> TokenArray:
        """int32 `[n]`. Errors: `BadRequestError` that names the first id outside the vocabulary."""
        try:
            array = np.array(ids, dtype=np.int64)
            bad = np.flatnonzero((array < 0) | (array >= self.vocab_size))
            at = int(bad[0]) if len(bad) else -1
        except OverflowError:
            array = np.empty(0, np.int64)
            at = next(i for i, token in enumerate(ids) if not 0 <= token < self.vocab_size)
        if at >= 0:
            shown = ids[at] if abs(ids[at]) < 2**63 else "a huge number"
            message = f"{where}[{at}]: token id {shown} is outside the vocabulary (0 to {self.vocab_size - 1})"
            raise BadRequestError(message, "token_out_of_range")
        return array.astype(np.int32)

    def _check_length(self, count: int, limit: int, where: str) -> None:
        if count > limit:
            reason = "the model's context" if limit == self.max_model_len else "what the stages' caches can hold"
            raise BadRequestError(f"{where}: {count} tokens are more than {reason} of {limit} tokens", "too_long")

    def _refuse_hopeless(self, text: str, limit: int, where: str) -> None:
        # Characters never outnumber bytes, so this refuses only what is too long for certain.
        if self._tokenizer is not None and len(text) > limit * self._max_bytes_per_token:
            at_least = -(-len(text) // self._max_bytes_per_token)
            message = f"{where}: {len(text)} characters are at least {at_least} tokens, more than the limit of {limit}"
            raise BadRequestError(message, "too_long")

    def _need(self) -> Any:
        if self._tokenizer is None:
            raise BadRequestError("this model has no tokenizer: a prompt must be token ids", "no_tokenizer")
        return self._tokenizer

    def _encode(self, text: str, add_special_tokens: bool) -> TokenArray:
        tokenizer = self._need()
        if self._fast is not None:
            ids = self._fast.encode(text, add_special_tokens=add_special_tokens).ids
        else:
            with self._slow_lock:
                ids = cast("list[int]", tokenizer.encode(text, add_special_tokens=add_special_tokens))
        return self.check_ids(ids, "prompt") if ids else np.empty(0, np.int32)

    def _decode(self, ids: list[int]) -> str:
        return cast(str, self._need().decode(ids, skip_special_tokens=False))

    def _render(self, messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
        tokenizer = self._need()
        if not tokenizer.chat_template:
            raise BadRequestError("messages: this model has no chat template; send a prompt", "no_chat_template")
        try:
            return cast(
                str,
                tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt),
            )
        except Exception as error:
            # Templates are programs that come with the model: what they reject, they reject in any way they like.
            message = f"messages: the model's chat template refuses them: {str(error)[:300]}"
            raise BadRequestError(message, "chat_template") from error

    async def _in_thread(self, work: Any, *args: Any) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)
        except ApiError:
            raise
        except RuntimeError as error:
            if "shutdown" in str(error):
                raise UnavailableError("the server is shutting down", "draining") from error
            raise
