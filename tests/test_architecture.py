"""The plan of the packages, held against the code: who may import whom, and what no module may do."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# What each part may import of the others; the longest matching prefix decides.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "protocol": (),
    "protocol.proto": (),
    "protocol.http": ("protocol",),
    "protocol.grpc": ("protocol", "protocol.proto"),
    "repository": ("protocol", "protocol.proto"),
    "backends": ("protocol", "repository", "backends.python.worker", "backends.engines.worker"),
    "backends.engines.worker": ("backends.python.worker",),
    "backends.python.worker": (),
    "actors": ("protocol", "repository", "backends"),
    "trioton": (
        "protocol",
        "protocol.proto",  # the load generator speaks gRPC as a client, the control of a fleet as a server
        "protocol.http",
        "protocol.grpc",
        "repository",
        "backends",
        "backends.engines.worker",
        "actors",
    ),
}
# The rooms of a package, its folders and single modules, and which of its other rooms each imports. A room imports only
# rooms that stand above it here, so the order has no cycle. The table says what is there, exactly: a new arrow is
# written down, and one that is no longer needed is struck out.
ROOMS: dict[str, dict[str, str]] = {
    "actors": {
        "mail": "",
        "capture": "",
        "tracing": "mail",
        "metrics": "mail",
        "scheduling": "mail metrics",
        "redis_client": "",
        "cache": "metrics redis_client tracing",
        "instance": "mail metrics tracing",
        "model": "cache instance mail metrics scheduling tracing",
        "ensemble": "cache instance mail metrics model tracing",
        "lifecycle": "cache ensemble instance metrics model scheduling",
        "core": "cache instance lifecycle metrics model scheduling",
        "console": "core lifecycle metrics model",
        "jobs": "mail metrics redis_client scheduling",
        "quotas": "redis_client",
    },
    "protocol": {
        "errors": "",
        "datatypes": "",
        "failures": "",
        "sync": "",
        "proto": "",
        "server_settings": "datatypes",
        "shapes": "datatypes errors",
        "limits": "errors sync",
        "gen_ai": "errors server_settings",
        "origin": "",
        "quotas": "errors",
        "messages": "datatypes errors gen_ai limits origin quotas server_settings",
        "outgoing": "",
        "webhooks": "outgoing",
        "zipped": "errors messages",
        "log": "errors limits messages origin server_settings",
        "text": "errors",
        "core": "errors messages text",
        "jobs": "core datatypes errors messages webhooks",
        "access": "errors failures messages quotas webhooks",
        "console": "core",
        "tensors": "datatypes errors messages",
        "reactor": "core errors failures log messages sync",
        "shared_memory": "core datatypes errors messages tensors",
        "edge_link": "access core datatypes errors failures gen_ai log messages origin quotas reactor server_settings "
        "sync text",
        "http2": "limits messages reactor sync",
        "responses": "errors failures sync",
        "media": "errors outgoing",
        "metrics_text": "sync zipped",
        "open_connections": "",
        "sequence_header": "errors messages",
        "load_report": "",
        "services": (
            "access console core failures gen_ai jobs limits log media metrics_text open_connections responses "
            "server_settings shared_memory"
        ),
        "grpc": (
            "access core datatypes errors failures http2 jobs limits load_report log messages open_connections origin "
            "proto quotas reactor sequence_header server_settings services shapes shared_memory sync zipped"
        ),
        "http": (
            "access console core datatypes errors failures gen_ai http2 jobs limits load_report log messages "
            "metrics_text open_connections origin outgoing quotas reactor responses sequence_header server_settings "
            "services shapes shared_memory sync text zipped"
        ),
    },
    "protocol.http": {
        "reply": "",
        "settings": "",
        "date": "",
        "head": "",
        "errors": "reply",
        "body": "errors",
        "codec": "errors reply",
        "exchange": "body codec reply settings",
        "charges": "errors exchange reply",
        "route": "codec errors exchange",
        "route_table": "errors exchange route",
        "metrics_page": "codec reply",
        "handlers": "codec errors exchange metrics_page reply",
        "openai": "codec errors exchange handlers reply route route_table settings",
        "anthropic": "errors exchange openai reply route route_table",
        "page_parts": "",
        "static_files": "codec exchange reply",
        "openapi": "anthropic codec exchange openai reply static_files",
        "console": "codec exchange reply static_files",
        "routes": "anthropic console handlers openai openapi route route_table settings",
        "wrapped": "body exchange reply",
        "measured": "body exchange reply wrapped",
        "access": "exchange handlers measured",
        "app": "access body charges codec console errors exchange handlers measured reply route route_table routes"
        " settings",
        "direct_infer": "access app charges codec errors exchange handlers head reply",
        "http2": "body date direct_infer errors exchange head reply settings",
        "http1": "body date direct_infer errors exchange head reply settings",
        "connection": "date direct_infer exchange http1 http2 settings",
        "connections": "connection date direct_infer errors exchange http1 http2 settings",
        "metrics": "connections errors exchange metrics_page reply settings",
        "server": "app connections direct_infer routes settings",
        "cloud": "app codec connections errors exchange handlers reply route route_table routes settings wrapped",
        "relay": "anthropic app body charges errors exchange handlers head openai reply route route_table routes"
        " settings",
    },
    "protocol.grpc": {
        "plain_message": "",
        "settings": "",
        "status": "",
        "codec": "",
        "call": "codec settings status",
        "access": "call",
        "inference": "call codec settings status",
        "services": "access call codec inference settings status",
        "connection": "call codec inference settings status",
        "server": "access codec connection inference services settings",
        "relay": "access call codec connection inference server settings",
    },
    "protocol.http.openai": {
        "errors": "",
        "limit_headers": "",
        "single_answers": "",
        "threads": "",
        "codec": "errors",
        "targets": "errors",
        "prompts": "codec errors",
        "choice": "codec",
        "streams": "codec errors",
        "call": "codec errors limit_headers streams targets threads",
        "observation": "call codec",
        "generation": "codec observation",
        "usage": "choice codec prompts",
        "inferences": "call choice codec errors observation prompts usage",
        "vectors": "call codec errors observation single_answers threads",
        "chats": "call choice codec errors generation inferences prompts targets threads",
        "responses": "call chats codec errors generation prompts streams threads",
        "handlers": (
            "call chats choice codec errors generation inferences observation prompts single_answers streams targets "
            "threads vectors"
        ),
        "batches": "call codec errors handlers responses threads",
        "routes": "batches errors handlers responses",
    },
    "backends.engines": {
        "worker": "",
        "conversion": "",
        "tensors": "worker",
        "pictures": "tensors",
        "answer": "tensors worker",
        "lines": "",
        "admission": "lines worker",
        "settings": "admission",
        "text": "settings",
        "metrics": "admission tensors worker",
        "control": "worker",
        "sleep": "",
        "hang_watch": "",
        "worker_link": "control hang_watch settings worker",
        "step_slices": "worker",
        "generations": "admission answer metrics step_slices tensors worker worker_link",
        "adapters": "generations worker_link",
        "backend": "adapters answer generations metrics pictures settings sleep tensors text worker worker_link",
        "installed": "backend",
    },
    "backends.engines.tensors": {
        "limits": "",
        "sampling": "",
        "images": "",
        "request": "images sampling",
        "values": "",
        "tensorrt_llm": "images request sampling values",
        "llm_api": "images request sampling values",
        "sets": "llm_api request tensorrt_llm",
        "completion": "sets",
    },
    "backends.engines.metrics": {
        "metric_set": "",
        "adapters": "metric_set",
        "engine": "adapters metric_set",
        "observed": "",
    },
    "backends.python": {
        "worker": "",
        "environments": "worker",
        "settings": "environments worker",
        "wire": "settings worker",
        "workers": "environments settings wire worker",
        "batches": "settings wire worker workers",
        "bls": "batches wire worker workers",
        "in_loop": "batches bls wire worker workers",
        "launcher": "environments in_loop settings workers",
        "loaded_model": "batches bls in_loop launcher settings wire worker workers",
        "renewal": "loaded_model settings",
        "backend": "batches bls environments launcher loaded_model renewal settings wire worker",
        "testing": "backend launcher settings worker workers",
        "based": "backend",
    },
}
PACKAGES = ("protocol", "repository", "backends", "actors", "trioton")
WORKER = "backends.python.worker"
# The folder of the worker is on its own path, so modules there know each other by these names too.
WORKER_NAMES = ("c_python_backend_utils", "triton_python_backend_utils", "trioton_worker")
ENGINE_WORKER, ENGINE_WORKER_NAME = "backends.engines.worker", "trioton_engine"
RAY_ACTORS = "trioton.ray."
# Folders of tests that no room corresponds to.
OWN_TEST_FOLDERS = {
    "tests/backends/conformance": "what all backends have in common",
    "tests/backends/engines/conformance": "what all engines have in common",
    "tests/backends/engines/tiny_llama": "a language model, and the program that makes it",
    "tests/backends/engines/tiny_llava": "the same for one that sees",
}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES: Mapping[str, Path] = {
    module_name(path): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if "generated" not in path.parts and "__pycache__" not in path.parts
}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


def part_of(module: str) -> str:
    """The part of the house that a dotted module name belongs to."""
    return max((part for part in MAY_IMPORT if f"{module}.".startswith(f"{part}.")), key=len)


def room_of(module: str, package: str) -> str | None:
    """The package's folder or single module that a module is or lies in; None for the package itself and all others."""
    inner = module.removeprefix(f"{package}.")
    return None if inner == module else inner.split(".")[0]


