"""Loading and unloading: what `initialize` gets, how a load fails, and that nothing is left behind."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from backends.interface import InstanceDied
from backends.python import loaded_model
from backends.python.backend import PythonBackend
from protocol.errors import Internal, InvalidArgument, ServerError
from repository.json_form import to_json_form
from repository.model_config import InstanceKind, ModelConfig
from tests.backends.python.models import (
    CONFIG,
    IDENTITY,
    backend,
    executing,
    infer,
    output,
    parameters,
    request,
    running,
)
from tests.backends.python.processes import children, is_alive, open_descriptors, shared_memory_files, until

INITIALIZE = """
import os, sys, threading, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        {body}
    def execute(self, requests):
        return [pb_utils.InferenceResponse() for _ in requests]
"""


def initializing(body: str) -> str:
    return INITIALIZE.format(body=body)


def compiled(folder: Path) -> list[Path]:
    return list(folder.rglob("__pycache__"))


async def test_initialize_gets_strings(tmp_path: Path) -> None:
    model = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.seen = [json.dumps(args), pb_utils.get_model_dir()]

        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(self.seen, dtype=object))])]
    """
    async with running(backend(tmp_path, model, kind=InstanceKind.GPU, device_id=3)) as instance:
        args, folder = output((await infer(instance, request()))[0])
    found = json.loads(args)
    assert json.loads(found.pop("model_config")) == json.loads(json.dumps(to_json_form(CONFIG)))
    assert found == {
        "model_instance_kind": "GPU",
        "model_instance_name": "m_0",
        "model_instance_device_id": "3",
        "model_repository": str(tmp_path),
        "model_version": "1",
        "model_name": "m",
    }
    assert folder.decode() == str(tmp_path / "1")


async def test_the_configuration_is_written_once_for_all_instances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[ModelConfig] = []

    def write(config: ModelConfig) -> dict[str, Any]:
        written.append(config)
        return to_json_form(config)

    monkeypatch.setattr(loaded_model, "to_json_form", write)
    first = backend(tmp_path, "class TritonPythonModel:\n    def execute(self, requests): pass\n")
    second = PythonBackend(replace(first.spec, name="m_1"))
    async with running(first), running(second):
        assert written == [CONFIG]


async def test_a_model_finds_its_siblings_and_nothing_of_the_servers(tmp_path: Path) -> None:
    """By plain name and by relative import; the server's packages and the worker's modules are not in the way."""
    model = """
    import sys
    import triton_python_backend_utils as pb_utils
    import tensors  # a sibling with the name of a module of the worker
    import protocol  # a sibling with the name of a package of the server
    from . import sibling
    import sibling as plain

    class TritonPythonModel:
        def execute(self, requests):
            assert __name__ == "1.model" and sibling.VALUE == plain.VALUE == 7 and tensors.MINE and protocol.MINE
            assert sys.path[-3:-1] == [pb_utils.get_model_dir(), pb_utils.get_model_dir()[:-2]], sys.path
            for name in ("actors", "backends", "repository", "trioton"):
                try:
                    __import__(name)
                except ModuleNotFoundError as error:
                    assert str(error) == f"No module named '{name}'" and error.name == name
                else:
                    raise AssertionError(name)
            assert "trio" not in sys.modules
            return [pb_utils.InferenceResponse() for _ in requests]
    """
    files = {"sibling": "VALUE = 7", "tensors": "MINE = True", "protocol": "MINE = True", "__init__": ""}
    async with running(backend(tmp_path, model, files=files)) as instance:
        await infer(instance, request())


