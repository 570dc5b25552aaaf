"""The whole front end but for its process: the app, its client, a tokenizer, and a rank 0 at the other end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from wavepp.server.app import create_app
from wavepp.server.config import ServerConfig
from wavepp.server.engine_client import EngineClient
from wavepp.server.metrics import Metrics
from wavepp.server.tokenizer import TokenizerService

from .fake_engine import TIMEOUT_S, FakeEngine
from .front import CONTEXT, DEFAULT_TTL_S, MAX_TTL_S, VOCAB, Front, OpenFront, served

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE with a few merges and a chat template, as a model folder holds it."""
    folder = tmp_path_factory.mktemp("tokenizer")
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(["the quick brown fox jumps over the lazy dog and the hen", "hello hello world"], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|end|>", chat_template=TEMPLATE)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def open_front(tokenizer_folder: Path) -> OpenFront:
    @asynccontextmanager
    async def front(*, up: bool = True, real: bool = False, **config: Any) -> AsyncIterator[Front]:
        settings = ServerConfig(**config)
        async with AsyncExitStack() as stack:
            metrics = Metrics("1.2.3")
            client = EngineClient(
                "tcp://127.0.0.1:*",
                call_timeout_s=settings.call_timeout_s,
                stall_timeout_s=settings.stall_timeout_s,
                retry_after_s=settings.retry_after_s,
                observer=metrics,
            )
            await client.start()
            stack.push_async_callback(client.close)
            tokenizer = TokenizerService.load(tokenizer_folder, max_model_len=CONTEXT, vocab_size=VOCAB)
            stack.callback(tokenizer.close)
            app = create_app(
                settings,
                client,
                tokenizer,
                model_name="tiny",
                version="1.2.3",
                metrics=metrics,
                default_ttl_s=DEFAULT_TTL_S,
                max_ttl_s=MAX_TTL_S,
            )
            engine = FakeEngine(client.address)
            stack.push_async_callback(engine.close)
            url = await stack.enter_async_context(served(app)) if real else "http://front"
            transport = None if real else httpx.ASGITransport(app, raise_app_exceptions=False)
            http = httpx.AsyncClient(base_url=url, transport=transport, timeout=TIMEOUT_S)
            await stack.enter_async_context(http)
            opened = Front(app, http, engine, client, tokenizer)
            if up:
                await engine.up()
                await opened.until(lambda: client.group.status == "up")
            yield opened

    return front