def absolute(node: ast.ImportFrom, module: str) -> str:
    """The dotted name of what the names of an import come from."""
    if not node.level:
        return node.module or ""
    package = module.split(".") if MODULES[module].name == "__init__.py" else module.split(".")[:-1]
    above = package[: len(package) - node.level + 1]
    return ".".join([*above, node.module] if node.module else above)


def named(module: str) -> Iterator[str]:
    """What a module imports, wherever in the file it does: modules, or names in them, as dotted names."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = absolute(node, module)
            yield from (f"{source}.{alias.name}" for alias in node.names)


def _full_name(module: str, name: str) -> str:
    """What a name means in a worker's folder."""
    first = name.split(".")[0]
    if module.startswith((WORKER, ENGINE_WORKER)) and first in WORKER_NAMES:
        return f"{WORKER}.{name}"
    return f"{ENGINE_WORKER}.{name}" if module.startswith(ENGINE_WORKER) and first == ENGINE_WORKER_NAME else name


@cache
def imported(module: str) -> frozenset[str]:
    """Our own modules that a module imports."""
    found = set()
    for name in named(module):
        full = _full_name(module, name)
        if full.split(".")[0] in PACKAGES:
            found.add(full if full in MODULES else full.rpartition(".")[0])
    return frozenset(found)


