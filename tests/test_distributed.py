"""Two processes: exact merging, equal weights, and the same numbers as one process with all the rows.

One pair of processes runs everything and writes what it found; the tests read it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ranks import run_ranks
from surefoot import distributed
from surefoot.algorithm.compiled import compile_ppo
from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.ppo import PPO
from surefoot.extensions.auxiliary import AuxiliaryPrediction
from surefoot.extensions.reward_scaling import RewardScaling
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CriticConfig
from surefoot.networks.normalizers import RunningNormalizer
from surefoot.testing.extension_suite import NUM_STEPS, _train, _train_as_rank, check_extension, make_ppo
from surefoot.types import Batch, EnvSpec, PolicyOutput, Step

Found = dict[str, Any]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(explore, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def explore(rank: int, folder: Path) -> None:
    found: Found = {}
    for part in (_basics, _moments, _minimize, _training, _parity, _skipping, _straying):
        found |= part(rank)
    torch.save(found, folder / f"{rank}.pt")


def standardised(seed: int) -> Tensor:
    """1000 numbers [1000, 1] of mean 0 and deviation 1."""
    x = torch.randn(1000, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (x - x.mean()) / x.std(unbiased=False)


# ---------------------------------------------------------------------- the parts


def _basics(rank: int) -> Found:
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.fill_(float(rank + 1))
    distributed.broadcast_module(layer)
    return {
        "place": [distributed.rank(), distributed.world_size(), int(distributed.is_main())],
        "sum": distributed.all_sum(torch.tensor([1.0, float(rank)])),
        "mean": distributed.mean(torch.tensor([2.0, 4.0 * rank])),
        "objects": distributed.gather_objects({"rank": rank}),
        "broadcast": layer.weight.detach().clone(),
    }


def _moments(rank: int) -> Found:
    x = standardised(rank) + 10 * rank
    normalizer = RunningNormalizer(1)
    normalizer.update(x)
    again = RunningNormalizer(1)
    again.load_state_dict(normalizer.state_dict())
    distributed.broadcast_module(again)
    again.update(torch.zeros(0, 1))
    # only the rows of one process count, and the rest holds anything
    masked = torch.cat([x, torch.full((5, 1), float("nan"))])
    keep = torch.tensor([rank == 1] * 1000 + [False] * 5)
    return {
        "moments": list(distributed.moments(x)),
        "normalizer": normalizer.state_dict(),
        "after_reload": again.count.clone(),
        "masked": list(distributed.moments(masked, keep)),
        "scalars": list(distributed.moments(torch.tensor([float(rank)]))),
    }


class Branch(nn.Module):
    """A layer that only one process uses."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            self.always.weight.fill_(1.0)
            self.sometimes.weight.fill_(1.0)

    def forward(self, x: Tensor, use: bool) -> Tensor:
        y = self.always(x)
        return y + self.sometimes(x) if use else y


def _minimize(rank: int) -> Found:
    net = Branch()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    # gradients: always 2 and 4 on the two processes, sometimes 2 and none
    norm = distributed.minimize(net(torch.tensor([[2.0 * (rank + 1)]]), use=rank == 0).sum(), optimizer)
    after = [p.detach().clone() for p in net.parameters()]
    clipped = Branch()
    distributed.minimize(
        clipped(torch.tensor([[2.0]]), True).sum(),
        torch.optim.SGD(clipped.parameters(), lr=1.0),
        max_norm=0.5,
    )
    bad = Branch()
    adam = torch.optim.Adam(bad.parameters(), lr=0.1)
    distributed.minimize(bad(torch.ones(1, 1), True).sum(), adam)
    before = [p.detach().clone() for p in bad.parameters()]
    distributed.minimize(bad(torch.tensor([[float("nan") if rank == 1 else 1.0]]), True).sum(), adam)
    return {
        "minimize": after,
        "minimize_norm": norm,
        "minimize_clipped": [p.detach().clone() for p in clipped.parameters()],
        "minimize_before_nan": before,
        "minimize_after_nan": [p.detach().clone() for p in bad.parameters()],
    }


class OwnNetwork(Extension):
    """A network and an optimiser of its own, trained through `distributed.minimize`."""

    def setup(self, spec: EnvSpec, policy: ActorCritic) -> None:
        self.net = nn.Linear(5, 1)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)

    def learn(self, rollout: Any) -> dict[str, Tensor]:
        loss = self.net(rollout.observations["policy"]).square().mean()
        distributed.minimize(loss, self.optimizer, max_norm=1.0)
        return {"Own/loss": loss.detach()}


