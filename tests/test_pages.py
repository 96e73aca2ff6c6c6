"""What the pages name is there: files, modules, links, flags, metrics, endpoints, variables and commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from protocol.grpc.services.handlers import SERVICES
from protocol.http.routes import CONSOLE, METRICS, ROUTES
from tests.pages import ROOT, Page, all_pages
from tests.trioton.metrics.test_documentation import described
from trioton.cli import COMMANDS
from trioton.fleet.fleet_api import PATHS as FLEET_PATHS
from trioton.fleet.fleet_metrics import FAMILIES as FLEET_FAMILIES
from trioton.perf_analyzer.parsing import OPTIONS

PAGES = all_pages()
# `docs/modules.md` is written from the modules themselves, and held to them by `tests.modules_page --check`.
WRITTEN = [page for page in PAGES if page.path.name != "modules.md"]
FOLDERS = (
    "actors",
    "backends",
    "changelog.d",
    "deploy",
    "docs",
    "examples",
    "protocol",
    "repository",
    "tests",
    "trioton",
)

# What the pages name that is not of this repository, and whose it is.
FOREIGN_FILES = {
    "keys.toml": "a reader's own",
    "my_model/1/model.py": "a reader's own",
    "models/countdown/1/model.py": "of an example in the text",
    "models/running_sum/1/model.py": "of an example in the text",
    "net.py": "of the tutorial",
    "train.py": "of the tutorial",
}
FOREIGN_FOLDERS = {
    ".bench/": "made by `make bench`",
    "work/": "in the cache of an object store",
    "ensemble/1/": "of a model",
    "initial_state/": "of a model",
    "models/sentiment/1/": "of a model",
    "variables/": "of a SavedModel",
    "warmup/": "of a model",
}
FOREIGN_FLAGS = {
    "--edge-processes": "what could be built, in performance.md",
    "--enable-feature": "of Prometheus",
    "--enable-optimizations": "of CPython's configure",
    "--value-info": "of convert-caffe2-to-onnx",
    **dict.fromkeys(("--init", "--target", "--timestamp"), "of podman and buildah"),
}
FOREIGN_METRICS = {"nv_trt_llm_kv_cache_block_metrics": "a model's own"}
FOREIGN_VARIABLES = {"TRITON_AWS_MOUNT_DIRECTORY": "of Triton's, without effect here"}


@cache
def files() -> frozenset[str]:
    """Every file of the repository that a page may name, and each of its folders with a `/` at the end."""
    found = {str(path.relative_to(ROOT)) for path in ROOT.iterdir() if path.is_file()}
    for folder in (*FOLDERS, ".ci"):
        found |= {
            f"{path.relative_to(ROOT)}{'/' if path.is_dir() else ''}"
            for path in (ROOT / folder, *(ROOT / folder).rglob("*"))
            if "__pycache__" not in path.parts
        }
    return frozenset(found)


@cache
def endings() -> frozenset[str]:
    """The files and folders by all names that tell them: the path, and what of it is left without the first folders."""
    return frozenset(
        "/".join(parts[first:]) for path in files() for parts in [path.split("/")] for first in range(len(parts))
    )


@cache
def sources() -> str:
    """The text of all modules, tests and examples included."""
    return "\n".join((ROOT / path).read_text(encoding="utf-8") for path in files() if path.endswith(".py"))


def named(pattern: str) -> Iterator[tuple[Page, str]]:
    """What the pages' prose names in backticks, where all of it matches."""
    for page in WRITTEN:
        yield from ((page, name) for name in page.named if re.fullmatch(pattern, name))


def in_code(pattern: str) -> Iterator[tuple[Page, str]]:
    """Every match in what the pages name in backticks and in their blocks of code."""
    for page in WRITTEN:
        for text in (*page.named, page.blocks):
            yield from ((page, match) for match in re.findall(pattern, text))


def told(wrong: Iterator[tuple[Page, str]]) -> list[str]:
    return sorted({f"{page}: {name}" for page, name in wrong})


def test_files() -> None:
    """By their path, or the end of it: `fast_path.py` and `http1/fast_path.py` name one module."""
    files_named = named(r"[\w./+-]+\.(?:py|md|proto|toml|ya?ml)")
    assert told((page, name) for page, name in files_named if name not in endings() | FOREIGN_FILES.keys()) == []


def test_folders() -> None:
    folders = named(r"(?!/|\.\.?/)[\w./-]+/")
    assert told((page, name) for page, name in folders if name not in endings() | FOREIGN_FOLDERS.keys()) == []


def test_paths_in_commands_and_lists() -> None:
    known = endings() | FOREIGN_FILES.keys()
    paths = in_code(rf"(?<![\w/.<>-])(?:{'|'.join(FOLDERS)})/[\w./-]*\w")
    assert told((page, path) for page, path in paths if not {path, f"{path}/"} & known) == []


def test_modules_and_what_is_in_them() -> None:
    """Of a dotted name the first parts are a module, and the next a word in it."""

    def is_there(name: str) -> bool:
        parts = name.split(".")
        for count in range(len(parts), 0, -1):
            place = "/".join(parts[:count])
            for path in (f"{place}.py", f"{place}/__init__.py"):
                if path in files():
                    return (
                        count == len(parts) or re.search(rf"\b{parts[count]}\b", (ROOT / path).read_text()) is not None
                    )
        return False

    modules = in_code(r"(?<![\w/.-])(?:actors|backends|protocol|repository|tests)(?:\.[A-Za-z_]\w*)+(?![\w/(-])")
    assert told((page, name) for page, name in modules if not is_there(name) and name not in FOREIGN_FILES) == []


