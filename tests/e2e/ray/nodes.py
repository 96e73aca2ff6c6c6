"""The nodes of the cluster under test: two of one machine, by two of its addresses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HEAD, OTHER = "127.0.0.2", "127.0.0.3"
NODE: Mapping[str, Any] = {"num_cpus": 4, "object_store_memory": 100 * 2**20}
