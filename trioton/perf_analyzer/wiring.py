"""From options to what `perf` measures: target, data, and the load of a level. Blocks where it reads data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from trioton.perf.arrivals import Constant, Listed, Poisson, from_file
from trioton.perf.caller import DataError, ModelDescription
from trioton.perf.controls import NO_METRICS
from trioton.perf.data.generated import Generated
from trioton.perf.data.model_data import ModelData, is_sequential
from trioton.perf.data.payloads import Form
from trioton.perf.data.regions import SystemMemory
from trioton.perf.data.sequences import Sequences
from trioton.perf.data.sources import RANDOM, ZERO, Sources, arrival_times
from trioton.perf.load import Closed, Load, Open
from trioton.perf.target import Target, Wire
from trioton.perf_analyzer.options import OptionError, Options, ServiceKind

_HTTP, _GRPC, _METRICS = "localhost:8000", "localhost:8001", "localhost:8002/metrics"
# Requests in flight for which one gRPC connection has room; more are spread over several.
_OF_A_CONNECTION = 32
_MOST_CONNECTIONS = 16


@dataclass(frozen=True, slots=True)
class Once:
    """Implements `Arrivals`: gaps that were written down, once."""

    seconds: tuple[float, ...]

    def gaps(self, rate: float, seed: int) -> Iterator[float]:
        return iter(self.seconds)


def wire_of(options: Options) -> Wire:
    if options.kind is ServiceKind.OPENAI:
        return Wire.OPENAI
    if not options.is_grpc:
        return Wire.HTTP
    return Wire.STREAM if options.is_streaming else Wire.GRPC


def target_of(options: Options) -> Target:
    """Without its metrics, which are read apart from the statistics."""
    wire = wire_of(options)
    address, is_https, path = _place(options.address or (_GRPC if options.is_grpc else _HTTP))
    if wire is Wire.OPENAI:
        path = "/".join(["", *(part.strip("/") for part in (path, options.endpoint) if part.strip("/"))])
    elif path.strip("/"):
        raise OptionError(f"-u takes <host>:<port>, got '{options.address}'")
    return Target(
        wire=wire,
        model=options.model,
        address=address,
        version=options.version,
        path=path if wire is Wire.OPENAI else "",
        headers=options.headers,
        metrics_url=NO_METRICS,
        tls=options.uses_tls if options.is_grpc else is_https,
        ca_file=options.ca_file,
        connections=_connections(options, wire),
    )


def metrics_target(options: Options) -> Target:
    """The same with the place of its metrics: by default port 8002 of the same host."""
    target = target_of(options)
    url = options.metrics_url
    if not url:
        host = target.address.rpartition(":")[0]
        url = f"{host}:{_METRICS.partition(':')[2]}" if options.address else _METRICS
    if "://" not in url:
        url = f"http://{url}"
    return replace(target, metrics_url=url)


def data_of(options: Options, model: ModelDescription) -> ModelData:
    """What is sent. Sequences are as many as requests are in flight, or so many as it says at a rate."""
    form = Form.OPENAI if options.kind is ServiceKind.OPENAI else Form.TENSORS
    generated = Generated(string_length=options.string_length, string_data=options.string_data)
    words = options.words or (ZERO if options.is_zero else RANDOM,)
    return ModelData(
        sources=Sources(words=words, shapes=options.shapes, generated=generated),
        form=form,
        batch=options.batch,
        parameters=dict(options.parameters),
        sequences=Sequences(
            active=options.sequences if options.is_rate else 0,
            length=options.sequence_length,
            variation=options.sequence_variation,
            first_id=options.first_sequence,
            end_id=options.last_sequence,
        ),
        is_sequential=is_sequential(model),
        memory=SystemMemory(output_bytes=options.output_bytes) if options.shared_memory else None,
        keeps_responses=options.export is not None,
        body_members={"model": options.model, "stream": options.is_streaming} if form is Form.OPENAI else {},
    )


def load_of(options: Options, level: float, gaps: Sequence[float] = ()) -> Load:
    """Of one level. `gaps` are those of a file, or of a schedule."""
    if options.is_scheduled:
        return Open(0, Once(tuple(gaps)))
    if options.intervals is not None:
        return Open(0, Listed(tuple(gaps)))
    if options.rates is not None:
        return Open(level, Poisson() if options.is_poisson else Constant())
    return Closed(int(level))


def gaps_of(options: Options, model: ModelDescription) -> list[float]:
    """Seconds between requests, where a file or the data say them; else none.

    Raises:
        OptionError: the file has none.
        DataError: entries of the data have no time.
    """
    if options.intervals is not None:
        try:
            return list(from_file(options.intervals).seconds)
        except (OSError, ValueError) as error:
            raise OptionError(f"--request-intervals: {error}") from None
    if not options.is_scheduled:
        return []
    data = data_of(options, model)
    times = arrival_times(data.sources.load(model, data.form))
    gaps = [times[0], *(later - earlier for earlier, later in itertools.pairwise(times))]
    if not any(gaps):
        raise DataError("with --fixed-schedule entries of the data need different times")
    return gaps


def level_of_gaps(gaps: Sequence[float]) -> float:
    """The rate of a file's gaps, which is reported as the level."""
    return len(gaps) / sum(gaps) if sum(gaps) else 0.0


def _connections(options: Options, wire: Wire) -> int:
    """For gRPC. A stream answers in order, so at a concurrency each request has its own, as with the original: one
    that waits, such as the first of a sequence for which there is no slot, holds up none of the others."""
    if options.is_rate:
        return 1
    most = int(max(options.levels.start, options.levels.end))
    return max(1, min(_MOST_CONNECTIONS, most if wire is Wire.STREAM else -(-most // _OF_A_CONNECTION)))


def _place(address: str) -> tuple[str, bool, str]:
    """Host and port, whether by TLS, and the path of a URL or an address."""
    scheme, mark, rest = address.partition("://")
    if not mark:
        scheme, rest = "http", address
    if scheme not in ("http", "https"):
        raise OptionError(f"-u takes <host>:<port> or a URL of http or https, got '{address}'")
    place, _, path = rest.partition("/")
    if ":" not in place.rpartition("]")[2]:
        place = f"{place}:{443 if scheme == 'https' else 80}"
    return place, scheme == "https", path
