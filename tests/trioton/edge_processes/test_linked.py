"""Which services' plain inference edge processes answer themselves."""

from __future__ import annotations

import pytest

from trioton.edge_processes.linked import linked_words
from trioton.settings import Settings

ALL = frozenset(("http", "grpc", "openai"))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), ALL),
        (("--console", "--access-log=all", "--capture=/tmp/there"), ALL),
        (("--auth-keys-file=keys.toml", "--gen-ai-telemetry=true"), ALL),
    ],
)
def test_words(flags: tuple[str, ...], words: frozenset[str]) -> None:
    assert linked_words(Settings.from_flags(["--model-repository=models", *flags])) == words
