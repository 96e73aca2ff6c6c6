"""Conversions in a cache: what is made once, what is made anew, and what is left of one that fails or is cut off."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from backends.engines.conversion import openvino_folder
from backends.engines.conversion.cache import ConversionCache
from backends.engines.conversion.converted import CACHE_DIRECTORY, CONVERTER
from backends.interface import ModelSource
from protocol.errors import Internal, InvalidArgument, Unavailable
from repository.model_config import ModelConfig
from tests.backends.engines.conversion import scripts
from tests.backends.engines.conversion.scripts import converter_script, hugging_face_folder
from tests.backends.engines.models import TINY
from tests.backends.python.processes import children, until

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return hugging_face_folder(tmp_path / "tiny")


async def converted(folder: Path, converter: Path, weight_format: str = "") -> Path:
    """By a load of a model `m`, with a cache beside the folder."""
    settings = {CONVERTER: str(converter), CACHE_DIRECTORY: str(cache(folder).root)}
    source = ModelSource("m", 1, folder, ModelConfig(name="m"), settings)
    return await openvino_folder(source, folder, weight_format)


def cache(folder: Path) -> ConversionCache:
    return ConversionCache(folder.parent / "cache")


def calls(converter: Path) -> list[list[str]]:
    path = converter.parent / "calls"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def assert_nothing_left(folder: Path) -> None:
    assert cache(folder).entries() == []
    assert [path for path in cache(folder).root.iterdir() if path.name.startswith(".work-")] == []


async def test_it_is_made_once_for_one_content(folder: Path, tmp_path: Path) -> None:
    """A copy elsewhere has the same content; the source stays as it was."""
    before = sorted(os.listdir(folder))
    converter = converter_script(tmp_path / "bin", scripts.WRITES)
    made = await converted(folder, converter)
    assert (made / "openvino_model.bin").read_bytes() == (TINY / "openvino_model.bin").read_bytes()
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert [await converted(each, converter) for each in (folder, copy)] == [made, made]
    assert sorted(os.listdir(folder)) == before
    [arguments] = calls(converter)
    assert arguments[:6] == ["-m", "optimum.commands.optimum_cli", "export", "openvino", "--model", str(folder)]
    assert arguments[arguments.index("--weight-format") + 1] == "fp16"


async def test_what_decides_about_the_result_makes_another(folder: Path, tmp_path: Path) -> None:
    converter = converter_script(tmp_path / "bin", scripts.WRITES)
    first = await converted(folder, converter)
    by_format = await converted(folder, converter, "int8")
    by_version = await converted(folder, converter_script(tmp_path / "bin", scripts.WRITES, version="3.0"))
    (folder / "model.safetensors").write_bytes(b"others!")  # of the same length
    by_content = await converted(folder, converter)
    (folder / "README.md").write_text("nothing that is read")
    assert await converted(folder, converter) == by_content
    assert len({first, by_format, by_version, by_content}) == 4
    assert len(calls(converter)) == 4


async def test_without_a_converter_what_there_is_serves(folder: Path, tmp_path: Path) -> None:
    made = await converted(folder, converter_script(tmp_path / "bin", scripts.WRITES))
    none = converter_script(tmp_path / "bin", scripts.FAILS, version=None, name="none")
    assert await converted(folder, none) == made
    with pytest.raises(Unavailable, match=r"model 'm': .*pip install 'optimum-intel\[openvino\]'.*converter=~/optimum"):
        await converted(folder, none, "int8")


async def test_a_folder_of_openvino_is_taken_as_it_is(tmp_path: Path) -> None:
    assert await converted(TINY, tmp_path / "no-converter") == TINY


async def test_loads_beside_each_other_share_one(folder: Path, tmp_path: Path) -> None:
    converter = converter_script(tmp_path / "bin", scripts.WRITES)
    found = []

    async def load() -> None:
        found.append(await converted(folder, converter))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(load)
    assert len(found) == 3
    assert len(set(found)) == 1
    assert len(calls(converter)) == 1


@pytest.mark.parametrize(
    ("deed", "kind", "text"),
    [
        (scripts.FAILS, Internal, "conversion failed with exit code 1: .*no such architecture"),
        (scripts.WRITES_NOTHING, Internal, "made no openvino_model.xml"),
        (scripts.IS_FULL, Unavailable, "no room in .* bytes free.*No space left on device"),
    ],
)
async def test_a_failure_leaves_nothing(folder: Path, tmp_path: Path, deed: str, kind: Any, text: str) -> None:
    with pytest.raises(kind, match=f"model 'm': .*{text}"):
        await converted(folder, converter_script(tmp_path / "bin", deed))
    assert_nothing_left(folder)
    await converted(folder, converter_script(tmp_path / "bin", scripts.WRITES))


async def test_a_load_that_is_cancelled_ends_the_converter(folder: Path, tmp_path: Path) -> None:
    """With what that has started."""
    before = set(children())
    converter = converter_script(tmp_path / "bin", scripts.HANGS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(converted, folder, converter)
        await until((tmp_path / "bin" / "begun").exists)
        nursery.cancel_scope.cancel()
    assert set(children()) <= before
    assert_nothing_left(folder)


async def test_what_a_killed_server_has_left_is_made_anew(folder: Path, tmp_path: Path) -> None:
    key = cache(folder).key(folder, {"weight_format": "fp16"})
    left = cache(folder).begin(key)
    (left / "openvino_model.xml").write_text("a half")
    made = await converted(folder, converter_script(tmp_path / "bin", scripts.WRITES))
    assert not left.exists()
    assert (made / "openvino_model.xml").read_bytes() == (TINY / "openvino_model.xml").read_bytes()


async def test_a_load_waits_while_another_process_converts(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    converter = converter_script(tmp_path / "bin", scripts.WRITES)
    held = cache(folder).lock(cache(folder).key(folder, {"weight_format": "fp16"}))
    assert held is not None
    found: list[Path] = []

    async def load() -> None:
        found.append(await converted(folder, converter))

    with caplog.at_level(logging.INFO, "trioton.model.m"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load)
            await until(lambda: "waiting for another load" in caplog.text)
            assert calls(converter) == []
            os.close(held)
    assert len(found) == 1
    assert "conversion: exporting" in caplog.text


async def test_a_source_that_changes_meanwhile_is_not_kept(folder: Path, tmp_path: Path) -> None:
    deed = (
        f"{scripts.WRITES}\npathlib.Path({str(folder)!r}, 'model.safetensors').write_bytes(b'the rest of a download')"
    )
    with pytest.raises(Unavailable, match="was changed while it was converted"):
        await converted(folder, converter_script(tmp_path / "bin", deed))
    assert_nothing_left(folder)


async def test_where_the_result_cannot_fit_nothing_is_begun(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is as it is; only what it says of its free bytes is another."""
    converter = converter_script(tmp_path / "bin", scripts.WRITES)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=3))
    with pytest.raises(Unavailable, match=r"no room to convert .* 3 bytes free.* at least 7"):
        await converted(folder, converter, "fp32")
    assert calls(converter) == []


