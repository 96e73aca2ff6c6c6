"""What the files of sentence-transformers say of vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import InvalidArgument
from repository.sentence_files import SentenceFiles, read_sentence_files


def modules(*kinds: str, pooling: str = "1_Pooling") -> list[dict[str, Any]]:
    return [
        {"idx": place, "path": pooling if kind == "Pooling" else "", "type": f"sentence_transformers.models.{kind}"}
        for place, kind in enumerate(kinds)
    ]


def write(folder: Path, name: str, members: Any) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(members))


def test_a_folder_without_any(tmp_path: Path) -> None:
    assert read_sentence_files(tmp_path) == SentenceFiles(None, None, None, "")


def test_all_of_them(tmp_path: Path) -> None:
    write(tmp_path, "modules.json", modules("Transformer", "Pooling", "Normalize", pooling="pool"))
    write(tmp_path, "pool/config.json", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    write(tmp_path, "sentence_bert_config.json", {"max_seq_length": 256})
    assert read_sentence_files(tmp_path) == SentenceFiles("cls", True, 256, "")


def test_what_they_leave_out(tmp_path: Path) -> None:
    write(tmp_path, "modules.json", modules("Transformer", "Pooling"))
    write(tmp_path, "sentence_bert_config.json", {"max_seq_length": None})
    assert read_sentence_files(tmp_path) == SentenceFiles(None, False, None, "")


def test_pooling_without_modules(tmp_path: Path) -> None:
    write(tmp_path, "1_Pooling/config.json", {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False})
    assert read_sentence_files(tmp_path) == SentenceFiles("last", None, None, "")


@pytest.mark.parametrize(
    ("members", "pooling"),
    [
        ({"word_embedding_dimension": 3}, "mean"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["max"]}, "max"),
        ({"pooling_mode_weightedmean_tokens": True}, "weighted_mean"),
    ],
)
def test_ways_of_pooling(tmp_path: Path, members: dict[str, Any], pooling: str) -> None:
    write(tmp_path, "1_Pooling/config.json", members)
    assert read_sentence_files(tmp_path).pooling == pooling


@pytest.mark.parametrize(
    "members", [{"pooling_mode": "attention"}, {"pooling_mode": ["cls", "mean"]}, {"pooling_mode": 3}]
)
def test_ways_that_there_are_not(tmp_path: Path, members: dict[str, Any]) -> None:
    write(tmp_path, "1_Pooling/config.json", members)
    with pytest.raises(InvalidArgument, match=r"1_Pooling/config\.json': expected one way of pooling \(cls, mean, "):
        read_sentence_files(tmp_path)


def test_a_module_that_is_not_known(tmp_path: Path) -> None:
    write(tmp_path, "modules.json", modules("Transformer", "Pooling", "Dense"))
    assert read_sentence_files(tmp_path).unknown == "Dense"


@pytest.mark.parametrize(
    "given", [{"type": 3}, ["x"], [{"type": "a.Pooling", "path": "../x"}], [{"type": "x", "path": "/"}]]
)
def test_files_that_are_wrong(tmp_path: Path, given: Any) -> None:
    write(tmp_path, "modules.json", given)
    with pytest.raises(InvalidArgument, match=r"modules\.json': expected a list of objects with 'type' and"):
        read_sentence_files(tmp_path)
