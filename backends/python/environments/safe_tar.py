"""Safe extraction of tar archives: no member may lie, or link, outside the destination folder.

The only links outside that an environment needs are allowed: those of a virtual environment to its base interpreter.
"""

from __future__ import annotations

import gzip
import lzma
import os
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


class UnsafeArchive(Exception):
    """The archive cannot be extracted, or must not be; the text says why."""


def unpack_tar(archive: Path, folder: Path, *, limit: int) -> int:
    """Unpack a tar archive, compressed in any way that this Python knows; returns the size of what was unpacked.

    Raises:
        UnsafeArchive: it is no such archive, has members that no environment has, or more than `limit` bytes. What was
            unpacked until then stays.
    """
    unpacked = 0

    def members(opened: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
        nonlocal unpacked
        for member in opened:
            unpacked += member.size
            if unpacked > limit:
                raise UnsafeArchive(f"it is larger than {limit} bytes (backend setting 'env-cache-byte-size')")
            yield _checked(member, folder)

    try:
        with tarfile.open(archive) as opened:
            opened.extraction_filter = _as_it_is  # each member is checked when the ones before it lie there
            opened.extractall(folder, members=members(opened))
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise UnsafeArchive(f"it is no archive of tar, or not a whole one: {error}") from None
    return unpacked


def _as_it_is(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
    return member


def _checked(member: tarfile.TarInfo, folder: Path) -> tarfile.TarInfo:
    """The member with rights of ours."""
    root = os.path.realpath(folder)
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        raise UnsafeArchive(f"'{member.name}' is neither file nor folder nor link")
    if not _is_inside(os.path.join(folder, member.name), root):
        raise UnsafeArchive(f"'{member.name}' would lie outside of it")
    if member.islnk() and not _is_inside(os.path.join(folder, member.linkname), root):
        raise UnsafeArchive(f"'{member.name}' is a link to '{member.linkname}' outside of it")
    if member.issym() and not _is_interpreter(member.name):
        target = os.path.join(folder, os.path.dirname(member.name), member.linkname)
        if not _is_inside(target, root):
            raise UnsafeArchive(f"'{member.name}' is a link to '{member.linkname}' outside of it")
    member.uid, member.gid = os.getuid(), os.getgid()
    member.uname = member.gname = ""
    member.mode = (member.mode & 0o755) | (0o700 if member.isdir() else 0o600)
    return member


def _is_inside(path: str, root: str) -> bool:
    """Where the path leads, with what is unpacked by now."""
    found = os.path.realpath(path)
    return found == root or found.startswith(root + os.sep)


def _is_interpreter(name: str) -> bool:
    path = PurePosixPath(name)
    return path.parent.name == "bin" and len(path.parts) == 2 and path.name.startswith("python")