def _training(rank: int) -> Found:
    ppo = make_ppo(RewardScaling(), AuxiliaryPrediction("privileged"), OwnNetwork(), seed=1 + rank)
    start = {k: v.clone() for k, v in ppo.state_dict().items()}
    metrics: list[dict[str, Tensor]] = []
    update = ppo.update
    ppo.update = lambda: metrics.append(update()) or metrics[-1]  # type: ignore[method-assign,func-returns-value]
    end = _train(ppo, iterations=3, data_seed=rank)
    same = make_ppo(seed=7)
    noise = same.act({"policy": torch.zeros(6, 5), "privileged": torch.zeros(6, 4)})
    return {
        "start": start,
        "end": end,
        "metrics": metrics[-1],
        "noise": noise,
        "actions": ppo.storage.actions,
    }


def _parity(rank: int) -> Found:
    whole = {f"parity {rnn_type}": train_on_part(rank, 2, rnn_type) for rnn_type in RNN_TYPES}
    return {**whole, "parity compiled": train_on_part(rank, 2, is_compiled=True)}


class NaNOnOne(Extension):
    """An auxiliary loss that is NaN on process 1 in one mini-batch."""

    calls = 0

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        self.calls += 1
        bad = self.calls == 3 and distributed.rank() == 1
        return {"Aux/bad": out.value.mean() * (float("nan") if bad else 0.0)}


def _skipping(rank: int) -> Found:
    ppo = make_ppo(NaNOnOne())
    seen: list[dict[str, Tensor]] = []
    update = ppo.optimizer.update

    def watched(*arguments: Any) -> Any:
        result = update(*arguments)
        seen.append(
            {n: p.detach().clone() for n, p in ppo.policy.named_parameters()} | {"skipped": result[2].clone()}
        )
        return result

    ppo.optimizer.update = watched  # type: ignore[method-assign]
    data = torch.Generator().manual_seed(rank)
    no = torch.zeros(6, dtype=torch.bool)
    obs = {"policy": torch.randn(6, 5, generator=data), "privileged": torch.randn(6, 4, generator=data)}
    for _ in range(NUM_STEPS):
        ppo.act(obs)
        ppo.process_env_step(Step(obs, torch.randn(6, generator=data), no, no))
    ppo.compute_returns(obs)
    ppo.update()
    return {"skipping": seen}


class Straying(Extension):
    """Broken: trains its network on its own process alone."""

    def setup(self, spec: EnvSpec, policy: ActorCritic) -> None:
        self.net = nn.Linear(5, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def learn(self, rollout: Any) -> dict[str, Tensor]:
        self.optimizer.zero_grad()
        self.net(rollout.observations["policy"]).square().mean().backward()
        self.optimizer.step()
        return {}


def _straying(rank: int) -> Found:
    """The last part: the suite leaves the group when it is done."""
    try:
        _train_as_rank(rank, Straying, {}, int(os.environ["MASTER_PORT"]))
    except AssertionError as error:
        return {"straying": str(error)}
    return {"straying": ""}


# ---------------------------------------------------------------------- two halves are one whole

NUM_ENVS, ITERATIONS = 8, 3
RNN_TYPES = (None, "gru", "lstm")


def train_on_part(
    part: int, parts: int, rnn_type: Any = None, is_compiled: bool = False
) -> dict[str, Tensor]:
    """Three iterations in float64 on the columns of one part of a made-up run; returns the weights.

    `is_compiled`: with the forms that are for compiling, by a compiler that changes nothing.
    """
    n = NUM_ENVS // parts
    columns = slice(part * n, (part + 1) * n)
    spaces = {"policy": gymnasium.spaces.Box(-np.inf, np.inf, (3,))}
    spec = EnvSpec(spaces, gymnasium.spaces.Box(-np.inf, np.inf, (2,)), n)
    torch.manual_seed(0)
    common: dict[str, Any] = {
        "hidden_dims": [8],
        "obs_normalization": True,
        "rnn_type": rnn_type,
        "rnn_hidden_dim": 6,
    }
    policy = ActorCritic(
        spec, ActorConfig(**common), CriticConfig(**common, value_normalization=True)
    ).double()
    config = PPOConfig(num_mini_batches=1, num_learning_epochs=3, entropy_coef=0.01, max_grad_norm=0.5)
    ppo = PPO(policy, spec, config, num_steps_per_env=6)
    if is_compiled:
        with mock.patch.object(torch, "compile", lambda function, **_: function):
            compile_ppo(ppo, "default", pytest.fail)
        assert "gradient" in vars(ppo)
    data = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=data, dtype=torch.float64)[columns]

    obs = {"policy": normal(NUM_ENVS, 3)}
    metrics: dict[str, Tensor] = {}
    for _ in range(ITERATIONS):
        for t in range(6):
            ppo.act(obs)
            # the noise of each process is its own: these are the actions instead
            ppo.storage.actions[t] = 0.5 * normal(NUM_ENVS, 2)
            final, fresh = normal(NUM_ENVS, 3), normal(NUM_ENVS, 3)
            dice = torch.rand(NUM_ENVS, generator=data)[columns]
            terminated, truncated, ended = dice < 0.1, dice > 0.85, (dice < 0.1) | (dice > 0.85)
            # the first half of the environments loses many more rows than the second
            valid = torch.rand(NUM_ENVS, generator=data) > torch.tensor([0.7] * 4 + [0.1] * 4)
            reward = final[:, 0] + 0.1 * ppo.storage.actions[t, :, 0]
            obs = {"policy": torch.where(ended[:, None], fresh, final)}
            step = Step(obs, reward, terminated, truncated, {"policy": final}, valid=valid[columns])
            ppo.process_env_step(step)
        ppo.compute_returns(obs)
        metrics = ppo.update()
    names = (
        "Loss/kl",
        "Loss/learning_rate",
        "Loss/grad_norm",
        "Loss/explained_variance",
        "Data/samples_used",
    )
    return {k: v.clone() for k, v in ppo.state_dict().items()} | {n: metrics[n] for n in names}


