"""The local cache: what is in it, what it removes, and what a process that was killed leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.errors import Internal
from repository.stores.cache import FileCache
from repository.stores.client import StoredObject
from repository.stores.urls import parse_store_url

URL = parse_store_url("s3://bucket/models")
ITEM = StoredObject("models/m/1/model.onnx", 5, '"tag"', 1_700_000_000_000_000_000)


def cache(root: Path, limit: int = 10**9) -> FileCache:
    return FileCache(root / "cache", limit)


def keep(cache: FileCache, item: StoredObject = ITEM, content: bytes = b"12345") -> Path:
    """Take a file into the cache; answers where a model has it."""
    partial = cache.partial()
    partial.write_bytes(content)
    target = cache.new_folder() / "file"
    cache.keep(URL, item, partial, target)
    return target


def files(root: Path) -> list[Path]:
    return [path for path in (root / "cache").rglob("*") if path.is_file() and path.name != "lock"]


def test_a_file_is_kept_by_what_it_is(tmp_path: Path) -> None:
    """Another bucket, key, ETag or size is another file; the model's is the same as the cache's, and read-only."""
    made = cache(tmp_path)
    target = keep(made)
    other = made.new_folder() / "other"
    assert made.link(URL, ITEM, other)
    assert other.read_bytes() == b"12345"
    assert other.samefile(target)
    assert target.stat().st_mode & 0o222 == 0
    for changed in (replace(ITEM, etag='"x"'), replace(ITEM, size=6), replace(ITEM, key="models/n")):
        assert not made.link(URL, changed, made.new_folder() / "file")
    assert not made.link(replace(URL, bucket="b2"), ITEM, made.new_folder() / "file")
    assert not made.link(replace(URL, endpoint="http://h:1"), ITEM, made.new_folder() / "file")


def test_without_an_etag_the_time_of_change_counts(tmp_path: Path) -> None:
    made = cache(tmp_path)
    item = replace(ITEM, etag="")
    keep(made, item)
    assert made.link(URL, item, made.new_folder() / "file")
    assert not made.link(URL, replace(item, modified=item.modified + 1000), made.new_folder() / "file")


def test_a_file_that_was_written_to_is_not_used(tmp_path: Path) -> None:
    """A model that writes into its own folder spoils no other load."""
    made = cache(tmp_path)
    target = keep(made)
    target.chmod(0o644)
    target.write_bytes(b"54321")
    assert not made.link(URL, ITEM, made.new_folder() / "file")
    keep(made)
    assert made.link(URL, ITEM, made.new_folder() / "file")


def test_over_the_limit_unused_files_go_the_longest_unused_first(tmp_path: Path) -> None:
    made = cache(tmp_path, limit=10)
    items = [replace(ITEM, key=f"k{number}") for number in range(4)]
    folders = [keep(made, item).parent for item in items]
    for number, folder in enumerate(folders[:3]):
        file = folder / "file"
        os.utime(file, ns=((3 - number) * 10**9, file.stat().st_mtime_ns))
        made.remove_folder(folder)
    made.trim()  # four of 5 bytes, of which the last is in use
    assert [made.link(URL, item, made.new_folder() / "file") for item in items] == [True, False, False, True]
    cache(tmp_path, limit=0).trim()
    assert made.link(URL, items[3], made.new_folder() / "file")  # in use


def test_closing_leaves_the_files_alone(tmp_path: Path) -> None:
    made = cache(tmp_path)
    keep(made)
    made.partial()
    made.close()
    assert list((tmp_path / "cache" / "work").iterdir()) == []
    assert len(files(tmp_path)) == 1
    again = cache(tmp_path)
    assert again.link(URL, ITEM, again.new_folder() / "file")


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    """And what one that lives has is not."""
    alive = cache(tmp_path)
    partial = alive.partial()
    code = (
        "import os, signal, sys; from pathlib import Path; from repository.stores.cache import FileCache\n"
        "cache = FileCache(Path(sys.argv[1]), 0); cache.partial().write_bytes(b'x'); cache.new_folder()\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "cache")], check=False)
    work = tmp_path / "cache" / "work"
    assert len(list(work.iterdir())) == 2
    cache(tmp_path).open()
    assert len(files(tmp_path)) == 1
    assert partial.exists()
    assert len(list(work.iterdir())) == 2  # of the two that live


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gets copies."""

    def refuse(source: object, target: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    made = cache(tmp_path)
    keep(made)
    target = made.new_folder() / "file"
    assert made.link(URL, ITEM, target)
    assert target.read_bytes() == b"12345"


def test_a_place_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(Internal, match=r"cannot use '.*' as the cache .*--model-repository-cache-dir"):
        cache(tmp_path).open()
