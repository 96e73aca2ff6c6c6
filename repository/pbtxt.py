"""`config.pbtxt`: protobuf text format to `ModelConfig` and back.

Flow: file in a model directory -> [pbtxt] -> stage-1 fill, validation. Pure: the caller reads the file.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import text_format

from protocol.errors import InvalidArgument
from repository.model_config import ModelConfig
from repository.protobuf_form import config_from_message, message_from_config, new_message
from repository.schema_names import meant

# Written by some editors of Windows at the beginning of a file; Triton's parser skips it, too.
_BYTE_ORDER_MARK = "\ufeff"
_POSITION = re.compile(r"\d+:\d+ : ")


def parse_pbtxt(text: str, *, source: str) -> ModelConfig:
    """Parse the text of a `config.pbtxt`; unknown fields are an error.

    Args:
        source: where the text came from, for the error's text.

    Raises:
        InvalidArgument: `<source>:<line>:<column>: <what is wrong>`, lines and columns counted from 1.
    """
    text = text.removeprefix(_BYTE_ORDER_MARK)
    message = new_message()
    try:
        _parse(text, message)
    except text_format.ParseError as exc:
        raise InvalidArgument(_describe(exc, text, source)) from None
    try:
        return config_from_message(message)
    except InvalidArgument as exc:
        raise InvalidArgument(f"{source}: {exc.message}") from None


def parse_on(text: str, *, source: str) -> tuple[ModelConfig | None, list[InvalidArgument]]:
    """Parse as `parse_pbtxt`, but go on after an unknown name, as if the nearest one stood there (or nothing, where
    none is near). Answers what could be read, and every fault."""
    text = text.removeprefix(_BYTE_ORDER_MARK)
    faults: list[InvalidArgument] = []
    while True:
        message = new_message()
        try:
            _parse(text, message)
        except text_format.ParseError as exc:
            faults.append(InvalidArgument(_describe(exc, text, source)))
            mended = _mended(exc, text)
            if mended is None:
                break
            text = mended
        else:
            try:
                return config_from_message(message), faults
            except InvalidArgument as error:
                return None, [*faults, InvalidArgument(f"{source}: {error.message}")]
    try:
        message = new_message()
        _parse(text, message, allow_unknown_field=True)
        return config_from_message(message), faults
    except (text_format.ParseError, InvalidArgument):
        return None, faults


def _parse(text: str, message: Any, *, allow_unknown_field: bool = False) -> None:
    """Raises ParseError for whatever the library raises about a text."""
    try:
        text_format.Parse(text, message, allow_unknown_field=allow_unknown_field)
    except RecursionError:
        raise text_format.ParseError("messages are nested too deeply") from None
    except (ValueError, TypeError, KeyError) as error:  # values that no field can take, as strings that are no UTF-8
        raise text_format.ParseError(str(error)) from None


def _mended(exc: text_format.ParseError, text: str) -> str | None:
    """The text with the nearest name in place of an unknown one."""
    found = meant(str(exc))
    line, column = exc.GetLine(), exc.GetColumn()
    if found is None or not found[1] or line is None or column is None:
        return None
    lines = text.split("\n")
    before, after = lines[line - 1][: column - 1], lines[line - 1][column - 1 :]
    if not after.startswith(found[0]) or found[0] == found[1]:  # what follows a right name may be wrong: TYPE_FP32-1
        return None
    lines[line - 1] = before + found[1] + after.removeprefix(found[0])
    return "\n".join(lines)


def format_pbtxt(config: ModelConfig) -> str:
    """The configuration as text that `parse_pbtxt` reads back to an equal value.

    Raises:
        InvalidArgument: a value does not fit its field.
    """
    return text_format.MessageToString(message_from_config(config), as_utf8=True)


def _describe(exc: text_format.ParseError, text: str, source: str) -> str:
    what = str(exc)
    found = meant(what)
    is_other = found is not None and found[1] not in ("", found[0])
    hint = f" Did you mean '{found[1]}'?" if found is not None and is_other else _hint(exc, text)
    line, column = exc.GetLine(), exc.GetColumn()
    if line is None or column is None:
        return f"{source}: {what}{hint}"
    what = _POSITION.sub("", what, count=1)
    # The parser quotes the whole line, which may be the whole file; the position says enough.
    lines = text.split("\n")
    if line <= len(lines):
        what = what.removeprefix(f"'{lines[line - 1]}': ")
    return f"{source}:{line}:{column}: {what}{hint}"


def _hint(exc: text_format.ParseError, text: str) -> str:
    """What else a text that cannot be parsed may be, or what its writer may have meant."""
    if text.lstrip().startswith("{"):
        return " This is JSON; a config.pbtxt is written in the text format of protobuf: `name: value`, `list [ … ]`."
    line, column = exc.GetLine(), exc.GetColumn()
    lines = text.split("\n")
    if line is None or column is None or line > len(lines):
        return ""
    rest = lines[line - 1][column - 1 :]
    if rest.startswith(("${", "{{", "<")):
        return " It is a placeholder that was not filled in."
    if rest.startswith("/"):
        return " Comments begin with '#'."
    before = "".join([*lines[: line - 1], lines[line - 1][: column - 1]])
    if rest.startswith("]") and before.rstrip().endswith(","):
        return " No comma may stand before ']'."
    if "Enum type" in str(exc) and rest.startswith(("'", '"')):
        return " Write it without quotes."
    return ""
