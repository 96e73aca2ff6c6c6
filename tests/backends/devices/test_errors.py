"""What a device's runtime raises, as our errors."""

from __future__ import annotations

import pytest

from backends.devices.errors import device_errors
from protocol.errors import InvalidArgument, Overloaded, ServerError, Unavailable


def test_what_is_told_of_other_errors() -> None:
    """A device that refuses is unavailable; what is ours already, and what is a defect, pass."""
    with pytest.raises(Unavailable, match="GPU 0: an illegal memory access") as caught, device_errors("GPU 0"):
        raise RuntimeError("an illegal memory access")
    assert not isinstance(caught.value, Overloaded)
    ours = InvalidArgument("out of memory of another kind")
    with pytest.raises(ServerError) as passed, device_errors("GPU 0"):
        raise ours
    assert passed.value is ours
    with pytest.raises(KeyError), device_errors("GPU 0"):
        raise KeyError("x")
