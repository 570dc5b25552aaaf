"""One job of a decode worker from end to end: prefill, pull, release, decode."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from ..engine.messages import Manifest
from .config import DecodeConfig
from .decode_state import DecodeState
from .decoder import ReferenceDecoder
from .detokenizer import IncrementalDetokenizer, ModelTokenizer
from .errors import ClientError
from .http import PrefillClient, PrefillResult, Prompt
from .job import DecodeJob, DecodeOutcome, Listener
from .pull import pull_state
from .stats import PullStats


class DecodeWorker:
    """A loaded decoder and the server that prefills for it. One thread."""

    def __init__(
        self,
        client: PrefillClient,
        decoder: ReferenceDecoder,
        tokenizer: ModelTokenizer | None,
        config: DecodeConfig,
    ) -> None:
        self._client = client
        self._decoder = decoder
        self._tokenizer = tokenizer
        self._config = config

    def run(self, job: DecodeJob, listener: Listener | None = None) -> DecodeOutcome:
        """Raises `ClientError`. Unless the job says to keep it, the handle is released once the state is here, and
        also when something fails."""
        listener = listener or Listener()
        handle, result = self._prefill(job)
        state = self._decoder.new_state()
        try:
            try:
                if result is not None:
                    listener.prefilled(result)
                manifest, stats = self._pull(handle, state)
            finally:
                if not job.keep:
                    # What was not released ends by itself, and must not hide what went wrong before.
                    with suppress(ClientError):
                        self._client.release(handle)
            listener.pulled(stats)
            return self._decode(job, state, manifest, result, stats, listener)
        finally:
            state.free()

    def _prefill(self, job: DecodeJob) -> tuple[str, PrefillResult | None]:
        if isinstance(job.source, str):
            return job.source, None
        sampling = {"temperature": job.temperature, "seed": job.seed} if job.temperature > 0 else None
        result = self._client.prefill(job.source, sampling=sampling, cache_salt=job.cache_salt)
        return result.handle, result

    def _pull(self, handle: str, state: DecodeState) -> tuple[Manifest, PullStats]:
        manifest = self._client.manifest(handle)
        return manifest, pull_state(manifest, state, timeout_s=self._config.pull_timeout_s)

    def _decode(
        self,
        job: DecodeJob,
        state: DecodeState,
        manifest: Manifest,
        result: PrefillResult | None,
        stats: PullStats,
        listener: Listener,
    ) -> DecodeOutcome:
        started = time.monotonic()
        add, finish = self._detokenizer(job)
        tokens: list[int] = []
        pieces: list[str] = []
        for token in self._decoder.generate(
            state,
            manifest.first_token,
            job.max_tokens,
            ignore_eos=job.ignore_eos,
            temperature=job.temperature,
            seed=job.seed,
        ):
            tokens.append(token)
            pieces.append(add(token))
            listener.token(token, pieces[-1])
        pieces.append(finish())
        listener.rest(pieces[-1])
        ended = tokens[-1] in self._decoder.spec.eos_token_ids and not job.ignore_eos
        return DecodeOutcome(
            handle=manifest.handle,
            model=manifest.model,
            tokens=tuple(tokens),
            text="".join(pieces),
            finish_reason="stop" if ended else "length",
            prompt_tokens=manifest.num_tokens,
            cached_tokens=result.usage.cached_tokens if result is not None else None,
            prefill_s=result.timing.prefill_s if result is not None else None,
            pull=stats,
            decode_s=time.monotonic() - started,
        )

    def _detokenizer(self, job: DecodeJob) -> tuple[Callable[[int], str], Callable[[], str]]:
        if self._tokenizer is None:
            return lambda _: "", lambda: ""
        source = job.source
        # What stands before the first token decides whether its text begins with a space.
        context = self._tokenizer.encode(source.text) if isinstance(source, Prompt) and source.text else ()
        detokenizer = IncrementalDetokenizer(self._tokenizer.decode, context)
        return detokenizer.add, detokenizer.finish
