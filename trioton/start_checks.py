"""Checks of a server's start: whether its repositories are there, and whether what it was to load serves."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import trio

from actors.lifecycle.table import EVICTED
from protocol.core import ModelIndex
from protocol.errors import ServerError
from repository.stores.store_repository import StoreRepository, Stores
from repository.stores.urls import StoreUrl
from trioton.flags.cloud import vertex_ai_failure
from trioton.settings import Settings

logger = logging.getLogger("trioton.server")


class StartError(Exception):
    """The server could not start, and nothing of it is left. The text says why and what to change."""


async def check_repositories(settings: Settings, stores: Stores) -> None:
    """Whether all that models are to be read from is there; without `exit_on_error` it is only said what is not.

    Raises:
        StartError: a repository is not there, or cannot be read.
    """
    for place in dict.fromkeys(settings.model_repository):
        try:
            await _check_repository(place, stores)
        except StartError as error:
            if settings.exit_on_error:
                raise
            logger.error("%s", error)


async def _check_repository(place: Path | StoreUrl, stores: Stores) -> None:
    if isinstance(place, StoreUrl):
        await _check_store(stores.repository(place), stores)
    elif not await trio.to_thread.run_sync(os.path.isdir, place):
        raise StartError(
            f"model repository '{place}' is not a directory; see --model-repository, or serve the others with "
            "--exit-on-error=false"
        )


async def _check_store(repository: StoreRepository, stores: Stores) -> None:
    try:
        await trio.to_thread.run_sync(stores.cache.open)
        models = await trio.to_thread.run_sync(repository.models, abandon_on_cancel=True)
    except ServerError as error:
        raise StartError(f"model repository {error}; see --model-repository") from None
    if not models:
        logger.warning("model repository '%s' holds no models", repository)


def check_loads(index: Sequence[ModelIndex], settings: Settings) -> None:
    """Whether what the server was to load serves.

    Raises:
        StartError: a model has failed.
    """
    failed = [
        entry for entry in _asked_for(index, settings) if entry.state == "UNAVAILABLE" and entry.reason != EVICTED
    ]
    if failed:
        reasons = "; ".join(f"{entry.name}: {entry.reason}" for entry in failed)
        raise StartError(
            f"creating server: Internal - failed to load all models ({reasons}). "
            "Mend them, or serve the others with --exit-on-error=false"
        )


def check_vertex_ai(index: Sequence[ModelIndex], settings: Settings) -> None:
    """Whether Vertex AI's predictions have a model; `index` has those that serve.

    Raises:
        StartError: it is not there, or none is named and there is more than one.
    """
    names, wanted = {entry.name for entry in index}, settings.vertex_ai_default_model
    if wanted and wanted not in names:
        raise StartError(vertex_ai_failure(f"Expect the default model '{wanted}' is loaded"))
    if not wanted and len(names) != 1:
        raise StartError(
            vertex_ai_failure(
                "Expect the model repository contains only a single model if default model is not specified"
            )
        )


def _asked_for(index: Sequence[ModelIndex], settings: Settings) -> list[ModelIndex]:
    """What the server was to load: everything, or in explicit mode the models named."""
    if settings.model_control_mode != "explicit" or "*" in settings.load_model:
        return list(index)
    return [entry for entry in index if entry.name in settings.load_model]
