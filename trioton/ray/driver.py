"""The driver `ray` of a fleet: replicas are actors of a Ray cluster, each with a server process on its node."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

import ray
import trio
from ray.exceptions import RayActorError, RayError

from trioton.fleet.driver import Address, CannotStart, Driver, Running
from trioton.fleet.listening import FRONT_FLAGS, THIS_INSTALLATION, free_address, listening
from trioton.fleet.words import ServerWords
from trioton.ray.server_process import ServerFailed, ServerProcess

# One call waits for the server's end, others come beside it.
_CALLS_AT_ONCE = 4
_PLACE_SECONDS = 120.0


class ServerActor:
    """A server process as an actor. It ends with the actor, and that with the program which has made it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        address = free_address(ray.util.get_node_ip_address(), 0, 0, 0)
        self._process = ServerProcess([*command, *listening(address)], address, environment)

    def place(self) -> tuple[Address, str]:
        """Where it listens, and a text that tells people which process it is."""
        node = ray.get_runtime_context().get_node_id()
        return self._process.address, f"pid {self._process.pid} on node {node[:12]}"

    def wait(self) -> str:
        return self._process.wait()

    def terminate(self) -> None:
        self._process.terminate()


class RayReplica(Running):
    """An actor, seen from the supervisor."""

    def __init__(self, actor: Any, address: Address, about: str) -> None:
        self._actor = actor
        self.address = address
        self.about = about
        self._end = actor.wait.remote()

    async def wait(self) -> str:
        try:
            how: str = await result_of(self._end)
        except RayActorError as error:
            return f"its actor has ended: {error}"
        return how

    def stop(self) -> None:
        self._actor.terminate.remote()

    def kill(self) -> None:
        ray.kill(self._actor)


class RayDriver(Driver):
    """Starts actors with `options`, those of `ray.remote` such as `num_gpus`, and servers with `own_flags` behind all
    others, so that they win. Ray must have been initialized."""

    def __init__(
        self, options: Mapping[str, Any], environment: Mapping[str, str], own_flags: tuple[str, ...] = ()
    ) -> None:
        self._options = options
        self._environment = environment
        self._own_flags = own_flags

    @classmethod
    async def connect(
        cls, address: str, options: Mapping[str, Any], environment: Mapping[str, str], own_flags: tuple[str, ...]
    ) -> RayDriver:
        """To a cluster. The connection, and with it every actor, ends with this process.

        Raises:
            CannotStart: there is no such cluster, or an option is none of an actor's.
        """
        try:
            await trio.to_thread.run_sync(partial(ray.init, address=address, logging_level="warning"))
            ray.remote(ServerActor).options(**options)
        except (RayError, ConnectionError, ValueError, TypeError, RuntimeError) as error:
            raise CannotStart(f"--driver=ray: {error}") from None
        return cls(options, environment, own_flags)

    async def start(self, name: str, words: ServerWords) -> RayReplica:
        """Raises CannotStart: also where no node has had room for it for two minutes."""
        given = words.without(FRONT_FLAGS).arguments
        command = [*(words.command or THIS_INSTALLATION), *given, *self._own_flags]
        remote = ray.remote(ServerActor).options(**{"max_concurrency": _CALLS_AT_ONCE, **self._options})
        actor = remote.remote(command, self._added())
        try:
            with trio.fail_after(_PLACE_SECONDS):
                address, about = await result_of(actor.place.remote())
        except trio.TooSlowError:
            ray.kill(actor)
            raise CannotStart(f"no node of the cluster has had room for {name} within {_PLACE_SECONDS:g} s") from None
        except (RayError, ServerFailed, OSError) as error:
            raise CannotStart(f"cannot start an actor: {error}") from None
        except BaseException:
            ray.kill(actor)
            raise
        return RayReplica(actor, address, about)

    def _added(self) -> Mapping[str, str]:
        """What the environment has beyond this process's own, which is not that of the nodes."""
        return {name: value for name, value in self._environment.items() if os.environ.get(name) != value}


async def result_of(reference: Any) -> Any:
    """Wait for a result of Ray without a thread. Cancelled, the call goes on."""
    done, token = trio.Event(), trio.lowlevel.current_trio_token()
    future: Future[Any] = reference.future()

    def wake(_: Future[Any]) -> None:
        with suppress(trio.RunFinishedError):  # nobody waits any more
            token.run_sync_soon(done.set)

    future.add_done_callback(wake)
    await done.wait()
    return future.result()
