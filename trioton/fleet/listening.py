"""Where a replica listens: free ports, and the flags that have it listen there."""

from __future__ import annotations

import sys

from trioton.fleet.driver import Address
from trioton.free_ports import free_ports

THIS_INSTALLATION = (sys.executable, "-m", "trioton", "serve")
# What is the balancer's, and no replica's.
FRONT_FLAGS = frozenset(
    (
        *(f"{word}-{what}" for word in ("http", "grpc", "metrics") for what in ("address", "port", "use-ssl")),
        *(f"{word}-{what}" for word in ("http", "grpc") for what in ("server-cert", "server-key", "root-cert")),
        "grpc-use-ssl-mutual",
        "reuse-http-port",
        "reuse-grpc-port",
    )
)


def free_address(host: str, http_port: int = 0, grpc_port: int = 0, metrics_port: int = 0) -> Address:
    """With a free port in place of each 0, see `free_ports`. Raises OSError: the host is none of this machine."""
    return Address(host, *free_ports(host, (http_port, grpc_port, metrics_port)))


def listening(address: Address) -> list[str]:
    """The flags that have a server listen there, without TLS, which the balancer ends: also where a configuration file
    says otherwise."""
    return [
        *(f"--{word}-address={address.host}" for word in ("http", "grpc", "metrics")),
        f"--http-port={address.http_port}",
        f"--grpc-port={address.grpc_port}",
        f"--metrics-port={address.metrics_port}",
        "--allow-http=true",
        "--allow-grpc=true",
        "--allow-metrics=true",
        "--http-use-ssl=false",
        "--metrics-use-ssl=false",
        "--grpc-use-ssl=false",
        "--grpc-use-ssl-mutual=false",
    ]
