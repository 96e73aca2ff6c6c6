"""Preparation: what is said where NVIDIA's programs cannot run."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from tests.bench import prepare
from tests.bench.prepare import PreparationError, install_advice, missing_libraries

LISTING = """\
\tlinux-vdso.so.1 (0x00007f9fb8b58000)
\tlibz.so.1 => /lib/libz.so.1 (0x00007f9fb8b28000)
\tlibssl.so.3 => not found
\tlibpython3.12.so.1.0 => not found
"""


def test_missing_libraries_are_read_from_the_listing() -> None:
    assert missing_libraries(LISTING) == {"libssl.so.3", "libpython3.12.so.1.0"}
    assert missing_libraries("\tstatically linked\n") == set()


@pytest.mark.parametrize(
    ("libraries", "ends"),
    [
        ({"libssl.so.3", "libcrypto.so.3"}, "apt-get install libssl3"),
        ({"libpython3.12.so.1.0", "libz.so.1"}, "apt-get install libpython3.12 zlib1g"),
        ({"libunheard.so.1"}, "are not here: libunheard.so.1."),
    ],
)
def test_the_advice_names_the_libraries_and_their_packages(libraries: set[str], ends: str) -> None:
    advice = install_advice(libraries)
    assert advice.endswith(ends)
    assert all(library in advice for library in libraries)


def test_another_system_is_refused_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(PreparationError, match="aarch64"):
        prepare.prepare(tmp_path / "bench")
    assert not (tmp_path / "bench").exists()


def test_another_python_is_refused_with_one_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(prepare, "SUPPORTED_PYTHONS", ("3.1", "3.2"))
    with pytest.raises(PreparationError, match=r"PYTHON=python3\.2"):
        prepare.prepare(tmp_path / "bench")
    assert not (tmp_path / "bench").exists()


def test_a_program_that_is_there_is_left_alone(tmp_path: Path) -> None:
    """A server that runs may have it open."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"program")
    prepare._place(source, target)
    before = target.stat()
    prepare._place(source, target)
    assert (target.stat().st_ino, target.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    source.write_bytes(b"another")
    prepare._place(source, target)
    assert target.read_bytes() == b"another"
    assert target.stat().st_ino != before.st_ino
