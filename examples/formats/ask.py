"""Asks the models that `build.py` has built, and checks their answers: `python examples/formats/ask.py [-u HOST:PORT]`.

Models that the server does not have are left out. Needs: pip install 'tritonclient[http]'
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np
import tritonclient.http as triton
from build import FORMATS
from three_models import ANSWERS, sample
from tritonclient.utils import np_to_triton_dtype

ROWS = 3


def ask(client: triton.InferenceServerClient, format_name: str, model: str) -> bool:
    """Whether the server has this model; what it answers is compared with numpy's answer.

    Raises:
        AssertionError: it differs.
        InferenceServerException: the server refuses the request.
    """
    name = f"{format_name}_{model}"
    if not client.is_model_ready(name):
        return False
    arrays = sample(model, ROWS)
    inputs = []
    for key, array in arrays.items():
        tensor = triton.InferInput(key, array.shape, np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    result = client.infer(name, inputs)
    for key, expected in ANSWERS[model](arrays).items():
        found = result.as_numpy(key)
        if expected.dtype == np.object_:
            np.testing.assert_array_equal(found, expected, f"{name}, {key}")
        else:
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=f"{name}, {key}")
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Ask the models of every format, and check their answers.")
    parser.add_argument("-u", "--url", default="localhost:8000", help="the server (default %(default)s)")
    options = parser.parse_args(arguments)
    with triton.InferenceServerClient(options.url) as client:
        for format_name in FORMATS:
            answered = [model for model in ANSWERS if ask(client, format_name, model)]
            found = f"{', '.join(answered)} as expected" if answered else "not served"
            print(f"{format_name}: {found}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
