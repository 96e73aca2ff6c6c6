"""All formats, and the parameters of the tests over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.backends.conformance.fil_format import (
    CheckpointFormat,
    LightGbmFormat,
    XgboostJsonFormat,
    XgboostUbjFormat,
)
from tests.backends.conformance.format import Format
from tests.backends.conformance.jax_format import JaxFormat
from tests.backends.conformance.onnxruntime_format import OnnxFormat
from tests.backends.conformance.openvino_format import OpenVinoFormat
from tests.backends.conformance.python_format import PythonFormat
from tests.backends.conformance.pytorch_format import (
    CompiledFormat,
    ExportedFormat,
    ModuleFormat,
    TorchScriptFormat,
)
from tests.backends.conformance.tensorflow_format import GraphDefFormat, SavedModelFormat

# Compilers, and workers that import a large package, may take this long on a busy machine.
SLOW_SECONDS = 600

FORMATS: tuple[Format, ...] = (
    OnnxFormat(),
    OpenVinoFormat(),
    JaxFormat(),
    PythonFormat(),
    TorchScriptFormat(),
    ExportedFormat(),
    CompiledFormat(),
    ModuleFormat(),
    XgboostJsonFormat(),
    XgboostUbjFormat(),
    LightGbmFormat(),
    CheckpointFormat(),
    SavedModelFormat(),
    GraphDefFormat(),
)


def each_format(is_wanted: Callable[[Format], bool] = lambda _: True) -> pytest.MarkDecorator:
    """For a test with the argument `form`: once for each format that can do what it is about."""
    found = [pytest.param(form, id=form.name, marks=_marks(form)) for form in FORMATS if is_wanted(form)]
    return pytest.mark.parametrize("form", found, indirect=True)


def each_of(
    name: str, values: Callable[[Format], Iterable[Any]], *, label: Callable[[Any], str]
) -> pytest.MarkDecorator:
    """For a test with the arguments `form` and `name`: once for each value that a format has."""
    found = [
        pytest.param(form, value, id=f"{form.name}-{label(value)}", marks=_marks(form))
        for form in FORMATS
        for value in values(form)
    ]
    return pytest.mark.parametrize(("form", name), found, indirect=["form"])


def _marks(form: Format) -> list[pytest.MarkDecorator]:
    return [pytest.mark.timeout(SLOW_SECONDS)] if form.is_slow else []
