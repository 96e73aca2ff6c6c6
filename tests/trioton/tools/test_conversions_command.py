"""`trioton repo conversions`, by its command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backends.engines.conversion.cache import ConversionCache
from trioton.cli import main


def conversions(cache: Path, *words: str) -> int:
    setting = f"--backend-config=openvino_genai,conversion-cache-directory={cache}"
    return main(["repo", "conversions", setting, *words])


def test_what_is_there_is_listed_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = ConversionCache(tmp_path / "cache")
    cache.root.mkdir()
    made = cache.begin("a" * 32) / "model"
    made.mkdir()
    (made / "openvino_model.xml").write_text("<net/>")
    place = cache.keep("a" * 32, {"optimum-intel": "2"}, made, {"source": "/models/tiny"})
    assert conversions(cache.root) == 0
    assert f"{place.name}: " in (shown := capsys.readouterr().out)
    assert "of /models/tiny" in shown
    assert conversions(cache.root, "--prune-days=1", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"directory": str(cache.root), "conversions": []}
    assert place.is_dir()
    assert conversions(cache.root, "--prune-days=0") == 0
    assert capsys.readouterr().out.startswith(f"removed {place.name}: ")
    assert not place.exists()


def test_an_absent_cache_is_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert conversions(tmp_path / "absent") == 0
    assert conversions(tmp_path / "absent", "--prune-days=0") == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[2] for line in shown] == ["nothing there", "nothing to remove"]


def test_words_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert conversions(tmp_path, "word") == 1
    assert "Unexpected argument: word" in capsys.readouterr().err
