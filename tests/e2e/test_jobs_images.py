"""Jobs over folders of images, with a real server and a real model: pictures of text, and which are upside down."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw, ImageFont

from tests.backends.onnxruntime.test_real_models import file_of
from tests.e2e.job_client import JobClient
from tests.e2e.server_process import ServerProcess, eventually

# Decodes whole files, and asks the OCR library's model of text directions.
MODEL = """
import io
import time
import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        (file,) = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy().reshape(-1)
        try:
            image = Image.open(io.BytesIO(file)).convert("RGB")
        except Exception as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"no image: {error}"))
        pixels = np.asarray(image.resize((192, 48)), np.float32).transpose(2, 0, 1) / 127.5 - 1
        call = pb_utils.InferenceRequest(
            model_name="direction",
            requested_output_names=["save_infer_model/scale_0.tmp_1"],
            inputs=[pb_utils.Tensor("x", pixels[None])],
        )
        answer = call.exec()
        if answer.has_error():
            return pb_utils.InferenceResponse(error=answer.error())
        scores = answer.output_tensors()[0].as_numpy()
        size = np.array([[image.width, image.height]], np.int32)
        return pb_utils.InferenceResponse([
            pb_utils.Tensor("UPSIDE_DOWN", scores[:, 1:] > 0.9),
            pb_utils.Tensor("SIZE", size),
        ])
"""
CONFIG = """
backend: "python" max_batch_size: 4
input [ { name: "IMAGE" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "UPSIDE_DOWN" data_type: TYPE_BOOL dims: [ 1 ] }, { name: "SIZE" data_type: TYPE_INT32 dims: [ 2 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
"""
WORDS = ("Trioton", "Inference", "Structure", "Concurrent", "Nurseries", "Scheduling", "Repository", "Ensembles")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Where jobs may read and write."""
    version = tmp_path / "models" / "picture" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    direction = tmp_path / "models" / "direction" / "1"
    direction.mkdir(parents=True)
    file = file_of("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx")
    (direction / "model.onnx").symlink_to(file)
    (tmp_path / "data" / "in").mkdir(parents=True)
    return tmp_path / "data"


def serve(data: Path) -> ServerProcess:
    store = f"--jobs-store={data.parent / 'jobs'}"
    return ServerProcess(store, f"--jobs-allow-url={data}", repository=data.parent / "models")


def draw(folder: Path, count: int) -> dict[str, bool]:
    """Pictures of words; which are upside down, by their names."""
    font = ImageFont.load_default(size=36)
    drawn: dict[str, bool] = {}
    for number in range(count):
        is_turned, name = number % 3 == 0, f"{number:03}.{('png', 'jpg')[number % 2]}"
        image = Image.new("RGB", (192, 48), "white")
        ImageDraw.Draw(image).text((4, 0), WORDS[number % len(WORDS)], fill="black", font=font)
        (image.rotate(180) if is_turned else image).save(folder / name)
        drawn[name] = is_turned
    return drawn


def lines_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    files = sorted(folder.glob(f"{kind}-*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def seen(lines: list[dict[str, Any]]) -> dict[str, bool]:
    found: dict[str, bool] = {}
    for line in lines:
        outputs = {each["name"]: each["data"] for each in line["response"]["outputs"]}
        assert outputs["SIZE"] == [192, 48]
        (found[line["custom_id"]],) = outputs["UPSIDE_DOWN"]
    return found


def submitted(client: JobClient, source: str, output: Path) -> str:
    body = {"model_name": "picture", "input": {"url": source, "format": "images"}, "output": {"url": str(output)}}
    answer = client.call("POST", "/v2/jobs", body)
    assert answer.status == 202, answer.body
    return str(answer.json["id"])


def test_each_image_of_a_folder_is_a_row_known_by_its_name(data: Path) -> None:
    drawn = draw(data / "in", 24)
    (data / "in" / "broken.png").write_bytes(b"no image")
    (data / "in" / "notes.txt").write_text("no row")
    with serve(data) as server:
        client = JobClient(server.addresses["http"])
        job = client.ended(submitted(client, str(data / "in"), data / "out"))
        assert (job["state"], job["counts"]["succeeded"], job["counts"]["failed"]) == ("succeeded", 24, 1)
        # Some of them, by a pattern in a URL.
        job = client.ended(submitted(client, f"file://{data}/in/**/*.jpg", data / "some"))
        assert (job["state"], job["counts"]["total"]) == ("succeeded", 12)
    assert seen(lines_of(data / "out", "results")) == drawn
    jpegs = {name: is_turned for name, is_turned in drawn.items() if name.endswith("jpg")}
    assert seen(lines_of(data / "some", "results")) == jpegs
    (error,) = lines_of(data / "out", "errors")
    assert (error["index"], error["custom_id"]) == (24, "broken.png")
    assert "no image" in error["error"]["message"]


def test_a_kill_loses_and_repeats_no_image(data: Path) -> None:
    drawn = draw(data / "in", 240)
    with serve(data) as server:
        client = JobClient(server.addresses["http"])
        job_id = submitted(client, str(data / "in"), data / "out")
        assert eventually(lambda: client.job(job_id)["counts"]["succeeded"] > 5)
        server.signal(signal.SIGKILL)
        server.wait()
    with serve(data) as server:
        job = JobClient(server.addresses["http"]).ended(job_id)
        assert (job["state"], job["counts"]["succeeded"]) == ("succeeded", 240)
    lines = lines_of(data / "out", "results")
    assert [line["index"] for line in lines] == list(range(240))
    assert seen(lines) == drawn
