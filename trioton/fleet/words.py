"""The command line of a fleet, taken apart: the fleet's own flags, and the words that its replicas get.

Pure. Replicas get values as they were given, so that they mean the same to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trioton.flags.fields import UsageError, parse_value, read_environment, rows, separate_words
from trioton.fleet.flags import FleetFlags
from trioton.serve_words import serve_table, settings_from
from trioton.settings import Settings

FLEET_TABLE = rows(FleetFlags)
_REPOSITORY = "model-repository"


@dataclass(frozen=True, slots=True)
class ServerWords:
    """What a replica is started with.

    Attributes:
        repositories: model repositories and folders of language models.
        flags: all others, as `--name=value`; of one that is not repeatable the last counts.
        command: what runs a server, before its arguments; empty for this installation.
    """

    repositories: tuple[str, ...]
    flags: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[str, ...]:
        return (*self.flags, *self.repositories)

    def without(self, names: frozenset[str]) -> ServerWords:
        """Without these flags."""
        kept = [each for each in self.flags if each.removeprefix("--").partition("=")[0] not in names]
        return replace(self, flags=tuple(kept))

    def settings(self, environment: Mapping[str, str]) -> Settings:
        """As a server reads them. Raises UsageError: it would not start with them."""
        return settings_from(self.arguments, environment)

    def changed(
        self,
        *,
        flags: Sequence[str] = (),
        repositories: Sequence[str] = (),
        command: Sequence[str] = (),
    ) -> ServerWords:
        """With flags added, and with other repositories or another command, where those are given.

        Raises:
            UsageError: a word that is none of a server's flags.
        """
        places, given = separate_words(serve_table(), flags)
        more = [_written(row.name, text) for row, text in given]
        if places or any(row.name == _REPOSITORY for row, _ in given):
            raise UsageError(
                "'flags' takes flags of trioton serve only; other repositories are given by 'repositories'"
            )
        return replace(
            self,
            flags=(*self.flags, *more),
            repositories=tuple(repositories) or self.repositories,
            command=tuple(command) or self.command,
        )


def fleet_words(words: Sequence[str], environment: Mapping[str, str]) -> tuple[FleetFlags, ServerWords]:
    """Raises UsageError: see `trioton.flags`."""
    places, given = separate_words((*FLEET_TABLE, *serve_table()), words)
    values = read_environment(FLEET_TABLE, environment)
    repeated: dict[str, tuple[object, ...]] = {}
    flags: list[str] = []
    for row, text in given:
        if row not in FLEET_TABLE:
            if row.name == _REPOSITORY:
                places.append(text)
            else:
                flags.append(_written(row.name, text))
            continue
        parsed = parse_value(row, text, f"--{row.name}")
        if row.is_repeatable:
            parsed = repeated[row.field_name] = (*repeated.get(row.field_name, ()), parsed)
        values[row.field_name] = parsed
    return FleetFlags(**values), ServerWords(tuple(places), tuple(flags))


def _written(name: str, text: str) -> str:
    return f"--{name}={text}"
