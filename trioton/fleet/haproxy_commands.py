"""Commands of HAProxy's admin socket, and what it answers. Pure.

A command that changes something answers nothing, or says what is wrong.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from trioton.fleet.driver import Address
from trioton.fleet.haproxy_config import (
    CHECKED,
    FULL_WEIGHT,
    GRPC_BACKENDS,
    HTTP_BACKENDS,
    SHARE_KEY,
    slot_name,
)

BACKENDS = (*HTTP_BACKENDS, *GRPC_BACKENDS)
SHOW_SESSIONS = "show stat -1 4 -1"
# Servers whose change of address or state is told even though nothing is wrong.
_HARMLESS = ("IP changed from", "port changed from", "no need to change", "nothing changed")


class State(StrEnum):
    """Of a slot. `DRAIN` takes what is kept there already: requests of its sequences."""

    READY = "ready"
    DRAIN = "drain"
    MAINT = "maint"


class Role(StrEnum):
    """Which requests a replica takes: a share, or all alike."""

    MEMBER = "member"
    CANARY = "canary"


@dataclass(frozen=True, slots=True)
class CommandFailed(Exception):
    """HAProxy has refused a command."""

    command: str
    answer: str

    def __str__(self) -> str:
        return f"HAProxy refused '{self.command}': {self.answer}"


def check_answer(command: str, answer: str) -> None:
    """Raises CommandFailed."""
    text = answer.strip()
    if text and not any(word in text for word in _HARMLESS):
        raise CommandFailed(command, text)


def backends_of(role: Role) -> tuple[str, ...]:
    """Those in which a replica takes requests; a canary's sequences are its share of all sequences."""
    other = "_canary" if role is Role.MEMBER else None
    return tuple(
        name for name in BACKENDS if name.endswith("_sequence") or (name.endswith("_canary") == (other is None))
    )


def place(slot: int, address: Address) -> list[str]:
    """Put a replica into a slot, which takes nothing yet."""
    server = slot_name(slot)
    ports = dict.fromkeys((CHECKED, *HTTP_BACKENDS), address.http_port)
    ports.update(dict.fromkeys(GRPC_BACKENDS, address.grpc_port))
    return [f"set server {backend}/{server} addr {address.host} port {port}" for backend, port in ports.items()]


def admit(slot: int, role: Role) -> list[str]:
    """Let it take the requests of its role, and no others."""
    server = slot_name(slot)
    chosen = backends_of(role)
    states = {name: State.READY if name in chosen else State.MAINT for name in BACKENDS}
    return [
        f"enable health {CHECKED}/{server}",
        f"set server {CHECKED}/{server} state {State.READY}",
        *(f"set server {backend}/{server} state {state}" for backend, state in states.items()),
    ]


def trust(slot: int) -> list[str]:
    """It takes requests whatever the check says from now on."""
    return [f"disable health {CHECKED}/{slot_name(slot)}"]


def drain(slot: int) -> list[str]:
    """Nothing new, but for the sequences that are there, whatever the check says from now on."""
    return [
        *trust(slot),
        *(f"set server {backend}/{slot_name(slot)} state {State.DRAIN}" for backend in BACKENDS),
    ]


def refuse_sequences(slot: int) -> list[str]:
    """Its sequences begin elsewhere from now on."""
    return [
        f"set server {backend}/{slot_name(slot)} state {State.MAINT}"
        for backend in BACKENDS
        if backend.endswith("_sequence")
    ]


def keep_sequences(slot: int) -> list[str]:
    """The reverse of `refuse_sequences`."""
    return [
        f"set server {backend}/{slot_name(slot)} state {State.DRAIN}"
        for backend in BACKENDS
        if backend.endswith("_sequence")
    ]


def remove(slot: int) -> list[str]:
    """Empty a slot."""
    server = slot_name(slot)
    return [f"set server {backend}/{server} state {State.MAINT}" for backend in (*BACKENDS, CHECKED)]


def weigh_sequences(slot: int, weight: int) -> list[str]:
    """How large a part of all new sequences begins there, against the weights of others."""
    return [
        f"set server {backend}/{slot_name(slot)} weight {weight}"
        for backend in BACKENDS
        if backend.endswith("_sequence")
    ]


def canary_weight(share: float, members: int, canaries: int) -> int:
    """The weight of each of `canaries` that gives them `share` of what is spread by weight."""
    if share >= 1 or not members:
        return FULL_WEIGHT
    weight = round(FULL_WEIGHT * members * share / (1 - share) / max(canaries, 1))
    return min(max(weight, 0 if share <= 0 else 1), 256)


def set_share(map_file: str, share: float) -> list[str]:
    """The canary's share of requests, from 0 to 1."""
    return [f"set map {map_file} {SHARE_KEY} {round(share * 1000)}"]


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """What HAProxy says of one slot: requests and streams that are under way there, and whether it takes more."""

    sessions: int
    is_up: bool


def read_statuses(answer: str) -> Mapping[int, SlotStatus]:
    """From the CSV that `SHOW_SESSIONS` answers, by slot; a slot is up where its check says so.

    Raises:
        ValueError: that is no such table.
    """
    lines = answer.lstrip("# \n").splitlines()
    sessions: dict[int, int] = {}
    up: dict[int, bool] = {}
    for row in csv.DictReader(lines):
        try:
            name, backend, current = row["svname"], row["pxname"], int(row["scur"] or 0)
        except (KeyError, ValueError) as error:
            raise ValueError(f"HAProxy's statistics cannot be read: {error}") from None
        if backend not in (*BACKENDS, CHECKED) or not name.startswith("r") or not name[1:].isdigit():
            continue
        slot = int(name[1:])
        sessions[slot] = sessions.get(slot, 0) + current
        if backend == CHECKED:
            up[slot] = row["status"].startswith("UP")
    return {slot: SlotStatus(count, up.get(slot, False)) for slot, count in sessions.items()}


def joined(commands: Sequence[str]) -> str:
    """One line for the socket."""
    return ";".join(commands) + "\n"