def test_what_an_import_names_is_read() -> None:
    """Absolute and relative ones, of modules and of names in them; else the tests below would hold nothing."""
    assert "protocol.errors" in imported("protocol.http.errors")
    assert f"{WORKER}.trioton_worker.errors" in imported(f"{WORKER}.trioton_worker.tensors")
    assert f"{WORKER}.trioton_worker.serve" in imported(f"{WORKER}.main")
    assert f"{WORKER}.trioton_worker.connection" in imported(f"{ENGINE_WORKER}.trioton_engine.serve")
    assert f"{ENGINE_WORKER}.trioton_engine.serve" in imported(f"{ENGINE_WORKER}.main")
    assert "backends.python.backend" in imported("backends.python")


def test_imports_run_one_way() -> None:
    """Edges know no actors, backends know no actors, only `trioton` knows `trioton`."""
    upward = [
        f"{module} imports {name}"
        for module in MODULES
        for name in imported(module)
        if (there := part_of(name)) != (here := part_of(module)) and there not in MAY_IMPORT[here]
    ]
    assert upward == []


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_import_only_what_the_table_says(package: str) -> None:
    arrows: dict[str, set[str]] = {}
    for module in MODULES:
        if (here := room_of(module, package)) is not None:
            theirs = {room_of(name, package) for name in imported(module) & MODULES.keys()}
            arrows.setdefault(here, set()).update(room for room in theirs if room and room != here)
    found = {room: " ".join(sorted(others)) for room, others in arrows.items()}
    assert ROOMS[package] == found


@pytest.mark.parametrize("package", ROOMS)
def test_no_arrow_runs_back_up_between_rooms(package: str) -> None:
    rooms = list(ROOMS[package])
    upward = [
        f"{room} imports {other}"
        for place, room in enumerate(rooms)
        for other in ROOMS[package][room].split()
        if other not in rooms[:place]
    ]
    assert upward == []


def test_modules_import_each_other_in_no_circle() -> None:
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, f"import cycle: {' -> '.join((*trail, module))}"
        if module not in done:
            for name in imported(module) & MODULES.keys() - {module}:
                visit(name, (*trail, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())


def test_every_folder_of_tests_is_that_of_a_room() -> None:
    folders = {
        path.parent.relative_to(ROOT) for package in PACKAGES for path in (ROOT / "tests" / package).rglob("*.py")
    }
    without = {str(folder) for folder in folders if not (ROOT / folder.relative_to("tests")).is_dir()}
    assert without == OWN_TEST_FOLDERS.keys()


def test_every_module_says_what_it_is_for() -> None:
    assert [module for module in MODULES if not ast.get_docstring(tree(module))] == []


def test_no_asyncio_in_the_server() -> None:
    """The worker of the Python backend is a process of its own and may use what it likes. Actors of Ray run on asyncio,
    and are no servers."""
    users = {
        module
        for module in MODULES
        if not module.startswith((WORKER, ENGINE_WORKER, RAY_ACTORS))
        for name in named(module)
        if name.split(".")[0] == "asyncio"
    }
    assert users == set()
