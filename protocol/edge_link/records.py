"""Records of frames: what the two sides of a link say to each other. The first number of each is its kind.

    edge → core
    TEMPLATE  id, text size                              what requests have in common (`templates`)
    PLAIN     template, count, (number, size of tags)…   requests with nothing of their own but their tensors
    REQUEST   template, number, flags, size of tags, size of extras, place, size, (sizes of BYTES)…
    CANCEL    number                                     of a request, a stream or a call: no answer is wanted
    CREDIT    number, responses, bytes                   of a stream: so much was passed on
    RELEASE   place                                      nobody reads there any more
    CALL      number, text size                          an operation of the core that takes a while
    USED      text size                                  what a key has used beside its requests
    CHARGED   number, text size                          what requests have cost that have one charge, of this number
    OBSERVED  text size                                  how an observed call has ended
    STAMPS    text size                                  the end of a traced request
    UNSENT    text size                                  a request that has ended in the edge, to be traced perhaps

    core → edge
    TEMPLATE  id, text size                              what responses have in common
    ANSWERS   template, count, (number)…                 responses with nothing of their own but their tensors
    ANSWER    template, number, flags, size of extras, place, size, (sizes of BYTES)…
    STREAMED  template, count, (number, (sizes of BYTES)…)…  responses of streams with nothing else of their own
    NOTED     number, text size                          what an engine knows of a call, before its answer
    TRACED    number                                     the request is traced: its end is to be told
    EVENTS    number, text size                          what was recorded of a request that is about to be answered
    LEFT      number, text size                          what is left of its key's quota, before its answer
    ERROR     number, text size                          the end of a request, a stream or a call
    END       number, whether the last response was marked final
    RETURN    number, text size                          the result of a call
    RELEASE   place

Requests, streams and calls are numbered by the edge. Tensors of a record lie one behind the other in the frame's data,
or in shared memory from `place` on; it is INLINE in the first case. Flow control: of a stream at most WINDOW_RESPONSES
responses, and about WINDOW_BYTES of them, are on the way without a CREDIT.
"""

from __future__ import annotations

from typing import Final

TEMPLATE: Final = 1
PLAIN: Final = 2
REQUEST: Final = 3
CANCEL: Final = 4
CREDIT: Final = 5
RELEASE: Final = 6
CALL: Final = 7
ANSWERS: Final = 8
ANSWER: Final = 9
EVENTS: Final = 10
ERROR: Final = 11
END: Final = 12
RETURN: Final = 13
# The first record of the core, with file descriptors.
HELLO: Final = 14
# Of the second socket, both ways.
QUERY: Final = 15

USED: Final = 16
LEFT: Final = 17
STAMPS: Final = 18
UNSENT: Final = 19
TRACED: Final = 20
STREAMED: Final = 21
NOTED: Final = 22
OBSERVED: Final = 23
CHARGED: Final = 24

INLINE: Final = -1
# Flags of REQUEST: it may be answered with any number of responses. Of ANSWER: it is one of those; it is the last.
STREAM: Final = 1
FINAL: Final = 2

WINDOW_RESPONSES: Final = 32
WINDOW_BYTES: Final = 1 << 21

# Tensors of one request or response up to this size cross in the frame.
INLINE_BYTES: Final = 16384
# A frame is sent once it has so much, whatever else may come.
FULL_FRAME: Final = 1 << 18
# Templates of one direction; with more, ids are used again.
MOST_TEMPLATES: Final = 1024
