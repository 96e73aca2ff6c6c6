"""GPU support for backends: streams, pinned and device memory, copies, and device discovery.

A server has one `Devices` (`backends.devices.devices`), which its backends get with their `ModelSource`; an instance on
a GPU takes a `DeviceStream` from it. All of it stands on one seam, `backends.devices.runtime.DeviceRuntime`.
"""
