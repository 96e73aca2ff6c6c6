"""perf_analyzer's command line, read as getopt_long reads it, to `Options`. Pure but for looks at files it names."""

from __future__ import annotations

import getopt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trioton.perf.data.inputs import GivenShape, given_shape
from trioton.perf_analyzer.options import OptionError, Options, Range, ServiceKind, WindowKind
from trioton.perf_analyzer.values import choice, number, parameter, positive, whole

Take = Callable[["Given", str], None]
"""Notes an option's value. Raises ValueError with what was expected."""


@dataclass(slots=True)
class Given:
    """What was read so far: fields of `Options`, and options that only matter together."""

    fields: dict[str, Any] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    present: set[str] = field(default_factory=set)
    headers: list[tuple[str, str]] = field(default_factory=list)
    shapes: list[GivenShape] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    old_concurrency: int = 1
    old_limit: int = 0


def parse(words: Sequence[str]) -> Options:
    """Raises OptionError: an option that there is not, a wrong value, or options that do not go together."""
    long = [f"{name}=" if row.takes_value else name for name, row in OPTIONS.items() if len(name) > 1]
    short = "".join(f"{name}:" if row.takes_value else name for name, row in OPTIONS.items() if len(name) == 1)
    try:
        pairs, _ = getopt.gnu_getopt(list(words), short, long)  # stray words are ignored, as by the original
    except getopt.GetoptError as error:
        raise OptionError(f"Error: {error.msg}") from None
    given = Given()
    for name, value in pairs:
        key = name.lstrip("-")
        row = OPTIONS[key]
        row = OPTIONS[row.alias] if row.alias else row
        given.present.add(row.name)
        if row.refusal:
            raise OptionError(f"{name} is not supported: {row.refusal}")
        try:
            row.take(given, value)
        except ValueError as error:
            raise OptionError(f"Failed to parse {name}. {error}, got '{value}'.") from None
        if row.note:
            given.notes.append(f"{name} {row.note}")
    options = _options(given)
    _check(options, given)
    return options


@dataclass(frozen=True, slots=True)
class Row:
    """One option. `alias` is another one's name; one with a `refusal` is not to be given."""

    name: str
    take: Take
    takes_value: bool = True
    alias: str = ""
    refusal: str = ""
    note: str = ""


def _set(field_name: str, read: Callable[[str], Any]) -> Take:
    def take(given: Given, text: str) -> None:
        given.fields[field_name] = read(text)

    return take


def _true(field_name: str) -> Take:
    return _set(field_name, lambda _: True)


def _nothing(given: Given, text: str) -> None:
    pass


def _concurrency(given: Given, text: str) -> None:
    given.fields["concurrency"] = _range(text, whole)


def _rates(given: Given, text: str) -> None:
    given.fields["rates"] = _range(text, number)


def _range(text: str, read: Callable[[str], float]) -> Range:
    parts = text.split(":")
    if len(parts) > 3:
        raise ValueError("The value does not match <start:end:step>")
    values = [read(part) for part in parts]
    if values[0] <= 0:
        raise ValueError("The start of the search range must be > 0")
    start, end, step = (*values, *(1.0, 1.0, 1.0)[len(values) :])
    if step <= 0:
        raise ValueError("The step of the search range must be > 0")
    return Range(start, end, step)


def _input_data(given: Given, text: str) -> None:
    if text in ("zero", "random"):
        given.fields["is_zero"] = text == "zero"
    elif Path(text).exists():
        given.words.append(text)
    else:
        raise ValueError("The available options are 'zero', 'random', path to a directory, or a json file")


def _header(given: Given, text: str) -> None:
    name, _, value = text.partition(":")
    given.headers.append((name, value))


def _parameter(given: Given, text: str) -> None:
    name, value = parameter(text)
    given.parameters[name] = value


def _sequence_ids(given: Given, text: str) -> None:
    first, colon, last = text.partition(":")
    start, end = whole(first), whole(last) if colon else 0
    if start < 0 or (colon and end <= start):
        raise ValueError("The 'end' value must be greater than the 'start' value, which must be >= 0")
    given.fields["first_sequence"] = start or 1
    given.fields["last_sequence"] = end


def _composing(given: Given, text: str) -> None:
    parts = [part.strip().partition(":") for part in text.split(",") if part.strip()]
    given.fields["composing"] = tuple((name, version) for name, _, version in parts)


def _export(given: Given, text: str) -> None:
    if Path(text).exists():
        raise ValueError("Path must not already exist")
    given.fields["export"] = Path(text)


def _file(text: str) -> str:
    if not Path(text).is_file():
        raise ValueError("The value must be a valid file path")
    return text


def _must_be(*words: str, because: str) -> Take:
    """Takes only what is the default."""

    def take(given: Given, text: str) -> None:
        if text.lower() not in words:
            raise ValueError(f"only {' or '.join(words)} is supported ({because})")

    return take


def _shape(given: Given, text: str) -> None:
    given.shapes.append(given_shape(text))


