"""Lines that models write in their workers: their level, logger and exception, and the requests that they belong to."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server_process import ServerProcess

LOGS = """
import logging, os, sys, threading
import triton_python_backend_utils as pb_utils

log = logging.getLogger("shop.prices")
plain = logging.getLogger("plain")
handler = logging.StreamHandler(sys.stdout)
handler.setFormatter(logging.Formatter("<%(message)s>"))
log.addHandler(handler)
log.setLevel(1)
log.propagate = False

class TritonPythonModel:
    def initialize(self, args):
        log.info("starting")

    def execute(self, requests):
        log.debug("debug")
        log.info("info")
        log.warning("warning")
        log.error("error")
        log.critical("critical")
        plain.warning("unhandled")
        try:
            {}["price"]
        except KeyError:
            log.exception("no price\\x1b[31m")
            plain.exception("no price at all")
        thread = threading.Thread(target=log.info, args=("by a thread",))
        thread.start()
        thread.join()
        os.write(2, b"by descriptor\\n")
        os.system("exit 0")
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
BATCH = """
import logging, os, sys
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        count = len(requests)
        pb_utils.Logger.log_warn(f"Logger {count}")
        logging.getLogger("x").warning("logging %d", count)
        print(f"print {count}")
        os.write(1, b"descriptor %d\\n" % count)
        if count == 3:
            raise ValueError("three")
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
DECOUPLED = """
import threading
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request.get_response_sender(),)).start()

    def answer(self, sender):
        print("by the thread of a response sender")
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
LOOP = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        pb_utils.Logger.log_info("in the loop")
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
CONFIG = """
backend: "python"
max_batch_size: 16
input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }
"""
BATCHING = "dynamic_batching { preferred_batch_size: [ %d ] max_queue_delay_microseconds: 20000000 }"


def add(folder: Path, name: str, code: str, config: str = "") -> None:
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "1" / "model.py").write_text(code)
    (folder / name / "config.pbtxt").write_text(CONFIG + config)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("models")
    add(folder, "logs", LOGS)
    add(folder, "ten", BATCH, BATCHING % 10)
    add(folder, "three", BATCH, BATCHING % 3)
    add(folder, "later", DECOUPLED, "model_transaction_policy { decoupled: true }")
    add(folder, "loop", LOOP, 'parameters { key: "ISOLATION" value: { string_value: "in_loop" } }')
    flags = ("--log-format=json", "--backend-config=python,allow-in-process=true")
    with ServerProcess(*flags, repository=folder) as process:
        assert len(process.addresses) == 3
        yield process


def infer(server: ServerProcess, model: str, request_id: str) -> httpx.Response:
    body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
    url = f"http://{server.addresses['http']}/v2/models/{model}/infer"
    return httpx.post(url, json=body, headers={"x-request-id": request_id}, timeout=60)


def infer_all(server: ServerProcess, model: str, ids: Sequence[str]) -> Sequence[httpx.Response]:
    with ThreadPoolExecutor(len(ids)) as threads:
        return list(threads.map(lambda each: infer(server, model, each), ids))


def change(server: ServerProcess, log_format: str) -> None:
    httpx.post(f"http://{server.addresses['http']}/v2/logging", json={"log_format": log_format}).raise_for_status()


def written(server: ServerProcess, model: str) -> dict[str, Any]:
    lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    found = [each for each in lines if each.get("Attributes", {}).get("model") == model]
    return {each["Body"]: each for each in found}


def test_levels_of_logging(server: ServerProcess) -> None:
    change(server, "json")
    assert infer(server, "logs", "levels").status_code == 200
    server.wait_for_line("by a thread")
    server.wait_for_line("by descriptor")
    found = written(server, "logs")
    for name, severity in (("debug", "DEBUG"), ("info", "INFO"), ("warning", "WARN"), ("error", "ERROR")):
        line = found[f"<{name}>"]
        assert (line["SeverityText"], line["InstrumentationScope"]) == (severity, {"Name": "shop.prices"})
        assert line["Attributes"]["request_id"] == "levels"
        assert line["Attributes"]["code.file.path"].endswith("/logs/1/model.py")
    assert (found["<critical>"]["SeverityText"], found["<critical>"]["SeverityNumber"]) == ("FATAL", 21)
    assert found["unhandled"]["InstrumentationScope"] == {"Name": "plain"}
    assert found["<by a thread>"]["Attributes"]["request_id"] == "levels"
    assert found["<starting>"]["Attributes"]["instance"] == "logs_0"
    assert "request_id" not in found["<starting>"]["Attributes"]
    for text, logger in (("<no price\x1b[31m>", "shop.prices"), ("no price at all", "plain")):
        line = found[text]
        assert (line["SeverityText"], line["InstrumentationScope"]["Name"]) == ("ERROR", logger)
        assert line["Attributes"]["exception.type"] == "KeyError"
        assert line["Attributes"]["exception.message"] == "'price'"
        assert line["Attributes"]["exception.stacktrace"].startswith("Traceback (most recent call last):\n")
        assert line["Attributes"]["exception.stacktrace"].endswith("\nKeyError: 'price'")
    # Written long before the end of the batch, which waits for another program.
    assert found["by descriptor"]["Attributes"]["request_id"] == "levels"
    assert "\x1b" not in server.log


