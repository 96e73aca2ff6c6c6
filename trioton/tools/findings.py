"""Findings of `trioton doctor`, and their output as text or JSON."""

from __future__ import annotations

import enum
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WIDTH = 100


class Level(enum.Enum):
    """An error keeps a model, or a whole server, from being served; a warning is about what is served otherwise than it
    seems to be meant."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault and its mend, which is empty where the text says it all."""

    text: str
    mend: str = ""
    level: Level = Level.ERROR


@dataclass(slots=True)
class Report:
    """The findings about the repositories themselves, and about each model by its name; a model without any is well."""

    repositories: Sequence[str]
    about_repositories: list[Finding] = field(default_factory=list)
    models: dict[str, list[Finding]] = field(default_factory=dict)

    @property
    def has_errors(self) -> bool:
        return any(map(_is_error, self._all()))

    def _all(self) -> Iterable[Finding]:
        yield from self.about_repositories
        for findings in self.models.values():
            yield from findings

    def as_json(self) -> Mapping[str, Any]:
        """`ok` is whether a server would load everything."""
        return {
            "repositories": list(self.repositories),
            "ok": not self.has_errors,
            "findings": [_as_json(finding) for finding in self.about_repositories],
            "models": {
                name: {"ok": not any(map(_is_error, findings)), "findings": [_as_json(each) for each in findings]}
                for name, findings in self.models.items()
            },
        }

    def as_text(self) -> str:
        """Each model in a line, with its findings below; then the sum."""
        parts = [_block("", self.about_repositories)] if self.about_repositories else []
        parts += [_block(name, findings) for name, findings in self.models.items()]
        errors = sum(map(_is_error, self._all()))
        warnings = sum(1 for _ in self._all()) - errors
        parts.append(f"{_count(len(self.models), 'model')}, {_count(errors, 'error')}, {_count(warnings, 'warning')}")
        return "\n".join(parts)


def _is_error(finding: Finding) -> bool:
    return finding.level is Level.ERROR


def _as_json(finding: Finding) -> dict[str, str]:
    return {"level": finding.level.value, "text": finding.text, "mend": finding.mend}


def _block(name: str, findings: Sequence[Finding]) -> str:
    lines = [f"{name}: ok" if not findings else name] if name else []
    for finding in findings:
        lines += _wrapped(f"  {finding.level.value}: ", finding.text)
        if finding.mend:
            lines += _wrapped("    mend: ", finding.mend)
    return "\n".join(lines)


def _wrapped(head: str, text: str) -> list[str]:
    """The text, with its own lines kept, behind the head; words longer than a line stay whole."""
    indent = " " * len(head)
    lines = [
        textwrap.fill(
            line, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        for line in text.splitlines()
    ]
    shown = "\n".join(lines).splitlines() or [indent]
    return [head + shown[0][len(indent) :], *shown[1:]]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
