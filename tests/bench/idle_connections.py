"""What a connection costs a server that does nothing: `python -m tests.bench.idle_connections`.

A server in a process of its own gets 10,000 connections over HTTP/1, HTTP/2 and gRPC, plain and by TLS, which were
only opened, or have had an answer; then they sit. What the server's process has grown by is shared by all of them; what
the kernel keeps for a socket is not in it. Each row has a server of its own. `--source FOLDER` measures the server of
another checkout, `--peer` NVIDIA's server beside ours.
"""

from __future__ import annotations

import argparse
import ssl
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.held_connections import Kind, allow_descriptors, client_context, held, kinds
from tests.bench.memory import process_memory
from tests.bench.peers import SOURCE, Peer, PeerError, Server, in_process, our_server, their_server
from tests.bench.prepare import PreparationError, prepare
from tests.bench.processor import tree_times
from tests.bench.table import table

CONNECTIONS = 10_000
SETTLE_SECONDS = 3.0
LOOK_SECONDS = 10.0
IDLE_MILLISECONDS = 3_600_000  # to open so many takes a while
# Connections that come first: what a server makes once is not theirs.
FIRST = 100


@dataclass(frozen=True, slots=True)
class Idle:
    """Bytes of the server for each connection, seconds of the processor for all of them in a second."""

    label: str
    opened: float
    asked: float
    processor: float


def measure(peer: Peer, kind: Kind, count: int, folder: Path, certificate: Path | None) -> Idle:
    """Raises OSError, PeerError."""
    context = ready_context = None
    if certificate is not None:
        authority = certificate.with_suffix(".authority")
        context, ready_context = client_context(authority, kind.protocol), client_context(authority, "http/1.1")
        peer = over_tls(peer, kind, certificate)
    label = f"{peer.name}: {kind.name}{'' if context is None else ', TLS'}"
    opened, _ = _grown(peer, kind, count, folder, context, ready_context, asks=False)
    asked, processor = _grown(peer, kind, count, folder, context, ready_context, asks=True)
    return Idle(label, opened, asked, processor)


def _grown(
    peer: Peer,
    kind: Kind,
    count: int,
    folder: Path,
    context: ssl.SSLContext | None,
    ready_context: ssl.SSLContext | None,
    *,
    asks: bool,
) -> tuple[float, float]:
    # The one that asks whether it is ready speaks HTTP/1.1, whatever `kind` does.
    server = Server(peer, folder / "log", context=ready_context if kind.port == "http" else None)
    server.start()
    try:
        assert server.process is not None
        pid = server.process.pid
        port = server.ports[0 if kind.port == "http" else 1]
        with held(FIRST, port, kind, asks=True, context=context):
            pass
        time.sleep(SETTLE_SECONDS)
        before = process_memory(pid).resident
        with held(count, port, kind, asks=asks, context=context):
            time.sleep(SETTLE_SECONDS)
            times = tree_times(pid)
            time.sleep(LOOK_SECONDS)
            used = tree_times(pid) - times
            return (process_memory(pid).resident - before) / count, used.total / LOOK_SECONDS
    finally:
        server.stop()


def over_tls(peer: Peer, kind: Kind, certificate: Path) -> Peer:
    edge = kind.port
    flags = (f"--{edge}-use-ssl=true", f"--{edge}-server-cert={certificate}", f"--{edge}-server-key={certificate}")
    return replace(peer, command=(*peer.command, *flags))


def make_certificate(file: Path) -> None:
    """One that vouches for itself, and its key."""
    import trustme

    authority = trustme.CA()
    own = authority.issue_cert("localhost")
    file.write_bytes(own.private_key_pem.bytes() + b"".join(each.bytes() for each in own.cert_chain_pems))
    file.with_suffix(".authority").write_bytes(authority.cert_pem.bytes())


def report(found: Sequence[Idle]) -> str:
    header = ["connections", "opened, kB each", "after an answer, kB each", "processor while idle"]
    lines = [
        [idle.label, f"{idle.opened / 1000:.1f}", f"{idle.asked / 1000:.1f}", f"{idle.processor:.1%}"] for idle in found
    ]
    return table(header, lines, text_columns=1)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.idle_connections", description="Measure idle clients.")
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help="how many (default %(default)s)")
    parser.add_argument("--kinds", nargs="+", choices=[kind.name for kind in kinds()], help="only these")
    parser.add_argument("--tls", action="store_true", help="by TLS too")
    parser.add_argument("--source", type=Path, default=SOURCE, help="the checkout whose server is measured")
    parser.add_argument("--peer", action="store_true", help="NVIDIA's server too, plain")
    options = parser.parse_args(arguments)
    if allow_descriptors() < options.connections + 200:
        sys.exit(f"error: {options.connections} connections need as many descriptors: raise ulimit -n")
    found: list[Idle] = []
    chosen = [kind for kind in kinds() if not options.kinds or kind.name in options.kinds]
    with TemporaryDirectory() as name:
        folder = Path(name)
        certificate = folder / "certificate.pem"
        if options.tls:
            make_certificate(certificate)
        ours = in_process(our_server(options.source), folder)
        limits = [f"--{edge}-max-connections={options.connections + FIRST + 100}" for edge in ("http", "grpc")]
        limits.append(f"--http-idle-timeout={IDLE_MILLISECONDS}")
        ours = replace(ours, command=(*ours.command, *limits), name="trioton")
        try:
            runs: list[tuple[Peer, Kind, Path | None]] = [(ours, kind, None) for kind in chosen]
            runs += [(ours, kind, certificate) for kind in chosen if options.tls]
            if options.peer:  # whose REST speaks no HTTP/2
                runs += [(their_server(prepare()), kind, None) for kind in chosen if kind.name != "HTTP/2"]
            for peer, kind, trusted in runs:
                found.append(measure(peer, kind, options.connections, folder, trusted))
        except (PreparationError, PeerError, OSError) as error:
            sys.exit(f"error: {error}")
        finally:
            print(report(found), flush=True)


if __name__ == "__main__":
    main()
