"""Flags of `trioton batch`, beside those of a server."""

from __future__ import annotations

import re
from dataclasses import dataclass

from protocol.jobs.source import OUTPUT_FORMATS, DataFormat
from trioton.batch.input import Shard
from trioton.flags.fields import INTEGER, choice, flag, integer, seconds, switch
from trioton.settings import BATCH


def given_shard(text: str) -> Shard:
    """`i/n`, i from 1 to n."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text, re.ASCII)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise ValueError("expected <i>/<n> with i from 1 to n, such as 2/4")
    return Shard(int(found[1]), int(found[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFlags:
    """What `trioton batch` can be told."""

    model: str = flag(
        "",
        str,
        group=BATCH,
        metavar="<name>",
        help="The model, of the repositories; without --model-repository the directory of a model, or the folder of a "
        "language model.",
    )
    served_model_name: str = flag(
        "",
        str,
        group=BATCH,
        metavar="<name>",
        help="The name of the model in a folder, as lines of OpenAI's batch files have it; where absent, the folder's.",
    )
    version: int | None = flag(
        None,
        integer(1, 2**63 - 1),
        group=BATCH,
        metavar=INTEGER,
        help="The model's version; where absent, the latest that serves.",
    )
    format: str = flag(
        "",
        choice(*DataFormat),
        group=BATCH,
        metavar=f"{{{','.join(DataFormat)}}}",
        help="The format of INPUT, where its ending does not tell.",
    )
    output_format: str = flag(
        "",
        choice(*OUTPUT_FORMATS),
        group=BATCH,
        metavar=f"{{{','.join(OUTPUT_FORMATS)}}}",
        help="The format of OUTPUT, where its ending does not tell. Where nothing tells, jsonl.",
    )
    shard: Shard = flag(  # noqa: RUF009 (a field, as its neighbours)
        Shard(),
        given_shard,
        group=BATCH,
        metavar="<i>/<n>",
        help="Run only every n-th row, from the i-th on: machines that have the same input share the work, each with "
        "another i.",
    )
    limit: int | None = flag(
        None, integer(1), group=BATCH, metavar=INTEGER, help="Look at the first rows of INPUT only, so many."
    )
    batch: int | None = flag(
        None,
        integer(1, 65_536),
        group=BATCH,
        metavar=INTEGER,
        help="Join up to so many rows to one batch, whatever the model's configuration says, which else decides.",
    )
    in_flight: int | None = flag(
        None,
        integer(1, 65_536),
        group=BATCH,
        metavar=INTEGER,
        help="How many rows the model has at a time. Where absent, so many that its batches are full: three times what "
        "it runs at once, or 64 where that is not known.",
    )
    retry_secs: float = flag(
        600.0,
        seconds,
        group=BATCH,
        metavar="<seconds>",
        help="How long a row is tried again that the model refuses as unavailable. After that it has failed; where the "
        "model has answered no other row meanwhile, the run ends.",
    )
    restart: bool = switch(
        group=BATCH, help="Begin anew where a run was interrupted or is complete; its output is removed."
    )