# ---------------------------------------------------------------------- the tests


def test_each_process_knows_its_place(ranks: list[Found]) -> None:
    assert [found["place"] for found in ranks] == [[0, 2, 1], [1, 2, 0]]


def test_sums_means_objects_and_broadcasts(ranks: list[Found]) -> None:
    for found in ranks:
        assert found["sum"].tolist() == [2.0, 1.0]
        assert found["mean"].tolist() == [2.0, 2.0]
        assert found["objects"] == [{"rank": 0}, {"rank": 1}]
        assert found["broadcast"].unique().tolist() == [1.0]


def test_moments_are_merged_exactly(ranks: list[Found]) -> None:
    for found in ranks:
        count, mean, m2 = (x.item() for x in found["moments"])
        # two clouds of deviation 1, ten apart: variance 1 + 5²
        assert (count, mean, m2 / count) == (
            2000,
            pytest.approx(5.0, abs=1e-9),
            pytest.approx(26.0, rel=1e-9),
        )
    assert all(torch.equal(a, b) for a, b in zip(ranks[0]["moments"], ranks[1]["moments"], strict=True))


def test_normalisers_hold_the_same_statistics_on_every_process(ranks: list[Found]) -> None:
    first, second = (found["normalizer"] for found in ranks)
    assert first["count"].item() == 2000
    assert first["mean"].item() == pytest.approx(5.0)
    assert first["m2"].item() / 2000 == pytest.approx(26.0)
    assert all(torch.equal(first[k], second[k]) for k in first)


def test_saving_loading_and_synchronising_counts_nothing_again(ranks: list[Found]) -> None:
    assert [found["after_reload"].item() for found in ranks] == [2000, 2000]


def test_a_process_without_a_valid_row_adds_nothing(ranks: list[Found]) -> None:
    for found in ranks:
        count, mean, m2 = (x.item() for x in found["masked"])
        assert (count, mean, m2) == (1000, pytest.approx(10.0), pytest.approx(1000.0))
        # 0 and 1: mean ½, squared deviations ¼ + ¼
        assert [x.item() for x in found["scalars"]] == [2.0, 0.5, 0.5]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.RMSprop])
def test_a_first_step_that_is_not_made_leaves_the_optimiser_as_new(
    kind: type[torch.optim.Optimizer],
) -> None:
    weights = []
    for losses in ([2.0], [float("nan"), 2.0]):
        parameter = nn.Parameter(torch.ones(1))
        optimizer = kind([parameter], lr=0.1)
        for slope in losses:
            distributed.minimize((slope * parameter.square()).sum(), optimizer)
        weights.append(parameter.item())
    assert weights[0] == weights[1] != 1.0


def test_gradients_are_averaged_and_a_missing_one_counts_as_zero(ranks: list[Found]) -> None:
    for found in ranks:
        # always: 1 - (2 + 4)/2;  sometimes: 1 - (2 + 0)/2
        assert [p.item() for p in found["minimize"]] == [-2.0, 0.0]
        assert found["minimize_norm"].item() == pytest.approx(10**0.5)  # √(3² + 1²)


def test_extensions_gradients_are_clipped_jointly(ranks: list[Found]) -> None:
    for found in ranks:
        # gradient (2, 2) of norm √8 is scaled to ½: each .5/√2
        assert [p.item() for p in found["minimize_clipped"]] == pytest.approx(
            [1 - 0.5 / 2**0.5] * 2, rel=1e-5
        )


