"""What an edge process is started with. It comes to it by its standard input, from the process that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trioton.settings import Address, Settings


@dataclass(frozen=True, slots=True)
class EdgeStart:
    """`number` counts the edge processes from 1 to `count`; `addresses` is where clients reach the services that they
    serve, by the words of their flags. `memory` is what this one may hold of responses, in bytes."""

    number: int
    count: int
    settings: Settings
    addresses: Mapping[str, Address]
    memory: int
