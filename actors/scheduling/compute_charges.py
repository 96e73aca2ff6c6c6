"""Compute time of a batch, charged to the keys of its requests by their rows. Without keys nothing is charged."""

from __future__ import annotations

from actors.mail.messages import BatchDone
from protocol.quotas.quota import Unit


def charge_compute(done: BatchDone) -> float | None:
    """Charge an executed batch, once. Returns the seconds that each of its rows has taken; None where it was not
    measured."""
    timing = done.timing
    if timing is None:
        return None
    seconds = (timing.compute_input_ns + timing.compute_infer_ns + timing.compute_output_ns) / 1e9
    per_row = seconds / max(1, sum([item.batch_size for item in done.batch]))
    for item in done.batch:
        if item.request.charge is not None:
            item.request.charge.settle(Unit.COMPUTE_SECONDS, per_row * item.batch_size)
    return per_row
