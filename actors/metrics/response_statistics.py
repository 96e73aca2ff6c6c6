"""Response statistics of a decoupled model: one row for each index of a response within its request.

Filled by `response_stream`, read with the other statistics of the version. Source: Triton's statistics extension.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from actors.metrics.sums import Sum
from protocol.core import InferResponseStatistics
from protocol.errors import Cancelled, ServerError

# A stream may have any number of responses, the statistics may not grow with it: later ones are not counted.
COUNTED_RESPONSES = 1024


@dataclass(slots=True)
class _ResponseSums:
    compute_infer: Sum = field(default_factory=Sum)
    compute_output: Sum = field(default_factory=Sum)
    success: Sum = field(default_factory=Sum)
    fail: Sum = field(default_factory=Sum)
    empty_response: Sum = field(default_factory=Sum)
    cancel: Sum = field(default_factory=Sum)

    def frozen(self) -> InferResponseStatistics:
        return InferResponseStatistics(
            compute_infer=self.compute_infer.frozen(),
            compute_output=self.compute_output.frozen(),
            success=self.success.frozen(),
            fail=self.fail.frozen(),
            empty_response=self.empty_response.frozen(),
            cancel=self.cancel.frozen(),
        )


@dataclass(slots=True)
class ResponseStatistics:
    """`index` counts the responses of one request from 0. Times are in seconds of Trio's clock: a response is computed
    from `began`, when the one before it was gone or its batch was started, until the model gave it (`computed`), and
    is gone at `ended`."""

    _by_index: list[_ResponseSums] = field(default_factory=list)

    def count_response(self, index: int, *, began: float, computed: float, ended: float) -> None:
        sums = self._at(index)
        if sums is not None:
            sums.compute_infer.add_seconds(computed - began)
            sums.compute_output.add_seconds(ended - computed)
            sums.success.add_seconds(ended - began)

    def count_empty(self, index: int, *, began: float, ended: float) -> None:
        """A response without tensors, or the end of a stream on its own."""
        sums = self._at(index)
        if sums is not None:
            sums.empty_response.add_seconds(ended - began)

    def count_error(self, index: int, error: ServerError | None, *, began: float, ended: float) -> None:
        """An error in place of a response; None if the request's caller has gone."""
        sums = self._at(index)
        if sums is None:
            return
        if error is None or isinstance(error, Cancelled):
            sums.cancel.add_seconds(ended - began)
        else:
            sums.compute_infer.add_seconds(ended - began)
            sums.compute_output.add_seconds(0.0)
            sums.fail.add_seconds(ended - began)

    def frozen(self) -> dict[str, InferResponseStatistics]:
        """By index, as a string."""
        return {str(index): sums.frozen() for index, sums in enumerate(self._by_index)}

    def _at(self, index: int) -> _ResponseSums | None:
        by_index = self._by_index
        if index < len(by_index):
            return by_index[index]
        if index >= COUNTED_RESPONSES:
            return None
        while len(by_index) <= index:
            by_index.append(_ResponseSums())
        return by_index[index]
