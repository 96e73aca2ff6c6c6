"""The console's page in a real browser: what it shows, what can be done with it, by whom, and that it is accessible."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.e2e.console.conftest import FLAGS, opened
from tests.e2e.console.repository import HOSTILE, add_splits
from tests.e2e.pages import expect, violations
from tests.e2e.server_process import ServerProcess
from tests.pages import ROOT

pytestmark = pytest.mark.slow

VIEWS = (
    "",
    "requests",
    "errors",
    "log",
    "models/add_sub",
    "models/split",
    "models/picture",
    "models/story",
    "models/broken",
)
KEYS = """
[keys.watcher]
key = "watcher-0123456789"
allow = ["metadata", "metrics"]
"""
# Asks for the screenshots of the documentation to be made anew.
SCREENSHOTS = "TRIOTON_SCREENSHOTS"


def url(server: ServerProcess, path: str) -> str:
    return f"http://{server.addresses['http']}/v2/{path}"


def infer(server: ServerProcess, model: str = "add_sub", values: int = 16, **more: Any) -> httpx.Response:
    names = ("INPUT0", "INPUT1") if model in ("add_sub", "split") else ("IN",)
    shape = [1, values] if model in ("add_sub", "split") else [values]
    inputs = [{"name": name, "datatype": "FP32", "shape": shape, "data": [1.0] * values} for name in names]
    return httpx.post(url(server, f"models/{model}/infer"), json={"inputs": inputs, **more}, timeout=60)


@contextmanager
def traffic(server: ServerProcess) -> Iterator[None]:
    """Requests, some of which fail, as long as the block lasts."""
    over = threading.Event()

    def send() -> None:
        while not over.wait(0.02):
            infer(server)
            infer(server, "split")
            infer(server, values=3)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def shoot(page: Any, name: str) -> None:
    """A screenshot for the documentation."""
    if os.environ.get(SCREENSHOTS):
        path = ROOT / "docs" / "images" / f"{name}.png"
        path.parent.mkdir(exist_ok=True)
        page.screenshot(path=path)
        with Image.open(path) as image:
            image.convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(path, optimize=True)
        assert path.stat().st_size <= 150_000


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_is_accessible(page: Any, console: ServerProcess, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    infer(console, values=3)
    for view in VIEWS:
        opened(page, console, view)
        page.locator("main table, main form").first.wait_for()
        for summary in page.locator("summary").all():
            summary.click()
        assert (view, violations(page)) == (view, [])


def test_markup_in_a_name_is_text(page: Any, console: ServerProcess) -> None:
    opened(page, console)
    link = page.get_by_role("link", name=HOSTILE)
    expect(link).to_be_visible()
    link.click()
    expect(page.locator("h1")).to_have_text(HOSTILE)
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("status").filter(has_text="Answered")).to_be_visible()
    opened(page, console, "log")
    page.get_by_label("Contains").fill("onerror")
    expect(page.locator(".log tbody tr").first).to_contain_text(HOSTILE)
    assert page.locator("img").count() == 0
    assert page.title() != "owned"


def test_what_happens_is_seen(page: Any, console: ServerProcess) -> None:
    """In the figures, the plots and their tables, the errors; with the screenshots of the documentation."""
    with traffic(console):
        opened(page, console)
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name="add_sub")).filter(has_text="READY").last
        expect(row.get_by_role("cell").nth(2)).not_to_have_text("0")
        plot = page.locator("figure").filter(has_text="Requests per second")
        expect(plot.locator("canvas")).to_be_visible()
        plot.locator("summary").click()
        expect(plot.locator("tbody tr").nth(5)).to_be_visible()
        plot.locator("summary").click()
        if os.environ.get(SCREENSHOTS):  # with something in the plots, and no path of this machine
            page.get_by_label("State").select_option("READY")
            page.wait_for_timeout(40_000)
        shoot(page, "console-models")
        opened(page, console, "errors")
        expect(page.locator("tbody tr").first).to_contain_text("INPUT0")
        opened(page, console, "models/split")
        expect(page.get_by_role("row", name="add_sub, version 1").get_by_role("cell").nth(2)).to_contain_text(
            re.compile(r"[789]\d")
        )
        page.emulate_media(color_scheme="dark")
        shoot(page, "console-model")


def test_numbers_can_be_tried_and_the_programs_do_the_same(page: Any, console: ServerProcess, tmp_path: Path) -> None:
    opened(page, console, "models/add_sub")
    page.get_by_label("INPUT0, numbers").fill(", ".join(map(str, range(16))))
    page.get_by_label("INPUT1, numbers").fill("1 " * 16)
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_label("Values of OUTPUT0")).to_have_text(", ".join(str(n + 1) for n in range(16)))
    # The latest version, 2, subtracts the other way round.
    expect(page.get_by_label("Values of OUTPUT1")).to_have_text(", ".join(str(1 - n) for n in range(16)))
    page.get_by_text("The same request for a shell").click()
    assert "16.0" in ran(["bash", "-c", page.get_by_test_id("curl").inner_text()])
    program = page.get_by_test_id("python").inner_text()
    assert "[[ 1.  2.  3." in ran([sys.executable, "-c", program])
    page.get_by_label("INPUT1, numbers").fill("1 2 three")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert").filter(has_text="expected a number, got 'three'")).to_be_visible()
    page.get_by_label("INPUT1, numbers").fill("1 2 3")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert").filter(has_text="holds 16 elements, given are 3")).to_be_visible()


def ran(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_text_and_files_can_be_tried(page: Any, console: ServerProcess, tmp_path: Path) -> None:
    opened(page, console, "models/texts")
    page.get_by_label("Dimension 0").fill("2")
    page.get_by_label("IN, each line is an element").fill("grüße\n<b>second</b>")
    page.get_by_role("button", name="Send").click()
    outputs = page.get_by_label("Output OUT").locator("pre")
    expect(outputs).to_have_text(["grüße", "<b>second</b>"])
    page.get_by_text("The same request for a shell").click()
    assert "<b>second</b>" in ran(["bash", "-c", page.get_by_test_id("curl").inner_text()])
    assert "<b>second</b>" in ran([sys.executable, "-c", page.get_by_test_id("python").inner_text()])

    (tmp_path / "some.raw").write_bytes(np.arange(5, dtype=np.float32).tobytes())
    opened(page, console, "models/large")
    page.get_by_label("From").select_option("file")
    page.get_by_label("File for IN").set_input_files(tmp_path / "some.raw")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_label("Values of OUT")).to_have_text("0, 1, 2, 3, 4")


def test_large_tensors_go_as_they_are(page: Any, console: ServerProcess) -> None:
    opened(page, console, "models/large")
    page.get_by_label("From").select_option("random")
    page.get_by_label("Dimension 0").fill("1000000")
    with page.expect_request("**/infer") as sent:
        page.get_by_role("button", name="Send").click()
    expect(page.get_by_label("Values of OUT")).to_contain_text("and 999,900 more")
    assert int(sent.value.headers["inference-header-content-length"]) < 300


def test_pictures_are_sent_and_shown(page: Any, console: ServerProcess, tmp_path: Path) -> None:
    Image.new("RGB", (24, 16), (255, 0, 128)).save(tmp_path / "pink.png")
    opened(page, console, "models/picture")
    page.get_by_label("From").select_option("picture")
    page.get_by_label("File for IN").set_input_files(tmp_path / "pink.png")
    page.get_by_role("button", name="Send").click()
    canvas = page.get_by_label("OUT as a picture of 12 by 8 pixels")
    expect(canvas).to_be_visible()
    pixel = canvas.evaluate("canvas => [...canvas.getContext('2d').getImageData(6, 4, 1, 1).data]")
    assert pixel == [255, 0, 128, 255]


def test_generated_text_is_streamed(page: Any, console: ServerProcess) -> None:
    opened(page, console, "models/story")
    page.get_by_label("text_input").fill("once upon <i>a</i> time")
    page.get_by_role("button", name="Send and read the stream").click()
    expect(page.get_by_test_id("generated")).to_have_text("once upon <i>a</i> time")
    page.get_by_text("The same request for a shell").click()
    assert "upon" in ran(["bash", "-c", page.get_by_test_id("curl").inner_text()])
    assert "upon" in ran([sys.executable, "-c", page.get_by_test_id("python").inner_text()])


def test_a_request_is_cancelled(page: Any, console: ServerProcess, console_models: Path) -> None:
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(infer(console, "waiting", 1)))
    thread.start()
    try:
        opened(page, console, "requests")
        row = page.get_by_role("row").filter(has_text="waiting")
        expect(row).to_be_visible()
        row.get_by_role("button", name="Cancel request").click()
        expect(page.get_by_role("status").filter(has_text="was cancelled")).to_be_visible()
        thread.join()
        assert "was cancelled" in answers[0].json()["error"]
    finally:
        (console_models.parent / "go").touch()


def test_models_are_loaded_and_unloaded(page: Any, console: ServerProcess, tmp_path: Path) -> None:
    """Also with other files, and with what goes wrong shown."""
    opened(page, console, "models/texts")
    page.get_by_role("button", name="Unload", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="being unloaded")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="UNAVAILABLE")).to_contain_text("unloaded")
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.get_by_role("row").filter(has_text="READY").first).to_be_visible()

    opened(page, console, "models/broken")
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text="this model cannot be loaded")).to_be_visible()
    (tmp_path / "model.py").write_text(MODEL)
    page.get_by_text("Load with another configuration or other files").click()
    page.get_by_label("Configuration as JSON").fill(CONFIG)
    page.get_by_label("Files, in place of").set_input_files(tmp_path / "model.py")
    expect(page.get_by_label("Path of model.py")).to_have_value("1/model.py")
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.get_by_role("row").filter(has_text="READY").first).to_be_visible()


CONFIG = """{"backend": "python", "input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [1]}],
 "output": [{"name": "B", "data_type": "TYPE_FP32", "dims": [1]}]}"""


MODEL = """import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for request in requests]
"""


def test_a_split_is_changed(page: Any, console: ServerProcess) -> None:
    opened(page, console, "models/split")
    button = page.get_by_role("button", name="Change the split")
    expect(button).to_be_disabled()
    page.get_by_label("Weight of add_sub, version 2 as a number").fill("60")
    page.get_by_label("Weight of add_sub, version 1", exact=True).fill("40")
    expect(page.get_by_role("row", name="add_sub, version 2")).to_contain_text("60 %")
    button.click()
    expect(page.get_by_role("status").filter(has_text="The split is changed")).to_be_visible()
    targets = httpx.get(url(console, "console/models/split")).json()["versions"][0]["targets"]
    assert [target["weight"] for target in targets] == [40, 60]


def test_a_key_is_asked_for_and_its_limits_are_told(page: Any, console_models: Path, tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text(KEYS)
    with ServerProcess(*FLAGS, f"--auth-keys-file={tmp_path / 'keys.toml'}", repository=console_models) as server:
        opened(page, server)
        expect(page.locator("h1")).to_have_text("A key is needed")
        assert violations(page) == []
        page.get_by_label("Key", exact=True).fill("this-is-not-a-key")
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_role("alert").filter(has_text="a valid key is needed")).to_be_visible()
        page.get_by_label("Key", exact=True).fill("watcher-0123456789")
        page.get_by_label("keep it until this tab is closed").check()
        page.get_by_role("button", name="Open").click()
        page.get_by_role("link", name="add_sub").first.click()
        expect(page.get_by_text("key watcher")).to_be_visible()
        for name in ("Send", "Load again", "Unload"):
            expect(page.get_by_role("button", name=name, exact=True)).to_be_disabled()
        described = page.get_by_role("button", name="Load again").get_attribute("aria-describedby")
        expect(page.locator(f"#{described}")).to_contain_text("does not allow 'model-repository'")
        assert violations(page) == []
        opened(page, server, "log")
        expect(page.get_by_text("does not allow 'logging'")).to_be_visible()
        page.reload()
        expect(page.get_by_text("key watcher")).to_be_visible()
        assert page.context.cookies() == []
        page.get_by_role("button", name="Change key").click()
        expect(page.locator("h1")).to_have_text("A key is needed")


def test_without_explicit_control_nothing_is_loaded(page: Any, console_models: Path) -> None:
    with ServerProcess("--console", "--exit-on-error=false", repository=console_models) as server:
        opened(page, server, "models/add_sub")
        expect(page.get_by_role("button", name="Load again")).to_be_disabled()
        expect(page.get_by_text("only with --model-control-mode=explicit").first).to_be_visible()


def test_it_works_by_keyboard(page: Any, console: ServerProcess) -> None:
    opened(page, console)
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.get_by_label("Name contains").focus()
    page.keyboard.type("add_")
    expect(page.locator("caption").filter(has_text="2 of")).to_be_visible()
    page.get_by_role("button", name="req/s").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("columnheader", name="req/s")).to_have_attribute("aria-sort", "descending")
    page.get_by_role("link", name="add_sub").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1:focus")).to_have_text("add_sub")


def test_a_thousand_models_can_be_used(page: Any, tmp_path: Path, console_models: Path) -> None:
    add_splits(tmp_path, 1000)
    with ServerProcess(*FLAGS, f"--model-repository={console_models}", repository=tmp_path) as server:
        opened(page, server)
        expect(page.get_by_text("of 1010 versions")).to_be_visible()
        assert page.locator("tbody tr").count() <= 101
        page.get_by_role("button", name="Next").click()
        expect(page.get_by_text("page 2 of 11")).to_be_visible()
        page.get_by_label("Name contains").fill("split-0777")
        expect(page.locator("caption").filter(has_text="1 of 1010")).to_be_visible()
        page.get_by_role("link", name="split-0777").click()
        expect(page.locator("h1")).to_have_text("split-0777")
