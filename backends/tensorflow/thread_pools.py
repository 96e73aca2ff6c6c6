"""TensorFlow's process-wide thread pools. The first session decides on their number."""

from __future__ import annotations

import logging
import threading

from backends.affinity import unbind_thread
from backends.tensorflow.library import tf, v1
from backends.tensorflow.options import TensorFlowOptions

logger = logging.getLogger("trioton.tensorflow")


class ThreadPools:
    """Has the pools made before any model's session, by a thread that no host policy binds: threads inherit the cores
    of the one that starts them, and these serve all models. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[str, int] = {}
        self._first = ""

    def prepare(self, options: TensorFlowOptions, model: str) -> None:
        """Make the pools as this model wants them, or warn where they are there already and it wants others."""
        wanted = {"TF_NUM_INTRA_THREADS": options.intra_op_threads}
        if not options.has_own_threads and not options.runs_in_callers_thread:
            wanted["TF_NUM_INTER_THREADS"] = options.inter_op_threads
        with self._lock:
            if not self._first:
                maker = threading.Thread(target=_make, args=(wanted,), name="tensorflow pools")
                maker.start()
                maker.join()
                self._made, self._first = wanted, model
        for key, count in wanted.items():
            made = self._made.get(key, 0)
            if count and count != made:
                logger.warning(
                    "model '%s' wants %s %d, but the library has one for the whole process, and model '%s', which came "
                    "first, has left it at %s",
                    *(model, key, count, self._first, made or "the library's own number"),
                )


def _make(counts: dict[str, int]) -> None:
    unbind_thread()
    config = v1.ConfigProto(
        intra_op_parallelism_threads=counts["TF_NUM_INTRA_THREADS"],
        inter_op_parallelism_threads=counts.get("TF_NUM_INTER_THREADS", 0),
        device_count={"GPU": 0},
    )
    v1.Session(graph=tf.Graph(), config=config).close()


# The library's pools are the process's, so what is known of them is, too: servers in one process share both.
THREAD_POOLS = ThreadPools()
