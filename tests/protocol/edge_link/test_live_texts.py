"""Parts of text models in an edge process: made once for each file, never of another one, and dropped in time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from protocol.edge_link import live_texts
from protocol.edge_link.errors import NotLinked
from protocol.edge_link.live_texts import LiveTexts
from protocol.failures import CallbackFailures
from protocol.text.chat_template import ChatTemplate
from protocol.text.description import TextDescription, describe
from protocol.text.model import TextModel
from protocol.text.special_tokens import SpecialTokens
from protocol.text.tokenizer import Tokenizer
from protocol.text.tokenizer_file import TokenizerFile
from tests.protocol.http.openai.words import word_tokenizer, word_tokenizer_json


def written(path: Path, more: str = "") -> TokenizerFile:
    """A tokenizer, by the bytes in its file, of which `more` are blanks."""
    data = (word_tokenizer_json() + more).encode()
    path.write_bytes(data)
    return TokenizerFile.of(path, data)


def of(name: str, file: TokenizerFile, *eos: int, template: str = "{{ messages[0].content }}") -> TextDescription:
    tokenizer = word_tokenizer().with_special(SpecialTokens({}, eos))
    tokenizer.file = file
    return describe(TextModel(name, 1, tokenizer=tokenizer, chat_template=ChatTemplate(template)))


@pytest.fixture
async def live(nursery: trio.Nursery) -> AsyncIterator[LiveTexts]:
    failures = CallbackFailures()
    texts = LiveTexts(failures)
    await nursery.start(texts.run)
    yield texts
    assert dict(failures.counts()) == {}


async def test_a_model_has_its_parts(live: LiveTexts, tmp_path: Path) -> None:
    description = of("m", written(tmp_path / "t"), 3)
    made = await live.model(description)
    assert made.tokenizer is not None
    assert made.tokenizer.encode("hello world") == word_tokenizer().encode("hello world")
    assert (made.tokenizer.eos_token_ids, made.name, made.version) == ((3,), "m", 1)
    assert made.chat_template is not None
    assert made.chat_template.render([{"content": "hi"}]) == "hi"
    assert await live.model(description) is made


async def test_many_who_ask_have_it_made_once(live: LiveTexts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    make = Tokenizer.from_file

    def counted(file: TokenizerFile, data: bytes) -> Tokenizer:
        made.append(file.path)
        return make(file, data)

    monkeypatch.setattr(Tokenizer, "from_file", counted)
    file = written(tmp_path / "t")
    async with trio.open_nursery() as asking:
        for name in ("a", "a", "a", "b"):  # models with one file
            asking.start_soon(live.model, of(name, file))
    assert (len(made), live.tokenizer_count) == (1, 1)
    first, second = await live.model(of("a", file, 1)), await live.model(of("b", file, 2))
    assert first.tokenizer is not None
    assert second.tokenizer is not None
    assert (first.tokenizer.eos_token_ids, second.tokenizer.eos_token_ids) == ((1,), (2,))
    assert len(made) == 1


async def test_a_file_with_other_bytes_gives_no_tokenizer(
    live: LiveTexts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_texts, "RETRY_SECONDS", 1e9)
    path = tmp_path / "t"
    file = written(path)
    description = of("m", file)
    there = path.read_bytes()
    path.write_bytes(there.replace(b"world", b"globe"))
    with pytest.raises(NotLinked, match="has changed"):
        await live.model(description)
    path.write_bytes(there)
    with pytest.raises(NotLinked, match="has changed"):  # it is not read for each call
        await live.model(description)
    monkeypatch.setattr(live_texts, "RETRY_SECONDS", 0.0)
    other = of("other", file)
    path.write_bytes(b"")
    for _ in range(2):
        with pytest.raises(NotLinked, match="has changed"):
            await live.model(other)
    path.write_bytes(there)
    assert (await live.model(other)).tokenizer is not None


async def test_another_file_is_another_tokenizer(live: LiveTexts, tmp_path: Path) -> None:
    path = tmp_path / "t"
    before = await live.model(of("m", written(path)))
    after = await live.model(of("m", written(path, " ")))
    assert before.tokenizer is not None
    assert after.tokenizer is not None
    assert before.tokenizer.file != after.tokenizer.file
    assert live.tokenizer_count == 1, "nobody has the one before any more"
    assert before.tokenizer.encode("hello") == [1], "those who have it may use it"


async def test_only_the_facts_are_others(live: LiveTexts, tmp_path: Path) -> None:
    description = of("m", written(tmp_path / "t"))
    before = await live.model(description)
    facts = {**description.facts(), "adapters": {"poet": "/p"}}
    changed = TextDescription(**facts, tokenizer=description.tokenizer, chat_template=description.chat_template)
    after = await live.model(changed)
    assert (before.adapters, after.adapters) == ({}, {"poet": "/p"})
    assert after.chat_template is before.chat_template


async def test_a_model_that_is_gone(live: LiveTexts, tmp_path: Path) -> None:
    file = written(tmp_path / "t")
    first, second = of("a", file), of("b", file)
    await live.model(first)
    await live.model(second)
    live.forget(first)
    assert ([each.name for each in live.known], live.tokenizer_count) == (["b"], 1)
    live.forget(of("b", file, 9))  # not the one that is there
    assert live.tokenizer_count == 1
    live.forget(second)
    assert (live.known, live.tokenizer_count) == ([], 0)


async def test_there_is_room_for_so_many(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_texts, "RETRY_SECONDS", 0.0)
    files = [written(tmp_path / f"{number}", " " * number) for number in range(3)]
    live = LiveTexts(CallbackFailures(), most_file_bytes=files[1].size + files[2].size)
    await nursery.start(live.run)
    first, second, third = (of(f"m{number}", file) for number, file in enumerate(files))
    await live.model(first)
    await live.model(second)
    with pytest.raises(NotLinked, match="no room"):
        await live.model(third)
    monkeypatch.setattr(live_texts, "IDLE_SECONDS", -1.0)
    await live.model(second)
    await live.model(third)
    assert [each.name for each in live.known] == ["m1", "m2"]


async def test_a_template_that_does_not_compile(live: LiveTexts, tmp_path: Path) -> None:
    """The core may have other packages."""
    description = of("m", written(tmp_path / "t"))
    assert description.chat_template is not None
    broken = TextDescription(**description.facts(), chat_template=type(description.chat_template)("{% if %}", {}, None))
    with pytest.raises(NotLinked, match="chat template"):
        await live.model(broken)


async def test_a_tokenizer_without_a_file(live: LiveTexts) -> None:
    with pytest.raises(NotLinked, match="has no file"):
        await live.model(describe(TextModel("m", 1, tokenizer=word_tokenizer())))


async def test_calls_do_not_wait_for_long(
    live: LiveTexts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """The disk does not answer: the first call gives up, and those that follow do not wait at all."""

    async def never(description: TextDescription) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(live, "_parts", never)
    description = of("m", written(tmp_path / "t"))
    for waited in (True, False):
        before = trio.current_time()
        with pytest.raises(NotLinked, match="is being made"):
            await live.model(description)
        assert (trio.current_time() > before) is waited
