"""The public modules: every name can be imported, is described, and costs no framework."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.errors import KINDS
from protocol.grpc.status import code_of
from protocol.http.errors import status_of
from tests.public.listing import MODULES, NOT_PUBLIC, public_names

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "api.md"
PACKAGES = ("actors", "backends", "protocol", "repository", "trioton")
# What only a server needs, or only the models of one framework.
HEAVY = {
    *("betterproto2", "grpclib", "h2", "httptools", "hypercorn", "prometheus_client", "re2"),
    *("cupy", "jax", "obstore", "onnxruntime", "openvino", "openvino_genai", "redis", "tensorflow", "tensorrt"),
    *("torch", "treelite", "vllm"),
}


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_is_there_and_described(name: str) -> None:
    module = importlib.import_module(name)
    assert (module.__doc__ or "").startswith("Public: "), f"{name} does not say that it is public"
    names = public_names(module)
    assert len(names) == len(set(names))
    for each in names:
        value = getattr(module, each)
        if inspect.isfunction(value) or (inspect.isclass(value) and not name.endswith("model_config")):
            assert value.__doc__, f"{name}.{each} has no docstring"


def test_what_is_left_out_is_there() -> None:
    classes = {name: getattr(module, name) for module in map(importlib.import_module, MODULES) for name in dir(module)}
    for name, members in NOT_PUBLIC.items():
        known = {*dir(classes[name]), *inspect.signature(classes[name]).parameters, ""}
        assert set(members) - known == set(), f"{name} has no such attributes any more"


def test_only_these_modules_say_that_they_are_public() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in files
        if path.read_text().startswith('"""Public: ')
    }
    assert found == set(MODULES)


def test_the_page_names_them_and_no_others() -> None:
    found = re.findall(r"^\| \[?`(trioton\.\w+)`", PAGE.read_text(), re.MULTILINE)
    assert sorted(found) == sorted(MODULES)


@pytest.mark.parametrize("package", [package for package in PACKAGES if package != "trioton"])
def test_the_other_packages_say_that_they_are_private(package: str) -> None:
    assert "Private: " in (importlib.import_module(package).__doc__ or "")


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_of_others_read_our_types(package: str) -> None:
    """By PEP 561; public names are defined in the packages that are private otherwise."""
    assert (ROOT / package / "py.typed").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODULES if name not in ("trioton.server", "trioton.testing")])
def test_what_plugs_in_imports_no_server_and_no_framework(name: str) -> None:
    script = f"import sys, {name}; print(*sorted({HEAVY!r} & {{module.split('.')[0] for module in sys.modules}}))"
    found = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def test_the_statuses_of_the_errors_are_as_described() -> None:
    errors = importlib.import_module("trioton.errors")
    described = {}
    for names, http, grpc in re.findall(r"^\| (`.+?) \| (\d+) \| (\w+) \|$", errors.__doc__ or "", re.MULTILINE):
        described.update({name: (int(http), grpc) for name in re.findall(r"`(\w+)`", names)})
    kinds = {name: getattr(errors, name)("") for name in public_names(errors)}
    assert described == {name: (status_of(error), code_of(error).name) for name, error in kinds.items()}


def test_errors_that_are_missing_concern_http_and_grpc_alone() -> None:
    errors = importlib.import_module("trioton.errors")
    missing = {cls.__name__ for cls in KINDS.values()} - set(public_names(errors))
    assert missing == {"PayloadTooLarge", "InsufficientStorage", "Unauthenticated", "Forbidden", "Restricted"}
