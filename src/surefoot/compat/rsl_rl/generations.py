"""The front door for configurations: any generation's form in, 5.5.1's out."""

from surefoot.config.rsl_rl import modernize

__all__ = ["modernize"]
