"""HTTP/1.1 connections: a sans-IO state machine, and its two drivers, a task and the inline fast path."""
