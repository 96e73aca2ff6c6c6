"""SavedModel files: choice of the graph and signature, tensor signatures, and loading."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from backends.interface import ModelSource
from backends.tensorflow.errors import load_errors
from backends.tensorflow.library import tf, v1
from backends.tensorflow.options import DEFAULT_SIGNATURE, TensorFlowOptions
from backends.tensorflow.tensors import ModelTensor, ModelTensors, described
from protocol.errors import InvalidArgument, Unavailable, Unsupported
from repository.model_config import Dims

logger = logging.getLogger("trioton.tensorflow")

# Signatures that are for loaders, not for clients.
_OF_LOADERS = frozenset({"__saved_model_init_op", "__saved_model_train_op"})


@dataclass(frozen=True, slots=True)
class SavedModelFile:
    """`tags` are the graph's, by which the library finds it again. `graph` is empty, and for one session."""

    path: Path
    tags: frozenset[str]
    tensors: ModelTensors
    graph: Any

    def load_into(self, session: Any, source: ModelSource, device: str | None) -> None:
        """Bring nodes, variables and tables into the graph and its session: to the `device`, or without one where the
        file has them."""
        with load_errors(source.name, "loading the SavedModel"), self.graph.as_default(), tf.device(device):
            v1.saved_model.load(session, sorted(self.tags), str(self.path), clear_devices=device is not None)


def read_saved_model(path: Path, source: ModelSource, options: TensorFlowOptions) -> SavedModelFile:
    """Choose graph and signature; no variable is read.

    Raises:
        Unavailable: there is no SavedModel in the directory `path`.
        InvalidArgument: it lacks the tags or the signature.
        Unsupported: an input or output of the signature is no dense tensor.
        Internal: it cannot be read.
    """
    saved = _parse(path, source)
    graph = _graph(saved, source, options)
    name, signature = _signature(graph, source, options)
    return SavedModelFile(
        path,
        options.graph_tags,
        ModelTensors(
            tuple(_described(key, info, name, source) for key, info in sorted(signature.inputs.items())),
            tuple(_described(key, info, name, source) for key, info in sorted(signature.outputs.items())),
        ),
        tf.Graph(),
    )


def _parse(path: Path, source: ModelSource) -> Any:
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel()
    binary, text = path / "saved_model.pb", path / "saved_model.pbtxt"
    with load_errors(source.name, f"reading '{path.name}'"):
        if binary.is_file():
            saved.ParseFromString(binary.read_bytes())
        elif text.is_file():
            text_format.Parse(text.read_text(), saved)
        else:
            raise Unavailable(f"unable to find '{binary}' for model instance '{source.name}'")
    return saved


def _graph(saved: Any, source: ModelSource, options: TensorFlowOptions) -> Any:
    found = [frozenset(graph.meta_info_def.tags) for graph in saved.meta_graphs]
    if options.graph_tags not in found:
        there = "; ".join(",".join(sorted(tags)) for tags in found) or "none"
        raise InvalidArgument(
            f"unable to load model '{source.name}', expected '{','.join(sorted(options.graph_tags))}' tag; the "
            f"SavedModel has: {there} (parameter 'TF_GRAPH_TAG')"
        )
    return saved.meta_graphs[found.index(options.graph_tags)]


def _signature(graph: Any, source: ModelSource, options: TensorFlowOptions) -> tuple[str, Any]:
    wanted = options.signature or DEFAULT_SIGNATURE
    signatures = {name: each for name, each in graph.signature_def.items() if name not in _OF_LOADERS}
    if wanted in signatures:
        return wanted, signatures[wanted]
    if options.signature or not signatures:
        there = ", ".join(sorted(signatures)) or "none"
        raise InvalidArgument(
            f"unable to load model '{source.name}', expected '{wanted}' signature; the SavedModel has: {there} "
            f"(parameter 'TF_SIGNATURE_DEF')"
        )
    name = min(signatures)
    if len(signatures) > 1:
        logger.warning(
            "model '%s' has no signature '%s' and several others; '%s' is served, unless the parameter "
            "'TF_SIGNATURE_DEF' names another: %s",
            *(source.name, DEFAULT_SIGNATURE, name, ", ".join(sorted(signatures))),
        )
    return name, signatures[name]


def _described(key: str, info: Any, signature: str, source: ModelSource) -> ModelTensor:
    if info.WhichOneof("encoding") != "name":
        kind = "sparse" if info.WhichOneof("encoding") == "coo_sparse" else "composite"
        raise Unsupported(
            f"model '{source.name}': '{key}' of signature '{signature}' is a {kind} tensor, and only dense ones can be "
            f"served"
        )
    shape: Dims | None = None
    if not info.tensor_shape.unknown_rank:
        shape = tuple(int(dim.size) for dim in info.tensor_shape.dim)
    return described(key, info.name, tf.as_dtype(info.dtype), shape)
