"""Calls of a model to the server other than inference: model control and metrics."""

from __future__ import annotations

from typing import Any, Sequence

from .calls import ServerGone
from .connection import Buffer, Head
from .errors import TritonModelException
from .session import Session, session


def ask(
    head: Head, problem: str, body: Sequence[Buffer] = (), body_size: int = 0, *, here: Session | None = None
) -> Any:
    """The value that the server answers; `here` is the session to ask in, else the caller's.

    Raises TritonModelException with `problem` and the server's reason before it.
    """
    if here is None:
        here = session()
    if here is None:
        raise TritonModelException(f"{problem}there is no server")
    try:
        answer = here.connection.answer_at_once(head)
        if answer is None:
            answer = here.calls.ask(head, body, body_size).head
    except ServerGone:
        raise TritonModelException(f"{problem}the server has closed its connection") from None
    if "error" in answer:
        raise TritonModelException(f"{problem}{answer['error'][1]}")
    return answer.get("value")
