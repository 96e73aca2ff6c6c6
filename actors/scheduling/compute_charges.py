"""Compute time of a batch, charged to the keys of its requests by their rows. Without keys nothing is charged."""

from __future__ import annotations

from actors.mail.messages import BatchDone
from protocol.quotas.quota import Unit


def charge_compute(done: BatchDone) -> None:
    """Charge an executed batch, once."""
    timing = done.timing
    if timing is None:
        return
    for item in done.batch:
        if item.request.charge is not None:
            break
    else:
        return
    seconds = (timing.compute_input_ns + timing.compute_infer_ns + timing.compute_output_ns) / 1e9
    rows = sum([item.batch_size for item in done.batch])
    for item in done.batch:
        if item.request.charge is not None:
            item.request.charge.settle(Unit.COMPUTE_SECONDS, seconds * item.batch_size / max(rows, 1))
