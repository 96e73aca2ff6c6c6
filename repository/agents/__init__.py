"""Repository agents: plug-ins that check or replace the files of a model before each load."""
