"""The cache of unpacked environments: unpacked once, never used half, bounded."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from backends.python.environments.packed_environment import EnvironmentCache
from protocol.errors import InvalidArgument

ROOT = Path(__file__).parents[4]


def pack(path: Path, **files: str) -> Path:
    folder = path.with_suffix(".content")
    for name, content in files.items():
        target = folder / name.replace("__", "/").replace("_dash_", "-")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, ".")
    return path


def cache_in(tmp_path: Path, limit: int = 1 << 20) -> EnvironmentCache:
    return EnvironmentCache(tmp_path / "cache", limit)


def folders(cache: EnvironmentCache) -> set[str]:
    return {path.name for path in cache.directory.iterdir() if path.is_dir()}


def test_it_is_unpacked_once(tmp_path: Path) -> None:
    """By content: a copy of an archive, or one with another date, is the same environment."""
    cache = cache_in(tmp_path)
    archive = pack(tmp_path / "a.tar.gz", lib__x="1")
    folder, hold = cache.unpacked(archive)
    (folder / "mark").touch()
    copy = tmp_path / "b.tar.gz"
    copy.write_bytes(archive.read_bytes())
    os.utime(archive, (1, 1))
    for path in (archive, copy):
        again, held = cache.unpacked(path)
        assert again == folder
        held.close()
    assert (folder / "mark").exists()
    assert (folder / "lib" / "x").read_text() == "1"
    hold.close()
    other, hold = cache.unpacked(pack(tmp_path / "c.tar.gz", lib__x="2"))
    assert other != folder
    hold.close()


def test_any_number_of_threads_and_servers_unpack_once(tmp_path: Path) -> None:
    """conda-unpack, which notes that it has run, has run once."""
    archive = pack(
        tmp_path / "a.tar.gz",
        bin__python=f'#!/bin/sh\nexec {sys.executable} "$@"\n',
        bin__conda_dash_unpack="import os, time; time.sleep(0.2); open('/proc/self/environ')\n"
        f"open({str(tmp_path / 'runs')!r}, 'a').write('run ')\n",
    )
    with tarfile.open(archive, "w:gz") as rewritten:
        (archive.with_suffix(".content") / "bin" / "python").chmod(0o755)
        rewritten.add(archive.with_suffix(".content"), ".")
    code = (
        "import sys; from pathlib import Path\n"
        "from backends.python.environments.packed_environment import EnvironmentCache\n"
        "print(EnvironmentCache(Path(sys.argv[1]), 1 << 20).unpacked(Path(sys.argv[2]))[0])"
    )
    cache = cache_in(tmp_path)
    others = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(cache.directory), str(archive)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for _ in range(2)
    ]
    with ThreadPoolExecutor(4) as pool:
        found = {str(folder) for folder, _ in pool.map(cache.unpacked, [archive] * 4)}
    for other in others:
        printed, _ = other.communicate(timeout=60)
        found.add(printed.strip())
    assert len(found) == 1
    assert (tmp_path / "runs").read_text() == "run "


def test_half_of_one_is_never_used(tmp_path: Path) -> None:
    """What a killed server has left is unpacked anew, or removed."""
    cache = cache_in(tmp_path)
    archive = pack(tmp_path / "a.tar.gz", lib__x="1")
    folder, hold = cache.unpacked(archive)
    hold.close()
    (cache.directory / f"{folder.name}.ready").unlink()
    (folder / "lib" / "x").unlink()
    (cache.directory / "left").mkdir()
    again, hold = cache.unpacked(archive)
    assert again == folder
    assert (folder / "lib" / "x").read_text() == "1"
    assert folders(cache) == {folder.name}
    hold.close()


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    broken = tmp_path / "broken.tar.gz"
    broken.write_bytes(pack(tmp_path / "a.tar.gz", lib__x=os.urandom(9000).hex()).read_bytes()[:5000])
    with pytest.raises(InvalidArgument, match=r"broken.tar.gz' cannot be unpacked: it is no archive"):
        cache.unpacked(broken)
    unwilling = pack(tmp_path / "b.tar.gz", bin__conda_dash_unpack="raise SystemExit('no')")
    with pytest.raises(InvalidArgument, match="its conda-unpack cannot be run"):
        cache.unpacked(unwilling)
    assert folders(cache) == set()


def test_the_oldest_that_nobody_uses_goes(tmp_path: Path) -> None:
    cache = cache_in(tmp_path, limit=2500)
    a, b, c, d = (pack(tmp_path / f"{name}.tar.gz", **{f"lib__{name}": "x" * 1000}) for name in "abcd")
    in_use, hold = cache.unpacked(a)
    second, held = cache.unpacked(b)
    held.close()
    third, held = cache.unpacked(c)
    held.close()
    assert folders(cache) == {in_use.name, third.name}
    # A process that has inherited the hold keeps it.
    process = subprocess.Popen(["sleep", "60"], pass_fds=(hold.descriptor,))
    try:
        hold.close()
        fourth, held = cache.unpacked(d)
        held.close()
        assert folders(cache) == {in_use.name, fourth.name}
    finally:
        process.kill()
        process.wait()
    again, held = cache.unpacked(b)
    held.close()
    assert again == second
    assert folders(cache) == {fourth.name, second.name}
    with pytest.raises(InvalidArgument, match="larger than 2500 bytes"):
        cache.unpacked(pack(tmp_path / "e.tar.gz", lib__x="x" * 3000))


def test_a_hold_waits_for_who_unpacks(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    archive = pack(tmp_path / "a.tar.gz", lib__x="1")
    folder, hold = cache.unpacked(archive)
    hold.close()
    done = threading.Event()

    def use() -> None:
        cache.unpacked(archive)[1].close()
        done.set()

    with cache._alone(folder.name):
        thread = threading.Thread(target=use)
        thread.start()
        assert not done.wait(0.1)
    thread.join()
    assert done.is_set()
