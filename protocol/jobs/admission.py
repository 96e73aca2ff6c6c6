"""What is refused before a job is made: what cannot be run later, and what can be known to fail. Pure."""

from __future__ import annotations

from protocol.core import InferenceCore
from protocol.errors import InvalidArgument, Unavailable
from protocol.messages import InferenceRequest


def check_model(core: InferenceCore, name: str, version: int) -> None:
    """A model that is not ready now may be when the job runs; one that is not there is a mistake.

    Raises:
        NotFound: there is no such model.
        Unavailable: the server is stopping.
    """
    try:
        core.is_decoupled(name, version)
    except Unavailable:
        core.is_live()


def refuse_placement(placement: object | None) -> None:
    """`placement` is what is not in the request itself, or not in whole outputs. Raises InvalidArgument."""
    if placement is not None:
        raise InvalidArgument(
            "a job takes no shared memory, which may be gone when it runs, and no 'classification': send tensors in "
            "the request, and take whole outputs"
        )


def refuse_sequence(inference: InferenceRequest) -> None:
    """Raises InvalidArgument."""
    if inference.sequence_id:
        raise InvalidArgument(
            f"a job takes no part in a sequence, whose requests run in order: model '{inference.model_name}', "
            f"sequence_id {inference.sequence_id!r:.40}"
        )
