"""The `tensorflow` backend: SavedModels with their signatures, and GraphDefs.

`backend` holds the class; `options` reads the configuration, `saved_model` and `graph_def` the models' files, `tensors`
what they declare, `completion` fills a configuration from that; `session` runs a model, `thread_pools` is what all have
in common, and `errors` translates the library's exceptions. Importing this package needs the framework; the registry
does it.
"""

from backends.tensorflow.backend import TensorFlowBackend

__all__ = ["TensorFlowBackend"]
