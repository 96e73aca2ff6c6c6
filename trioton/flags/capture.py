"""Flags of payload capture. Part of `trioton.settings`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from actors.capture.settings import CaptureFormat, CaptureSettings
from repository.stores.urls import StoreUrl
from trioton.flags.fields import STRING, choice, filesystem_path, flag, integer, repeatable
from trioton.flags.store import repository_place

CAPTURE = "Payload capture"
_DEFAULTS = CaptureSettings()


@dataclass(frozen=True, slots=True)
class CaptureShare:
    """One `--capture-share`. An empty `model` means all that have no share of their own."""

    model: str
    share: float


def capture_share(text: str) -> CaptureShare:
    model, equals, number = text.rpartition("=")
    try:
        share = float(number)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1 or (equals and not model):
        raise ValueError("expected a number from 0 to 1, or <model>=<number>")
    return CaptureShare(model, share)


def _place(text: str) -> Path | StoreUrl | None:
    if not text:
        return None
    place = repository_place(text)
    return place if isinstance(place, StoreUrl) else filesystem_path(text)


@dataclass(frozen=True, kw_only=True)  # without slots, so that a class may have several such parts
class CaptureFlags:
    """The part of the settings that is about payload capture."""

    capture: Path | StoreUrl | None = flag(  # noqa: RUF009 (a field, as its neighbours)
        None,
        _place,
        group=CAPTURE,
        metavar="<folder or URL>",
        help="Write a share of the inference requests, and their responses, into files there: a folder, or one in an "
        "object store (s3://bucket/path, gs://bucket/path, as://account/container/path).",
    )
    capture_share: tuple[CaptureShare, ...] = repeatable(
        capture_share,
        group=CAPTURE,
        metavar="[<model>=]<number>",
        help="Which share, from 0 to 1: of all models, or of one. May be given several times; 0.01 where absent.",
    )
    capture_format: str = flag(
        _DEFAULTS.format.value,
        choice(*CaptureFormat),
        group=CAPTURE,
        metavar="<format>",
        help="jsonl: JSON lines, each with a request that can be sent again; parquet: needs the package pyarrow.",
    )
    capture_redact: tuple[str, ...] = repeatable(
        str,
        group=CAPTURE,
        metavar=STRING,
        help="The name of a tensor or parameter whose values are left out. May be given several times.",
    )
    capture_max_tensor_bytes: int = flag(
        _DEFAULTS.max_tensor_bytes,
        integer(0),
        group=CAPTURE,
        metavar="<integer>",
        help="Of a tensor of more bytes only the first elements are written, and statistics.",
    )
    capture_memory: int = flag(
        _DEFAULTS.memory_bytes,
        integer(1 << 20),
        group=CAPTURE,
        metavar="<integer>",
        help="How many bytes requests and responses may hold until their file is written; what comes beyond is not "
        "captured.",
    )
    capture_file_bytes: int = flag(
        _DEFAULTS.file_bytes,
        integer(1),
        group=CAPTURE,
        metavar="<integer>",
        help="Write a model's file when it has so many bytes.",
    )
    capture_file_secs: int = flag(
        int(_DEFAULTS.file_seconds),
        integer(1, 24 * 3600),
        group=CAPTURE,
        metavar="<integer>",
        help="Write a model's file when the first request in it has waited for so many seconds.",
    )

    def capturing(self) -> CaptureSettings:
        """The settings of payload capture."""
        return CaptureSettings(
            share=next((each.share for each in reversed(self.capture_share) if not each.model), _DEFAULTS.share),
            shares=_of_models(self.capture_share),
            format=CaptureFormat(self.capture_format),
            redacted=frozenset(self.capture_redact),
            max_tensor_bytes=self.capture_max_tensor_bytes,
            memory_bytes=self.capture_memory,
            file_bytes=self.capture_file_bytes,
            file_seconds=self.capture_file_secs,
        )


def _of_models(shares: Sequence[CaptureShare]) -> dict[str, float]:
    return {each.model: each.share for each in shares if each.model}
