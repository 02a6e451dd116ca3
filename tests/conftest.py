"""Shared by all tests: one torch thread, so that numbers and times do not depend on the machine's cores."""

import torch

torch.set_num_threads(1)
