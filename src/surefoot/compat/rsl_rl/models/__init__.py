"""Actors, critics, students and teachers: observations to outputs."""

from surefoot.compat.rsl_rl.models.cnn_model import CNNModel
from surefoot.compat.rsl_rl.models.mlp_model import MLPModel
from surefoot.compat.rsl_rl.models.rnn_model import RNNModel

__all__ = ["CNNModel", "MLPModel", "RNNModel"]
