"""Command lines made at random from the real flags: each becomes settings or a usage error.

`TRIOTON_FUZZ_EXAMPLES` makes it go on for longer.
"""

from __future__ import annotations

import os
import random
from contextlib import suppress
from pathlib import Path

import pytest

from trioton.cli import main, settings_from
from trioton.flags.fields import UsageError, rows
from trioton.run import run_settings
from trioton.settings import Settings

pytestmark = pytest.mark.slow

EXAMPLES = 10 * int(os.environ.get("TRIOTON_FUZZ_EXAMPLES", "200"))

TABLE = rows(Settings)
NAMES = [name for row in TABLE for name in (row.name, *row.aliases)]
# fmt: off
VALUES = (
    "", "0", "1", "-1", "true", "FALSE", "maybe", "9" * 5000, "-" + "9" * 30, "1e400", "nan", "inf", "1_000",
    " 7 ", "0x10", "a", "a=b", "a,b=c", ",=", "=", ",", ":", "a:1", "a:1:2", "a:1:2:3", "a:-1", "0:1.5",
    "0:nan", "1-", "80-90", "0-3,8", "9-1", "cpu,cpu-cores=0", "cpu,numa-node=0", "local,size=1048576",
    "redis,host=", "explicit", "EXPLICIT", "triton,file=x", "opentelemetry,bsp_max_queue_size=0",
    "opentelemetry,resource=", "level=", "LEVEL=OFF", "rate=-1", "count=99999999999", "summary_quantiles=",
    "summary_quantiles=:,:", "summary_quantiles=0.5:0.1", "health:key=value", "health,health:a=b", "nope:a=b",
    "(", "[a-", "s3://", "s3://bucket", "as://a", "gs://b/c", "http://x", "\x00", "\ud800", "\U0001f600", "/",
    "..", "é" * 300, "--", "--help=x", "-h", "*", "{}", "%s", "${X}",
)
# fmt: on


def words(dice: random.Random) -> list[str]:
    made: list[str] = []
    for _ in range(dice.randint(0, 5)):
        name = dice.choice(NAMES)
        if dice.random() < 0.1:
            name = name[: dice.randint(0, len(name))]
        value = dice.choice(VALUES)
        dashes = dice.choice(("--", "--", "--", "--", "-", "---", ""))
        match dice.randrange(4):
            case 0:
                made.append(f"{dashes}{name}")
            case 1:
                made += [f"{dashes}{name}", value]
            case _:
                made.append(f"{dashes}{name}={value}")
    return made


def test_no_command_line_breaks_the_settings(tmp_path: Path) -> None:
    """Of a server, of `run`, and from the environment. What settings can be asked for without a server is asked for."""
    dice = random.Random(11)
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.py").touch()
    taken = 0
    for _ in range(EXAMPLES):
        given = words(dice)
        environment = {dice.choice(TABLE).environment_name: dice.choice(VALUES) for _ in range(dice.randint(0, 1))}
        with suppress(UsageError):
            settings = settings_from(["--model-repository=/models", *given], environment)
            taken += 1
            settings.notices()
            settings.tracing()
            settings.summary_quantiles()
            settings.http_edge()
            settings.grpc_edge()
            settings.busy_poll_seconds()
        with suppress(UsageError):
            run_settings([str(tmp_path / "m"), *given], environment)
    assert taken > EXAMPLES // 20


def test_no_words_break_the_help(capsys: object) -> None:
    """Whatever stands beside it."""
    dice = random.Random(12)
    for _ in range(EXAMPLES // 20):
        command = dice.choice(("serve", "run", "demo", "doctor", "config", "repo", "version", "help", "", "nope"))
        asked = dice.choice(("--help", "-h", f"--help={dice.choice(VALUES[:20])}", "--help=http"))
        assert main([*([command] if command else []), *words(dice), asked]) in (0, 1)
