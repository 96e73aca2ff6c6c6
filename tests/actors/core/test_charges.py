"""What requests compute is charged to their key, whichever kind of model answers them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protocol.messages import InferenceRequest, Tensor
from protocol.quotas.accounts import Ledger, Terms
from tests.actors.core.test_server_core import add_model, running
from tests.actors.fakes import TIMING

TENSORS = """
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
PLAIN = f'backend: "fake" max_batch_size: 4 {TENSORS}'
ENSEMBLE = f"""platform: "ensemble" max_batch_size: 4 {TENSORS}
ensemble_scheduling {{ step [
  {{ model_name: "plain" model_version: -1 input_map {{ key: "IN" value: "IN" }}
     output_map {{ key: "OUT" value: "OUT" }} }}
] }}
"""
MODELS = {
    "plain": PLAIN,
    "batching": f"{PLAIN} dynamic_batching {{ }}",
    "sequences": f"{PLAIN} sequence_batching {{ }}",
    "ensemble": ENSEMBLE,
}


@pytest.mark.parametrize("model", MODELS)
async def test_compute_time_is_charged(tmp_path: Path, model: str) -> None:
    """And that of requests without a key to nobody."""
    for name in {"plain", model}:
        add_model(tmp_path, name, config=MODELS[name])
    ledger = Ledger(lambda: 0.0)
    ledger.adopt([Terms("alice")])
    account = ledger.account("alice")
    async with running(tmp_path) as core:
        for number in range(1, 7):
            request = InferenceRequest(model, [Tensor.from_numpy("IN", np.ones((1, 1), np.float32))])
            if model == "sequences":
                request.sequence_id, request.sequence_start, request.sequence_end = number, True, True
            if number % 2:
                request.charge = account.admit(model)
            await core.infer(request)
            if request.charge is not None:
                request.charge.end()
    assert account.usage.requests == 3
    seconds = (TIMING.compute_input_ns + TIMING.compute_infer_ns + TIMING.compute_output_ns) / 1e9
    assert account.usage.compute_seconds == pytest.approx(3 * seconds)
