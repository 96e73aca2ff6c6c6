"""The metrics of engines that serve: over the life of a model, and of what happens to its requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from backends.engines.worker.trioton_engine.engine import FINISHED
from protocol.errors import Overloaded, Unavailable
from tests.backends.engines.models import write_model
from tests.backends.engines.serving import Served, gather, kill_workers, serve
from tests.backends.python.processes import children, until

pytestmark = pytest.mark.slow

TEXT = "The scheduler gives batches to instances."
SLOWLY: dict[str, Any] = {"rule": "repeat", "step_seconds": 0.01}
ENDLESS: dict[str, Any] = {"stream": True, "max_tokens": 400}


def by_label(served: Served, name: str, label: str) -> dict[str, float]:
    """The values of a family, of histograms the counts, by a label; those of several instances together."""
    found: dict[str, float] = {}
    for each in served.core.custom_metrics.find(name):
        value = each.cumulative[-1] if each.cumulative else each.value
        found[each.labels[label]] = found.get(each.labels[label], 0) + value
    return found


def ends(served: Served) -> dict[str, float]:
    """The requests that have ended, by how, but for none."""
    found = by_label(served, "vllm:request_success_total", "finished_reason")
    assert found.keys() == set(FINISHED)
    return {reason: count for reason, count in found.items() if count}


def count(served: Served, name: str) -> float:
    return sum(by_label(served, name, "engine").values())


async def test_requests_are_counted_by_their_ends(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", "scripted", **SLOWLY, max_inflight_requests=1, max_queue_requests=1)
    async with serve(folder) as served:
        await served.text(TEXT, max_tokens=3)
        assert ends(served) == {"length": 1}
        await served.text(TEXT, stop="instances", max_tokens=100)
        # The engine knows no stop strings, and was told to abort it.
        assert ends(served) == {"length": 1, "stop": 1}
        await served.wait_free()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.text, TEXT)
            await served.wait_running()
            nursery.start_soon(served.text, TEXT)
            await served.wait_waiting(1)
            with pytest.raises(Overloaded):
                await served.text(TEXT)
            nursery.cancel_scope.cancel()
        await served.wait_free()
        assert ends(served) == {"length": 1, "stop": 1, "abort": 2}
        assert by_label(served, "vllm:admission_rejections_total", "reason") == {
            "max_num_queued_reqs": 1,
            "max_num_queued_tokens": 0,
        }
        for name in ("e2e_request_latency_seconds", "request_queue_time_seconds", "request_generation_tokens"):
            assert count(served, f"vllm:{name}") == 2


async def test_a_step_is_counted_once_for_all_its_sequences(tmp_path: Path) -> None:
    async with serve(write_model(tmp_path / "m", "scripted", **SLOWLY)) as served:
        await gather(*(served.text(TEXT, max_tokens=20) for _ in range(4)))
        steps = count(served, "vllm:iteration_tokens_total")
        assert 20 <= steps <= 80
        assert count(served, "vllm:inter_token_latency_seconds") == 4 * 19
        assert count(served, "vllm:time_to_first_token_seconds") == 4
        load = served.load()
        assert load["generation_tokens_total"] == 80
        assert load["iteration_tokens_total"] == 80 + load["prompt_tokens_total"]


async def test_the_wait_within_the_engine_is_time_in_the_queue(tmp_path: Path) -> None:
    async with serve(write_model(tmp_path / "m", "scripted", **SLOWLY, max_num_seqs=1)) as served:
        await gather(*(served.text(TEXT, max_tokens=5) for _ in range(3)))
        # The second waits for four steps of the first at least, the third for nine of both.
        assert served.load()["request_queue_time_seconds"] >= 0.1


async def test_found_prefixes_are_counted(tmp_path: Path) -> None:
    async with serve(write_model(tmp_path / "m", "scripted")) as served:
        for _ in range(2):
            await served.text(TEXT * 4)
        load = served.load()
        assert load["prompt_tokens_cached_total"] == load["prefix_cache_hits_total"] > 0
        assert load["prefix_cache_queries_total"] == load["prompt_tokens_total"]


async def test_a_restart_keeps_what_was_counted_and_an_unload_does_not(tmp_path: Path) -> None:
    async with serve(write_model(tmp_path / "m", "scripted", **SLOWLY)) as served:
        await served.text(TEXT, max_tokens=3)
        async with trio.open_nursery() as nursery:

            async def breaks() -> None:
                with pytest.raises(Unavailable):
                    await served.responses(TEXT, **ENDLESS)

            nursery.start_soon(breaks)
            await served.wait_running()
            kill_workers(children())
        before = served.load()
        assert (before["num_requests_running"], before["kv_cache_usage_perc"]) == (0, 0)
        assert before["generation_tokens_total"] > 3
        await served.wait_ready()
        await served.text(TEXT, max_tokens=3)
        assert served.load()["generation_tokens_total"] == before["generation_tokens_total"] + 3
        assert ends(served) == {"length": 2, "error": 1}
        await served.core.unload_model("m")
        await until(lambda: not list(served.core.custom_metrics.values()))


async def test_an_unload_while_it_is_started_anew_leaves_nothing(tmp_path: Path) -> None:
    """The instance that has counted is gone, and the next one is never loaded."""
    folder = write_model(tmp_path / "m", "scripted", load_seconds=0.2)
    async with serve(folder) as served:
        assert served.load()
        kill_workers(children())
        await until(lambda: not children())
        assert served.load(), "it is to be started anew"
        await served.core.unload_model("m")
        await until(lambda: not list(served.core.custom_metrics.values()))


async def test_a_load_that_fails_shows_nothing(tmp_path: Path) -> None:
    async with serve(write_model(tmp_path / "m", "scripted")) as served:
        await served.core.unload_model("m")
        await until(lambda: not list(served.core.custom_metrics.values()))
        (tmp_path / "m" / "config.pbtxt").write_text(
            'backend: "scripted" parameters { key: "unknown" value { string_value: "1" } }'
        )
        with pytest.raises(Exception, match="no option 'unknown'"):
            await served.core.load_model("m")
        assert list(served.core.custom_metrics.values()) == []


async def test_each_instance_has_its_own(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", "scripted", **SLOWLY)
    config = folder / "config.pbtxt"
    config.write_text(config.read_text() + "instance_group { count: 2 kind: KIND_CPU }\n")
    async with serve(folder) as served:
        await gather(*(served.text(TEXT, max_tokens=3) for _ in range(4)))
        found = by_label(served, "vllm:generation_tokens_total", "engine")
        assert len(found) == 2
        assert sum(found.values()) == 12
        await served.core.unload_model("m")
        await until(lambda: not list(served.core.custom_metrics.values()))


async def test_adapters_are_told_of(tmp_path: Path) -> None:
    adapters = {"multi_lora.json": '{"one": "a", "two \\"2\\"": "b"}'}
    folder = write_model(tmp_path / "m", "scripted", adapters, adapters="true", max_loras=2, **SLOWLY)
    async with serve(folder) as served:

        def info() -> dict[str, str]:
            [found] = served.core.custom_metrics.find("vllm:lora_requests_info")
            return {name: found.labels[name] for name in found.labels if "lora" in name}

        assert info() == {"running_lora_adapters": "", "waiting_lora_adapters": "", "max_lora": "2"}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.text, TEXT)
            nursery.start_soon(lambda: served.text(TEXT, lora_name='two "2"'))
            await until(lambda: info()["running_lora_adapters"] == 'two "2"')
            await served.text(TEXT, lora_name="one", max_tokens=4)
            nursery.cancel_scope.cancel()
        await served.wait_free()
        assert info()["running_lora_adapters"] == ""
        assert by_label(served, "trioton_lora_request_success_total", "adapter") == {"one": 1, 'two "2"': 0}
        assert by_label(served, "trioton_lora_generation_tokens_total", "adapter")["one"] == 4
        assert set(by_label(served, "trioton_lora_requests_running", "adapter").values()) == {0}
