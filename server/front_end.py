"""The front end process: `python -m wavepp.server.front_end`, with its `FrontEndSettings` in `WAVEPP_FRONT_END`.

Once it listens it says so (`engine.status.Listening`) on its standard output. It leaves at once when its standard
input ends, since that pipe is held open by the process that started it. On SIGTERM or SIGINT it refuses new work,
lets what is in flight finish for at most `drain_timeout_s`, and leaves; a second signal cuts that short.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from importlib.metadata import version
from typing import Any

import uvicorn
import zmq
from pydantic import ValidationError

from ..engine.status import Listening, say
from .app import create_app
from .config import FRONT_END_ENV, FrontEndSettings
from .context import Context
from .engine_client import EngineClient
from .errors import UnavailableError
from .metrics import Metrics
from .tokenizer import TokenizerService

log = logging.getLogger(__name__)

_LAST_ANSWERS_S = 5
"""How long answers that are already decided may take to leave."""


class HttpServer(uvicorn.Server):
    """uvicorn without its own signals, and woken once a second instead of ten times."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stop = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), 1.0)

    def stop(self) -> None:
        self.should_exit = True
        self._stop.set()


class FrontEnd:
    """Owned by the event loop of its process."""

    def __init__(self, settings: FrontEndSettings, tokenizer: TokenizerService) -> None:
        config = settings.server
        metrics = Metrics(version("wavepp"))
        self._settings = settings
        self._tokenizer = tokenizer
        self._client = EngineClient(
            settings.address,
            call_timeout_s=config.call_timeout_s,
            stall_timeout_s=config.stall_timeout_s,
            retry_after_s=config.retry_after_s,
            observer=metrics,
        )
        app = create_app(
            config,
            self._client,
            tokenizer,
            model_name=settings.model_name,
            version=version("wavepp"),
            metrics=metrics,
            default_ttl_s=settings.default_ttl_s,
            max_ttl_s=settings.max_ttl_s,
        )
        context: Context = app.state.context
        self._in_flight = context.in_flight
        self._asked_to_stop = asyncio.Event()
        self._leave_now = asyncio.Event()
        self._server = HttpServer(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=config.log_level == "debug",
                timeout_graceful_shutdown=_LAST_ANSWERS_S,
                server_header=False,
            )
        )

    async def run(self, listener: socket.socket, announce: Callable[[Listening], None]) -> None:
        """Serves on `listener` until asked to stop. Errors: `zmq.ZMQError` when the address cannot be bound."""
        loop = asyncio.get_running_loop()
        await self._client.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        watch_parent(loop, self._orphaned)
        serving = asyncio.create_task(self._server.serve([listener]), name="http server")
        announce(Listening(_url(listener), self._client.address))
        try:
            await self._wait_any(serving, self._asked_to_stop.wait())
            await self._drain(serving)
        finally:
            await self._client.close()
            self._server.stop()
            await serving
            self._tokenizer.close()

    async def _drain(self, serving: asyncio.Task[None]) -> None:
        self._in_flight.drain()
        if self._in_flight.count:
            limit = self._settings.server.drain_timeout_s
            log.info("shutting down: up to %g s for %d prompts in flight", limit, self._in_flight.count)
            await self._wait_any(serving, self._in_flight.idle(), timeout_s=limit)
        if self._in_flight.count:
            log.warning("left %d prompts unfinished", self._in_flight.count)
            self._client.fail_all(UnavailableError("the server has shut down", "draining"))

    async def _wait_any(
        self, serving: asyncio.Task[None], *waits: Coroutine[Any, Any, Any], timeout_s: float | None = None
    ) -> None:
        """Until one of `waits`, the end of the server, or an order to leave at once."""
        tasks = {asyncio.ensure_future(wait) for wait in (*waits, self._leave_now.wait())}
        try:
            await asyncio.wait({*tasks, serving}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    def _signalled(self, number: int) -> None:
        log.info("got %s", signal.Signals(number).name)
        if self._asked_to_stop.is_set():
            self._leave_now.set()
        self._asked_to_stop.set()

    def _orphaned(self) -> None:
        log.warning("standard input has ended: leaving")
        self._client.lost("its supervisor is gone")
        self._asked_to_stop.set()
        self._leave_now.set()


def watch_parent(loop: asyncio.AbstractEventLoop, orphaned: Callable[[], None]) -> None:
    """Calls `orphaned` on the loop when standard input ends. A thread blocked in read costs nothing, and works
    for pipes, files and terminals alike."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4_096):
                pass
        with contextlib.suppress(RuntimeError):  # The loop may have closed by now.
            loop.call_soon_threadsafe(orphaned)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Errors: `OSError`."""
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
        0
    ]
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2_048)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _import_no_torch() -> None:
    """transformers imports torch wherever it is installed: seconds and 230 MB that no tokenizer uses."""
    sys.modules["torch"] = None  # pyright: ignore[reportArgumentType]
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def main() -> int:
    """0 after a clean stop, 2 for a wrong document, 1 when it cannot listen or the tokenizer cannot be read."""
    document = os.environ.pop(FRONT_END_ENV, "")
    try:
        settings = FrontEndSettings.model_validate_json(document)
    except ValidationError as error:
        print(f"{FRONT_END_ENV}: {error}", file=sys.stderr)
        return 2
    _import_no_torch()
    level = settings.server.log_level.upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s front end: %(message)s", stream=sys.stderr)
    if level != "DEBUG":
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
    config = settings.server
    try:
        listener = listen(config.host, config.port)
    except OSError as error:
        log.error("cannot listen on %s port %d: %s", config.host, config.port, error.strerror)
        return 1
    with listener:
        try:
            tokenizer = TokenizerService.load(
                settings.model,
                max_model_len=settings.max_model_len,
                vocab_size=settings.vocab_size,
                threads=config.tokenizer_threads,
            )
        except Exception as error:
            log.error("cannot read the tokenizer of %s: %s", settings.model, error)
            return 1

        async def serve() -> None:
            await FrontEnd(settings, tokenizer).run(listener, say)

        try:
            asyncio.run(serve())
        except zmq.ZMQError as error:
            log.error("cannot bind %s: %s", settings.address, error)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
