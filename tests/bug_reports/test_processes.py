"""Public bug reports on several processes: what must be the same in all of them. Each test carries the number
of its report.

One pair of processes runs everything and writes what it found; the tests read it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ranks import run_ranks
from surefoot import distributed
from surefoot.algorithm.extension import Extension
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.normalizers import RunningNormalizer
from surefoot.testing import TargetEnv
from surefoot.training.on_policy_runner import OnPolicyRunner
from surefoot.types import Batch, PolicyOutput

Found = dict[str, Any]
SMALL: dict[str, Any] = {
    "num_steps_per_env": 16,
    "actor": {"hidden_dims": [8], "obs_normalization": True},
    "critic": {"hidden_dims": [8], "obs_normalization": True, "value_normalization": True},
    "algorithm": {"num_mini_batches": 2, "num_learning_epochs": 2},
    "env": {"reward_scaling": True},
    "logger": "none",
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """What each of two processes found; a hang is a failure, not a wait for ever."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(explore, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def explore(rank: int, folder: Path) -> None:
    found: Found = {}
    for part in (_merging, _starting, _branching, _failing):
        found |= part(rank)
    torch.save(found, folder / f"{rank}.pt")


def state_of(runner: OnPolicyRunner) -> dict[str, Tensor]:
    """Everything but what each process keeps of its own environments."""
    tensors = {name: x.detach().clone() for name, x in runner.alg.state_dict().items()}
    return {name: x for name, x in tensors.items() if not name.endswith("carry")}


def assert_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, x in first.items():
        assert torch.equal(x, second[name]), name


# ---------------------------------------------------------------------- M01: statistics of the normalisers


def _merging(rank: int) -> Found:
    x = torch.randn(1000, 1, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
    x = (x - x.mean()) / x.std(unbiased=False) + 10 * rank
    normalizer = RunningNormalizer(1)
    normalizer.update(x)
    again = RunningNormalizer(1)
    again.load_state_dict(normalizer.state_dict())
    distributed.broadcast_module(again)
    again.update(torch.zeros(0, 1))
    return {
        "merged": normalizer.state_dict(),
        "after a reload": {k: v.clone() for k, v in again.state_dict().items()},
        "of one alone": _count_of_one(rank),
    }


def _count_of_one(rank: int) -> Tensor:
    """Process 1 has no rows at all."""
    normalizer = RunningNormalizer(1)
    normalizer.update(torch.ones(3 if rank == 0 else 0, 1))
    return torch.cat([normalizer.count.double().reshape(1), normalizer.mean])


def test_m01_statistics_are_merged_exactly_and_equal_on_both(ranks: list[Found]) -> None:
    for found in ranks:
        merged = found["merged"]
        assert merged["count"].item() == 2000
        assert merged["mean"].item() == pytest.approx(5.0, abs=1e-9)
        # two clouds of variance 1, ten apart: 1 + 5²
        assert merged["m2"].item() / 2000 == pytest.approx(26.0, abs=1e-9)
    assert_equal(ranks[0]["merged"], ranks[1]["merged"])


def test_m01_saving_loading_and_synchronising_counts_nothing_again(ranks: list[Found]) -> None:
    for found in ranks:
        assert_equal(found["after a reload"], found["merged"])


def test_m01_a_process_without_rows_has_the_statistics_too(ranks: list[Found]) -> None:
    assert [found["of one alone"].tolist() for found in ranks] == [[3.0, 1.0]] * 2


# ---------------------------------------------------------------------- M03: the start


class OwnNetwork(Extension):
    """A fixed target and a network that is trained to it, as in random network distillation."""

    def setup(self, spec: Any, policy: ActorCritic) -> None:
        self.target, self.net = nn.Linear(3, 2), nn.Linear(3, 2)
        self.target.requires_grad_(False)
        self.register_buffer("seen", torch.randn(4))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)

    def learn(self, rollout: Any) -> dict[str, Tensor]:
        x = rollout.observations["policy"][:-1]
        loss = (self.net(x) - self.target(x)).square().mean()
        distributed.minimize(loss, self.optimizer, max_norm=1.0)
        return {"Own/loss": loss.detach()}


