"""The thread of the Redis job store: sends calls to Redis, in one exchange those that have gathered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import redis

from actors.jobs.call_thread import Call, CallThread
from actors.jobs.redis.errors import server_error
from actors.jobs.redis.script import SCRIPT
from protocol.errors import ServerError

Command: TypeAlias = Sequence[bytes | int | float]


class CommandThread(CallThread[Command]):
    """Owns its client. A call whose answer is lost is not made again here."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__("job-store")
        self._client = client

    async def call(self, command: Command) -> Any:
        """Its answer.

        Raises:
            Disconnected: it was made or not.
            ServerError: it was not made.
        """
        return await self.result(command)

    def disconnect(self) -> None:
        self._client.close()

    def make(self, calls: Sequence[Call[Command]]) -> None:
        left = [call for call in calls if not call.is_dropped]
        try:
            answers = run_commands(self._client, [call.what for call in left])
        except (redis.RedisError, OSError) as error:
            for call in left:
                call.error = error
            return
        for call, answer in zip(left, answers, strict=True):
            if isinstance(answer, Exception):
                call.error = answer
            else:
                call.result = answer

    def told(self, error: BaseException) -> BaseException:
        return server_error(error) if isinstance(error, Exception) and not isinstance(error, ServerError) else error


def run_commands(client: redis.Redis, commands: Sequence[Command]) -> Sequence[Any]:
    """The answers, some of which may be exceptions. Those to which the script was not known, as after a restart of
    Redis, are made again with it. Blocks. Raises RedisError, OSError."""
    answers = _sent(client, commands)
    unknown = [place for place, answer in enumerate(answers) if isinstance(answer, redis.exceptions.NoScriptError)]
    if unknown:
        client.script_load(SCRIPT)
        for place, answer in zip(unknown, _sent(client, [commands[place] for place in unknown]), strict=True):
            answers[place] = answer
    return answers


def _sent(client: redis.Redis, commands: Sequence[Command]) -> list[Any]:
    """Several as one transaction: else Redis would write its log once for each few that it reads at a time. While its
    memory is full it takes no transaction, and makes none of it: then they go one by one, and some are made."""
    if not commands:
        return []
    try:
        return _piped(client, commands, is_transaction=len(commands) > 1)
    except redis.ResponseError:
        return _piped(client, commands, is_transaction=False)


def _piped(client: redis.Redis, commands: Sequence[Command], *, is_transaction: bool) -> list[Any]:
    """Raises ResponseError where it is a transaction that was refused."""
    pipeline = client.pipeline(transaction=is_transaction)
    for command in commands:
        pipeline.execute_command(*command)  # type: ignore[no-untyped-call]
    return list(pipeline.execute(raise_on_error=False))
