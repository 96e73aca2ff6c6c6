"""The page reader `ocr_page_bls`, which calls other models, beside the ensemble `ocr_page`."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

from protocol.errors import InvalidArgument, ServerError
from protocol.messages import InferenceRequest, Tensor
from tests.examples.loading import load_example
from tests.examples.test_live import settings
from trioton.server import Server, open_server

pytestmark = pytest.mark.e2e

ocr = load_example("clients/ocr")


@asynccontextmanager
async def serving(repository: Path) -> AsyncIterator[Server]:
    """Both, and what they need: the ensemble brings it along."""
    names = ("ocr_page", "ocr_page_bls")
    explicit = dataclasses.replace(settings(repository), model_control_mode="explicit", load_model=names)
    async with open_server(explicit) as server:
        yield server


async def read(server: Server, model: str, image: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
    response = await server.core.infer(InferenceRequest(model, [Tensor.from_numpy("image", image)]))
    return {tensor.name: tensor.as_numpy() for tensor in response.outputs}


async def test_it_answers_as_the_ensemble_does(repository: Path) -> None:
    """A page of five lines, one of them upside down; a page without text; and one without pixels.
    The second round finds several pages under way at a time."""
    page = np.asarray(ocr.draw_page(), np.uint8)
    empty = np.full((480, 640, 3), 255, np.uint8)
    async with serving(repository) as server:
        expected = {name: await read(server, "ocr_page", image) for name, image in (("page", page), ("empty", empty))}
        assert len(expected["page"]["text"]) == len(ocr.PAGE_LINES)
        assert expected["empty"].keys() == {"boxes"}

        async def compare(name: str, image: NDArray[np.uint8]) -> None:
            found = await read(server, "ocr_page_bls", image)
            assert found.keys() == expected[name].keys()
            for output, array in found.items():
                assert array.shape == expected[name][output].shape
                if output == "confidence":  # sums in another order, where pages share a batch
                    np.testing.assert_allclose(array, expected[name][output], rtol=1e-4)
                else:
                    assert array.tolist() == expected[name][output].tolist()

        for copies in (1, 3):
            async with trio.open_nursery() as nursery:
                for _ in range(copies):
                    nursery.start_soon(compare, "page", page)
                    nursery.start_soon(compare, "empty", empty)

        with pytest.raises(InvalidArgument, match="image: it has no pixels"):
            await read(server, "ocr_page_bls", np.zeros((0, 5, 3), np.uint8))


async def test_it_says_which_model_it_lacks(repository: Path) -> None:
    async with serving(repository) as server:
        await server.core.unload_model("ocr_page")
        await server.core.unload_model("ocr_direction")
        with pytest.raises(ServerError, match="Model 'ocr_direction' is not ready"):
            await read(server, "ocr_page_bls", np.asarray(ocr.draw_page(), np.uint8))
