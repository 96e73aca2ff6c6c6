"""Text models over a link: what the core says, kept while its models stay as they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio

from protocol.edge_link.errors import NotLinked
from protocol.errors import NotFound, Unsupported
from protocol.text.chat_template import ChatTemplate
from protocol.text.model import TextFacts, TextModel
from protocol.text.tokenizer import Tokenizer
from protocol.text.tokenizer_file import TokenizerFile
from tests.protocol.edge_link.links import Link, linked
from tests.protocol.http.fake_core import FakeCore
from tests.protocol.http.openai.words import word_tokenizer_json

TEMPLATE = ChatTemplate("{{ messages[0].content }}")


def tokenizer(path: Path, words: str = "world") -> Tokenizer:
    path.write_text(word_tokenizer_json().replace("world", words))
    data = path.read_bytes()
    return Tokenizer.from_file(TokenizerFile.of(path, data), data)


class Core(FakeCore):
    """Counts what it is asked."""

    asked = 0

    async def text_model(self, name: str, version: int = -1) -> TextModel:
        self.asked += 1
        return await super().text_model(name, version)

    async def text_models(self) -> Sequence[TextModel]:
        self.asked += 1
        return await super().text_models()


@asynccontextmanager
async def having(*texts: TextModel) -> AsyncIterator[tuple[Core, Link]]:
    core = Core(texts=texts)
    async with linked(core) as link:
        yield core, link


async def test_a_model(tmp_path: Path) -> None:
    text = TextModel("m", 1, tokenizer=tokenizer(tmp_path / "t"), chat_template=TEMPLATE, context_length=9)
    async with having(text) as (core, link):
        made = await link.core.text_model("m")
        assert made.facts() == text.facts()
        assert made.tokenizer is not None
        assert made.tokenizer.encode("hello world") == [1, 4]
        assert await link.core.text_model("m") is made
        assert core.asked == 1


async def test_errors_are_those_of_the_core_and_kept() -> None:
    async with having() as (core, link):
        for _ in range(2):
            with pytest.raises(NotFound, match="unknown model: 'none'"):
                await link.core.text_model("none")
        assert core.asked == 1
        with pytest.raises(Unsupported, match="model 'echo' has no text") as caught:
            await link.core.text_model("echo")
        assert type(caught.value) is Unsupported, "and no reason to relay the call"


async def test_many_who_ask_ask_once(tmp_path: Path) -> None:
    async with having(TextModel("m", 1, tokenizer=tokenizer(tmp_path / "t"))) as (core, link):
        async with trio.open_nursery() as asking:
            for _ in range(5):
                asking.start_soon(link.core.text_model, "m")
        assert core.asked == 1


async def test_a_reload_with_another_tokenizer_is_seen_at_once(tmp_path: Path) -> None:
    async with having(TextModel("m", 1, tokenizer=tokenizer(tmp_path / "t"))) as (core, link):
        first = await link.core.text_model("m")
        core.texts = (TextModel("m", 1, tokenizer=tokenizer(tmp_path / "t", "globe"), loaded_at=1),)
        link.generation.bump_model("m")
        second = await link.core.text_model("m")
        assert first.tokenizer is not None
        assert second.tokenizer is not None
        assert (first.tokenizer.decode([1, 4]), second.tokenizer.decode([1, 4])) == ("hello world", "hello globe")


async def test_files_that_were_changed_after_the_load(tmp_path: Path) -> None:
    text = TextModel("m", 1, tokenizer=tokenizer(tmp_path / "t"))
    tokenizer(tmp_path / "t", "globe")
    async with having(text) as (_, link):
        with pytest.raises(NotLinked, match="has changed"):
            await link.core.text_model("m")


async def test_adapters_that_come_and_go() -> None:
    async with having(TextModel("m", 1, chat_template=TEMPLATE)) as (core, link):
        before = await link.core.text_model("m")
        core.texts = (msgspec.structs.replace(before, adapters={"poet": "/p"}),)
        link.generation.bump_model("m")
        assert (await link.core.text_model("m")).adapters == {"poet": "/p"}
        assert [text.adapters for text in await link.core.text_models()] == [{"poet": "/p"}]


async def test_all_models_without_their_parts() -> None:
    texts = [TextModel(f"model-{number}", 1, chat_template=TEMPLATE, loaded_at=number) for number in range(3000)]
    async with having(*texts) as (core, link):
        for _ in range(2):
            found = await link.core.text_models()
        assert [(each.name, each.loaded_at) for each in found] == [(each.name, each.loaded_at) for each in texts]
        assert all(type(each) is TextFacts for each in found)
        assert core.asked == 1
        assert link.core.texts.live.known == []


async def test_what_is_asked_next_is_known(tmp_path: Path) -> None:
    """So that nobody waits for the core."""
    async with having(TextModel("echo", 1, tokenizer=tokenizer(tmp_path / "t"))) as (_, link):
        await link.core.text_model("echo")
        assert link.core.queries.knows("model_metadata", ("echo", -1))


async def test_parts_of_models_that_are_gone_are_dropped(tmp_path: Path) -> None:
    texts = [TextModel(name, 1, tokenizer=tokenizer(tmp_path / name)) for name in ("one", "two")]
    async with having(*texts) as (core, link):
        for text in texts:
            await link.core.text_model(text.name)
        live = link.core.texts.live
        assert [each.name for each in live.known] == ["one", "two"]
        core.texts = (texts[1],)
        link.generation.bump()
        await link.core.texts.sweep()
        assert [each.name for each in live.known] == ["two"]
