"""Packed environments (conda-pack archives): unpacked once into a cache that servers can share.

Flow: `environment` → [packed environment] → the folder of an unpacked environment, and a hold on it. In the cache an
environment has three names, all from its archive's content: `<digest>` is its folder, `<digest>.ready` says that the
folder is whole, and `<digest>.lock` is locked by who unpacks it, and by who uses it. What a server that was killed has
left half-way has no `.ready`, and is unpacked anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from backends.python.environments.safe_tar import UnsafeArchive, unpack_tar
from protocol.errors import Internal, InvalidArgument

logger = logging.getLogger("trioton.backends.python")

# What `conda-pack` puts into an archive: it writes the new place into the files that have the old one.
_CONDA_UNPACK = Path("bin", "conda-unpack")
_CONDA_UNPACK_SECONDS = 600


@dataclass(eq=False, slots=True)
class Hold:
    """Keeps an unpacked environment from being removed: as long as this descriptor, or a copy of it that a process has
    inherited, is open."""

    descriptor: int

    def close(self) -> None:
        if self.descriptor != -1:
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class EnvironmentCache:
    """Unpacked environments in `directory`, up to `limit` bytes of them: those that nobody has used for longest, and
    that nobody uses, are removed when another one is unpacked."""

    directory: Path
    limit: int

    def unpacked(self, archive: Path) -> tuple[Path, Hold]:
        """The folder in which the archive's content lies; unpacks it if nobody has. Blocks, for as long as that takes.

        May be called by any number of threads and processes: one unpacks, the others wait for it.

        Raises:
            InvalidArgument: the archive cannot be unpacked; what was unpacked of it is removed.
            Internal: the cache cannot be used.
        """
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            digest = self._digest(archive)
            folder = self.directory / digest
            while True:
                hold = self._hold(digest)
                if self._ready(digest).exists():
                    os.utime(self._ready(digest))
                    return folder, hold
                hold.close()
                with self._alone(digest):
                    if not self._ready(digest).exists():
                        self._unpack(archive, digest)
                self._remove_unused(besides=digest)
        except OSError as error:
            raise Internal(f"the environment '{archive}' cannot be unpacked into '{self.directory}': {error}") from None

    def _unpack(self, archive: Path, digest: str) -> None:
        folder = self.directory / digest
        logger.info("unpacking the environment '%s' into '%s'", archive, folder)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        try:
            size = unpack_tar(archive, folder, limit=self.limit)
            _run_conda_unpack(folder)
        except UnsafeArchive as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise InvalidArgument(f"the environment '{archive}' cannot be unpacked: {error}") from None
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        written = self.directory / f"{digest}.written"
        written.write_text(json.dumps({"archive": str(archive), "byte_size": size}))
        written.rename(self._ready(digest))

    def _remove_unused(self, *, besides: str) -> None:
        """Shrink the cache to its limit, as far as what is in use allows."""
        for left in self.directory.iterdir():
            if left.is_dir() and not self._ready(left.name).exists():
                self._remove(left.name)  # left half-way by a server that was killed
        found = sorted(self._all_ready(), key=lambda entry: entry.used_at)
        total = sum(entry.byte_size for entry in found)
        for entry in found:
            if total <= self.limit:
                return
            if entry.digest != besides and self._remove(entry.digest):
                total -= entry.byte_size

    def _remove(self, digest: str) -> bool:
        with suppress(BlockingIOError), self._alone(digest, waits=False):
            self._ready(digest).unlink(missing_ok=True)
            shutil.rmtree(self.directory / digest, ignore_errors=True)
            logger.info("removed the unpacked environment '%s', which was not used", self.directory / digest)
            return True
        return False

    def _all_ready(self) -> Iterator[_Entry]:
        for path in self.directory.glob("*.ready"):
            with suppress(OSError, ValueError, KeyError):  # removed meanwhile, or written by something else
                about = json.loads(path.read_text())
                yield _Entry(path.stem, int(about["byte_size"]), path.stat().st_mtime)

    def _digest(self, archive: Path) -> str:
        """The hash of the archive's content, remembered for as long as the file looks the same."""
        stat = archive.stat()
        looks = f"{archive}\0{stat.st_dev}\0{stat.st_ino}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ctime_ns}"
        known = self.directory / f"{hashlib.sha256(os.fsencode(looks)).hexdigest()[:40]}.digest"
        with suppress(FileNotFoundError):
            return known.read_text()
        with archive.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()[:40]
        written = self.directory / f"{known.stem}.{os.getpid()}-{id(looks)}"
        written.write_text(digest)
        written.rename(known)
        return digest

    def _ready(self, digest: str) -> Path:
        return self.directory / f"{digest}.ready"

    def _hold(self, digest: str) -> Hold:
        """Waits while somebody unpacks or removes it."""
        hold = Hold(os.open(self.directory / f"{digest}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        fcntl.flock(hold.descriptor, fcntl.LOCK_SH)
        return hold

    @contextmanager
    def _alone(self, digest: str, *, waits: bool = True) -> Iterator[None]:
        descriptor = os.open(self.directory / f"{digest}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
            yield
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class _Entry:
    digest: str
    byte_size: int
    used_at: float


def _run_conda_unpack(folder: Path) -> None:
    program = folder / _CONDA_UNPACK
    if not program.is_file():
        return
    # Its first line names a Python by a place that is not there yet.
    command = [str(folder / "bin" / "python"), str(program)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_CONDA_UNPACK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsafeArchive(f"its conda-unpack cannot be run: {error}") from None
    if done.returncode:
        raise UnsafeArchive(f"its conda-unpack failed with code {done.returncode}: {done.stderr.strip()[-2000:]}")
