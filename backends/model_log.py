"""The log of one model version's workers: a logger by the model's name, its lines tagged with model and version."""

from __future__ import annotations

import logging

from backends.interface import ModelSource
from protocol.log.tags import TaggedLog


def model_log(source: ModelSource) -> TaggedLog:
    return TaggedLog(
        logging.getLogger(f"trioton.model.{source.name}"), {"model": source.name, "version": str(source.version)}
    )
