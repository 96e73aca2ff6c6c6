"""Sentence files: what sentence-transformers writes beside a model that embeds: how its tokens' vectors become one.

Flow: `modules.json`, `1_Pooling/config.json`, `sentence_bert_config.json` of a folder -> [sentence files] ->
`vector_tensors`. Blocks: called in a thread, when a version loads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.errors import InvalidArgument
from protocol.text.pooling import POOLINGS
from repository.text_files import read_json, read_object

MODULES = "modules.json"
_POOLING_FOLDER = "1_Pooling"
# Newer files say it by a word, older ones by a switch for each.
_WORDS = {"lasttoken": "last", "mean_sqrt_len_tokens": "mean_sqrt_len", "weightedmean": "weighted_mean"}
_SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weighted_mean",
    "pooling_mode_lasttoken": "last",
}
_TRANSFORMER, _POOLING, _NORMALIZE = "Transformer", "Pooling", "Normalize"


@dataclass(frozen=True, slots=True)
class SentenceFiles:
    """None for what the files do not say.

    Attributes:
        pooling: a name of `protocol.text.pooling.POOLINGS`.
        normalizes: vectors are given the length 1.
        max_length: the most tokens of a text.
        unknown: the first module that changes vectors in another way; empty where there is none.
    """

    pooling: str | None
    normalizes: bool | None
    max_length: int | None
    unknown: str


def read_sentence_files(folder: Path) -> SentenceFiles:
    """Raises:
    InvalidArgument: a file is not what its name says; the error names the file.
    NotFound: one cannot be read.
    """
    modules = _modules(folder / MODULES)
    kinds = [kind for kind, _ in modules]
    places = [place for kind, place in modules if kind == _POOLING] or [_POOLING_FOLDER]
    length = read_object(folder / "sentence_bert_config.json").get("max_seq_length")
    return SentenceFiles(
        pooling=_pooling(folder / places[0] / "config.json"),
        normalizes=_NORMALIZE in kinds if modules else None,
        max_length=length if type(length) is int and length > 0 else None,
        unknown=next((kind for kind in kinds if kind not in (_TRANSFORMER, _POOLING, _NORMALIZE)), ""),
    )


def _modules(path: Path) -> list[tuple[str, str]]:
    """The kind and the folder of each, in order."""
    given = read_json(path)
    if given is None:
        return []
    found = []
    for each in given if isinstance(given, list) else [given]:
        kind, place = (each.get("type"), each.get("path", "")) if isinstance(each, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(place, str) or ".." in Path(place).parts or place[:1] == "/":
            raise InvalidArgument(f"'{path}': expected a list of objects with 'type' and 'path', got {each!r:.100}")
        found.append((kind.rpartition(".")[2], place))
    return found


def _pooling(path: Path) -> str | None:
    members = read_object(path)
    if not members:
        return None
    names = _named(members)
    if len(names) != 1 or names[0] not in POOLINGS:
        raise InvalidArgument(f"'{path}': expected one way of pooling ({', '.join(POOLINGS)}), got {', '.join(names)}")
    return names[0]


def _named(members: Mapping[str, Any]) -> list[str]:
    word = members.get("pooling_mode")
    if word is not None:
        return [_WORDS.get(str(each), str(each)) for each in (word if isinstance(word, list) else [word])]
    return [name for switch, name in _SWITCHES.items() if members.get(switch) is True] or ["mean"]
