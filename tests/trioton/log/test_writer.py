"""A log's writer: what it writes, what holds it up and nobody else, and what is lost then."""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trioton.log.places import LogFile, LogStream, is_same_file
from trioton.log.writer import LogWriter

SECONDS = 30.0


class Stuck:
    """A place whose writes wait until they are let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.written = b""

    def write(self, data: bytes) -> None:
        self.begun.set()
        assert self.go_on.wait(SECONDS)
        self.written += data

    def look(self) -> None: ...
    def reopen(self) -> None: ...
    def close(self) -> None: ...


class Failing:
    """A place that is full until it is mended."""

    def __init__(self) -> None:
        self.is_full = True
        self.written = b""

    def write(self, data: bytes) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.written += data

    def look(self) -> None: ...
    def reopen(self) -> None: ...
    def close(self) -> None: ...


def test_lines_are_appended_and_flushed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"before\n")
    writer = LogWriter(LogFile(str(path)), "server")
    writer.put(b"one\n")
    assert writer.flush(SECONDS)
    assert path.read_bytes() == b"before\none\n"
    writer.put(b"two\n")
    writer.close(SECONDS)
    writer.put(b"too late\n")
    assert path.read_bytes() == b"before\none\ntwo\n"
    assert writer.lost == 1


def test_a_place_that_hangs_holds_up_nobody() -> None:
    """Not whoever logs, nor the end of the process, and of memory it takes what it may."""
    place = Stuck()
    writer = LogWriter(place, "server", 100)
    writer.put(b"first\n")
    assert place.begun.wait(SECONDS)
    for number in range(100):
        writer.put(b"line %02d\n" % number)
    assert writer.lost == 100 - 100 // len("line 00\n")
    assert not writer.flush(0.01)
    writer.close(0.01)
    assert writer.lost == 100
    place.go_on.set()
    writer._thread.join(SECONDS)  # what it says now is no other test's


def test_lost_lines_are_told_when_it_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    place = Failing()
    writer = LogWriter(place, "access")
    writer.put(b"lost\n")
    assert writer.flush(SECONDS)
    place.is_full = False
    writer.put(b"lost too, since it was full just now\n")
    assert writer.flush(SECONDS)
    writer.put(b"kept\n")
    writer.close(SECONDS)
    assert place.written == b"kept\n"
    assert writer.lost == 2
    assert caplog.messages == ["2 lines of the access log were lost: No space left on device"]


def test_a_file_that_is_moved_away_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = LogWriter(LogFile(str(path)), "server")
    writer.put(b"one\n")
    assert writer.flush(SECONDS)
    path.rename(tmp_path / "log.1")
    writer.reopen()
    writer.put(b"two\n")
    writer.close(SECONDS)
    assert (path.read_bytes(), (tmp_path / "log.1").read_bytes()) == (b"two\n", b"one\n")


def test_a_look_finds_it_too(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = LogFile(str(path))
    for name in ("log.1", "log.2"):
        file.write(b"old\n")
        path.rename(tmp_path / name)
        file.look()
    file.write(b"new\n")
    path.unlink()
    file.look()
    file.write(b"newest\n")
    file.close()
    assert path.read_bytes() == b"newest\n"


def test_a_folder_that_is_missing() -> None:
    with pytest.raises(OSError, match="No such file"):
        LogFile("/nowhere/log")


def test_a_named_pipe(tmp_path: Path) -> None:
    """Its reader may come later, stop reading and go."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = LogWriter(LogFile(str(path)), "server", 1 << 20)
    writer.put(b"nobody reads\n")
    assert writer.flush(SECONDS)
    assert writer.lost == 1
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writer.reopen()
    writer._failed = 0.0  # as if a second had passed
    writer.put(b"read\n")
    assert writer.flush(SECONDS)
    assert os.read(reader, 100) == b"read\n"
    lines = 1000
    for _ in range(lines):  # more than a pipe holds
        writer.put(b"x" * 999 + b"\n")
    assert not writer.flush(0.01)
    os.close(reader)
    writer.close(SECONDS)
    assert writer.lost > 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
def test_a_full_device() -> None:
    writer = LogWriter(LogFile("/dev/full"), "server")
    writer.put(b"one\n")
    writer.put(b"two\n")
    assert writer.flush(SECONDS)
    writer.close(SECONDS)
    assert writer.lost == 2


def test_a_line_that_was_cut_is_ended_first(tmp_path: Path) -> None:
    """So that the next one can be read."""
    path = tmp_path / "log"
    program = f"""
import resource, sys
from trioton.log.places import LogFile
file = LogFile({str(path)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (5, resource.RLIM_INFINITY))
try:
    file.write(b"0123456789\\n")
except OSError as error:
    print(error.strerror)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
file.write(b"whole\\n")
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout == "File too large\n"
    assert path.read_bytes() == b"01234\nwhole\n"
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 5
    assert signal.getsignal(signal.SIGXFSZ) is signal.SIG_IGN


def test_streams(capfd: pytest.CaptureFixture[str]) -> None:
    writer = LogWriter(LogStream(sys.stdout), "server")
    writer.put("größe\n".encode())
    writer.close(SECONDS)
    assert capfd.readouterr().out == "größe\n"
    assert is_same_file(sys.__stdout__, sys.__stdout__) if sys.__stdout__ else True


def test_a_stream_without_a_descriptor(capsys: pytest.CaptureFixture[str]) -> None:
    writer = LogWriter(LogStream(sys.stderr), "server")
    writer.put(b"here\n")
    writer.close(SECONDS)
    assert capsys.readouterr().err == "here\n"


def test_the_writers_own_line_does_not_loop() -> None:
    """What it says of lost lines may be lost as well."""
    place = Failing()
    writer = LogWriter(place, "server")
    handler = logging.Handler()
    handler.emit = lambda record: writer.put(f"{record.getMessage()}\n".encode())  # type: ignore[method-assign]
    log = logging.getLogger("trioton.log.writer")
    log.addHandler(handler)
    try:
        writer.put(b"lost\n")
        assert writer.flush(SECONDS)
        place.is_full = False
        writer._failed = 0.0
        writer.put(b"kept\n")
        assert writer.flush(SECONDS)
        writer.close(SECONDS)
    finally:
        log.removeHandler(handler)
    assert place.written == b"kept\n1 lines of the server log were lost: No space left on device\n"
