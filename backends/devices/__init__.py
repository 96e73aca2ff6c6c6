"""Accelerators as backends use them: streams, pinned and device memory, copies, and what the machine has.

A server has one `Devices` (`backends.devices.devices`), which its backends get with their `ModelSource`; an instance on
a GPU takes a `DeviceStream` from it. All of it stands on one seam, `backends.devices.runtime.DeviceRuntime`.
"""
