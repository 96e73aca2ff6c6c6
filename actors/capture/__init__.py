"""Payload capture: a share of clients' requests and their responses, written to files of a folder or bucket.

Flow: edge → `capturing_core` → core, and beside it → `capture`, the actor, → in a thread `writer` → `targets`. Nothing
here ever makes a request wait: what there is no memory for is dropped and counted.
"""
