"""Tasks: from a name to an environment and its preset configuration."""

from surefoot.tasks.resolve import list_tasks, make, preset

__all__ = ["list_tasks", "make", "preset"]
