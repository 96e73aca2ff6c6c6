"""Flags of `trioton convert`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trioton.convert.choice import Bound, given_bound
from trioton.convert.targets import AS_IS, TARGETS
from trioton.convert.tensors import TensorSpec
from trioton.flags.fields import (
    INTEGER,
    PATH,
    choice,
    filesystem_path,
    flag,
    integer,
    repeatable,
    seconds,
    share,
    switch,
)
from trioton.settings import TOOLS
from trioton.tools.model_sources import tensor_words


def given_spec(text: str) -> TensorSpec:
    """`<name>:<type>:<dims>`, where dims are numbers, names of sizes that vary, or -1."""
    name, datatype, words = tensor_words(text)
    dims: list[int | str] = []
    for axis, word in enumerate(words):
        if word == "-1":
            dims.append(f"{name}_{axis}")
        elif word.isdecimal() and int(word) > 0:
            dims.append(int(word))
        elif word.isidentifier():
            dims.append(word)
        else:
            raise ValueError("dims are whole numbers above 0, -1, or names for sizes that vary: tokens,768")
    return TensorSpec(name, datatype.name, tuple(dims))


def given_candidate(text: str) -> tuple[str, str]:
    """`<name>=<file>`."""
    name, equals, file = text.partition("=")
    if not equals or not name or not Path(file).exists():
        raise ValueError("expected <name>[:<precision>]=<file> of a file that exists")
    return name, str(Path(file).absolute())


def _levels(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.strip().isdecimal() and 1 <= int(word) <= 4096 for word in words):
        raise ValueError("expected numbers of callers from 1 to 4096, as in 1,4,16")
    return tuple(int(word) for word in words)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertFlags:
    """What `trioton convert` can be told."""

    name: str = flag("", str, group=TOOLS, metavar="<name>", help="The model's name; where absent, that of the source.")
    to: tuple[str, ...] = repeatable(
        choice(AS_IS, *TARGETS),
        group=TOOLS,
        metavar="<target>",
        help=f"A format to try: {', '.join((AS_IS, *TARGETS))}. May be given several times. Where absent, those of "
        "full precision that run on any processor.",
    )
    samples: tuple[Path, ...] = repeatable(
        filesystem_path,
        group=TOOLS,
        metavar=PATH,
        help="Real inputs: .npz with an array for each input whose first dimension counts the samples, or the JSON "
        "that perf_analyzer takes. May be given several times. Without any the data is random, and nothing is proven.",
    )
    input: tuple[TensorSpec, ...] = repeatable(
        given_spec,
        group=TOOLS,
        metavar="<name>:<type>:<dims>",
        help="An input of a source that does not tell its own: ids:INT64:tokens, without the batch dimension where "
        "--max-batch-size is not 0. A name stands for a size that varies. May be given several times.",
    )
    max_batch_size: int | None = flag(
        None,
        integer(0, 65_536),
        group=TOOLS,
        metavar=INTEGER,
        help="The largest batch; 0 for tensors without a batch dimension. Where absent, 8 where the model can batch.",
    )
    check: Path | None = flag(  # noqa: RUF009 (a field, as its neighbours)
        None,
        filesystem_path,
        group=TOOLS,
        metavar=PATH,
        help="A Python file of yours with check(inputs, outputs, reference), called for every case of every candidate; "
        "it raises where an answer is not good.",
    )
    tolerance: float | None = flag(
        None,
        share,
        group=TOOLS,
        metavar="<number>",
        help="The greatest error of an element, as a part of its size and the output's usual size together. Where "
        "absent, 0.0001 for fp32 and 0.01 for fp16.",
    )
    cosine: float | None = flag(
        None,
        share,
        group=TOOLS,
        metavar="<number>",
        help="The least cosine of an output, for reduced precision. Where absent, 0.999 for fp16 and 0.99 for int8.",
    )
    top1: float | None = flag(
        None,
        share,
        group=TOOLS,
        metavar="<number>",
        help="For reduced precision, the least share of rows whose greatest element is the reference's; 0 for models "
        "that do not classify. Where absent, 0.99.",
    )
    latency: Bound | None = flag(  # noqa: RUF009 (a field, as its neighbours)
        None,
        given_bound,
        group=TOOLS,
        metavar="<percentile>:<duration>",
        help="What must be kept by the rate that a candidate is chosen for, such as p99:20ms.",
    )
    concurrency: tuple[int, ...] | None = flag(
        None,
        _levels,
        group=TOOLS,
        metavar="<integer>,…",
        help="With how many callers at a time candidates are measured. Where absent, 1,4,16.",
    )
    load_secs: float = flag(
        1.0,
        seconds,
        group=TOOLS,
        metavar="<seconds>",
        help="How long each candidate is measured with each number of callers, twice; 0 to measure nothing.",
    )
    candidate: tuple[tuple[str, str], ...] = repeatable(
        given_candidate,
        group=TOOLS,
        metavar="<name>[:<precision>]=<file>",
        help="A file that something else has converted (.onnx, .xml, .pt2, .pt), which goes through the same gate. May "
        "be given several times.",
    )
    work: Path | None = flag(  # noqa: RUF009 (a field, as its neighbours)
        None,
        filesystem_path,
        group=TOOLS,
        metavar=PATH,
        help="Where logs, scripts, candidates and the report are kept; where absent, <name>.convert here.",
    )
    step_secs: float = flag(900.0, seconds, group=TOOLS, metavar="<seconds>", help="The longest that a step may take.")
    step_memory_mb: int | None = flag(
        None,
        integer(64),
        group=TOOLS,
        metavar=INTEGER,
        help="The most memory that a step may use, in MB. Where absent, three quarters of the machine's.",
    )
    all_must_pass: bool = switch(
        group=TOOLS,
        help="Write nothing, and end with exit code 4, unless every candidate has passed. Where absent, those that "
        "have not are named, and the best of the others is written.",
    )
    force: bool = switch(group=TOOLS, help="Replace a model of this name that is there already.")
    json: bool = switch(group=TOOLS, help="Write the report as JSON, for programs.")
