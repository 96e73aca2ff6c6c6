"""Models that come and go: completed, refused with the reason, and gone without a trace."""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.core.server_core import ServerCore
from backends.interface import Backend
from protocol.errors import ServerError
from tests.backends.conformance.format import Contradiction, Format
from tests.backends.conformance.formats import each_format, each_of
from tests.backends.conformance.serving import (
    PATIENCE,
    assert_same,
    model_of,
    read,
    sample,
    serving,
)

HEAVY_MEGABYTES = 40


@each_format(lambda form: form.minimal_config is not None)
async def test_what_a_configuration_leaves_out_is_read_from_the_model(form: Format, tmp_path: Path) -> None:
    form.rows_model(tmp_path / "whole")
    form.completing(tmp_path / "m")
    whole, direct = read(tmp_path / "whole"), form.direct(tmp_path / "whole")
    async with serving(tmp_path) as core:
        config = model_of(core).config
        assert config["max_batch_size"] > 1
        assert "dynamic_batching" in config
        for completed, written in ((config["input"], whole.input), (config["output"], whole.output)):
            assert [(each["name"], each["data_type"], [int(dim) for dim in each["dims"]]) for each in completed] == [
                (each.name, each.data_type.value, list(each.dims)) for each in written
            ]
        inputs = sample(whole, 2)
        assert_same(await model_of(core).infer(inputs), direct(inputs), form.tolerance)


async def refused(core: ServerCore, name: str, says: str) -> None:
    """A load that fails and says why, to its caller and in the index; the neighbour serves on."""
    with pytest.raises(ServerError) as caught:
        await core.load_model(name)
    assert re.search(says, caught.value.message), caught.value.message
    assert name in caught.value.message
    assert "Traceback" not in caught.value.message or "model.py" in caught.value.message
    (entry,) = [each for each in await core.repository_index() if each.name == name]
    assert re.search(says, entry.reason), entry
    assert core.is_model_ready("m")


def files(folder: Path) -> list[Path]:
    """Also those in the directory that a model may be."""
    return [path for path in folder.rglob("*") if path.is_file()]


@each_format()
async def test_a_missing_file_and_one_that_is_no_model_are_said_to_be_so(form: Format, tmp_path: Path) -> None:
    for name in ("m", "without_file", "with_broken_file"):
        form.rows_model(tmp_path / name)
    for path in files(tmp_path / "without_file" / "1"):
        path.unlink()
    for path in files(tmp_path / "with_broken_file" / "1"):
        path.write_bytes(b"\x08\x07 this is ( no model")
    config, direct = read(tmp_path / "m"), form.direct(tmp_path / "m")
    async with serving(tmp_path) as core:
        await refused(core, "without_file", form.missing)
        await refused(core, "with_broken_file", form.broken)
        inputs = sample(config, 2)
        assert_same(await model_of(core).infer(inputs), direct(inputs), form.tolerance)


@each_of("contradiction", lambda form: form.contradictions, label=lambda each: each.new or "nothing")
async def test_a_configuration_that_does_not_fit_is_refused(
    form: Format, contradiction: Contradiction, tmp_path: Path
) -> None:
    for name in ("m", "contradicting"):
        form.rows_model(tmp_path / name)
    path = tmp_path / "contradicting" / "config.pbtxt"
    assert contradiction.old in path.read_text()
    path.write_text(path.read_text().replace(contradiction.old, contradiction.new))
    async with serving(tmp_path) as core:
        await refused(core, "contradicting", contradiction.says)


@each_format(lambda form: bool(form.install))
async def test_a_model_without_its_framework_says_what_to_install(
    form: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others serve."""
    form.rows_model(tmp_path / "m")
    package = f"backends.{form.backend}"
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in form.framework:
        monkeypatch.setitem(sys.modules, name, None)  # Python's own way of saying that an import must fail
    async with serving(tmp_path, load=()) as core:
        with pytest.raises(ServerError, match=form.install):
            await core.load_model("m")
        assert core.is_live()


def threads() -> int:
    """All of this process, those of the frameworks too."""
    tasks = Path("/proc/self/task")
    return len(os.listdir(tasks)) if tasks.is_dir() else threading.active_count()


def descriptors() -> int:
    found = Path("/proc/self/fd")
    return len(os.listdir(found)) if found.is_dir() else 0


def children() -> int:
    found = Path(f"/proc/self/task/{os.getpid()}/children")
    return len(found.read_text().split()) if found.is_file() else 0


def memory() -> int:
    """What this process holds, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def falls_to(count: Callable[[], int], limit: int) -> bool:
    """An unload returns when it has begun, and the system lists threads and processes for a moment after their end."""
    with trio.move_on_after(PATIENCE):
        while count() > limit:  # noqa: ASYNC110 (nobody tells of it)
            await trio.sleep(0.01)
    return count() <= limit


@each_format()
async def test_loading_and_unloading_leaves_nothing_behind(form: Format, tmp_path: Path) -> None:
    form.rows_model(tmp_path / "m")
    config, direct = read(tmp_path / "m"), form.direct(tmp_path / "m")
    instances: list[weakref.ref[Any]] = []
    backend = form.backend_class()

    def remember(self: Backend, *arguments: Any) -> None:
        backend.__init__(self, *arguments)
        instances.append(weakref.ref(self))

    def alive() -> int:
        if any(each() is not None for each in instances):
            gc.collect()
        return sum(each() is not None for each in instances)

    watched = type(f"Watched{backend.__name__}", (backend,), {"__init__": remember})
    counts = {threads: 0, descriptors: 0, children: 0}
    inputs = sample(config, 2)
    expected = direct(inputs)
    async with serving(tmp_path, backends={form.backend: watched}, load=()) as core:
        for turn in range(4):
            await core.load_model("m")
            assert_same(await model_of(core).infer(inputs), expected, form.tolerance)
            await core.unload_model("m")
            assert len(instances) > turn
            assert await falls_to(alive, 0)
            if turn < 2:  # what frameworks keep for good, as pools, is there by then
                counts = {count: count() for count in counts}
        for count, before in counts.items():
            assert await falls_to(count, before), f"{count.__name__}: {count()} after {before}"


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="the system does not tell what a process holds")
@each_format(lambda form: form.has_heavy)
async def test_the_memory_of_a_model_is_free_when_it_is_unloaded(form: Format, tmp_path: Path) -> None:
    form.heavy(tmp_path / "m", HEAVY_MEGABYTES)
    config = read(tmp_path / "m")
    held: list[int] = []
    async with serving(tmp_path, load=()) as core:
        for _ in range(6):
            await core.load_model("m")
            await model_of(core).infer(sample(config, 1))
            await core.unload_model("m")
            gc.collect()
            held.append(memory())
    assert held[-1] - held[2] < 2 * HEAVY_MEGABYTES * 1024 * 1024, [each >> 20 for each in held]
