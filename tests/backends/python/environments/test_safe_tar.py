"""Archives that want to write, or point, outside of where they are unpacked."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from backends.python.environments.safe_tar import UnsafeArchive, unpack_tar

LIMIT = 1 << 20


def member(name: str, *, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.mode = kind, link, mode
    found.uid = found.gid = 12345
    return found


def pack(path: Path, *members: tarfile.TarInfo, content: bytes = b"") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for each in members:
            each.size = len(content) if each.isreg() else 0
            archive.addfile(each, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([member("../out")], "'../out' would lie outside"),
        ([member("a/../../out")], "'a/../../out' would lie outside"),
        ([member("/tmp/out")], "'/tmp/out' would lie outside"),
        ([member("up", kind=tarfile.SYMTYPE, link="..")], "'up' is a link to '..' outside"),
        ([member("etc", kind=tarfile.SYMTYPE, link="/etc")], "'etc' is a link to '/etc' outside"),
        ([member("hard", kind=tarfile.LNKTYPE, link="../../secret")], "'hard' is a link to '../../secret' outside"),
        ([member("pipe", kind=tarfile.FIFOTYPE)], "'pipe' is neither file nor folder nor link"),
        ([member("null", kind=tarfile.CHRTYPE)], "'null' is neither file nor folder nor link"),
        # Through a link that may point outside, nothing is written.
        (
            [member("bin/python", kind=tarfile.SYMTYPE, link="/tmp"), member("bin/python/out")],
            "'bin/python/out' would lie outside",
        ),
        (
            [member("bin/python", kind=tarfile.SYMTYPE, link="/tmp/out"), member("bin/python")],
            "'bin/python' would lie outside",
        ),
        # A link that leads outside only when another one is there.
        (
            [
                member("a", kind=tarfile.SYMTYPE, link="bin/python/.."),
                member("bin/python", kind=tarfile.SYMTYPE, link="/tmp/x"),
                member("a/out"),
            ],
            "would lie outside",
        ),
    ],
)
def test_what_leads_outside_is_refused(tmp_path: Path, members: list[tarfile.TarInfo], message: str) -> None:
    folder = tmp_path / "deep" / "folder"
    folder.mkdir(parents=True)
    with pytest.raises(UnsafeArchive) as failure:
        unpack_tar(pack(tmp_path / "a.tar.gz", *members), folder, limit=LIMIT)
    assert message in str(failure.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "deep"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["folder"]


def test_what_an_environment_has_is_unpacked(tmp_path: Path) -> None:
    """Links inside, the link to a base interpreter, and rights and owners that are ours."""
    archive = pack(
        tmp_path / "a.tar.gz",
        member("./bin", kind=tarfile.DIRTYPE, mode=0o000),
        member("./bin/python", kind=tarfile.SYMTYPE, link="/usr/bin/python3"),
        member("./lib/x", mode=0o6777),
        member("./lib64", kind=tarfile.SYMTYPE, link="lib"),
        member("./lib/y", kind=tarfile.LNKTYPE, link="./lib/x", mode=0o6777),
        content=b"abc",
    )
    folder = tmp_path / "folder"
    assert unpack_tar(archive, folder, limit=LIMIT) == 3
    assert os.readlink(folder / "bin" / "python") == "/usr/bin/python3"
    assert (folder / "lib64" / "y").read_bytes() == b"abc"
    about = (folder / "lib" / "x").stat()
    assert (about.st_mode & 0o7777, about.st_uid) == (0o755, os.getuid())
    assert (folder / "bin").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b\x08\x00garbage", b"\xfd7zXZ\x00garbage"])
def test_what_is_no_archive(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(content)
    with pytest.raises(UnsafeArchive, match="it is no archive of tar"):
        unpack_tar(path, tmp_path / "folder", limit=LIMIT)


def test_half_an_archive(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.tar.gz", member("a"), content=os.urandom(50000))
    path.write_bytes(path.read_bytes()[:20000])
    with pytest.raises(UnsafeArchive, match="not a whole one"):
        unpack_tar(path, tmp_path / "folder", limit=LIMIT)


def test_more_than_there_is_room_for(tmp_path: Path) -> None:
    archive = pack(tmp_path / "a.tar.gz", member("a"), member("b"), content=bytes(LIMIT))
    with pytest.raises(UnsafeArchive, match="larger than 1048576 bytes"):
        unpack_tar(archive, tmp_path / "folder", limit=LIMIT)
    assert not (tmp_path / "folder" / "b").exists()
