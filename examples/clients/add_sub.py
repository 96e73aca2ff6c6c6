"""Adds and subtracts two vectors on the server, with the Python model `add_sub`.

python examples/clients/add_sub.py [-i grpc] [-u HOST:PORT]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
from connection import Server, command_line, run

LENGTH = 16


@dataclass(frozen=True)
class Sums:
    left: np.ndarray  # FP32 [1, 16], as all of these
    right: np.ndarray
    added: np.ndarray
    subtracted: np.ndarray


def add_and_subtract(server: Server) -> Sums:
    # The first dimension is the batch: this request brings one row, and the server may run it together with others.
    left = np.arange(LENGTH, dtype=np.float32).reshape(1, LENGTH)
    right = np.full((1, LENGTH), 10, dtype=np.float32)
    added, subtracted = server.infer("add_sub", {"INPUT0": left, "INPUT1": right}, ["OUTPUT0", "OUTPUT1"])
    return Sums(left, right, added, subtracted)


def describe(sums: Sums) -> list[str]:
    columns = zip(sums.left[0], sums.right[0], sums.added[0], sums.subtracted[0], strict=True)
    lines = [f"{a:2g} + {b:g} = {total:2g}    {a:2g} - {b:g} = {rest:3g}" for a, b, total, rest in columns]
    return [*lines[:2], "…", lines[-1]]


def main() -> int:
    arguments = command_line("Add and subtract two vectors on the server.").parse_args()
    return run(arguments, lambda server: describe(add_and_subtract(server)))


if __name__ == "__main__":
    sys.exit(main())
