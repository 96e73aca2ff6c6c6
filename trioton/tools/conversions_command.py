"""`trioton repo conversions`: lists the language models that were converted for an engine, and removes unused ones."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backends.engines.conversion.cache import Entry
from backends.engines.conversion.converted import cache_of
from repository.model_folders import OPENVINO_ENGINE
from trioton.flags.fields import UsageError, flag, integer
from trioton.flags.server import backend_settings
from trioton.settings import TOOLS
from trioton.tools.flags import OutputFlags, parse_words

_DAY_SECONDS = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionFlags(OutputFlags):
    """What `trioton repo conversions` can be told."""

    prune_days: int | None = flag(
        None,
        integer(0),
        group=TOOLS,
        metavar="<integer>",
        help="Of `conversions`: remove what was not loaded for so many days; 0 for all.",
    )


def run_conversions(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Print the converted models, or those that are removed; answers the exit code.

    Raises:
        UsageError: see `trioton.flags`.
    """
    parsed = parse_words(ConversionFlags, words, environment)
    if parsed.places:
        raise UsageError(f"Unexpected argument: {parsed.places[0]}")
    own = ConversionFlags(**parsed.own)
    settings = backend_settings(parsed.tool.backend_config)
    cache = cache_of({**settings.get("", {}), **settings.get(OPENVINO_ENGINE, {})})
    entries = cache.entries() if own.prune_days is None else cache.remove_unused(own.prune_days * _DAY_SECONDS)
    if own.json:
        print(json.dumps({"directory": str(cache.root), "conversions": [_as_json(each) for each in entries]}, indent=2))
        return 0
    verb = "" if own.prune_days is None else "removed "
    for entry in entries:
        used = time.strftime("%Y-%m-%d", time.localtime(entry.used_at))
        print(f"{verb}{entry.folder.name}: {entry.byte_size / 1e6:.1f} MB, last loaded {used}, of {entry.source}")
    if not entries:
        print(f"{cache.root}: nothing {'there' if own.prune_days is None else 'to remove'}")
    return 0


def _as_json(entry: Entry) -> Mapping[str, object]:
    return {
        "directory": os.fspath(entry.folder),
        "source": entry.source,
        "byte_size": entry.byte_size,
        "used_at": int(entry.used_at),
    }
