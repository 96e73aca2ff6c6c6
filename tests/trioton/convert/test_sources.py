"""Sources by their paths: each kind is told, and what is none is refused with a way out."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from trioton.convert.sources import SourceKind, find_source
from trioton.convert.watching import WatchedFiles, files_of
from trioton.flags.fields import UsageError


def archive(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(f"{path.stem}/{name}", b"")
    return path


def test_a_factory(tmp_path: Path) -> None:
    (tmp_path / "net.py").touch()
    source = find_source(f"{tmp_path}/net.py:make")
    assert (source.kind, source.path, source.factory, source.name) == (
        SourceKind.MODULE,
        str(tmp_path / "net.py"),
        "make",
        "net",
    )


def test_files_of_torch_are_told_by_what_is_in_them(tmp_path: Path) -> None:
    assert find_source(str(archive(tmp_path / "a.pt", "constants.pkl"))).kind is SourceKind.TORCH_SCRIPT
    assert find_source(str(archive(tmp_path / "b.pt2", "models/model.json"))).kind is SourceKind.EXPORTED


@pytest.mark.parametrize(
    ("name", "start", "kind"),
    [
        ("m.json", b'{"learner":{', SourceKind.XGBOOST),
        ("m.ubj", b"{i\x07learner{", SourceKind.XGBOOST),
        ("m.txt", b"tree\nversion=v4\n", SourceKind.LIGHTGBM),
        ("m.tl", b"", SourceKind.TREELITE),
        ("m.pkl", b"", SourceKind.SKLEARN),
        ("m.joblib", b"", SourceKind.SKLEARN),
        ("saved/saved_model.pb", b"", SourceKind.SAVED_MODEL),
        ("bert/model.safetensors", b"", SourceKind.HUGGING_FACE),
    ],
)
def test_files_and_folders_of_other_libraries(tmp_path: Path, name: str, start: bytes, kind: SourceKind) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(start)
    if kind is SourceKind.HUGGING_FACE:
        with pytest.raises(UsageError, match="a folder of neither"):
            find_source(str(path.parent))
        (path.parent / "config.json").touch()
    place = path if path.parent == tmp_path else path.parent
    source = find_source(str(place))
    assert (source.kind, source.name) == (kind, place.name.partition(".")[0])
    assert files_of(source) == [place]


def test_a_model_is_called_as_its_folder_where_its_file_has_the_usual_name(tmp_path: Path) -> None:
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "model.onnx").touch()
    assert find_source(str(tmp_path / "digits" / "model.onnx")).name == "digits"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gone.onnx", "neither a file nor a folder"),
        ("gone.py:make", "expected <file>.py:<function or class"),
        ("net.py", "say which function or class makes the module"),
        ("net.py:no name", "expected <file>.py:<function or class"),
        ("notes.txt", "none of the sources"),
        ("weights.pt", "weights alone"),
        ("text.pt", "weights alone"),
        ("compiled.pt2", "weights alone"),
    ],
)
def test_what_is_no_source(tmp_path: Path, name: str, words: str) -> None:
    for empty in ("net.py", "notes.txt", "text.pt"):
        (tmp_path / empty).touch()
    archive(tmp_path / "weights.pt", "data.pkl")
    archive(tmp_path / "compiled.pt2", "models/model.json", "data/aotinductor/model/x.so")
    with pytest.raises(UsageError, match=words):
        find_source(f"{tmp_path}/{name}")


def test_weights_beside_an_onnx_file_belong_to_the_source(tmp_path: Path) -> None:
    for name in ("m.onnx", "m.onnx.data", "other.onnx.data"):
        (tmp_path / name).touch()
    assert [path.name for path in files_of(find_source(str(tmp_path / "m.onnx")))] == ["m.onnx", "m.onnx.data"]


def test_files_that_change_are_noticed(tmp_path: Path) -> None:
    names = ("a", "b", "c", "folder/d", "folder/e")
    (tmp_path / "folder").mkdir()
    for name in names:
        (tmp_path / name).write_text(name)
    watched = WatchedFiles([tmp_path / "a", tmp_path / "b", tmp_path / "folder"])
    watched.add([tmp_path / "a", tmp_path / "c"])
    assert watched.changed() == []
    (tmp_path / "a").write_text("other")
    (tmp_path / "b").write_text("b")  # the same again
    (tmp_path / "c").unlink()
    (tmp_path / "folder" / "f").write_text("new")
    assert watched.changed() == [tmp_path / "a", tmp_path / "folder", tmp_path / "c"]
    assert len(watched.digests([tmp_path / "b"])[str(tmp_path / "b")]) == 64
