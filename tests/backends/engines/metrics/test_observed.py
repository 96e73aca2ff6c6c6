"""Requests to engines that no edge observes are observed by the engine, each once, however they end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from protocol.errors import InvalidArgument, Overloaded, ServerError, Unavailable
from protocol.gen_ai import CHAT, GenAiCall, Generated
from tests.backends.engines.models import write_model
from tests.backends.engines.serving import gather, kill_workers, serve
from tests.backends.python.processes import children
from tests.protocol.http.fake_services import FakeTrace
from tests.protocol.test_gen_ai import Recorded

pytestmark = pytest.mark.slow

TEXT = "The scheduler gives batches to instances."
SLOWLY: dict[str, Any] = {"rule": "repeat", "step_seconds": 0.01}
ENDLESS: dict[str, Any] = {"stream": True, "max_tokens": 400}


async def test_whole_answers_and_streams(tmp_path: Path) -> None:
    recorded = Recorded()
    async with serve(write_model(tmp_path / "m", "scripted", **SLOWLY), recorded) as served:

        async def drop(response: object) -> None:
            pass

        given: list[dict[str, Any]] = [{}, {"stream": True}]
        for options in given:
            trace = FakeTrace("m")
            request = served.request(TEXT, max_tokens=3, temperature=0.5, **options)
            request.trace = trace
            await served.core.infer_stream(request, drop)
            found = trace.attributes
            assert found.pop("gen_ai.usage.input_tokens") > 1
            assert (found.pop("trioton.instance"), found.pop("trioton.batch_size")) == ("m_0", 1)
            assert found == {
                "gen_ai.operation.name": "text_completion",
                "gen_ai.provider.name": "trioton",
                "gen_ai.request.model": "m",
                "gen_ai.request.max_tokens": 3,
                "gen_ai.request.temperature": 0.5,
                "gen_ai.response.model": "m",
                "gen_ai.response.finish_reasons": ("length",),
                "gen_ai.usage.output_tokens": 3,
            }
    assert len(recorded.calls) == 2
    for ended in recorded.calls:
        assert (ended.operation, ended.error_type) == ("text_completion", "")
        # The first token is the engine's, also where the client gets all at once.
        assert ended.first_token_seconds is not None
        assert ended.first_token_seconds < ended.seconds
        assert ended.per_token_seconds is not None


async def test_what_an_edge_observes_is_left_to_it(tmp_path: Path) -> None:
    """It is told of the first token only: it knows better what the call has come to."""
    recorded = Recorded()
    async with serve(write_model(tmp_path / "m", "scripted", **SLOWLY), recorded) as served:
        edge = Recorded()
        request = served.request(TEXT, max_tokens=3)
        request.gen_ai = call = GenAiCall(edge, CHAT, model="m", arrival_ns=0, result=lambda: Generated(1, 2))

        async def drop(response: object) -> None:
            pass

        await served.core.infer_stream(request, drop)
        assert (recorded.calls, edge.calls) == ([], [])
        call.end(None)
    assert edge.calls[0].first_token_seconds is not None


async def test_requests_that_fail(tmp_path: Path) -> None:
    recorded = Recorded()
    folder = write_model(tmp_path / "m", "scripted", **SLOWLY, max_inflight_requests=1, max_queue_requests=1)
    async with serve(folder, recorded) as served:
        for options in ({"top_p": 7}, {"max_tokens": 5000}):
            with pytest.raises(InvalidArgument):
                await served.text(TEXT, **options)
        with trio.move_on_after(0):
            await served.text("x" * 3000)  # while it is tokenized, or just after: it is too long for the context
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.text, TEXT)
            await served.wait_running()
            nursery.start_soon(served.text, TEXT)
            await served.wait_waiting(1)
            with pytest.raises(Overloaded):
                await served.text(TEXT)
            nursery.cancel_scope.cancel()
        await served.wait_free()
    found = [each.error_type for each in recorded.calls]
    assert found[:2] == ["INVALID_ARG", "INVALID_ARG"]
    rest = sorted(found[2:])
    assert rest in [
        sorted(["CANCELLED", "CANCELLED", "OVERLOADED", *left]) for left in ([], ["CANCELLED"], ["INVALID_ARG"])
    ]


async def test_a_request_that_is_given_back_is_observed_once(tmp_path: Path) -> None:
    recorded = Recorded()
    async with serve(write_model(tmp_path / "m", "scripted", max_inflight_requests=1, **SLOWLY), recorded) as served:
        kept: list[str] = []

        async def breaks() -> None:
            with pytest.raises(Unavailable):
                await served.responses(TEXT, **ENDLESS)

        async def waits() -> None:
            kept.append(await served.text(TEXT, max_tokens=2))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(breaks)
            await served.wait_running()
            nursery.start_soon(waits)
            await served.wait_waiting(1)
            kill_workers(children())
        assert len(kept) == 1
    assert [each.error_type for each in recorded.calls] == ["UNAVAILABLE", ""]


async def test_many_at_once(tmp_path: Path) -> None:
    recorded = Recorded()
    async with serve(write_model(tmp_path / "m", "scripted", **SLOWLY), recorded) as served:
        answers = await gather(*(served.text(TEXT, max_tokens=3, stream=True) for _ in range(20)))
    assert not [each for each in answers if isinstance(each, ServerError)]
    assert [each.error_type for each in recorded.calls] == [""] * 20
