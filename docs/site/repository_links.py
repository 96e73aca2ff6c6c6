"""Markdown as GitHub reads it, made into Markdown as MkDocs reads it: links that leave `docs/`, and lists.

A page may link to any file of the repository by a relative path. The README and the changelog are pages of the site,
and any other file or folder that is linked gets a page that shows it. Nothing here imports MkDocs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# Files outside `docs/` that are pages of their own, by the page's path in the site.
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
SHOWN = "repository"  # the folder of the pages that show other files
LANGUAGES = {".py": "python", ".toml": "toml", ".pbtxt": "protobuf", ".json": "json", "": "text"}

FENCED = re.compile(r"^(?P<fence>```+)(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=fence)\s*?$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)#\s]+)(#[^)\s]*)?(?=\))")
ITEM = re.compile(r"\s*([-*]|\d+\.)\s")


def sources() -> Iterator[Path]:
    """The files outside `docs/` whose own links are to be followed."""
    yield from (ROOT / path for path in PAGES)
    yield from (ROOT / "examples").rglob("*.md")


def linked(source: Path) -> list[Path]:
    """The files and folders of the repository that a Markdown file links to."""
    if source.suffix != ".md":
        return []
    found: list[Path] = []

    def note(text: str) -> str:
        found.extend(resolved(source, match[1]) for match in LINK.finditer(text))
        return text

    outside_code(source.read_text(), note)
    return [path for path in found if is_ours(path)]


def is_ours(path: Path) -> bool:
    return path.is_relative_to(ROOT) and path.exists()


def resolved(source: Path, target: str) -> Path:
    """The file or folder that a link names; a folder's README stands for it."""
    path = Path(os.path.normpath(source.parent / target))
    return path / "README.md" if (path / "README.md").is_file() else path


def page_of(path: Path) -> str:
    """The path in the site of the page that shows a file or folder of the repository."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    if name in PAGES:
        return PAGES[name]
    ending = "" if path.suffix == ".md" else "/index.md" if path.is_dir() else ".md"
    return f"{SHOWN}/{name}{ending}"


def shown(path: Path) -> str:
    """The page that shows a file or folder."""
    if path.suffix == ".md":
        return path.read_text()
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        names = [each.relative_to(path).as_posix() for each in sorted(path.rglob("*")) if each.is_file()]
        lines = [f"- `{each}`" for each in names if "__pycache__" not in each]
        return "\n".join([f"# {name}/", "", "A folder of the repository, with these files:", "", *lines, ""])
    return f"# {name}\n\n`````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}\n`````\n"


def with_links(text: str, source: Path, uri: str) -> str:
    """Links to files of the repository become links to their pages."""

    def rewritten(match: re.Match[str]) -> str:
        target = resolved(source, match[1])
        if not is_ours(target):
            return match[0]  # MkDocs then says that there is no such page
        return os.path.relpath(page_of(target), Path(uri).parent).replace(os.sep, "/") + (match[2] or "")

    return LINK.sub(rewritten, text)


def with_lists(text: str) -> str:
    """A list may follow a paragraph without an empty line between them, as on GitHub."""
    lines: list[str] = []
    for line in text.split("\n"):
        before = lines[-1] if lines else ""
        if ITEM.match(line) and before.strip() and not before.startswith((" ", "|")) and not ITEM.match(before):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def outside_code(
    text: str, change: Callable[[str], str], change_code: Callable[[re.Match[str]], str] = lambda fenced: fenced[0]
) -> str:
    """A text with its fenced code changed in one way, and all else in another."""
    parts: list[str] = []
    position = 0
    for fenced in FENCED.finditer(text):
        parts += [change(text[position : fenced.start()]), change_code(fenced)]
        position = fenced.end()
    return "".join([*parts, change(text[position:])])
