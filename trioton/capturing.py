"""Composes payload capture from the settings, and puts it in front of the core. Part of the composition root."""

from __future__ import annotations

import os
from typing import cast

from actors.capture.capture import Capture
from actors.capture.capturing_core import CapturingCore
from actors.capture.writer import CaptureWriter
from protocol.core import InferenceCore
from repository.stores.client import Bucket
from repository.stores.targets import BucketTarget, FolderTarget
from repository.stores.urls import StoreUrl
from trioton.settings import Settings


def capture_of(settings: Settings) -> Capture | None:
    """None where nothing is to be captured. Touches neither the network nor the disk."""
    place = settings.capture
    if place is None:
        return None
    target = BucketTarget(Bucket(place, os.environ)) if isinstance(place, StoreUrl) else FolderTarget(place)
    capturing = settings.capturing()
    return Capture(capturing, CaptureWriter(capturing, target))


def captured(core: InferenceCore, capture: Capture | None) -> InferenceCore:
    """The core as edges see it."""
    return core if capture is None else cast(InferenceCore, CapturingCore(core, capture))
