"""Replies with its process id, or does the worst that model code can do, as it is told."""

import ctypes
import os
import resource
import sys
import time
from collections.abc import Callable

import numpy as np
import triton_python_backend_utils as pb_utils


def use_up_memory() -> None:
    """Under a limit of the process's own: the machine must not suffer."""
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
    kept = []
    try:
        while True:
            kept.append(bytearray(16 << 20))
    finally:
        kept.clear()
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def run_out_of_memory() -> None:
    """Of the control group that the test has made, so that the kernel kills this process and no other."""
    with open(os.environ["TRIOTON_TEST_CGROUP"] + "/cgroup.procs", "w") as processes:
        processes.write(str(os.getpid()))
    kept = []
    while True:
        kept.append(np.ones(1 << 20))


def loop() -> None:
    print("looping")
    while True:
        pass


def hang() -> None:
    print("hanging")
    time.sleep(1e6)


def hold_the_lock() -> None:
    """An endless call into C that keeps the interpreter's lock: no other thread of this process runs."""
    print("holding")
    ctypes.PyDLL(None).pause()


def recurse() -> None:
    recurse()


ACTIONS: dict[bytes, Callable[[], object]] = {
    b"raise": lambda: [][0],
    b"exit": lambda: sys.exit("done with this"),
    b"os._exit": lambda: os._exit(7),
    b"segfault": lambda: ctypes.string_at(0),
    b"abort": os.abort,
    b"memory": use_up_memory,
    b"no memory left": run_out_of_memory,
    b"huge array": lambda: np.ones(1 << 48),
    b"recursion": recurse,
    b"loop": loop,
    b"hang": hang,
    b"lock": hold_the_lock,
    b"live": lambda: None,
}


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        for request in requests:
            ACTIONS[pb_utils.get_input_tensor_by_name(request, "ACTION").as_numpy()[0]]()
        pid = np.array([os.getpid()], np.int64)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("PID", pid)]) for _ in requests]
