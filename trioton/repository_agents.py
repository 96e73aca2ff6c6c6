"""Public: the interface of repository agents, which go along with each load of a model.

An installed package offers an agent by an entry point of the group `trioton.repository_agents`, and a model names it in
`model_repository_agents` of its configuration:

    [project.entry-points."trioton.repository_agents"]
    gzip = "gzip_agent:GzipAgent"

Agents run in threads: importing this module imports no framework, and an agent needs no Trio.
"""

from __future__ import annotations

from repository.agents.interface import AgentModel, RepositoryAgent

__all__ = ["AgentModel", "RepositoryAgent"]
