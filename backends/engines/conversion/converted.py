"""Converted folder of a model: from the cache, or made now by the converter.

Flow: a model with Hugging Face's files -> [converted] -> a folder that OpenVINO GenAI reads. Runs within the load that
needs it; cancelled, it leaves nothing behind.
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import trio

from backends.engines.conversion.cache import ConversionCache, default_root, states
from backends.engines.conversion.converter import Converter
from backends.interface import ModelSource
from protocol.errors import Internal, InvalidArgument, ServerError, Unavailable
from repository.model_folders import OPENVINO_MODEL, SAFETENSORS, FolderKind, folder_kind, model_files

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

# Backend settings.
CONVERTER, CACHE_DIRECTORY = "converter", "conversion-cache-directory"
WEIGHT_FORMAT = "weight_format"
DEFAULT_WEIGHT_FORMAT = "fp16"
# Weights in each form, at least, as a part of those that there are.
_SMALLEST_PARTS = {"fp32": 1.0, "fp16": 0.5, "int8": 0.25, "int4": 0.1}
# Another process's lock can only be asked for again: a thread that waits for it could not be cancelled.
_LOCK_SECONDS = 0.2


def cache_of(settings: Mapping[str, str]) -> ConversionCache:
    """The cache that a backend's settings name, else that of the user."""
    given = settings.get(CACHE_DIRECTORY)
    # A shell leaves `~` as it is behind the second `=` of a flag.
    return ConversionCache(Path(given).expanduser().absolute() if given else default_root(os.environ))


def converter_of(settings: Mapping[str, str]) -> Converter:
    """The one that a backend's settings name, else the server's interpreter."""
    return Converter(os.path.expanduser(settings.get(CONVERTER) or sys.executable))


def check_weight_format(text: str, place: str) -> str:
    """Raises InvalidArgument."""
    chosen = text or DEFAULT_WEIGHT_FORMAT
    if chosen not in _SMALLEST_PARTS:
        raise InvalidArgument(f"{place}: {WEIGHT_FORMAT} must be one of {', '.join(_SMALLEST_PARTS)}, got '{text}'")
    return chosen


async def openvino_folder(source: ModelSource, folder: Path, weight_format: str) -> Path:
    """`folder` itself where it needs no conversion.

    Raises:
        Unavailable: the converter is not installed, or there is no room.
        Internal: the conversion failed.
    """
    if await _in_thread(folder_kind, folder) is not FolderKind.HUGGING_FACE:
        return folder
    place = f"model '{source.name}'"
    chosen = check_weight_format(weight_format, place)
    cache = cache_of(source.settings)
    converter = converter_of(source.settings)
    try:
        key = await _in_thread(cache.key, folder, {WEIGHT_FORMAT: chosen})
        versions = await converter.versions()
        found = await _in_thread(cache.find, key, versions)
        if found is not None:
            return found
        if versions is None:
            raise Unavailable(_not_installed(folder, converter.interpreter))
        log = logging.getLogger(f"trioton.model.{source.name}")
        async with _lock(cache, key, log) as held:
            found = await _in_thread(cache.find, key, versions)  # another load may have made it meanwhile
            if found is not None:
                return found
            return await _convert(cache, key, versions, converter, folder, chosen, held, log)
    except ServerError as error:
        raise type(error)(f"{place}: {error.message}") from None
    except OSError as error:
        raise Internal(f"{place}: cannot convert '{folder}' into '{cache.root}': {error}") from None


async def _convert(
    cache: ConversionCache,
    key: str,
    versions: Mapping[str, str],
    converter: Converter,
    folder: Path,
    weight_format: str,
    held: int,
    log: logging.Logger,
) -> Path:
    """Raises ServerError, OSError."""
    before = await _in_thread(states, folder)
    await _in_thread(_check_room, cache.root, folder, weight_format)
    started = trio.current_time()
    log.info("converting '%s' for OpenVINO, with weights in %s, into '%s'", folder, weight_format, cache.root)
    work = await trio.to_thread.run_sync(cache.begin, key)
    try:
        made = work / "model"
        await converter.convert(folder, made, weight_format, held=held, log=log)
        if not await _in_thread((made / OPENVINO_MODEL).is_file):
            raise Internal(f"its conversion made no {OPENVINO_MODEL}: '{folder}' is no model of text generation")
        if await _in_thread(states, folder) != before:
            raise Unavailable(f"'{folder}' was changed while it was converted; load it again")
        about = {"source": str(folder), WEIGHT_FORMAT: weight_format, "versions": versions, "made_at": int(time.time())}
        place = await trio.to_thread.run_sync(cache.keep, key, versions, made, about)
        log.info("converted in %.0f s: '%s'", trio.current_time() - started, place)
        return place
    except Internal as error:
        raise _explained(error, cache.root) from None
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(functools.partial(shutil.rmtree, work, ignore_errors=True))


@asynccontextmanager
async def _lock(cache: ConversionCache, key: str, log: logging.Logger) -> AsyncIterator[int]:
    """Waits until nobody else converts this model."""
    has_waited = False
    while (held := await trio.to_thread.run_sync(cache.lock, key)) is None:
        if not has_waited:
            log.info("waiting for another load that converts the same model")
        has_waited = True
        await trio.sleep(_LOCK_SECONDS)
    try:
        yield held
    finally:
        os.close(held)


def _check_room(root: Path, folder: Path, weight_format: str) -> None:
    """Raises Unavailable where not even the smallest result fits."""
    weights = sum(path.stat().st_size for path in model_files(folder) if path.suffix == SAFETENSORS)
    needed = int(weights * _SMALLEST_PARTS[weight_format])
    free = shutil.disk_usage(root).free
    if free < needed:
        raise Unavailable(
            f"no room to convert '{folder}': '{root}' has {free} bytes free, its weights in {weight_format} take at "
            f"least {needed}; set another place with --backend-config=openvino_genai,{CACHE_DIRECTORY}=<path>"
        )


def _explained(error: Internal, root: Path) -> ServerError:
    if "No space left on device" in error.message:
        return Unavailable(
            f"no room in '{root}', which has {shutil.disk_usage(root).free} bytes free: {error.message}; set another "
            f"place with --backend-config=openvino_genai,{CACHE_DIRECTORY}=<path>"
        )
    return error


def _not_installed(folder: Path, interpreter: str) -> str:
    return (
        f"'{folder}' has safetensors, which OpenVINO GenAI reads converted only, and '{interpreter}' has no "
        "optimum-intel to convert them: python3 -m venv ~/optimum && ~/optimum/bin/pip install "
        "'optimum-intel[openvino]', then start the server with "
        f"--backend-config=openvino_genai,{CONVERTER}=~/optimum/bin/python"
    )


async def _in_thread(call: Callable[[*Ts], T], *arguments: *Ts) -> T:
    return await trio.to_thread.run_sync(call, *arguments, abandon_on_cancel=True)