def test_links() -> None:
    """Between the pages and to files beside them, with their headings."""

    def is_there(page: Page, link: str) -> bool:
        place, _, anchor = link.partition("#")
        target = (page.path.parent / place).resolve() if place else page.path
        return target.exists() and (not anchor or anchor in Page(target).anchors)

    links = ((page, link) for page in PAGES for link in page.links if "://" not in link)
    assert told((page, link) for page, link in links if not is_there(page, link)) == []


@cache
def flags() -> frozenset[str]:
    """Of all commands, and of the programs among the tests and examples."""
    own = {f"--{name}" for command in COMMANDS.values() for row in command.table() for name in (row.name, *row.aliases)}
    own |= {f"--{name}" for name in OPTIONS}  # of perf_analyzer, all of which `trioton perf-analyzer` knows
    return frozenset(
        {*own, *re.findall(r"add_argument\(\s*(?:\"-\w\", )?\"(--[\w-]+)", sources()), "--help", "--version"}
    )


def is_flag(name: str) -> bool:
    """`--grpc-max-…` names all that begin so."""
    stem, more, _ = name.partition("…")
    return any(flag.startswith(stem) for flag in flags()) if more else name in flags()


def test_flags() -> None:
    """In a command they are those of its program; whatever stands alone is ours, or listed above."""

    def flags_named() -> Iterator[tuple[Page, str]]:
        for page in WRITTEN:
            for name in page.named:
                if name.startswith("-"):
                    yield from ((page, flag) for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*…?", name))
            for program, *words in page.commands:
                if program == "trioton":
                    yield from ((page, word.partition("=")[0]) for word in words if re.match("--[a-z]", word))

    assert told((page, flag) for page, flag in flags_named() if not is_flag(flag) and flag not in FOREIGN_FLAGS) == []


def test_metrics() -> None:
    """`docs/metrics.md` is held to the server by a test of its own, and all other pages to it."""
    families = described().keys() | FOREIGN_METRICS.keys() | {family.name for family in FLEET_FAMILIES}
    samples = {f"{family}{suffix}" for family in families for suffix in ("", "_total", "_bucket", "_sum", "_count")}

    def is_there(name: str) -> bool:
        return any(each.startswith(name[:-1]) for each in samples) if name.endswith(("*", "_")) else name in samples

    metrics = in_code(r"(?<![\w./-])(?:nv|trioton)_[\w*]+(?![./\w])")
    assert told((page, name) for page, name in metrics if not is_there(name)) == []


def test_endpoints() -> None:
    """A parameter of a path is written in any way: `{model}`, `<name>`, or an example's."""
    routes = [re.sub(r"\{\w+\}", "[^/]+", route.path) for route in (*ROUTES, METRICS, *CONSOLE)]
    routes += FLEET_PATHS

    def is_there(name: str) -> bool:
        path = re.sub(r"\{[^}]*\}|<[^>]*>|\[[^]]*\]", "x", name)
        if "…" in path:  # the end of a path, or its begin
            known = re.compile(".*".join(map(re.escape, path.split("…"))))
            return any(known.fullmatch(route.replace("[^/]+", "x")) for route in routes)
        return any(re.fullmatch(route, path) for route in routes)

    paths = in_code(r"(?<![\w/.}>])(?:[\w.]+:\d+)?((?:/v2|/metrics|…/)(?:[\w./{}<>%:…-]*[\w}>…])?)(?![\w*])")
    assert told((page, path) for page, path in paths if not is_there(path)) == []


def test_grpc_methods() -> None:
    services = {name.rpartition(".")[2] for name in SERVICES}
    methods = {
        (service, method)
        for path in (ROOT / "protocol" / "proto").rglob("*.proto")
        for service, body in re.findall(r"^service (\w+)\s*\{(.*?)^\}", path.read_text(), re.MULTILINE | re.DOTALL)
        for method in re.findall(r"\brpc (\w+)", body)
    }
    named_methods = in_code(r"\b(?:inference|trioton|grpc(?:\.\w+)*)\.([A-Z]\w+/[A-Z]\w+)")
    assert (
        told((p, n) for p, n in named_methods if tuple(n.split("/")) not in methods or n.split("/")[0] not in services)
        == []
    )


def test_environment_variables() -> None:
    """Each stands in a module as it is, or is a flag's."""
    pattern = r"\b(?:TRITONSERVER|TRITON|TRIOTON)_[A-Z0-9_]*[A-Z0-9]\b"
    of_flags = {f"TRIOTON_{flag[2:].replace('-', '_').upper()}" for flag in flags()}
    known = {*of_flags, *re.findall(pattern, sources()), *FOREIGN_VARIABLES}
    assert told((page, name) for page, name in in_code(pattern) if name not in known) == []


def test_targets_of_make() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    words = (
        (page, word) for page in WRITTEN for program, *words in page.commands if program == "make" for word in words
    )
    assert told((page, word) for page, word in words if re.fullmatch("[a-z]+", word) and word not in targets) == []


def test_the_changelog_grows_by_fragments_alone() -> None:
    """Its first release is told as a whole; what comes later goes into `changelog.d/`, whatever is merged."""
    _, _, first = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n## 0.1.0")
    assert 1 < len(first.splitlines()) <= 25