def test_levels_in_the_elastic_schema(server: ServerProcess) -> None:
    change(server, "ecs")
    assert infer(server, "logs", "elastic").status_code == 200
    for name in ("debug", "info", "warning", "error", "critical"):
        text = f'"log.level":"{name}","message":"<{name}>".*"logger":"shop.prices".*"request":{{"id":"elastic"}}'
        server.wait_for_line(text)
    server.wait_for_line(r'"message":"no price at all".*"error":{"type":"KeyError","message":"\'price\'","stack_trace"')


@pytest.mark.parametrize(("log_format", "head"), [("default", "{}\\d{{4}} "), ("ISO8601", "\\d{{4}}-\\S+Z {} ")])
def test_levels_in_text(server: ServerProcess, log_format: str, head: str) -> None:
    change(server, log_format)
    assert infer(server, "logs", log_format).status_code == 200
    tags = f"request_id={log_format} model=logs version=1 instance=logs_0 logger=shop.prices"
    for letter, name in (("I", "debug"), ("I", "info"), ("W", "warning"), ("E", "error"), ("E", "critical")):
        server.wait_for_line(rf'^{head.format(letter)}.*model.py:\d+\] "logs_0: <{name}>" {tags}$')
    server.wait_for_line(rf'"logs_0: <no price\\u001b\[31m>" {tags}$')
    server.wait_for_line("^    KeyError: 'price'$")
    server.wait_for_line(rf'print\] "logs_0: by descriptor" request_id={log_format} ')


def test_lines_of_a_batch_name_its_requests(server: ServerProcess) -> None:
    change(server, "json")
    ids = [f"ten-{number}" for number in range(10)]
    assert {each.status_code for each in infer_all(server, "ten", ids)} == {200}
    for text in ("Logger 10", "logging 10", "print 10", "descriptor 10"):
        server.wait_for_line(f'"{text}"')
    found = written(server, "ten")
    for text in ("Logger 10", "logging 10", "print 10"):
        attributes = found[text]["Attributes"]
        assert len(attributes["request_ids"]) == 8
        assert set(attributes["request_ids"]) < set(ids)
        assert attributes["request_count"] == 10
        assert "request_id" not in attributes
    assert not {"request_id", "request_ids"} & found["descriptor 10"]["Attributes"].keys()


def test_a_batch_that_fails_names_its_requests(server: ServerProcess) -> None:
    change(server, "ecs")
    ids = ["a,b", "c", "d"]
    assert {each.status_code for each in infer_all(server, "three", ids)} == {500}
    line = json.loads(server.wait_for_line(r'^.*"message":"Traceback .*ValueError: three.*$')[0])
    assert sorted(line["http"]["request"]["id"]) == ids
    assert line["labels"]["request_count"] == "3"
    change(server, "default")
    infer_all(server, "three", ids)
    found = server.wait_for_line(r'"three_0: Logger 3" request_ids=(\S+) request_count=3 model=three')
    assert sorted(found[1].replace('"a,b"', "ab").split(",")) == ["ab", "c", "d"]


def test_a_thread_of_a_response_sender(server: ServerProcess) -> None:
    change(server, "default")
    url = f"http://{server.addresses['http']}/v2/models/later/generate_stream"
    with httpx.stream("POST", url, json={"IN": 1.0}, headers={"x-request-id": "late"}, timeout=60) as reply:
        reply.read()
    server.wait_for_line("by the thread of a response sender.*request_id=late")


def test_the_last_lines_of_a_worker(tmp_path: Path) -> None:
    """Those of `finalize` are there, however many, and those before them."""
    code = """
import os

class TritonPythonModel:
    def execute(self, requests):
        return []

    def finalize(self):
        os.write(1, b"".join(b"line %d\\n" % number for number in range(5000)))
        print("bye", flush=True)
"""
    add(tmp_path, "last", code)
    with ServerProcess(repository=tmp_path) as process:
        assert len(process.addresses) == 3
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        lines = [line for line in process.log.splitlines() if '"last_0: ' in line]
        assert len(lines) == 5001
        assert '"last_0: bye"' in lines[-1]


def test_a_model_in_the_loop(server: ServerProcess) -> None:
    change(server, "default")
    assert infer(server, "loop", "inside").status_code == 200
    server.wait_for_line('"loop_0: in the loop" request_id=inside model=loop version=1 instance=loop_0')