def test_a_nan_on_one_process_leaves_an_extensions_network_as_it_was(ranks: list[Found]) -> None:
    for found in ranks:
        for before, after in zip(found["minimize_before_nan"], found["minimize_after_nan"], strict=True):
            assert torch.equal(before, after)


def test_processes_that_start_from_different_seeds_start_from_the_same_weights(ranks: list[Found]) -> None:
    first, second = (found["start"] for found in ranks)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def test_weights_and_statistics_are_still_equal_after_three_iterations(ranks: list[Found]) -> None:
    first, second = (found["end"] for found in ranks)
    for name, tensor in first.items():
        if not name.endswith("carry"):  # the running returns of a process's own environments
            assert torch.equal(tensor, second[name]), name
    assert not torch.equal(first["policy.value_head.weight"], ranks[0]["start"]["policy.value_head.weight"])


def test_logged_numbers_are_those_of_all_processes(ranks: list[Found]) -> None:
    first, second = (found["metrics"] for found in ranks)
    for name in first:
        if name.startswith("Loss/") or name == "Data/samples_used":
            assert first[name].item() == second[name].item(), name
    assert first["Data/samples_used"].item() == 2 * 48


def test_each_process_draws_its_own_noise(ranks: list[Found]) -> None:
    assert not torch.equal(ranks[0]["noise"], ranks[1]["noise"])


@pytest.mark.parametrize("kind", [*RNN_TYPES, "compiled"])
def test_two_processes_with_half_of_the_rows_each_equal_one_with_all(
    ranks: list[Found], kind: str | None
) -> None:
    whole = train_on_part(0, 1, kind if kind in RNN_TYPES else None)
    for found in ranks:
        for name, tensor in whole.items():
            other = found[f"parity {kind}"][name]
            torch.testing.assert_close(other.double(), tensor.double(), rtol=1e-8, atol=1e-8, msg=name)


def test_a_nan_on_one_process_skips_the_step_on_all(ranks: list[Found]) -> None:
    for found in ranks:
        steps = found["skipping"]
        assert [s["skipped"].item() for s in steps] == [0, 0, 1, 0, 0, 0]
        for name, tensor in steps[1].items():
            if name != "skipped":
                assert torch.equal(tensor, steps[2][name]), name
                assert tensor.isfinite().all()
    for first, second in zip(ranks[0]["skipping"], ranks[1]["skipping"], strict=True):
        assert all(torch.equal(first[k], second[k]) for k in first)


def test_the_contract_suite_catches_an_extension_that_trains_alone(ranks: list[Found]) -> None:
    for found in ranks:
        assert "net.weight' differs between two processes" in found["straying"]


@pytest.mark.slow
def test_the_contract_suite_starts_two_processes_of_its_own() -> None:
    check_extension(RewardScaling)
    with pytest.raises(Exception, match=r"net\.weight' differs between two processes"):
        check_extension(Straying)


# ---------------------------------------------------------------------- one process


def test_on_one_process_everything_is_a_no_op() -> None:
    assert (distributed.rank(), distributed.world_size(), distributed.is_main()) == (0, 1, True)
    x = torch.tensor([1.0, 2.0])
    assert distributed.all_sum(x) is x
    assert distributed.mean(x) is x
    assert distributed.gather_objects("a") == ["a"]
    distributed.broadcast_module(nn.Linear(1, 1))
    distributed.shutdown()


def test_moments_by_hand() -> None:
    count, mean, m2 = distributed.moments(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    assert (count.item(), mean.tolist(), m2.tolist()) == (2.0, [2.0, 5.0], [2.0, 0.0])
    count, mean, m2 = distributed.moments(torch.zeros(0, 2))
    assert (count.item(), mean.tolist(), m2.tolist()) == (0.0, [0.0, 0.0], [0.0, 0.0])


def test_merging_by_hand() -> None:
    # {1, 3} and {5}: mean 3, squared deviations 4 + 0 + 4
    parts = [
        (torch.tensor(c), torch.tensor(m), torch.tensor(d)) for c, m, d in ((2.0, 2.0, 2.0), (1.0, 5.0, 0.0))
    ]
    assert [x.item() for x in distributed.merge_moments(*parts)] == [3.0, 3.0, 8.0]


def test_streams_are_independent_and_repeat() -> None:
    seeds = [
        distributed.stream_seed(seed, stream, rank)
        for seed in (1, 2)
        for stream in ("weights", "actions", "shuffle", "env", "eval", "extensions")
        for rank in (0, 1, 11)
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= s < 2**63 for s in seeds)
    assert distributed.stream_seed(1, "weights") == distributed.stream_seed(1, "weights", 0) == seeds[0]