def _old_concurrency(given: Given, text: str) -> None:
    given.old_concurrency = int(positive(text))


def _old_limit(given: Given, text: str) -> None:
    given.old_limit = int(positive(text))


def _verbose(given: Given, text: str) -> None:
    given.fields["verbosity"] = min(2, given.fields.get("verbosity", 0) + 1)


def _percent(text: str) -> int | None:
    value = int(whole(text))
    if value != -1 and not 1 <= value <= 99:
        raise ValueError("The value must be -1 for not reporting or in range (0, 100)")
    return None if value == -1 else value


def _milliseconds(read: Callable[[str], float]) -> Callable[[str], float]:
    return lambda text: read(text) / 1000


_OTHER_SERVERS = "it measures servers that speak KServe's or OpenAI's protocol"
_CLIENT_KEYS = "client certificates"
_IN_DETAIL = "the perf_analyzer of NVIDIA has it; see docs/perf-analyzer.md"

_ROWS = (
    Row("m", _set("model", str)),
    Row("x", _set("version", str)),
    Row("u", _set("address", str)),
    Row("i", _set("is_grpc", lambda text: choice("http", "grpc")(text.lower()) == "grpc")),
    Row("b", _set("batch", lambda text: int(positive(text)))),
    Row("service-kind", _set("kind", lambda text: ServiceKind(choice(*ServiceKind)(text)))),
    Row("endpoint", _set("endpoint", str)),
    Row("streaming", _true("is_streaming"), False),
    Row("async", _true("is_async"), False),
    Row("a", _nothing, False, "async"),
    Row("sync", _nothing, False),
    Row("v", _verbose, False),
    Row("H", _header),
    Row("request-parameter", _parameter),
    # Load.
    Row("concurrency-range", _concurrency),
    Row("request-rate-range", _rates),
    Row("request-distribution", _set("is_poisson", lambda text: choice("constant", "poisson")(text) == "poisson")),
    Row("request-intervals", _set("intervals", lambda text: Path(_file(text)))),
    Row("fixed-schedule", _true("is_scheduled"), False),
    Row("binary-search", _true("is_binary_search"), False),
    Row("max-threads", _nothing),
    Row("t", _old_concurrency),
    Row("c", _old_limit),
    Row("d", _nothing, False),
    Row("periodic-concurrency-range", _nothing, refusal=_IN_DETAIL),
    Row("request-period", _nothing, refusal=_IN_DETAIL),
    Row("session-concurrency", _nothing, refusal=_IN_DETAIL),
    # Measurement.
    Row("measurement-mode", _set("window", lambda text: WindowKind(choice(*WindowKind)(text)))),
    Row("measurement-interval", _set("window_seconds", _milliseconds(positive))),
    Row("p", _nothing, alias="measurement-interval"),
    Row("measurement-request-count", _set("window_requests", lambda text: int(positive(text)))),
    Row("request-count", _set("request_count", lambda text: int(whole(text, least=0)))),
    Row("warmup-request-count", _set("warmup_requests", lambda text: int(whole(text, least=0)))),
    Row("stability-percentage", _set("stability", lambda text: number(text, least=0) / 100)),
    Row("s", _nothing, alias="stability-percentage"),
    Row("max-trials", _set("trials", lambda text: int(positive(text)))),
    Row("r", _nothing, alias="max-trials"),
    Row("percentile", _set("percent", _percent)),
    Row("latency-threshold", _set("latency_limit", _milliseconds(lambda text: number(text, least=0)))),
    Row("l", _nothing, alias="latency-threshold"),
    # Data.
    Row("input-data", _input_data),
    Row("data-directory", _nothing, alias="input-data"),
    Row("z", _true("is_zero"), False),
    Row("shape", _shape),
    Row("string-length", _set("string_length", lambda text: int(positive(text)))),
    Row("string-data", _set("string_data", str)),
    Row("sequence-length", _set("sequence_length", lambda text: max(0, int(whole(text))))),
    Row("sequence-length-variation", _set("sequence_variation", lambda text: number(text, least=0) / 100)),
    Row("num-of-sequences", _set("sequences", lambda text: int(positive(text)))),
    Row("sequence-id-range", _sequence_ids),
    Row("serial-sequences", _nothing, False),
    Row("shared-memory", _set("shared_memory", lambda text: choice("none", "system")(text) == "system")),
    Row("output-shared-memory-size", _set("output_bytes", lambda text: int(whole(text, least=0)))),
    Row("input-tensor-format", _must_be("binary", because="tensors are sent as bytes")),
    Row("output-tensor-format", _nothing, note="has no effect: outputs come as the server sends them by default"),
    # Transport.
    Row("ssl-grpc-use-ssl", _true("uses_tls"), False),
    Row("ssl-grpc-root-certifications-file", _set("ca_file", _file)),
    Row("ssl-grpc-private-key-file", _nothing, refusal=_CLIENT_KEYS),
    Row("ssl-grpc-certificate-chain-file", _nothing, refusal=_CLIENT_KEYS),
    Row("ssl-https-verify-peer", _must_be("1", because="certificates are verified")),
    Row("ssl-https-verify-host", _must_be("2", because="certificates are verified")),
    Row("ssl-https-ca-certificates-file", _set("ca_file", _file)),
    Row("ssl-https-client-certificate-file", _nothing, refusal=_CLIENT_KEYS),
    Row("ssl-https-client-certificate-type", _nothing, refusal=_CLIENT_KEYS),
    Row("ssl-https-private-key-file", _nothing, refusal=_CLIENT_KEYS),
    Row("ssl-https-private-key-type", _nothing, refusal=_CLIENT_KEYS),
    Row("grpc-compression-algorithm", _must_be("none", because="requests are not compressed")),
    # Reports.
    Row("f", _set("csv", Path)),
    Row("verbose-csv", _true("has_verbose_csv"), False),
    Row("profile-export-file", _export),
    Row("collect-metrics", _true("collects_metrics"), False),
    Row("metrics-url", _set("metrics_url", str)),
    Row("metrics-interval", _set("metrics_seconds", _milliseconds(positive))),
    Row("bls-composing-models", _composing),
    # What belongs to other servers, or to a server's own settings.
    Row("model-signature-name", _nothing, note="has no effect: it is for TensorFlow Serving"),
    Row("grpc-method", _nothing, note="has no effect: it is for the service kind dynamic_grpc"),
    Row("triton-server-directory", _nothing, refusal=_OTHER_SERVERS),
    Row("model-repository", _nothing, refusal=_OTHER_SERVERS),
    Row("enable-mpi", _nothing, False, note="has no effect: there is no MPI run"),
    Row("trace-level", _must_be("off", because="set traces by the server's trace settings")),
    Row("trace-rate", _nothing, note="has no effect without --trace-level"),
    Row("trace-count", _nothing, note="has no effect without --trace-level"),
    Row("log-frequency", _nothing, note="has no effect without --trace-level"),
)
OPTIONS: Mapping[str, Row] = {row.name: row for row in _ROWS}


