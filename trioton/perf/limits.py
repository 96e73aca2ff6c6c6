"""Whether the generator, and not the server, was the limit of a measurement. Pure."""

from __future__ import annotations

from trioton.perf.figures import NANOSECONDS, Figures
from trioton.perf.load import Load, Open

# A sender that takes so much of one core has no time left to look for answers when they come.
_MOST_PROCESSOR_SHARE = 0.9
# Of an open loop: so late a request may leave, or so large a part of the latency that is measured.
_MOST_LATE_SECONDS = 0.002
_MOST_LATE_PART = 0.1
# Of a closed loop, the part of the latency that passes between an answer and the next request.
_MOST_TURN_PART = 0.2
# So full of requests in flight an open loop waits for the server, not for itself.
_FULL = 0.8


def generator_limits(load: Load, figures: Figures, senders: int = 1, *, has_wire: bool = True) -> tuple[str, ...]:
    """Why, in words; nothing where the generator was quick enough. In process the models' own work is in the
    processor time of the sender, which says nothing then."""
    found = []
    share = figures.processor_share / senders
    if has_wire and share > _MOST_PROCESSOR_SHARE:
        found.append(f"each sender took {share:.0%} of a core: give more --senders, or another machine")
    if not figures.lateness.count:
        return tuple(found)
    if isinstance(load, Open):
        late = figures.lateness.percentile(95) / NANOSECONDS
        allowed = max(_MOST_LATE_SECONDS, _MOST_LATE_PART * figures.latency.percentile(50) / NANOSECONDS)
        if late > allowed and figures.in_flight < _FULL * load.most_in_flight:
            found.append(
                f"5% of the requests were sent {late * 1000:.3g} ms late or more, of which the latency has that part"
            )
    elif has_wire:
        turn, latency = figures.lateness.mean, figures.latency.mean
        if latency and turn > _MOST_TURN_PART * latency:
            found.append(
                f"between an answer and the next request {turn / 1000:.3g} µs pass, {turn / latency:.0%} of the latency"
            )
    return tuple(found)
