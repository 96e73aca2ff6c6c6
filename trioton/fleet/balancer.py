"""HAProxy as a process of the fleet: started, told what its slots hold, and started again should it die.

Owned by the supervisor. The listening sockets are the supervisor's, so clients that connect while HAProxy is started
again wait for it and are not refused.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import trio

from trioton.fleet import haproxy_commands as commands
from trioton.fleet.driver import Address
from trioton.fleet.haproxy_commands import Role, SlotStatus
from trioton.fleet.haproxy_config import CHECKED, FULL_WEIGHT, BalancerPlan, configuration
from trioton.fleet.processes import Child, end_text

logger = logging.getLogger("trioton.fleet.haproxy")

OLDEST = (2, 6)
START_SECONDS = 20.0
RESTART_SECONDS = 0.5
_MOST_ANSWER_BYTES = 16 << 20


class CannotBalance(Exception):
    """There is no HAProxy that could serve the fleet; the text says what to do."""


class Balancer:
    """`executable` is run with the configuration that `plan` gives, in `folder`. `keeps` are the sockets that it
    inherits."""

    def __init__(self, executable: str, plan: BalancerPlan, folder: Path, keeps: Sequence[int]) -> None:
        self._executable = executable
        self._plan = plan
        self._folder = folder
        self._keeps = keeps
        self._last_lines: list[str] = []
        self._lock = trio.Lock()
        # By slot: who is there, in which role and whether it drains. HAProxy is told again when it was started again.
        self._placed: dict[int, tuple[Address, Role]] = {}
        self._draining: set[int] = set()
        self._share = 0.0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until it is cancelled; started when HAProxy serves.

        Raises:
            CannotBalance: HAProxy does not start the first time.
        """
        config = self._folder / "haproxy.cfg"
        config.write_text(configuration(self._plan))
        started = False
        while True:
            async with trio.open_nursery() as nursery:
                child = self._start(config)
                nursery.start_soon(child.run, self._line)
                async with trio.open_nursery() as watching:
                    watching.start_soon(_cancel_at_end, child, watching.cancel_scope)
                    await self._until_it_answers()
                    await self._tell_all()
                    if not started:
                        task_status.started()
                        started = True
                    await child.wait()
                text = f"HAProxy has ended: {end_text(await child.wait())}"
            if not started:
                raise CannotBalance(f"{text}: {' | '.join(self._last_lines[-4:])}")
            logger.error("%s; it is started again", text)
            await trio.sleep(RESTART_SECONDS)

    async def place(self, slot: int, address: Address, role: Role) -> None:
        """Let a replica take requests."""
        self._placed[slot] = (address, role)
        self._draining.discard(slot)
        await self._run([*commands.place(slot, address), *commands.admit(slot, role), *self._weights()])

    async def drain(self, slot: int) -> None:
        """Let it take no more than belongs to its sequences."""
        self._draining.add(slot)
        await self._run([*commands.drain(slot), *self._weights()])

    async def trust(self, slot: int) -> None:
        """Let it take requests though it will say that it is not ready."""
        await self._run(commands.trust(slot))

    async def refuse_sequences(self, slot: int) -> None:
        await self._run(commands.refuse_sequences(slot))

    async def keep_sequences(self, slot: int) -> None:
        await self._run(commands.keep_sequences(slot))

    async def remove(self, slot: int) -> None:
        """Forget the replica of a slot, whatever is under way there."""
        if self._placed.pop(slot, None) is not None:
            self._draining.discard(slot)
            await self._run([*commands.remove(slot), *self._weights()])

    async def change_role(self, slot: int, role: Role) -> None:
        """Move a replica between the canary and the others."""
        address, _ = self._placed[slot]
        self._placed[slot] = (address, role)
        await self._run([*commands.admit(slot, role), *self._weights()])

    async def set_share(self, share: float) -> None:
        """The canary's share of the requests, from 0 to 1."""
        self._share = share
        await self._run([*commands.set_share(str(self._plan.share_map), share), *self._weights()])

    async def statuses(self) -> Mapping[int, SlotStatus]:
        """Raises OSError: HAProxy does not answer now."""
        return commands.read_statuses(await self._ask(commands.SHOW_SESSIONS))

    def _weights(self) -> list[str]:
        serving = {slot: role for slot, (_, role) in self._placed.items() if slot not in self._draining}
        canaries = [slot for slot, role in serving.items() if role is Role.CANARY]
        weight = commands.canary_weight(self._share, len(serving) - len(canaries), len(canaries))
        return [
            line
            for slot, role in serving.items()
            for line in commands.weigh_sequences(slot, weight if role is Role.CANARY else FULL_WEIGHT)
        ]

    async def _tell_all(self) -> None:
        """HAProxy is new, and all its slots are empty."""
        lines: list[str] = []
        for slot, (address, role) in self._placed.items():
            lines += [*commands.place(slot, address), *commands.admit(slot, role)]
            if slot in self._draining:
                lines += commands.drain(slot)
        lines += [*commands.set_share(str(self._plan.share_map), self._share), *self._weights()]
        await self._run(lines)

    async def _run(self, lines: Sequence[str]) -> None:
        """What HAProxy cannot be told now, it is told when it was started again."""
        async with self._lock:
            for line in lines:
                try:
                    commands.check_answer(line, await self._ask(line))
                except OSError as error:
                    logger.warning("HAProxy does not take commands now: %s", error)
                    return
                except commands.CommandFailed as error:
                    logger.error("%s", error)

    async def _ask(self, line: str) -> str:
        with trio.fail_after(START_SECONDS):
            async with await trio.open_unix_socket(str(self._plan.socket)) as stream:
                await stream.send_all(commands.joined([line]).encode())
                answer = bytearray()
                async for data in stream:
                    answer += data
                    if len(answer) > _MOST_ANSWER_BYTES:
                        raise OSError("its answer is too long")
                return answer.decode(errors="replace")

    def _start(self, config: Path) -> Child:
        try:
            return Child([self._executable, "-db", "-f", str(config)], keeps=self._keeps)
        except OSError as error:
            raise CannotBalance(f"cannot run '{self._executable}': {os.strerror(error.errno or 0)}") from None

    async def _until_it_answers(self) -> None:
        """Returns as well when it has died, which the next command finds."""
        while True:
            try:
                await self._ask("show info")
                return
            except OSError:
                await trio.sleep(0.02)

    def _line(self, line: str) -> None:
        self._last_lines = [*self._last_lines[-20:], line]
        text = re.sub(r"^\[\w+\]\s+\(\d+\) : ", "", line)
        if not text.startswith("Server ") or text.startswith(f"Server {CHECKED}/"):  # the others follow what that says
            logger.log(logging.ERROR if line.startswith("[ALERT]") else logging.INFO, "%s", text)


async def _cancel_at_end(child: Child, scope: trio.CancelScope) -> None:
    await child.wait()
    scope.cancel()


async def find_haproxy(name: str) -> str:
    """The path of the executable.

    Raises:
        CannotBalance: there is none, it is too old, or it has no Lua.
    """
    path = shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/sbin:/sbin")
    if path is None:
        raise CannotBalance(f"there is no '{name}': install HAProxy (apt-get install haproxy), or give --haproxy")
    done = await trio.run_process([path, "-vv"], capture_stdout=True, capture_stderr=True, check=False)
    check_version(path, done.stdout.decode(errors="replace"))
    return path


def check_version(path: str, text: str) -> None:
    """Raises CannotBalance: what `haproxy -vv` has written is of one that is too old, or has no Lua."""
    found = re.search(r"HAProxy version (\d+)\.(\d+)", text)
    if found is None:
        raise CannotBalance(f"'{path}' is no HAProxy")
    if (int(found[1]), int(found[2])) < OLDEST:
        raise CannotBalance(f"'{path}' is HAProxy {found[1]}.{found[2]}, expected 2.6 or newer")
    if "USE_LUA=1" not in text and "+LUA" not in text:
        raise CannotBalance(f"'{path}' has no Lua, by which sequences are found")
