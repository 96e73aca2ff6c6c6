"""Environment variables of SageMaker and Vertex AI, as defaults of a server's settings.

Both platforms configure a container by variables with names of their own. Flags, `TRIOTON_` variables and the
configuration file win over them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trioton.flags.fields import Flag, parse_value

_VARIABLES = {
    "SAGEMAKER_TRITON_PING_MODE": "sagemaker-ping-mode",
    "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "sagemaker-default-model",
    "SAGEMAKER_TRITON_INFERENCE_TYPE": "sagemaker-inference-type",
    "AIP_HTTP_PORT": "vertex-ai-port",
    "AIP_PREDICT_ROUTE": "vertex-ai-predict-route",
    "AIP_HEALTH_ROUTE": "vertex-ai-health-route",
}
_STORAGE = "AIP_STORAGE_URI"
_MODE, _PREDICTION = "AIP_MODE", "PREDICTION"


def cloud_defaults(table: Sequence[Flag], environment: Mapping[str, str]) -> dict[str, Any]:
    """Field values of a server's flags. Empty variables are none.

    Raises:
        UsageError: a wrong value.
    """
    by_name = {row.name: row for row in table}
    values = {
        by_name[name].field_name: parse_value(by_name[name], text, variable)
        for variable, name in _VARIABLES.items()
        if (text := environment.get(variable))
    }
    if environment.get(_MODE) == _PREDICTION:
        values |= {"allow_vertex_ai": True, "allow_http": False, "allow_grpc": False}
    return values


def cloud_repository(table: Sequence[Flag], environment: Mapping[str, str]) -> tuple[Any, ...]:
    """The repository where no other is given. Raises as `cloud_defaults`."""
    text = environment.get(_STORAGE)
    row = next(row for row in table if row.name == "model-repository")
    return (parse_value(row, text, _STORAGE),) if text else ()
