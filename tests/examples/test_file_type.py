"""Telling file types with the real model, and how a file becomes its input."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.loading import EXAMPLES, load_example
from tests.examples.local_server import LocalServer

file_type = load_example("clients/file_type")

CONFIG = {"beg_size": 6, "end_size": 4, "block_size": 16, "padding_token": 256, "min_file_size_for_dl": 3}
PAD = 256
SAMPLES = {
    "sum.py": (
        "python",
        "import sys\n\n\ndef total(numbers):\n    return sum(map(int, numbers))\n\n\nprint(total(sys.argv[1:]))\n",
    ),
    "shop.sql": (
        "sql",
        "SELECT name, price FROM goods\nWHERE price > 10\nORDER BY price DESC;\nDROP TABLE old_goods;\n",
    ),
    "page.html": (
        "html",
        "<!DOCTYPE html>\n<html><head><title>Hello</title></head><body><p>Good day</p></body></html>\n",
    ),
    "order.json": ("json", '{"order": 4711, "items": [{"name": "tea", "count": 3}], "paid": false}\n'),
}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"abc", [97, 98, 99, PAD, PAD, PAD, PAD, 97, 98, 99]),
        (b" \n abcdef \n", [*b"abcdef", *b"cdef"]),
        (b"0123456789abcdefXXXXXXXXXX0123456789ab", [*b"012345", *b"89ab"]),
        (b"                abc", None),
        (b"ab", None),
        (b"", None),
        (b" \n\t ", None),
    ],
    ids=["padded", "stripped", "only the ends", "blank first block", "short", "empty", "blank"],
)
def test_features(tmp_path: Path, content: bytes, expected: list[int] | None) -> None:
    """Head to the left, tail to the right, padding between, white space at both ends left out."""
    path = tmp_path / "file"
    path.write_bytes(content)
    vector = file_type.features(path, CONFIG)
    assert (None if vector is None else vector.tolist()) == expected


def test_types_come_in_the_order_of_the_files(server: LocalServer, tmp_path: Path) -> None:
    paths = []
    for name, (_, text) in SAMPLES.items():
        (tmp_path / name).write_text(text)
        paths.append(tmp_path / name)
    (tmp_path / "tiny").write_text("x")
    types = file_type.file_types(server, [tmp_path / "tiny", *paths])
    assert [t.path for t in types] == [tmp_path / "tiny", *paths]
    assert [t.label for t in types] == ["", *(label for label, _ in SAMPLES.values())]
    assert all(0 <= t.score <= 1 for t in types)


def test_binary_files_and_the_examples_themselves(server: LocalServer) -> None:
    """The repository holds ONNX models; the examples are Python."""
    onnx = server.repository / "ocr_direction" / "1" / "model.onnx"
    types = file_type.file_types(server, [onnx, *sorted(EXAMPLES.glob("*.py")), *sorted(EXAMPLES.glob("clients/*.py"))])
    assert types[0].description == "Open Neural Network Exchange"
    assert {t.label for t in types[1:]} == {"python"}
    assert all(t.is_sure for t in types)


def test_many_files_go_in_batches(server: LocalServer, tmp_path: Path) -> None:
    """No request holds more than the model's max_batch_size."""
    paths = [tmp_path / f"{n}.py" for n in range(70)]
    for n, path in enumerate(paths):
        path.write_text(f"def number():\n    return {n}\n")
    assert len(file_type.file_types(server, paths)) == 70
    assert server.batch_sizes == [("file_type", 64), ("file_type", 6)]


def test_files_around_takes_some_of_each_kind(tmp_path: Path) -> None:
    """The two largest per suffix; no hidden files, caches, links or empty files."""
    for name, size in {"a.py": 1, "b.py": 2, "c.py": 3, "d.py": 4, "Makefile": 5, "empty.txt": 0, ".hidden": 6}.items():
        (tmp_path / name).write_text("x" * size)
    for folder in ("__pycache__", ".git", "sub"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "e.toml").write_text("x")
    (tmp_path / "link.md").symlink_to(tmp_path / "a.py")
    names = [str(path.relative_to(tmp_path)) for path in file_type.files_around(tmp_path)]
    assert names == ["Makefile", "c.py", "d.py", "sub/e.toml"]


def test_the_answer_in_words() -> None:
    folder = Path("/somewhere")
    types = [
        file_type.FileType(folder / "a.py", "python", "Python source", 0.994, is_sure=True),
        file_type.FileType(folder / "notes", "markdown", "Markdown document", 0.6, is_sure=False),
        file_type.FileType(Path("/tiny"), "", "too short to tell", 0.0, is_sure=False),
    ]
    assert file_type.describe(types, folder) == [
        "a.py   Python source (python, 99%)",
        "notes  perhaps Markdown document (markdown, 60%)",
        "/tiny  too short to tell",
    ]