def _starting(rank: int) -> Found:
    torch.manual_seed(100 + rank)  # what draws from the global stream differs
    extensions = [{"class_name": f"{__name__}:OwnNetwork"}]
    config = SMALL | {"seed": 1 + rank, "extensions": extensions}
    runner = OnPolicyRunner(TargetEnv(4, seed=rank), config, quiet=True)
    start = state_of(runner)
    observations = []
    runner.learn(5)
    observations.append(runner.observations["policy"])  # pyright: ignore[reportOptionalSubscript]
    return {
        "start": start,
        "end": state_of(runner),
        "observations": observations[0],
        "actions": runner.alg.storage.actions,
    }


def test_m03_processes_that_start_from_other_seeds_are_equal_at_iterations_0_and_5(
    ranks: list[Found],
) -> None:
    for moment in ("start", "end"):
        assert_equal(ranks[0][moment], ranks[1][moment])
    names = set(ranks[0]["start"])
    for part in ("target", "net", "seen", "value_head", "normalizers", "statistics"):
        assert any(part in name for name in names), part
    moved = [n for n, x in ranks[0]["start"].items() if not torch.equal(x, ranks[0]["end"][n])]
    assert any("net.weight" in name for name in moved)
    assert not any("target" in name for name in moved)


def test_m03_their_environments_and_their_noise_differ(ranks: list[Found]) -> None:
    for name in ("observations", "actions"):
        assert not torch.equal(ranks[0][name], ranks[1][name])


# ---------------------------------------------------------------------- M05: no gradient on one process


class Branching(nn.Module):
    """A second layer that is used by process 0 only, and one that nobody uses."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.always, self.sometimes, self.never = (nn.Linear(num_inputs, 8) for _ in range(3))
        self.uses_it = False

    def forward(self, x: Tensor) -> Tensor:
        y = self.always(x)
        return y + self.sometimes(x) if self.uses_it else y


def _branching(rank: int) -> Found:
    module = ModuleType("my_networks")
    module.Net = Branching  # type: ignore[attr-defined]
    sys.modules["my_networks"] = module
    runner = OnPolicyRunner(TargetEnv(4), SMALL | {"actor": {"class_name": "my_networks:Net"}}, quiet=True)
    network: Any = runner.policy.actor.layers
    network.uses_it = rank == 0
    start = state_of(runner)
    runner.learn(2)
    return {"branch start": start, "branch end": state_of(runner)}


def test_m05_a_parameter_without_gradient_on_one_process_leaves_all_equal(ranks: list[Found]) -> None:
    assert_equal(ranks[0]["branch end"], ranks[1]["branch end"])
    start, end = ranks[0]["branch start"], ranks[0]["branch end"]
    moved = {n for n, x in start.items() if not torch.equal(x, end[n])}
    assert "policy.actor.layers.always.weight" in moved
    assert "policy.actor.layers.sometimes.weight" in moved  # half of process 0's gradient
    assert "policy.actor.layers.never.weight" not in moved


# ---------------------------------------------------------------------- N07: NaN on one process


class NaNOnOne(Extension):
    """An auxiliary loss that is NaN on process 1, in the third mini-batch."""

    calls = 0

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        self.calls += 1
        bad = self.calls == 3 and distributed.rank() == 1
        return {"Aux/bad": out.value.mean() * (float("nan") if bad else 0.0)}


def _failing(rank: int) -> Found:
    runner = OnPolicyRunner(TargetEnv(4, seed=rank), SMALL, quiet=True)
    runner.alg.extensions.append(NaNOnOne())
    seen: list[dict[str, Tensor]] = []
    update = runner.alg.optimizer.update

    def watched(*arguments: Any) -> Any:
        result = update(*arguments)
        weights = {n: p.detach().clone() for n, p in runner.policy.named_parameters()}
        seen.append(weights | {"skipped": result[2].clone()})
        return result

    runner.alg.optimizer.update = watched  # type: ignore[method-assign]
    runner.learn(1)
    return {"nan": seen, "skipped": torch.tensor(runner.metrics["Loss/skipped_updates"])}


def test_n07_a_nan_on_one_process_skips_the_step_on_both(ranks: list[Found]) -> None:
    for found in ranks:
        steps = found["nan"]
        assert [s["skipped"].item() for s in steps] == [0, 0, 1, 0]
        assert found["skipped"].item() == 1
        for name, x in steps[1].items():
            if name != "skipped":
                assert torch.equal(x, steps[2][name]), name
    for first, second in zip(ranks[0]["nan"], ranks[1]["nan"], strict=True):
        assert_equal(first, second)
