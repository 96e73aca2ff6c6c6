"""Which services' plain inference edge processes answer themselves."""

from __future__ import annotations

import pytest

from trioton.edge_processes.linked import linked_words
from trioton.settings import Settings

BOTH = frozenset(("http", "grpc"))
ALL = BOTH | {"openai"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), ALL),
        (("--console", "--access-log=errors", "--capture=/tmp/there"), ALL),
        (("--access-log=all",), BOTH),
        (("--gen-ai-telemetry=true",), BOTH),
        (("--auth-keys-file=keys.toml", "--access-log=errors", "--console", "--capture=/tmp/there"), BOTH),
    ],
)
def test_words(flags: tuple[str, ...], words: frozenset[str]) -> None:
    assert linked_words(Settings.from_flags(["--model-repository=models", *flags])) == words
