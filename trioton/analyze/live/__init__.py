"""Proposals for a running server, from what it tells of itself.

Flow: `watch` (statistics and metrics, again and again) → `observation` → `proposals` → text, JSON; `verify` replays
"""
