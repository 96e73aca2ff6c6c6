"""The application of Ray Serve: a deployment of servers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ray import serve

from trioton.ray.entries import Entry, as_json
from trioton.ray.options import ServerOptions
from trioton.ray.place import RayPlace
from trioton.ray.replica import Replica, models_of

NAME = "Server"
# Serve's own period is 10 s. The replica of a server that has ended, ends at once, but Serve learns of either, and of a
# node that is gone, by a check that fails.
HEALTH_CHECK_PERIOD_SECONDS, HEALTH_CHECK_TIMEOUT_SECONDS = 1.0, 10.0


class Server:
    """A server process as a replica of Ray Serve, which calls all of these methods.

    Raises:
        ServerFailed: it did not start, or was not ready in time. Serve tries again, and shows the text.
    """

    async def __init__(self, options: ServerOptions) -> None:  # type: ignore[misc]  # Serve awaits it
        place = await asyncio.to_thread(RayPlace, options.directory)
        self._replica = Replica(options, place)
        await self._replica.start()

    async def check_health(self) -> None:
        """Raises ServerFailed."""
        await self._replica.check()

    async def record_autoscaling_stats(self) -> Mapping[str, float]:
        """See `trioton.ray.scaling`."""
        return await self._replica.figures()

    async def reconfigure(self, user_config: Mapping[str, Any]) -> None:
        """Load and unload models: `{"models": [names]}` says which of a server with `--model-control-mode=explicit` are
        loaded, besides those that its flags load. Serve calls it on every replica, and at the start of later ones.

        Raises:
            ValueError: another field.
            ServerFailed: a model could not be loaded or unloaded; those before it were.
        """
        await self._replica.load_only(models_of(user_config))

    async def __call__(self, *_: object) -> Mapping[str, Any]:
        """What a request to Serve's own ports is answered with: where a server is that should get it."""
        return {
            **as_json(self._replica.entry()),
            "note": "requests go to these ports; see docs/deploy/ray.md of Trioton",
        }

    async def address(self) -> Entry:
        """Where this replica's server listens; by a handle of the deployment."""
        return self._replica.entry()

    async def __del__(self) -> None:
        """Serve awaits it, for `graceful_shutdown_timeout_s` at most."""
        if replica := getattr(self, "_replica", None):  # it may have failed before
            await replica.stop()


def application(args: Mapping[str, Any]) -> Any:
    """See `trioton.ray.app`.

    What `deployments` of Serve's configuration say of `Server` wins over what is set here. There,
    `graceful_shutdown_timeout_s` should not be lower than the options' drain and exit timeout together.
    """
    options = ServerOptions.parse(args)
    deployment = serve.deployment(
        name=NAME,
        health_check_period_s=HEALTH_CHECK_PERIOD_SECONDS,
        health_check_timeout_s=HEALTH_CHECK_TIMEOUT_SECONDS,
        graceful_shutdown_timeout_s=options.end_secs + 15.0,
        graceful_shutdown_wait_loop_s=0.1,  # no request of Serve's own is waited for
    )(Server)
    return deployment.bind(options)
