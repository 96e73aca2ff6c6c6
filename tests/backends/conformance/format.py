"""What the tests want of a format: model files, what it can hold, and the framework called directly.

To add one: a subclass in `<name>_format.py`, and its line in `formats`. Frameworks are imported inside the methods, so
that the tests of a format whose package is missing are skipped and say so.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from numpy.typing import NDArray

from backends.interface import Backend
from backends.registry import BackendRegistry
from protocol.datatypes import DataType
from tests.examples.loading import load_example

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
# The framework called directly: inputs by the configuration's names, with their batch dimension, to outputs.
# Elements of strings are bytes on both sides.
Direct: TypeAlias = Callable[[Arrays], Arrays]


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A configuration that does not fit the model: `rows_model`'s with one text replaced by another, and what the
    load then says (a regular expression)."""

    old: str
    new: str
    says: str


class Format(abc.ABC):
    """One kind of model file of one backend. Methods that write take the model's folder in a repository, and leave a
    whole model there: `config.pbtxt`, which names no instances, and version 1."""

    name: ClassVar[str]
    backend: ClassVar[str]
    # Import names, all of which are needed to make models and to run them.
    packages: ClassVar[tuple[str, ...]] = ()
    # The module in examples/formats/ that makes the three models there.
    example: ClassVar[str]
    # Those of the three that the format can hold.
    models: ClassVar[frozenset[str]] = frozenset({"add_sub", "text", "image"})
    # How the example says that it has no `text`, where it could have the others.
    no_text: ClassVar[str] = ""
    # Datatypes that `identity` can have, and whether its inner dimensions may be of any size.
    datatypes: ClassVar[frozenset[DataType]] = frozenset()
    has_variable_dims: ClassVar[bool] = True
    # Whether such a dimension may be 0.
    has_empty_dims: ClassVar[bool] = True
    # What a load says of a model file that is not there, or that is none; regular expressions.
    missing: ClassVar[str] = "unable to find"
    broken: ClassVar[str]
    contradictions: ClassVar[tuple[Contradiction, ...]] = ()
    # The configuration with which `completing` is to be loaded; None where nothing can be completed.
    minimal_config: ClassVar[str | None] = None
    # What a load says where the framework is not installed, and the packages whose absence makes it say so.
    install: ClassVar[str] = ""
    framework: ClassVar[tuple[str, ...]] = ()
    # Whether its models take long to make or to load.
    is_slow: ClassVar[bool] = False
    # Whether it makes models with large weights, which the server's own process holds.
    has_heavy: ClassVar[bool] = False
    # Where models may lie that are made once for all tests; the processes of a test run have it in common.
    run_folder: Path
    # How far answers may be from the direct ones: other batches may be summed up in another order.
    tolerance: ClassVar[float] = 1e-5

    def backend_class(self) -> type[Backend]:
        """What serves the models."""
        return BackendRegistry().find(self.backend, model="m")

    def example_model(self, model: str, folder: Path) -> None:
        """One of `models`, as `examples/formats` makes it."""
        getattr(load_example(f"formats/{self.example}"), model)(folder)

    def rows_model(self, folder: Path) -> None:
        """A model that batches FP32 rows, with two inputs where the format can have them."""
        self.example_model("add_sub", folder)

    @abc.abstractmethod
    def direct(self, folder: Path) -> Direct:
        """The framework on the model in this folder, without the server."""

    def identity(self, folder: Path, datatype: DataType, dims: int = 1) -> None:
        """`Y` = `X` with a batch dimension and so many others of any size; for formats with `datatypes`."""
        raise NotImplementedError

    def completing(self, folder: Path) -> None:
        """A model with the tensors of `rows_model` and `minimal_config`, to be completed to the configuration of that;
        for formats that have one."""
        self.rows_model(folder)
        assert self.minimal_config is not None
        (folder / "config.pbtxt").write_text(self.minimal_config)

    def heavy(self, folder: Path, megabytes: int) -> None:
        """A model with the tensors of `rows_model` and weights of that size; for formats with `has_heavy`."""
        raise NotImplementedError


def identity_config(backend: str, datatype: DataType, dims: int, *, x: str = "X", y: str = "Y") -> str:
    """The configuration of `Format.identity`."""
    shape = ", ".join(["-1"] * dims)
    return f"""
backend: "{backend}"
max_batch_size: 8
input [ {{ name: "{x}" data_type: {datatype.value} dims: [ {shape} ] }} ]
output [ {{ name: "{y}" data_type: {datatype.value} dims: [ {shape} ] }} ]
dynamic_batching {{ }}
"""
