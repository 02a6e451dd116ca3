"""Tasks: from a name to an environment and its preset configuration."""

from surefoot.tasks.resolve import backends, list_tasks, make, preset

__all__ = ["backends", "list_tasks", "make", "preset"]