def _options(given: Given) -> Options:
    if not given.fields.get("model"):
        raise OptionError("Failed to parse -m (model name). The value must be specified.")
    fields = given.fields
    if given.present & {"t", "c"} and "concurrency" not in fields:
        last = given.old_limit if "d" in given.present else given.old_concurrency
        fields["concurrency"] = Range(given.old_concurrency, last, 1)
    if fields.get("request_count"):  # one window, of exactly so many
        fields["window"] = WindowKind.COUNT
    return Options(
        **fields,
        words=tuple(given.words),
        headers=tuple(given.headers),
        shapes=tuple(given.shapes),
        parameters=tuple(given.parameters.items()),
        notes=tuple(given.notes),
    )


def _check(options: Options, given: Given) -> None:
    """Raises OptionError where options do not go together."""
    present = given.present
    loads = present & {"concurrency-range", "request-rate-range", "request-intervals", "fixed-schedule"}
    levels = options.levels
    is_ranged = not levels.is_single
    is_sequential_data = options.is_scheduled and not options.words
    wrong = {
        "Cannot specify --async and --sync simultaneously.": {"async", "sync"} <= present,
        f"Cannot use {' and '.join(f'--{name}' for name in sorted(loads))} together.": len(loads) > 1,
        "Streaming is only allowed with gRPC protocol.": (
            options.is_streaming and not options.is_grpc and options.kind is ServiceKind.TRITON
        ),
        "The -z flag cannot be set when --input-data is a path.": options.is_zero and bool(options.words),
        "The end of the search range and the latency limit can not be both 0 (or 0.0) simultaneously": (
            levels.is_open and not options.latency_limit
        ),
        "The end of the range can not be 0 (or 0.0) for binary search mode.": (
            levels.is_open and options.is_binary_search
        ),
        "The --latency-threshold cannot be 0 for binary search mode.": (
            options.is_binary_search and not options.latency_limit
        ),
        "--request-count not supported with multiple levels in one run": bool(options.request_count) and is_ranged,
        "--warmup-request-count not supported with multiple levels in one run": (
            bool(options.warmup_requests) and is_ranged
        ),
        "--request-count can not be less than concurrency": (
            not options.is_rate and 0 < options.request_count < options.concurrency.start
        ),
        'Must supply --endpoint for OpenAI service kind. For example, "v1/chat/completions".': (
            options.kind is ServiceKind.OPENAI and not options.endpoint
        ),
        "Must supply --input-data for OpenAI service kind.": (options.kind is ServiceKind.OPENAI and not options.words),
        "Batching is not supported with OpenAI service kind.": (
            options.kind is ServiceKind.OPENAI and options.batch != 1
        ),
        "When using --fixed-schedule, a dataset must be given by --input-data.": is_sequential_data,
        "Must enable --verbose-csv and -f to use the --collect-metrics option.": (
            options.collects_metrics and not options.has_verbose_csv
        ),
    }
    for text, is_wrong in wrong.items():
        if is_wrong:
            raise OptionError(text)
