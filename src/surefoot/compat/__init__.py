"""Other libraries' interfaces, answered by Surefoot."""
