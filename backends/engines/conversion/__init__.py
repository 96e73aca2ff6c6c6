"""Conversion of a Hugging Face model to the form that an engine reads, kept in a cache by its content.

`cache` is the cache on disk, `converter` the process that converts, `progress` what is logged of it; `converted` ties
them together for a load.
"""

from backends.engines.conversion.converted import openvino_folder

__all__ = ["openvino_folder"]
