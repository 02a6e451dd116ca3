"""Adversarial motion priors: a style reward from motion data (Peng et al. 2021, arXiv:2104.02180)."""
