"""The interface of RSL-RL 5.5.1, answered by Surefoot."""
