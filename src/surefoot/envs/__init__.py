"""Environments: the contract, the adapters, the checks at the border."""
