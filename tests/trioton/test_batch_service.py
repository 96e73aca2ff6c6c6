"""What batches are told of the server: the model of their lines, and what these cost the key that made them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from actors.core.server_core import ServerCore
from actors.jobs.batches.batches import BatchRules
from protocol.errors import NotFound, QuotaExceeded, ServerError, Unavailable
from protocol.quotas.accounts import Ledger, Terms
from protocol.quotas.meters import Rate
from protocol.quotas.quota import Quota, Unit
from protocol.text.model import TextModel
from trioton.batch_service import FindAccount, batch_rules
from trioton.settings import Settings


class Core:
    """A model `m` with an adapter, and one that is not ready."""

    async def text_model(self, name: str) -> TextModel:
        if name == "loading":
            raise Unavailable("model 'loading' is not ready")
        if name != "m":
            raise NotFound(f"Unknown model: {name}")
        return (await self.text_models())[0]

    async def text_models(self) -> list[TextModel]:
        return [TextModel("m", 1, adapters={"poet": "/p"})]


def rules(account: FindAccount = lambda _: None, **settings: Any) -> BatchRules:
    return batch_rules(Settings(model_repository=(Path("models"),), **settings), cast(ServerCore, Core()), account)


@pytest.mark.parametrize(("named", "model"), [("m", "m"), ("poet", "m"), (None, "m"), ("loading", "loading")])
async def test_the_model_of_lines_is_that_of_the_core(named: str | None, model: str) -> None:
    assert await rules().model_of(named) == model


async def test_a_model_that_is_not_there() -> None:
    with pytest.raises(ServerError, match="none"):
        await rules().model_of("none")


def test_flags_are_limits() -> None:
    made = rules(http_max_input_size=1234, jobs_keep_files_secs=60)
    assert (made.max_line_size, made.keep_seconds) == (1234, 60)


def test_each_line_is_a_request_and_the_batch_was_the_first() -> None:
    ledger = Ledger(lambda: 1000.0)
    ledger.adopt([Terms("ann", Quota("q", {Unit.REQUESTS: Rate(10, 1.0, 10)}, {}))])
    account = ledger.account("ann")
    made = rules({"ann": account}.get)
    account.admit().end()  # the call that has made it
    made.charge("ann", "m", 9)
    account.admit("m").end()
    with pytest.raises(QuotaExceeded):
        account.admit("m")
    assert account.usage.running == 0
    made.charge("gone", "m", 1000)
