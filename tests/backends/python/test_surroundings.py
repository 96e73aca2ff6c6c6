"""What a model finds around it in its interpreter, and what libraries make of it: as where Python is embedded."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from tests.backends.python.models import CONFIG, backend, infer, output, parameters, request, running
from trioton.cli import main

HEAD = """
import json, multiprocessing, os, signal, sys, threading
import numpy as np
import triton_python_backend_utils as pb_utils

def answer(value):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([str(value)], object))])
"""
OWN_PROCESS = ("process", "threads", "fork")

# Each answers 5.
PROGRAMS = {
    "argparse": """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--size", type=int, default=5)
GIVEN = parser.parse_args()

class TritonPythonModel:
    def execute(self, requests):
        return [answer(GIVEN.size) for _ in requests]
""",
    "unittest": """
import unittest

class Test(unittest.TestCase):
    def test(self):
        pass

class TritonPythonModel:
    def execute(self, requests):
        result = unittest.main(module=__name__, exit=False).result
        return [answer(4 + result.testsRun) for _ in requests]
""",
    "spawned processes import the model's module": """
import protocol  # a sibling with the name of a package of the server

def doubled(number):
    return number * protocol.TWO

class TritonPythonModel:
    def initialize(self, args):
        self.given = args

    def execute(self, requests):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return [answer(int(pool.map(doubled, [2.5])[0])) for _ in requests]
""",
    "a process server": """
from concurrent.futures import ProcessPoolExecutor

def doubled(number):
    return number * 2

class TritonPythonModel:
    def execute(self, requests):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver")) as pool:
            return [answer(int(sum(pool.map(doubled, [2.5])))) for _ in requests]
""",
    "forked processes": """
class TritonPythonModel:
    def execute(self, requests):
        with multiprocessing.get_context("fork").Pool(1) as pool:
            return [answer(int(sum(pool.map(float, [2, 3])))) for _ in requests]
""",
    "pickles, sources, annotations": """
import dataclasses, inspect, pickle, typing

@dataclasses.dataclass
class Thing:
    size: "int" = 5

class TritonPythonModel:
    def execute(self, requests):
        assert typing.get_type_hints(Thing) == {"size": int}
        assert "size: " in inspect.getsource(Thing)
        assert sys.modules["1"].model.Thing is Thing
        return [answer(pickle.loads(pickle.dumps(Thing())).size) for _ in requests]
""",
    "standard input has ended": """
class TritonPythonModel:
    def execute(self, requests):
        return [answer(5 + len(sys.stdin.read())) for _ in requests]
""",
}

SEEN = """
class TritonPythonModel:
    def execute(self, requests):
        main = sys.modules["__main__"]
        seen = {
            "argv": sys.argv,
            "main": sorted(name for name in vars(main) if not name.endswith("__")),
            "file": hasattr(main, "__file__"),
            "path": sys.path[0],
            "threads": [each.name for each in threading.enumerate()],
        }
        return [answer(json.dumps(seen)) for _ in requests]
"""


async def answered(directory: Path, program: str, mode: str, **options: str) -> str:
    config = msgspec.structs.replace(CONFIG, parameters=parameters(**options))
    files = {"protocol": "TWO = 2\n"}
    async with running(backend(directory, HEAD + program, isolation=mode, files=files, config=config)) as instance:
        (response,) = await infer(instance, request())
        (text,) = output(response).tolist()
        return str(text, "utf-8")


@pytest.mark.parametrize("mode", OWN_PROCESS)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
async def test_programs(tmp_path: Path, program: str, mode: str) -> None:
    assert await answered(tmp_path, program, mode) == "5"


@pytest.mark.parametrize("mode", OWN_PROCESS)
async def test_what_an_embedded_interpreter_has(tmp_path: Path, mode: str) -> None:
    threads = {"threads": '["MainThread", "Thread-1 (_serve_thread)"]'}.get(mode, '["MainThread"]')
    assert await answered(tmp_path, SEEN, mode) == (
        '{"argv": [""], "main": [], "file": false, "path": "", "threads": ' + threads + "}"
    )


@pytest.mark.skipif(sys.version_info < (3, 11), reason="new in Python 3.11")
async def test_an_operator_may_keep_the_working_directory_out(tmp_path: Path) -> None:
    text = "class TritonPythonModel:\n    def execute(self, requests):\n        return [answer('' in sys.path)]\n"
    assert await answered(tmp_path, text, "process", **{"ENV:PYTHONSAFEPATH": "1"}) == "False"


async def test_a_model_takes_signals_as_any_program_does(tmp_path: Path) -> None:
    program = """
class TritonPythonModel:
    def initialize(self, args):
        self.taken = []
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self.take)

    def take(self, number, frame):
        self.taken.append(signal.Signals(number).name)

    def execute(self, requests):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.raise_signal(number)
        return [answer(" ".join(self.taken)) for _ in requests]
"""
    assert await answered(tmp_path, program, "process") == "SIGTERM SIGINT SIGUSR1"


def test_models_in_the_servers_process_do_not_find_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["trioton", "--version"])
    assert main() == 0
    assert sys.argv == ["trioton"]
