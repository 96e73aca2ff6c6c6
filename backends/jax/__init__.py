"""The `jax` backend: functions that `jax.export` has serialized, as StableHLO, on CPU, GPU and TPU.

`backend` holds the class; `options` reads the configuration, `process_settings` what holds for the whole process,
`exported` the model's file and `weights` the one beside it, `binding` compares them with the configuration, `shapes`
says for which shapes a model is compiled before it serves, `executables` and `loaded_function` keep what instances
share, `device` finds the device, `errors` translates the library's exceptions.
Importing this package needs the framework; the registry does it.
"""

from backends.jax.backend import JaxBackend

__all__ = ["JaxBackend"]
