"""What `python -m tests.generate` makes, and how it tells what is out of date."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import generate

pytestmark = pytest.mark.slow


@pytest.fixture
def copies(tmp_path: Path) -> tuple[Path, Path]:
    """Copies of the descriptors and of the generated code, as if just made."""
    descriptors = shutil.copyfile(generate.DESCRIPTORS, tmp_path / "descriptors.binpb")
    code = shutil.copytree(generate.GENERATED, tmp_path / "generated", ignore=shutil.ignore_patterns("__pycache__"))
    return descriptors, code


def test_the_generated_code_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    """Only where the compilers are installed; they come with the extra `check`."""
    pytest.importorskip("grpc_tools")
    pytest.importorskip("betterproto2_compiler")
    assert generate.main(["--check"]) == 0, capsys.readouterr().err


def test_equal_files_have_no_differences(copies: tuple[Path, Path]) -> None:
    assert generate.differences(*copies) == []


def test_layout_and_patch_version_do_not_count(copies: tuple[Path, Path]) -> None:
    module = copies[1] / "inference" / "__init__.py"
    text = module.read_text()
    version = next(line for line in text.splitlines() if line.startswith("_COMPILER_VERSION"))
    module.write_text(text.replace(version, '_COMPILER_VERSION = "0.10.99"').replace("\n\n\n", "\n\n\n\n"))
    assert generate.differences(*copies) == []


def test_every_kind_of_difference_is_named(copies: tuple[Path, Path]) -> None:
    descriptors, code = copies
    descriptors.write_bytes(b"other")
    (code / "inference" / "__init__.py").write_text("changed = True\n")
    (code / "added.py").write_text("")
    (code / "message_pool.py").unlink()
    assert generate.differences(descriptors, code) == [
        "protocol/proto/descriptors.binpb is out of date",
        "protocol/grpc/generated/added.py is missing",
        "protocol/grpc/generated/inference/__init__.py is out of date",
        "protocol/grpc/generated/message_pool.py comes from no .proto file any more",
    ]


def test_check_says_what_to_do(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def make_other(descriptors: Path, code: Path) -> None:
        descriptors.write_bytes(b"other")
        shutil.copytree(generate.GENERATED, code, dirs_exist_ok=True)

    monkeypatch.setattr(generate, "generate", make_other)
    assert generate.main(["--check"]) == 1
    errors = capsys.readouterr().err
    assert "descriptors.binpb is out of date" in errors
    assert "make generate" in errors


def test_a_broken_proto_file_shows_what_the_compiler_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("grpc_tools")
    (tmp_path / "broken.proto").write_text('syntax = "proto3"; message M { string = 1; }')
    monkeypatch.setattr(generate, "PROTO", tmp_path)
    assert generate.main(["--check"]) == 1
    assert "broken.proto" in capsys.readouterr().err