async def test_a_converter_that_is_none_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(Internal, match=r"model 'm': the converter '.*absent' cannot be run: No such file"):
        await converted(folder, tmp_path / "absent")
    with pytest.raises(Internal, match="is no Python interpreter"):
        await converted(folder, Path(shutil.which("true") or "true"))
    with pytest.raises(InvalidArgument, match="weight_format must be one of fp32, fp16, int8, int4, got 'int3'"):
        await converted(folder, tmp_path / "absent", "int3")


async def test_a_home_directory_is_found(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the shell leaves it in `--backend-config=openvino_genai,converter=~/bin/python`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    converter_script(tmp_path / "bin", scripts.WRITES)
    source = ModelSource("m", 1, folder, ModelConfig(name="m"), {CONVERTER: "~/bin/python", CACHE_DIRECTORY: "~/kept"})
    assert (await openvino_folder(source, folder, "")).parent == tmp_path / "kept"


async def test_a_killed_converter_is_told(folder: Path, tmp_path: Path) -> None:
    deed = f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})"
    with pytest.raises(Internal, match="failed with signal 9"):
        await converted(folder, converter_script(tmp_path / "bin", deed))
    assert_nothing_left(folder)


async def test_unused_ones_are_removed(folder: Path, tmp_path: Path) -> None:
    converter = converter_script(tmp_path / "bin", scripts.WRITES)
    old, new = await converted(folder, converter), await converted(folder, converter, "int8")
    os.utime(old / "conversion.json", (0, 0))
    left, held = cache(folder).begin("a" * 32), cache(folder).lock("b" * 32)
    worked_on = cache(folder).begin("b" * 32)
    assert held is not None
    [removed] = cache(folder).remove_unused(86400)
    assert removed.folder == old
    assert [entry.folder for entry in cache(folder).entries()] == [new]
    assert not left.exists()
    assert worked_on.exists()
    os.close(held)
    assert await converted(folder, converter) == old  # made anew
