"""The `fil` backend: forests of decision trees, from XGBoost, LightGBM, scikit-learn and treelite.

`backend` holds the class; `options` reads the configuration, `model_file` finds and reads the model's file, `forest` is
what it holds, and `answers` turns scores into what the configuration asks for.
Importing this package needs the framework; the registry does it.
"""

from backends.fil.backend import FilBackend

__all__ = ["FilBackend"]
