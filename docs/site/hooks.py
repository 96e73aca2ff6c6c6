"""What the site needs besides MkDocs: pages of files outside `docs/`, drawn diagrams, nothing from the network."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from repository_links import DOCS, PAGES, ROOT, linked, outside_code, page_of, shown, sources, with_links, with_lists
from sequence_diagrams import svg_of

from tests.public.listing import NOT_PUBLIC

# Files of this folder that the pages load.
ASSETS = ("site.css", "iframe-worker.js")
# What a browser loads by itself; links that a reader may follow are no matter.
LOADED = re.compile(
    r"""<(?:script|link|img|iframe|source|video|audio)\b[^>]*?(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)"""
)
IMPORTED = re.compile(r"""(?:@import|url\()\s*["']?((?:https?:)?//[^"')\s]+)""")

logger = logging.getLogger("mkdocs.hooks.trioton")


@event_priority(100)  # before mkdocstrings reads its own
def on_config(config: Any) -> Any:
    """What is no part of the public interface is not shown."""
    hidden = {name for names in NOT_PUBLIC.values() for name in names if name}
    options = config.plugins["mkdocstrings"].config["handlers"]["python"]["options"]
    options["filters"] = ["!^_", f"!^({'|'.join(sorted(hidden))})$"]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of files outside `docs/`, and to the last section of the navigation what it names nowhere."""
    uris = [file.src_uri for file in files.documentation_pages()]
    named = set(named_in(config.nav))
    (last,) = config.nav[-1].values()
    last.extend(uri for uri in uris if uri not in named)
    contents = {uri: (ROOT / path).read_text() for path, uri in PAGES.items()}
    contents.update((f"assets/{name}", (Path(__file__).parent / name).read_text()) for name in ASSETS)
    contents.update(repository_pages([*(DOCS / uri for uri in uris), *(ROOT / path for path in PAGES)]))
    for uri, content in contents.items():
        files.append(File.generated(config, uri, content=content))
    return files


def named_in(nav: Any) -> Iterator[str]:
    """The pages of a part of the navigation."""
    if isinstance(nav, str):
        yield nav
    else:
        for each in nav.values() if isinstance(nav, dict) else nav:
            yield from named_in(each)


def repository_pages(sources: list[Path]) -> dict[str, str]:
    """Pages for the files outside `docs/` that these link to, and for those that they link to in turn."""
    pages: dict[str, str] = {}
    while sources:
        for target in linked(sources.pop()):
            uri = page_of(target)
            if uri not in pages and uri not in PAGES.values() and not target.is_relative_to(DOCS):
                pages[uri] = shown(target)
                sources.append(target)
    return pages


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """A page's text as MkDocs wants it."""
    uri = page.file.src_uri
    source = next((path for path in sources() if page_of(path) == uri), DOCS / uri)
    return outside_code(markdown, lambda text: with_lists(with_links(text, source, uri)), with_diagrams)


def with_diagrams(fenced: re.Match[str]) -> str:
    """Sequence diagrams are drawn here, once: to draw them in the browser takes a script of megabytes."""
    if fenced["language"] != "mermaid":
        return fenced[0]
    return f'<div class="sequence">{svg_of(fenced["code"])}</div>\n'


def on_post_build(config: Any) -> None:
    """The site is read without a network: a warning, which ends a strict build, for each thing that it would load."""
    site = Path(config.site_dir)
    for pattern, suffix in ((LOADED, "html"), (IMPORTED, "css")):
        for path in sorted(site.rglob(f"*.{suffix}")):
            for address in pattern.findall(path.read_text()):
                logger.warning("%s loads %s", path.relative_to(site), address)
