"""What tests of pages ask a browser. What is not installed is imported when a test runs, which is skipped then."""

from __future__ import annotations

import importlib
from typing import Any


def expect(page: Any) -> Any:
    made = importlib.import_module("playwright.sync_api").expect
    made.set_options(timeout=30_000)  # milliseconds: generous, for a busy machine
    return made(page)


def violations(page: Any) -> list[str]:
    axe = importlib.import_module("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(page).response["violations"]
    return [f"{each['id']}: {node['html']}" for each in found for node in each["nodes"]]
