"""Adam without the compiler's import: the same numbers as PyTorch's."""

import copy
import subprocess
import sys
import textwrap

import pytest
import torch

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.light_adam import LightAdam
from surefoot.algorithm.optimizer import FlatOptimizer


def gradients(num_steps):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(num_steps, 5, generator=generator)


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"betas": (0.5, 0.9), "eps": 1e-3}])
def test_steps_and_state_equal_those_of_torch(options):
    ours, theirs = (torch.nn.Parameter(torch.ones(5)) for _ in range(2))
    a = LightAdam([ours], lr=0.1, fused=True, **options)
    b = torch.optim.Adam([theirs], lr=0.1, fused=True, **options)
    for gradient in gradients(4):
        for p, optimizer in ((ours, a), (theirs, b)):
            p.grad = gradient.clone()
            optimizer.step()
    assert torch.equal(ours, theirs)
    first, second = a.state_dict(), b.state_dict()
    assert first["param_groups"] == second["param_groups"]
    for key, value in second["state"][0].items():
        assert torch.equal(first["state"][0][key], value), key
        assert first["state"][0][key].dtype == value.dtype


def test_the_flat_optimizer_steps_as_torch_does_and_goes_on_from_torchs_state():
    parameter, theirs = (torch.nn.Parameter(torch.ones(5)) for _ in range(2))
    config = PPOConfig(schedule="fixed", learning_rate=0.1, max_grad_norm=1e6)
    flat = FlatOptimizer({"actor": [parameter]}, config)
    adam = torch.optim.Adam([theirs], lr=0.1, fused=True)
    given = gradients(6)
    for i, gradient in enumerate(given):
        flat.gradient[:5] = gradient
        adam.found_inf = torch.tensor(float(i in (1, 4)))  # these steps are left out
        flat.step(adam.found_inf)
        theirs.grad = gradient.clone()
        adam.step()
        assert torch.equal(parameter, theirs)
        if i == 2:
            flat.optimizer.load_state_dict(
                {**flat.optimizer.state_dict(), "state": copy.deepcopy(adam.state_dict()["state"])}
            )


def test_training_that_is_not_compiled_leaves_the_compiler_unimported():
    code = """
        import sys
        from surefoot import OnPolicyRunner
        from surefoot.testing import TargetEnv

        config = {
            "num_steps_per_env": 24,
            "actor": {"hidden_dims": [4]},
            "critic": {"hidden_dims": [4]},
            "algorithm": {"compile": "off"},
            "eval_episodes": 0,
        }
        runner = OnPolicyRunner(TargetEnv(64), config, quiet=True)
        runner.learn(1)
        runner.state()
        sys.exit("torch._dynamo" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr or "torch._dynamo was imported"
