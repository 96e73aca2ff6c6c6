"""Quotas: what each key of an auth keys file may use in a time, and what it has used.

Flow: edge → account (admits, or refuses) → charge on the request → scheduler and engine (settle) → edge (ends it).
`quota` says what is allowed, `meters` measure it, `accounts` has one account for each key, `told` those of a process
that has no quotas, `fields` writes the header fields. Nothing here does I/O or knows a protocol.
"""
