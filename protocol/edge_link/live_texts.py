"""Live text models of an edge process: tokenizers and chat templates, made of what the core tells of its models.

A tokenizer is read from the file that the core has read it from, and only if that still has the same bytes; models with
one file have one tokenizer. What cannot be made here, or is not made in time, raises NotLinked: the call is the core's.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import trio

from protocol.edge_link.errors import NotLinked
from protocol.errors import ServerError
from protocol.failures import CallbackFailures
from protocol.text.chat_template import ChatTemplate
from protocol.text.description import TextDescription
from protocol.text.model import TextModel
from protocol.text.tokenizer import Tokenizer
from protocol.text.tokenizer_file import FileChanged

# How long a call waits for the parts of its model. It is relayed then, as are those that follow, until they are made.
WAIT_SECONDS = 2.0
# What could not be made is tried again after so long.
RETRY_SECONDS = 10.0
# Of all the files together that there are tokenizers of, which take several times as much.
MOST_FILE_BYTES = 1 << 27
MOST_MODELS = 1024
# One that was not used for so long makes room for another.
IDLE_SECONDS = 60.0


@dataclass(slots=True, eq=False)
class _Made:
    """What was made of a description: a model, or why there is none, which holds `until` then."""

    description: TextDescription
    model: TextModel | None
    refusal: str = ""
    until: float = 0.0
    used_at: float = 0.0


@dataclass(slots=True, eq=False)
class _Making:
    description: TextDescription
    done: trio.Event = field(default_factory=trio.Event)
    is_late: bool = False
    made: _Made | None = None


class LiveTexts:
    """`run` is its life. One model is made at a time, in a thread."""

    def __init__(self, failures: CallbackFailures, *, most_file_bytes: int = MOST_FILE_BYTES) -> None:
        self._failures = failures
        self._most_file_bytes = most_file_bytes
        self._made: OrderedDict[tuple[str, int], _Made] = OrderedDict()  # that which was used last is the last
        self._making: dict[tuple[str, int], _Making] = {}
        self._tokenizers: dict[bytes, Tokenizer] = {}  # by the digests of their files
        self._turn = trio.Lock()
        self._tasks: trio.Nursery | None = None

    @property
    def known(self) -> list[TextDescription]:
        """Of which models there are parts here."""
        return [each.description for each in self._made.values()]

    @property
    def tokenizer_count(self) -> int:
        return len(self._tokenizers)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as self._tasks:
            task_status.started()
            await trio.sleep_forever()

    async def model(self, description: TextDescription) -> TextModel:
        """Raises NotLinked: it is not to be had here, or not yet."""
        made = self._find(description)
        if made is None:
            making = self._begin(description)
            if not making.is_late:
                with trio.move_on_after(WAIT_SECONDS) as wait:
                    await making.done.wait()
                making.is_late = wait.cancelled_caught
            made = making.made
        if made is None:
            raise NotLinked(f"the tokenizer of model '{description.name}' is being made")
        if made.model is None:
            raise NotLinked(made.refusal)
        return made.model

    def forget(self, description: TextDescription) -> None:
        """The model is gone, or another one."""
        key = description.name, description.version
        if (made := self._made.get(key)) is not None and made.description == description:
            del self._made[key]
            self._drop_unused()

    def _find(self, description: TextDescription) -> _Made | None:
        key = description.name, description.version
        made, now = self._made.get(key), trio.current_time()
        if made is None or (made.model is None and now >= made.until):
            return None
        if made.description is not description:
            if made.description != description:
                return None
            made.description = description  # which is asked for again
        made.used_at = now
        self._made.move_to_end(key)
        return made

    def _begin(self, description: TextDescription) -> _Making:
        key = description.name, description.version
        making = self._making.get(key)
        if making is None or making.description != description:
            if self._tasks is None:
                raise NotLinked("nothing is made any more")
            making = self._making[key] = _Making(description)
            self._tasks.start_soon(self._make, making)
        return making

    async def _make(self, making: _Making) -> None:
        description = making.description
        key = description.name, description.version
        model, refusal = None, ""
        try:
            async with self._turn:
                tokenizer, template = await self._parts(description)
                model = description.model(tokenizer, template)
        except (FileChanged, NotLinked) as error:
            refusal = str(error)
        except ServerError as error:  # which the core has not met
            refusal = error.message
        except Exception as error:
            refusal = f"the text parts of model '{description.name}' could not be made"
            self._failures.note("edge link", error, refusal)
        finally:
            if self._making.get(key) is making:
                del self._making[key]
            making.done.set()
        now = trio.current_time()
        self._made[key] = making.made = _Made(description, model, refusal, now + RETRY_SECONDS, now)
        self._made.move_to_end(key)
        while len(self._made) > MOST_MODELS:
            self._made.popitem(last=False)
        self._drop_unused()

    async def _parts(self, description: TextDescription) -> tuple[Tokenizer | None, ChatTemplate | None]:
        before = self._made.get((description.name, description.version))
        wanted, template = description.chat_template, None
        if wanted is not None:
            if before is not None and before.model is not None and before.description.chat_template == wanted:
                template = before.model.chat_template
            else:
                template = await trio.to_thread.run_sync(wanted.made)
        tokenizer = None if description.tokenizer is None else await self._tokenizer(description)
        return tokenizer, template

    async def _tokenizer(self, description: TextDescription) -> Tokenizer:
        told = description.tokenizer
        assert told is not None
        file = told.file
        if file is None:
            raise NotLinked(f"the tokenizer of model '{description.name}' has no file")
        found = self._tokenizers.get(file.digest)
        if found is None:
            self._make_room(file.size)
            found = await trio.to_thread.run_sync(lambda: Tokenizer.from_file(file, file.read()))
            self._tokenizers[file.digest] = found
        return found.with_special(told.special)

    def _make_room(self, size: int) -> None:
        """For another file of this size. Raises NotLinked: there is none."""
        idle = trio.current_time() - IDLE_SECONDS
        while self._held() + size > self._most_file_bytes:
            key, oldest = next(iter(self._made.items()), (None, None))
            if key is None or oldest is None or oldest.used_at > idle:
                raise NotLinked("there is no room for another tokenizer")
            del self._made[key]
            self._drop_unused()

    def _held(self) -> int:
        return sum(each.file.size for each in self._tokenizers.values() if each.file is not None)

    def _drop_unused(self) -> None:
        used = {
            told.file.digest
            for made in self._made.values()
            if made.model is not None and (told := made.description.tokenizer) is not None and told.file is not None
        }
        for digest in [*self._tokenizers]:
            if digest not in used:
                del self._tokenizers[digest]