@pytest.mark.parametrize("isolation", ["process", "threads", "fork", "in_process", "in_loop"])
async def test_a_change_counts_even_in_the_second_of_the_load_before(isolation: str, tmp_path: Path) -> None:
    """Of a file as large as it was: Python would take its compiled file for good."""
    for number in ("1", "2"):
        model = "from . import sibling\n" + executing(
            f"return [answer(np.array([{number}, sibling.VALUE])) for _ in requests]"
        )
        config = msgspec.structs.replace(CONFIG, parameters=parameters(ISOLATION=isolation))
        files, allowed = {"sibling": f"VALUE = {number}"}, {"allow-in-process": "true"}
        instance = backend(tmp_path, model, config=config, settings=allowed, files=files)
        for file in (tmp_path / "1").glob("*.py"):
            os.utime(file, (1_700_000_000, 1_700_000_000))
        async with running(instance):
            assert output((await infer(instance, request()))[0]).tolist() == [int(number)] * 2
    assert not compiled(tmp_path)


async def test_a_version_directory_may_be_a_package(tmp_path: Path) -> None:
    model = "from . import VALUE\n" + executing("return [answer(np.array([VALUE])) for _ in requests]")
    files = {"__init__": "VALUE = 9"}
    async with running(backend(tmp_path, model, files=files)) as instance:
        assert output((await infer(instance, request()))[0]).tolist() == [9]


async def test_an_exception_in_initialize_fails_the_load_with_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    instance = backend(tmp_path, initializing("raise KeyError('weights')"))
    with pytest.raises(Internal) as failure:
        await instance.load()
    path = tmp_path / "1" / "model.py"
    assert failure.value.message == f"KeyError: 'weights'\n\nAt:\n  {path}(7): initialize\n"
    assert any("Traceback" in record.message for record in caplog.records)
    assert not children()
    await instance.unload()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("import no_such_module", ["ModuleNotFoundError: No module named 'no_such_module'", "model.py(1): <module>"]),
        ("def f(:\n  pass", ["SyntaxError: ", "/1/model.py(1)"]),
        ("x = 1", ["AttributeError: ", "/1/model.py' has no class TritonPythonModel"]),
        (initializing("sys.exit('no weights')"), ["SystemExit: no weights", "At:", "initialize"]),
        (initializing("os._exit(3)"), ["worker process of 'm_0' exited with code 3 during initialize"]),
        (
            initializing("print('a'); print('b', file=sys.stderr); os._exit(5)"),
            ["model 'm'", "exited with code 5", "\n  a\n  b"],
        ),
        (initializing("os.abort()"), ["was killed by SIGABRT", "Fatal Python error: Aborted", "in initialize"]),
        (
            # Threads that would keep a process from ending do not keep a failed load from being told.
            initializing("threading.Thread(target=time.sleep, args=(1000,)).start(); sys.exit(4)"),
            ["SystemExit: 4"],
        ),
    ],
)
async def test_a_load_that_fails_says_why_and_leaves_nothing(tmp_path: Path, text: str, parts: list[str]) -> None:
    before = open_descriptors()
    instance = backend(tmp_path, text)
    with pytest.raises(Internal) as failure:
        await instance.load()
    for part in parts:
        assert part in failure.value.message
    assert not children()
    assert not open_descriptors() - before
    await instance.unload()


@pytest.mark.parametrize(
    ("filename", "error", "message"),
    [
        ("other.py", Internal, "Python model file not found in '{}/1/other.py'"),
        ("model.txt", InvalidArgument, "Model name must end with '.py'. Model name is \"model.txt\"."),
    ],
)
async def test_a_model_file_that_cannot_be(
    tmp_path: Path, filename: str, error: type[ServerError], message: str
) -> None:
    config = msgspec.structs.replace(CONFIG, default_model_filename=filename)
    instance = backend(tmp_path, executing(IDENTITY), config=config)
    for failing in (instance.load(), instance.complete_config(instance.spec.source)):
        with pytest.raises(error) as failure:
            await failing
        assert failure.value.message == message.format(tmp_path)


