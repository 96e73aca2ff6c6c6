"""`trioton batch`, as a process: killed, interrupted, gone on with, and shared by machines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.jobs.data.places import files_of, parse_place
from protocol.jobs.source import DataFormat
from tests.backends.engines.models import TINY, needs_openvino_genai
from tests.e2e.repository import copy_python_model
from tests.e2e.server_process import TIMEOUT_SECONDS, eventually
from tests.emulators import Store
from tests.marked_processes import MARK

# Each takes a start of the model.
KILLS = int(os.environ.get("TRIOTON_JOB_KILLS", "3"))

CONFIG = """
backend: "python"
max_batch_size: 8
dynamic_batching { }
input [ { name: "X" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_INT64 dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
HEAD = """
import os
import signal

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
"""
PLAIN = "return [pb_utils.InferenceResponse([pb_utils.Tensor('Y', 2 * array)]) for array in arrays]"
# A model that dies of the row 13, in a process of its own or in the loop of whoever runs it.
DEADLY = "if any(int(array[0, 0]) == 13 for array in arrays):\n    os.kill(os.getpid(), signal.SIGKILL)\n" + PLAIN
IN_LOOP = 'parameters { key: "ISOLATION" value { string_value: "in_loop" } }'


def write_model(folder: Path, body: str = PLAIN, config: str = CONFIG) -> Path:
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(HEAD + textwrap.indent(body, " " * 8) + "\n")
    (folder / "config.pbtxt").write_text(config)
    return folder


class BatchProcess:
    """`trioton batch` with the given words; killed at the end of the `with` block."""

    def __init__(self, *words: str | Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trioton", "batch", *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, **MARK},
        )
        self.said = ""

    def __enter__(self) -> BatchProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self.wait()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        said, _ = self._process.communicate(timeout=TIMEOUT_SECONDS)
        self.said += said or ""
        return self._process.returncode


def batch(*words: str | Path) -> tuple[int, str]:
    """Exit code, and what was said."""
    with BatchProcess(*words) as process:
        code = process.wait()
        return code, process.said


def write_lines(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def values(path: Path, output: str = "Y") -> dict[int, int]:
    """What there is for each row, which are in order, and there once."""
    found = lines_of(path)
    assert [line["index"] for line in found] == sorted({line["index"] for line in found})
    for line in found:
        (tensor,) = line["response"]["outputs"]
        assert tensor["name"] == output
    return {line["index"]: line["response"]["outputs"][0]["data"][0] for line in found}


def has_more(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size > size


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "double")


@pytest.fixture
def slow(tmp_path: Path) -> Callable[..., tuple[Path, list[str | Path]]]:
    """An input of rows that take so long, and the words that run them."""
    copy_python_model("slow", tmp_path / "models")

    def make(count: int, seconds: float) -> tuple[Path, list[str | Path]]:
        rows = [{"SECONDS": [seconds], "VALUE": [index], "custom_id": f"row {index}"} for index in range(count)]
        source, target = write_lines(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
        return target, [source, target, "--model=slow", f"--model-repository={tmp_path / 'models'}"]

    return make


def test_results_are_joined_to_rows_and_failures_apart(model: Path, tmp_path: Path) -> None:
    rows = [{"X": [index], "custom_id": f"c{index}"} for index in range(100)]
    source = write_lines(tmp_path / "in.jsonl", [*rows[:50], "garbage", "", {"X": [1, 2]}, *rows[50:]])
    target = tmp_path / "out.jsonl"
    code, said = batch(source, target, "--model", model)
    assert (code, "102 rows" in said, "2 failed" in said) == (2, True, True)
    assert values(target) == {row + 2 * (row >= 50): 2 * row for row in range(100)}
    assert [line["custom_id"] for line in lines_of(target)] == [f"c{index}" for index in range(100)]
    errors = lines_of(tmp_path / "out.jsonl.errors.jsonl")
    assert [(line["index"], line["error"]["kind"]) for line in errors] == [(50, "INVALID_ARG"), (51, "INVALID_ARG")]
    # What is complete stays as it is, and says the same.
    before = target.read_bytes()
    code, said = batch(source, target, "--model", model)
    assert (code, "complete already" in said, target.read_bytes()) == (2, True, before)
    # Another run does not write over it, unless it is told to.
    code, said = batch(source, target, "--model", model, "--limit=3")
    assert (code, "--restart" in said, target.read_bytes()) == (1, True, before)
    (tmp_path / "double" / "config.pbtxt").write_text("no configuration")
    assert batch(source, target, "--model", model, "--limit=3", "--restart")[0] == 1
    (tmp_path / "double" / "config.pbtxt").write_text(CONFIG)
    code, said = batch(source, target, "--model", model, "--limit=3")
    assert (code, "3 rows" in said) == (0, True)
    assert values(target) == {0: 0, 1: 2, 2: 4}
    assert not (tmp_path / "out.jsonl.errors.jsonl").exists()


@pytest.mark.timeout(600)
def test_each_row_is_there_once_after_kills(slow: Callable[..., tuple[Path, list[str | Path]]]) -> None:
    """Also where the file ends in the middle of a line."""
    target, words = slow(300, 0.01)
    for number in range(KILLS):
        before = target.stat().st_size if target.exists() else 0
        with BatchProcess(*words) as process:
            assert eventually(partial(has_more, target, before + 1000))
            process.signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
        if number == 0:
            with target.open("ab") as file:
                file.write(b'{"index":7,"custom_id":"row 7","respo')
    code, said = batch(*words)
    assert code == 0, said
    assert values(target, "VALUE") == {index: index for index in range(300)}
    assert [line["custom_id"] for line in lines_of(target)] == [f"row {index}" for index in range(300)]


def test_rows_and_results_in_a_bucket(model: Path, store: Store) -> None:
    """The state is there, too, and a run that is complete stays so."""
    for number in range(3):
        lines = [json.dumps({"X": [10 * number + row]}) for row in range(10)]
        store.put(f"in/{number}.jsonl", "\n".join(lines).encode())
    words = (f"{store.url}/in/*.jsonl", f"{store.url}/out", "--model", model)
    code, said = batch(*words)
    assert code == 0, said
    (part,) = files_of(parse_place(f"{store.url}/out"), DataFormat.JSON_LINES, os.environ)
    with part.open() as file:
        found = [json.loads(line) for line in file]
    assert [line["response"]["outputs"][0]["data"] for line in found] == [[2 * row] for row in range(30)]
    code, said = batch(*words)
    assert (code, "complete already: 30 rows" in said) == (0, True)
    code, said = batch(*words, "--limit=7")
    assert (code, "another limit" in said) == (1, True)


def test_tables_in_and_out(model: Path, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    pq.write_table(
        pa.table({"X": list(range(40)), "custom_id": [f"c{row}" for row in range(40)]}), tmp_path / "in.parquet"
    )
    code, said = batch(tmp_path / "in.parquet", tmp_path / "out.parquet", "--model", model)
    assert code == 0, said
    found = pq.read_table(tmp_path / "out.parquet").to_pydict()
    assert (found["index"], found["custom_id"][7]) == (list(range(40)), "c7")
    assert np.array(found["Y"]).reshape(-1).tolist() == list(range(0, 80, 2))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_checkpoint(
    slow: Callable[..., tuple[Path, list[str | Path]]], number: signal.Signals
) -> None:
    target, words = slow(400, 0.01)
    with BatchProcess(*words) as process:
        assert eventually(partial(has_more, target, 1000))
        process.signal(number)
        assert process.wait() == 128 + number
        assert f"{number.name}, ended early" in process.said
        assert "the same command goes on from there" in process.said
    state = json.loads(Path(f"{target}.state").read_text())
    so_far = target.read_bytes()
    assert 0 < state["done"] == so_far.count(b"\n") < 400
    assert not state["is_running"]
    code, said = batch(*words)
    assert code == 0, said
    assert target.read_bytes().startswith(so_far)
    assert values(target, "VALUE") == {index: index for index in range(400)}


def test_one_run_at_a_time_writes_an_output(slow: Callable[..., tuple[Path, list[str | Path]]]) -> None:
    target, words = slow(1000, 0.05)
    with BatchProcess(*words) as process:
        assert eventually(target.exists)
        code, said = batch(*words)
        assert (code, "one run at a time" in said) == (1, True)
        process.signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM


def test_a_row_that_kills_the_worker_is_apart(tmp_path: Path) -> None:
    model = write_model(tmp_path / "deadly", DEADLY)
    source = write_lines(tmp_path / "in.jsonl", [{"X": [index]} for index in range(60)])
    target = tmp_path / "out.jsonl"
    code, said = batch(source, target, "--model", model)
    assert code == 2, said
    assert values(target) == {row: 2 * row for row in range(60) if row != 13}
    (error,) = lines_of(tmp_path / "out.jsonl.errors.jsonl")
    assert (error["index"], error["error"]["kind"]) == (13, "INTERNAL")
    assert "has died 3 times with this row, at last alone" in error["error"]["message"]


@pytest.mark.timeout(600)
def test_a_row_that_kills_the_process_is_apart_after_some_starts(tmp_path: Path) -> None:
    model = write_model(tmp_path / "deadly", DEADLY, CONFIG + IN_LOOP)
    source = write_lines(tmp_path / "in.jsonl", [{"X": [index]} for index in range(60)])
    target = tmp_path / "out.jsonl"
    codes: list[int] = []
    while not codes or codes[-1] < 0:
        assert len(codes) < 10
        codes.append(batch(source, target, "--model", model, "--backend-config=python,allow-in-process=true")[0])
    assert set(codes[:-1]) == {-signal.SIGKILL}
    assert codes[-1] == 2
    assert values(target) == {row: 2 * row for row in range(60) if row != 13}
    (error,) = lines_of(tmp_path / "out.jsonl.errors.jsonl")
    assert error["index"] == 13
    assert "the process has died 3 times in a row while it ran this row alone" in error["error"]["message"]


@needs_openvino_genai
def test_a_language_model_by_its_folder(tmp_path: Path) -> None:
    rows = [{"text_input": f"Story {index}", "max_tokens": index % 3 + 1, "temperature": 0} for index in range(40)]
    source, target = write_lines(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    code, said = batch(source, target, "--model", TINY)
    assert code == 0, said
    found = lines_of(target)
    assert [line["index"] for line in found] == list(range(40))
    for line in found:
        (text,) = line["response"]["outputs"]
        assert text["name"] == "text_output"
        assert text["data"][0].startswith(f"Story {line['index']}")


def chat(index: int, **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Story {index}"}]
    made = {"model": "tiny", "messages": messages, "max_tokens": 3, "temperature": 0, **body}
    return {"custom_id": f"c{index}", "method": "POST", "url": "/v1/chat/completions", "body": made}


@needs_openvino_genai
def test_lines_of_openai_s_batch_files(tmp_path: Path) -> None:
    rows = [chat(0), chat(1), chat(2, model="another"), chat(3, messages=7), {**chat(4), "url": "/v1/x"}]
    source, target = write_lines(tmp_path / "in.jsonl", [*rows, {"text_input": "plain"}]), tmp_path / "out.jsonl"
    code, said = batch(source, target, "--model", TINY, "--served-model-name=tiny")
    assert code == 2, said
    *chats, plain = lines_of(target)
    assert [(line["custom_id"], line["response"]["status_code"], line["error"]) for line in chats] == [
        ("c0", 200, None),
        ("c1", 200, None),
    ]
    assert all(line["response"]["body"]["usage"]["completion_tokens"] == 3 for line in chats)
    assert (plain["index"], plain["response"]["model_name"]) == (5, "tiny")
    other, wrong, nowhere = lines_of(tmp_path / "out.jsonl.errors.jsonl")
    assert (other["custom_id"], other["response"], other["error"]["message"]) == ("c2", None, "Unknown model: another")
    assert (wrong["custom_id"], wrong["response"]["status_code"], wrong["error"]) == ("c3", 400, None)
    assert (nowhere["custom_id"], "'url': expected one of" in nowhere["error"]["message"]) == ("c4", True)


def test_machines_share_an_input(model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [{"X": [index]} for index in range(31)])
    found: dict[int, int] = {}
    for number in (1, 2, 3):
        target = tmp_path / "out.jsonl"
        code, said = batch(source, target, "--model", model, f"--shard={number}/3", "--limit=30")
        assert code == 0, said
        own = values(tmp_path / f"out-0000{number}-of-00003.jsonl")
        assert own == {row: 2 * row for row in range(number - 1, 30, 3)}
        found |= own
    assert found == {row: 2 * row for row in range(30)}


def test_arrays_in_and_out_by_folders(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", X=np.arange(50, dtype=np.int64).reshape(50, 1))
    target = tmp_path / "out"
    code, said = batch(tmp_path / "in.npz", target, "--output-format=npz", "--model", model, "--batch=16")
    assert code == 0, said
    (part,) = target.glob("results-*.npz")
    with np.load(part) as arrays:
        assert arrays["index"].tolist() == list(range(50))
        assert arrays["Y"].reshape(-1).tolist() == list(range(0, 100, 2))
    assert json.loads((target / "_state.json").read_text())["is_complete"]
    # The state belongs to the run, and is no result.
    code, said = batch(tmp_path / "in.npz", target, "--output-format=npz", "--model", model, "--batch=16")
    assert (code, "complete already" in said) == (0, True)


def test_a_folder_of_files_is_gone_on_with_after_a_kill(
    slow: Callable[..., tuple[Path, list[str | Path]]], tmp_path: Path
) -> None:
    """What was written after the last checkpoint is written again, and nothing of it stays."""
    _, words = slow(200, 0.01)
    target = tmp_path / "folder"
    with BatchProcess(words[0], target, *words[2:]) as process:
        assert eventually(lambda: (target / "_state.json").exists())
        process.signal(signal.SIGTERM)
        assert process.wait() in (128 + signal.SIGTERM, 0)
    state = json.loads((target / "_state.json").read_text())
    stale = target / f"results-{state['done'] + 3:012}.jsonl"
    stale.write_text('{"index": 9999}\n')
    (target / "_state.json").write_text(json.dumps({**state, "is_running": True}))
    code, said = batch(words[0], target, *words[2:])
    assert code == 0, said
    found = [line["index"] for path in sorted(target.glob("results-*.jsonl")) for line in lines_of(path)]
    assert found == list(range(200))


def test_what_cannot_be_run_is_told(model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [{"X": [1]}])
    target = tmp_path / "out.jsonl"
    for words, text in (
        ((source, "--version=7"), "trioton batch: model 'double' cannot be run"),
        ((tmp_path / "absent.jsonl", "--version=1"), "absent.jsonl' cannot be read: No such file"),
    ):
        code, said = batch(*words, target, "--model", model)
        assert (code, text in said, "Traceback" in said) == (1, True, False), said
