"""Which settings of servers a fleet can have, and which an update can change. Pure."""

from __future__ import annotations

from trioton.flags.fields import UsageError
from trioton.fleet.flags import FleetFlags
from trioton.fleet.listening import FRONT_FLAGS
from trioton.serve_words import serve_table
from trioton.settings import Settings

# What the front, the supervisor and its control are set up with, once for as long as the fleet runs.
_FIXED_FLAGS = FRONT_FLAGS | {
    *(f"allow-{word}" for word in ("http", "grpc", "metrics")),
    *("http-restricted-api", "grpc-restricted-protocol", "drain-secs", "exit-timeout-secs", "log-file"),
}
_FIXED_FIELDS = {row.field_name: row.name for row in serve_table() if row.name in _FIXED_FLAGS}


def check_settings(settings: Settings, flags: FleetFlags) -> None:
    """Raises UsageError: what is of one server alone."""
    if not (settings.allow_http and settings.allow_grpc):
        raise UsageError("a fleet serves both HTTP and gRPC: --allow-http and --allow-grpc cannot be false")
    if settings.openai_port is not None:
        raise UsageError("a fleet has no --openai-port: OpenAI's routes are on the port of HTTP")
    for name in ("sagemaker", "vertex-ai"):
        if getattr(settings, f"allow_{name.replace('-', '_')}"):
            raise UsageError(f"a fleet has no --allow-{name}: all of its servers would listen at the same port")
    if settings.jobs_store is not None and "://" not in settings.jobs_store:
        raise UsageError(
            f"a fleet's jobs are kept where all of its servers find them: expected --jobs-store=<store>://<place>, got "
            f"the folder '{settings.jobs_store}', which belongs to one server"
        )
    if flags.gpus_per_replica is not None and "num_gpus" in flags.ray_options.values():
        raise UsageError("--gpus-per-replica and num_gpus of --ray-options say the same: give one of them")
    if settings.auth_keys_file is not None and flags.fleet_key_file is None:
        raise UsageError("--auth-keys-file needs --fleet-key-file: a key by which the fleet calls its own replicas")


def check_change(before: Settings, after: Settings) -> None:
    """Raises UsageError: flags that an update would change, and that are the whole fleet's."""
    changed = [
        f"--{name}" for field, name in sorted(_FIXED_FIELDS.items()) if getattr(before, field) != getattr(after, field)
    ]
    if changed:
        verb = "is" if len(changed) == 1 else "are"
        raise UsageError(
            f"{', '.join(changed)} {verb} set when the fleet starts, and cannot be changed by an update or a canary"
        )
