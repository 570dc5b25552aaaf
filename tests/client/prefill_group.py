"""Prefill in this process: a model cut into stages, each with its own pools, cache and transfer server; and the few
HTTP calls that a decode worker makes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import msgspec
import torch
from wavepp.cache.device_pools import DevicePools
from wavepp.cache.stage_cache import StageCache
from wavepp.engine.messages import Manifest, StageManifest
from wavepp.engine.transfer_config import TransferConfig
from wavepp.engine.transfer_server import TransferServer
from wavepp.models.batch import Activations, SpanState, WaveBatch
from wavepp.models.stage_model import StageModel, load_stage

from ..cold_claim import claim_cold

EPOCH = 3
CPU = torch.device("cpu")


class Stage:
    """Some layers of the model, and the state of every prompt that went through them."""

    def __init__(self, rank: int, model: StageModel, block_size: int, config: TransferConfig) -> None:
        self.rank, self.model, self.block_size = rank, model, block_size
        layout = model.cache_layout()
        self.pools = DevicePools(layout, num_pages=64, num_slots=4, block_size=block_size, device=CPU)
        self.cache = StageCache(frozenset(layer.window for layer in layout), 64, 4, block_size)
        self.server = TransferServer(
            config, rank=rank, block_size=block_size, layers=layout, pools=self.pools.pools, source=self.cache
        )
        self.server.start(EPOCH)

    @property
    def manifest(self) -> StageManifest:
        return StageManifest(self.rank, self.server.address, tuple(layer.name for layer in self.pools.layout))

    def claim(self, request: int, handle: str, num_tokens: int) -> None:
        claim_cold(self.cache, request, handle, num_tokens)

    def forward(self, request: int, start: int, length: int, tokens: torch.Tensor, inputs: Activations) -> Activations:
        held = self.cache.sequence(request)
        pages = held.pages[: -(-(start + length) // self.block_size)]
        batch = WaveBatch((SpanState(start, length, pages, held.slot),), self.block_size)
        return self.model.forward(batch, self.pools.pools, tokens if self.rank == 0 else None, inputs)


class PrefillGroup:
    """`prefill` computes a prompt's state in chunks, stage after stage."""

    def __init__(
        self,
        folder: Path,
        cuts: Sequence[int],
        *,
        block_size: int = 8,
        dtype: torch.dtype = torch.float32,
        config: TransferConfig | None = None,
    ) -> None:
        """`cuts` are the first layers of the stages, and the number of layers."""
        ranges = [range(start, stop) for start, stop in pairwise(cuts)]
        self.stages: list[Stage] = []
        self._model_name = folder.name
        self._manifests: dict[str, Manifest] = {}
        self._requests = 0
        for rank, layers in enumerate(ranges):
            model = load_stage(folder, layers, dtype=dtype, device=CPU)
            self.stages.append(Stage(rank, model, block_size, config or TransferConfig()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stage in self.stages:
            stage.server.stop()
            stage.cache.check()

    @property
    def handles(self) -> int:
        return sum(stage.cache.gauges().handles for stage in self.stages)

    def wait_released(self, timeout_s: float = 20.0) -> None:
        """A puller that gives up does not wait for the stages to hear of it."""
        deadline = time.monotonic() + timeout_s
        while self.handles:
            assert time.monotonic() < deadline, "a stage still holds a handle"
            time.sleep(0.001)

    def prefill(self, tokens: Sequence[int], chunk: int = 16) -> Manifest:
        self._requests += 1
        request, handle = self._requests, f"handle-{self._requests}"
        for stage in self.stages:
            stage.claim(request, handle, len(tokens))
        outputs: Activations = {}
        length = 0
        for start in range(0, len(tokens), chunk):
            length = min(chunk, len(tokens) - start)
            outputs = {}
            for stage in self.stages:
                outputs = stage.forward(request, start, length, torch.tensor(tokens[start : start + length]), outputs)
        logits = self.stages[-1].model.logits(outputs, torch.tensor([length - 1]))
        for stage in self.stages:
            stage.cache.seal(request)
            stage.server.notify()
        self._manifests[handle] = Manifest(
            handle=handle,
            epoch=EPOCH,
            model=self._model_name,
            num_tokens=len(tokens),
            block_size=self.stages[0].block_size,
            first_token=int(logits[0].argmax()),
            expires_in_s=60.0,
            stages=tuple(stage.manifest for stage in self.stages),
        )
        return self._manifests[handle]

    def manifest(self, handle: str) -> Manifest | None:
        return self._manifests.get(handle)

    def release(self, handle: str) -> None:
        del self._manifests[handle]
        for stage in self.stages:
            stage.cache.release_handle(handle)
            stage.server.notify()


class HttpFront:
    """The calls of a decode worker over HTTP: prompts are token ids, or text of which each byte is a token."""

    def __init__(self, group: PrefillGroup) -> None:
        front = self
        self.group = group
        self.bodies: list[dict[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", "0"))
                self._reply(*front.prefill(json.loads(self.rfile.read(length))))

            def do_GET(self) -> None:
                manifest = front.group.manifest(self.path.rsplit("/", 1)[1])
                if manifest is None:
                    self._reply(404, _error("unknown_handle", "there is no such handle"))
                else:
                    self._reply(200, msgspec.to_builtins(manifest))

            def do_DELETE(self) -> None:
                handle = self.path.rsplit("/", 1)[1]
                if front.group.manifest(handle) is None:
                    self._reply(404, _error("unknown_handle", "there is no such handle"))
                else:
                    front.group.release(handle)
                    self._reply(200, {})

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def _reply(self, status: int, body: dict[str, Any]) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def prefill(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.bodies.append(body)
        prompt = body["prompt"]
        tokens = list(prompt.encode()) if isinstance(prompt, str) else prompt
        if not tokens:
            return 400, _error("empty_prompt", "the prompt is empty")
        manifest = self.group.prefill(tokens)
        return 200, {
            "id": manifest.handle,
            "model": manifest.model,
            "handle": manifest.handle,
            "first_token": {"id": manifest.first_token, "text": "", "logprob": 0.0},
            "usage": {"prompt_tokens": len(tokens), "cached_tokens": 0},
            "timing": {"queue_s": 0.0, "admit_s": 0.0, "prefill_s": 0.1},
        }


def _error(code: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "code": code}}