async def test_a_cancelled_load_leaves_nothing(tmp_path: Path) -> None:
    """Also while the model is stuck."""
    before = open_descriptors()
    marker = tmp_path / "started"
    instance = backend(tmp_path, initializing(f"open({str(marker)!r}, 'w').close(); time.sleep(1000)"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(instance.load)
        await until(marker.exists)
        nursery.cancel_scope.cancel()
    assert not children()
    assert not open_descriptors() - before
    await instance.unload()


async def test_finalize_runs_at_unload(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    model = (
        executing(IDENTITY)
        + """
    def finalize(self):
        print("finalizing")
        raise RuntimeError("only logged")
"""
    )
    async with running(backend(tmp_path, model)):
        pass
    assert "m_0: finalizing" in caplog.messages
    assert any("finalize failed: RuntimeError: only logged" in message for message in caplog.messages)


async def test_an_unload_ends_a_worker_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the processes that the model started."""
    monkeypatch.setattr("backends.python.workers.link.FINALIZE_SECONDS", 0.3)
    model = """
    import subprocess, time
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            self.child = subprocess.Popen(["sleep", "1000"])
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([self.child.pid]))])]

        def finalize(self):
            time.sleep(1000)
    """
    async with running(backend(tmp_path, model)) as instance:
        grandchild = output((await infer(instance, request()))[0]).item()
        assert is_alive(grandchild)
    assert not children()
    await until(lambda: not is_alive(grandchild))


async def test_twenty_lives_leak_nothing(tmp_path: Path) -> None:
    """No descriptor, no process, no thread, nothing in /dev/shm."""
    shared = shared_memory_files(os.getpid())
    descriptors = open_descriptors()
    instance = backend(tmp_path, executing(IDENTITY))
    threads: list[int] = []
    for _ in range(20):
        async with running(instance):
            await infer(instance, request([0.0] * 40000))
            await infer(instance, request([0.0] * 40000))
            assert shared_memory_files(os.getpid(), *children()) == shared
        assert not open_descriptors() - descriptors
        threads.append(threading.active_count())
    assert max(threads) <= threads[0]
    assert not children()
    assert shared_memory_files(os.getpid()) == shared


async def test_an_instance_that_is_not_loaded_says_so(tmp_path: Path) -> None:
    instance = backend(tmp_path, executing(IDENTITY))
    with pytest.raises(InstanceDied, match="'m_0' is not loaded"):
        await infer(instance, request())
    with trio.move_on_after(0):
        await instance.wait_died()
        pytest.fail("an instance that is not loaded cannot die")
    await instance.unload()


async def test_a_terminals_signals_do_not_end_a_worker(tmp_path: Path) -> None:
    """The server ends its workers itself, when it has drained; a model's own children die as they always do."""
    model = """
    import os, signal, subprocess, multiprocessing
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            if requests[0].request_id() == "signal":
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGTERM)
            program = subprocess.Popen(["sleep", "1000"])
            program.terminate()
            forked = multiprocessing.get_context("fork").Process(target=signal.pause)
            forked.start()
            forked.terminate()
            forked.join()
            codes = [program.wait(), forked.exitcode, os.getsid(0) == os.getpid()]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(codes))])]
    """
    async with running(backend(tmp_path, model)) as instance:
        for id in ("signal", ""):
            [response] = await infer(instance, request(id=id))
            assert output(response).tolist() == [-signal.SIGTERM, -signal.SIGTERM, True]


async def test_a_models_spawned_processes_can_import_it(tmp_path: Path) -> None:
    model = """
    import multiprocessing
    import numpy as np
    import triton_python_backend_utils as pb_utils

    def double(number):
        return 2 * number

    class TritonPythonModel:
        def execute(self, requests):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                found = pool.map(double, [1, 2])
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(found))])]
    """
    async with running(backend(tmp_path, model)) as instance:
        assert output((await infer(instance, request()))[0]).tolist() == [2, 4]


async def test_an_interpreter_that_cannot_run_the_worker_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(Internal, match="cannot start the interpreter '/nowhere/python'"):
        await backend(tmp_path, executing(IDENTITY)).load()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(Internal, match=r"exited with code 1 during initialize$"):
        await backend(tmp_path, executing(IDENTITY)).load()


def test_arguments_need_no_server(tmp_path: Path) -> None:
    """Making a backend starts nothing."""
    made: Any = backend(tmp_path, executing(IDENTITY))
    assert made.spec.name == "m_0"
    assert not children()
