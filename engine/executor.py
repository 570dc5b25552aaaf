"""Runs one wave on one stage: materialise, compute, sample, publish."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from ..admission.claims import Claims
from ..admission.messages import FirstToken
from ..admission.request import Request
from ..cache.device_pools import DevicePools
from ..cache.sequence import Sequence as CacheSequence
from ..cache.stage_cache import StageCache
from ..models.batch import Activations, SpanState, WaveBatch
from ..models.stage_model import StageModel
from .header import WaveHeader, WaveSpan
from .materialiser import Materialiser
from .sampler import SamplingError, sample_first_token
from .trace import Tracer


class WaveMismatchError(RuntimeError):
    """A wave names an admission that this rank has not committed, or a position that it has not reached."""


class Executor:
    """Owned by LOOP. Waves run one after the other, in the order of their numbers."""

    def __init__(
        self,
        model: StageModel,
        pools: DevicePools,
        cache: StageCache,
        claims: Claims,
        materialiser: Materialiser,
        block_size: int,
        device: torch.device,
        tracer: Tracer,
    ) -> None:
        self._model, self._pools, self._cache = model, pools, cache
        self._claims, self._materialiser = claims, materialiser
        self._block_size, self._device, self._tracer = block_size, device, tracer
        self._began = 0.0

    def forward(self, header: WaveHeader, inputs: Activations) -> tuple[Activations, float]:
        """Computes this stage's layers for the wave. Returns what the next stage needs, and seconds of forward.
        Nothing is visible to other requests before `settle`."""
        self._began = time.perf_counter()
        states = [self._materialise(span) for span in header.spans]
        tokens = self._tokens(header.spans) if self._model.is_first else None
        with self._tracer.span("forward", wave=header.wave, tokens=header.num_tokens, spans=len(header.spans)):
            return self._compute(WaveBatch(states, self._block_size), tokens, inputs)

    def sample(self, header: WaveHeader, outputs: Activations) -> tuple[FirstToken, ...]:
        """On the last stage: the first token of every request whose prompt ends in this wave."""
        rows: list[int] = []
        requests: list[Request] = []
        row = -1
        for span in header.spans:
            row += span.length
            if span.last:
                rows.append(row)
                requests.append(self._claims.request(span.request))
        if not rows:
            return ()
        with self._tracer.span("sample", wave=header.wave, requests=len(rows)):
            logits = self._model.logits(outputs, torch.tensor(rows, device=self._device)).cpu()
            return tuple(self._choose(request, line) for request, line in zip(requests, logits, strict=True))

    def settle(self, header: WaveHeader) -> bool:
        """Once the wave's device work is complete: publishes what it wrote, seals what it finished, ends what was only
        waiting for it. True when a handle became good or ended."""
        if self._device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        sealed = False
        with self._tracer.span("settle", wave=header.wave):
            for span in header.spans:
                self._cache.publish(span.request, span.end)
                if span.last:
                    self._cache.seal(span.request)
                    self._claims.finished(span.request)
                    sealed = True
            return self._claims.wave_completed(header.wave) or sealed

    def _compute(self, batch: WaveBatch, tokens: torch.Tensor | None, inputs: Activations) -> tuple[Activations, float]:
        started = time.perf_counter()
        outputs = self._model.forward(batch, self._pools.pools, tokens, inputs)
        return outputs, time.perf_counter() - started

    def took(self, forward_s: float) -> float:
        """How long the wave that was settled last has kept the stage from other work; `forward_s` of that is its
        forward pass. What comes around it, such as handing over and publishing, costs throughput as well."""
        del forward_s
        return time.perf_counter() - self._began

    def _choose(self, request: Request, logits: torch.Tensor) -> FirstToken:
        prompt = torch.from_numpy(_tokens_of(request).astype(np.int64))
        try:
            choice = sample_first_token(logits, request.sampling, prompt, self._model.spec.eos_token_ids)
        except SamplingError as error:
            return FirstToken(request.id, -1, 0.0, error=str(error))
        return FirstToken(request.id, choice.token, choice.logprob, choice.top)

    def _materialise(self, span: WaveSpan) -> SpanState:
        if self._claims.find(span.request) is None:
            raise WaveMismatchError(f"a wave runs request {span.request}, of which this rank has committed nothing")
        sequence = self._cache.sequence(span.request)
        self._check(span, sequence)
        self._materialiser.upto(span.request, span.end)
        sequence = self._cache.sequence(span.request)
        if sequence.source_slot >= 0:
            self._pools.copy_slot(sequence.source_slot, sequence.slot)
            self._cache.resumed(span.request)
        blocks = -(-span.end // self._block_size)
        snapshots = tuple(s for s in sequence.snapshots if span.start < s[0] <= span.end)
        return SpanState(span.start, span.length, sequence.pages[:blocks], sequence.slot, snapshots)

    def _check(self, span: WaveSpan, sequence: CacheSequence) -> None:
        if (sequence.attempt, sequence.endpoint) != (span.attempt, span.endpoint):
            raise WaveMismatchError(
                f"a wave runs attempt {span.attempt} of request {span.request} from endpoint {span.endpoint}, this "
                f"rank has committed attempt {sequence.attempt} at {sequence.endpoint}"
            )
        if sequence.computed != span.start:
            raise WaveMismatchError(
                f"request {span.request} is at position {sequence.computed}, the wave starts it at {span.start}"
            )

    def _tokens(self, spans: Sequence[WaveSpan]) -> torch.Tensor:
        parts = [_tokens_of(self._claims.request(s.request))[s.start : s.end] for s in spans]
        return torch.from_numpy(np.concatenate(parts).astype(np.int64)).to(self._device)


def _tokens_of(request: Request) -> npt.NDArray[np.int32]:
    return np.frombuffer(request.tokens, dtype="<i4")
