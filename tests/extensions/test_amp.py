"""AMP as PPO uses it: the contract, what it rewards, what it learns from, and that the policy imitates."""

from __future__ import annotations

import json
import math
import re
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

import surefoot
from surefoot import OnPolicyRunner
from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.ppo import PPO
from surefoot.algorithm.rollout_storage import RolloutStorage
from surefoot.config import SurefootWarning
from surefoot.errors import ConfigError
from surefoot.extensions.amp import amp as amp_module
from surefoot.extensions.amp.amp import AMP
from surefoot.networks.actor_critic import ActorCritic
from surefoot.testing import check_extension
from surefoot.testing.environments import DiscreteTargetEnv, TinyEnv
from surefoot.testing.extension_suite import NUM_STEPS, _train, make_ppo
from surefoot.types import EnvSpec, Step

MODULE = __name__


def noise_of_five(_: float | None) -> list[tuple[Tensor, float]]:
    """Two clips for the suite's group `policy` [5]."""
    g = torch.Generator().manual_seed(0)
    return [(0.5 * torch.randn(30, 5, generator=g), 1.0), (torch.randn(12, 5, generator=g), 2.0)]


def keys(**others: Any) -> dict[str, Any]:
    """`amp_cfg` for the suite's toy environment."""
    small = {"dataset": f"{MODULE}:noise_of_five", "obs_group": "policy", "hidden_dims": [16]}
    return small | {"replay_size": 100} | others


# ---------------------------------------------------------------------- the contract suite


@pytest.mark.slow
def test_it_keeps_the_contract_on_two_processes() -> None:
    check_extension(AMP, config=keys(num_frames=4))


@pytest.mark.parametrize(
    "others",
    [
        {"loss_type": "wgan", "grad_penalty_on": "interpolated", "combination": "additive", "replay_size": 0},
        {"loss_type": "bce", "grad_penalty_on": "both", "combination": "multiplicative", "input_noise": 0.1},
        {"grad_penalty_on": "policy", "disc_update_interval": 2, "logit_penalty_scale": 0.1},
        {"weight_schedule": {"mode": "linear", "final_step": 20, "final_value": 0.9}},
    ],
)
def test_it_keeps_the_contract(others: dict[str, Any]) -> None:
    check_extension(AMP, two_processes=False, config=keys(**others))


def test_everything_is_in_the_checkpoint_but_the_demonstrations() -> None:
    state = make_ppo(AMP(keys(num_frames=3))).state()
    saved = {name.removeprefix("extensions.0.").partition(".")[0] for name in state["tensors"]}
    assert {"discriminator", "normalizer", "replay", "cutter", "num_steps", "iteration"} <= saved
    assert "dataset" not in saved
    assert "extensions.0.optimizer" in state["optimizers"]


def test_ppoamp_is_ppo_with_the_extension() -> None:
    plain = make_ppo()
    made = surefoot.PPOAMP(plain.policy, plain.spec, amp_cfg=keys(), extensions=[surefoot.Extension()])
    assert type(made) is PPO
    assert [type(e).__name__ for e in made.extensions] == ["AMP", "Extension"]
    of_config = PPOConfig(class_name="PPOAMP", amp_cfg=keys(hidden_dims=[4]))
    (amp,) = surefoot.PPOAMP(plain.policy, plain.spec, of_config).extensions
    assert isinstance(amp, AMP)
    assert amp.config.hidden_dims == [4]
    with pytest.raises(ConfigError, match="needs amp_cfg"):
        surefoot.PPOAMP(plain.policy, plain.spec)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"obs_group": "polcy"}, "obs_group wants .* 'polcy'.*Did you mean 'policy'"),
        ({"mask_group": "policy"}, "mask_group 'policy' must be one number"),
        ({"obs_group": "privileged"}, "have 5 features and the observation group 'privileged' has 4"),
        ({"num_frames": 20}, "clip 1 has 12 frames.*needs 20"),
    ],
)
def test_what_does_not_fit_the_environment_is_refused(others: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_ppo(AMP(keys(**others)))


# ---------------------------------------------------------------------- the reward


def trained(**others: Any) -> tuple[PPO, AMP]:
    """The suite's PPO after one iteration."""
    amp = AMP(keys(**others))
    ppo = make_ppo(amp)
    _train(ppo, 1)
    return ppo, amp


@pytest.mark.parametrize(
    ("combination", "law"),
    [
        ("lerp", lambda t, s: 0.75 * t + 0.25 * s),
        ("additive", lambda t, s: t + 0.25 * s),
        ("multiplicative", lambda t, s: t * (0.75 + 0.25 * s)),
    ],
)
def test_task_and_style_are_mixed_by_the_law_and_never_by_the_time_step(combination: str, law: Any) -> None:
    ppo, amp = trained(combination=combination, style_weight=0.25, style_reward_scale=2.0)
    assert ppo.spec.step_dt == 0.02
    torch.testing.assert_close(ppo.reward, law(ppo.storage.rewards, 2 * amp.style))
    assert amp.style.std() > 0


def test_the_style_reward_is_that_of_the_discriminator_before_the_iteration() -> None:
    amp = AMP(keys())
    ppo = make_ppo(amp)
    _train(ppo, 2)
    before = {k: v.clone() for k, v in amp.state_dict().items()}
    _train(ppo, 1)
    rollout = ppo.storage.observations["policy"]
    goes_on = ~(ppo.storage.terminated | ppo.storage.truncated)
    after = {k: v.clone() for k, v in amp.state_dict().items()}
    amp.load_state_dict(before)
    x = torch.cat([amp.normalizer(rollout[:-1]), amp.normalizer(rollout[1:])], -1)
    expected = (1 - 0.25 * (amp.discriminator(x) - 1) ** 2).clamp(min=0)
    torch.testing.assert_close(amp.style[goes_on], expected.detach()[goes_on])
    assert any(not torch.equal(before[k], after[k]) for k in before if k.startswith("discriminator"))


def test_task_and_style_rewards_are_logged_apart() -> None:
    amp = AMP(keys(style_reward_scale=3.0))
    ppo = make_ppo(amp)
    seen: list[dict[str, Tensor]] = []
    update = ppo.update
    ppo.update = lambda: seen.append(update()) or seen[-1]  # type: ignore[method-assign,func-returns-value]
    _train(ppo, 1)
    assert seen[0]["Reward/task"].item() == pytest.approx(ppo.storage.rewards.mean().item(), rel=1e-5)
    assert seen[0]["Reward/style"].item() == pytest.approx(3 * amp.style.mean().item(), rel=1e-5)
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `([^`]+)`", page, re.MULTILINE)
    added = {name for name in seen[0] if name.startswith(("Amp/", "Reward/"))}
    assert len(added) == 10
    assert added <= set(documented)


def test_a_schedule_moves_the_weight_of_style() -> None:
    schedule = {"mode": "linear", "initial_step": 0, "final_step": 16, "final_value": 1.0}
    amp = AMP(keys(style_weight=0.0, weight_schedule=schedule))
    ppo = make_ppo(amp)
    _train(ppo, 1)
    # step t of the first rollout has the weight t/16
    weight = torch.arange(NUM_STEPS).unsqueeze(-1) / 16
    torch.testing.assert_close(ppo.reward, (1 - weight) * ppo.storage.rewards + weight * amp.style)
    _train(ppo, 2)
    torch.testing.assert_close(ppo.reward, amp.style)


# ---------------------------------------------------------------------- by hand: rollouts of given frames


class Rollouts:
    """Rollouts of given frames [T+1, N, D] through the extension alone.

    Args:
        config: Of AMP, beside the demonstrations and the group.
        clips: The demonstrations.
        num_envs: N.
        num_steps: T.
    """

    def __init__(
        self, config: dict[str, Any], clips: list[tuple[Tensor, float]], num_envs: int, num_steps: int
    ):
        space = gymnasium.spaces.Box(-np.inf, np.inf, (clips[0][0].shape[1],))
        flag = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
        spaces = {"amp": space, "flag": flag}
        self.storage = RolloutStorage(num_envs, num_steps, spaces, keep_terminal=True)
        small = {"hidden_dims": [16], "replay_size": 1000}
        self.amp = AMP(small | config, clips)
        generator = torch.Generator().manual_seed(0)
        torch.manual_seed(0)
        self.amp.setup(EnvSpec(spaces, flag, num_envs, generator=generator), None)  # type: ignore[arg-type]
        self.policy: ActorCritic = None  # type: ignore[assignment]

    def play(
        self,
        frames: Tensor,
        valid: Tensor | None = None,
        flag: Tensor | None = None,
        truncated: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """One iteration with reward 1; metrics, and the `reward` [T, N] that came out."""
        num_steps, n = frames.shape[0] - 1, frames.shape[1]
        flag = torch.ones(num_steps + 1, n, 1) if flag is None else flag
        never = torch.zeros(n, dtype=torch.bool)
        for t in range(num_steps):
            obs = {"amp": frames[t], "flag": flag[t]}
            self.storage.add_action(obs, torch.zeros(n, 1), {"mean": torch.zeros(n, 1)})
            ok = None if valid is None else valid[t]
            after = {"amp": frames[t + 1], "flag": flag[t + 1]}
            cut_off = never if truncated is None else truncated[t]
            self.storage.add_transition(Step(after, torch.ones(n), never, cut_off, valid=ok))
        self.storage.end({"amp": frames[-1], "flag": flag[-1]})
        with torch.no_grad():
            self.amp.prepare(self.storage, self.policy)
            reward = self.amp.reward(self.storage, self.storage.rewards.clone())
        metrics = self.amp.learn(self.storage)
        self.storage.begin()
        return metrics | {"reward": reward}


def cloud(center: float, *shape: int, seed: int = 0) -> Tensor:
    """Frames around a point, deviation 0.1."""
    return center + 0.1 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def separable(num_iterations: int = 50, **config: Any) -> tuple[Rollouts, list[dict[str, Tensor]]]:
    """Six updates an iteration on frames around 1 against demonstrations around -1."""
    config |= {"disc_learning_rate": 1e-3, "disc_num_mini_batches": 6}
    rollouts = Rollouts(config, [(cloud(-1.0, 100, 2), 1.0)], 16, 8)
    return rollouts, [rollouts.play(cloud(1.0, 9, 16, 2, seed=i)) for i in range(num_iterations)]


UNBRIDLED: dict[str, Any] = {
    "grad_penalty_scale": 0.0,
    "disc_trunk_weight_decay": 0.0,
    "disc_linear_weight_decay": 0.0,
}
"""A discriminator that nothing holds back."""


@pytest.mark.parametrize("loss_type", ["lsgan", "bce", "wgan"])
def test_p02_a_saturated_discriminator_gives_finite_bounded_rewards(loss_type: str) -> None:
    _, metrics = separable(loss_type=loss_type, style_weight=1.0, style_reward_scale=2.0, **UNBRIDLED)
    last = metrics[-1]
    assert last["Amp/accuracy_demo"] == last["Amp/accuracy_policy"] == 1
    assert last["Amp/score_demo"] > last["Amp/score_policy"]
    rewards = torch.stack([m["reward"] for m in metrics])
    assert rewards.isfinite().all()
    assert 0 <= rewards.min() <= rewards.max() <= 2.0 * (9.22 if loss_type == "bce" else 1.0)


def test_p02_with_the_gradient_penalty_frames_nearer_to_the_demonstrations_are_worth_more() -> None:
    _, without = separable(grad_penalty_scale=0.0)
    rollouts, metrics = separable(grad_penalty_scale=10.0, style_weight=1.0)
    assert metrics[-1]["Amp/grad_penalty"] < 0.5 * without[-1]["Amp/grad_penalty"]
    # frames that go from the policy's to the demonstrations'
    path = torch.linspace(1.0, -1.0, 9).reshape(9, 1, 1).expand(9, 16, 2)
    reward = rollouts.play(path)["reward"].mean(1)
    assert (reward.diff()[:4] > 0.05).all()
    assert (reward.diff() > 0).all()


@pytest.mark.parametrize(
    "others",
    [
        {"input_noise": 5.0},
        {"logit_penalty_scale": 10.0},
        {"disc_trunk_weight_decay": 1.0, "disc_linear_weight_decay": 1.0},
        *({"grad_penalty_scale": 10.0, "grad_penalty_on": on} for on in ("policy", "both", "interpolated")),
    ],
    ids=str,
)
def test_p02_each_countermeasure_narrows_the_gap_between_the_scores(others: dict[str, Any]) -> None:
    _, metrics = separable(20, **UNBRIDLED | others)
    # 1.92 without any of them; least squares aim at 2
    assert metrics[-1]["Amp/score_demo"] - metrics[-1]["Amp/score_policy"] < 1.6


def test_p02_a_discriminator_that_is_always_right_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amp_module, "SATURATED_ITERATIONS", 20)
    with pytest.warns(UserWarning, match="Raise grad_penalty_scale") as caught:
        separable(grad_penalty_scale=0.0)
    assert len(caught) == 1


def test_a_discriminator_that_cannot_tell_them_apart_is_half_right_and_not_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rollouts = Rollouts({}, [(cloud(0.0, 500, 2), 1.0)], 16, 8)
    monkeypatch.setattr(amp_module, "SATURATED_ITERATIONS", 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metrics = [rollouts.play(cloud(0.0, 9, 16, 2, seed=i)) for i in range(40)]
    last = metrics[-1]
    assert 0.3 < 0.5 * (last["Amp/accuracy_demo"] + last["Amp/accuracy_policy"]) < 0.7
    assert last["Reward/style"].item() == pytest.approx(0.75, abs=0.1)


def test_inputs_are_normalised_by_raw_frames_counted_once_per_iteration_after_learning() -> None:
    rollouts = Rollouts({}, [(cloud(50.0, 100, 2), 1.0)], 4, 8)
    normalizer = rollouts.amp.normalizer
    assert normalizer.shift[0].item() == pytest.approx(50, abs=0.1)  # of the demonstrations, not counted
    assert normalizer.count == 0
    seen: list[Tensor] = []
    forward = rollouts.amp.discriminator.forward

    def spy(x: Tensor) -> Tensor:
        assert x.abs().max() <= 10  # normalised and clipped, when it scores and when it learns
        seen.append(normalizer.shift.clone())
        return forward(x)

    rollouts.amp.discriminator.forward = spy  # type: ignore[method-assign]
    rollouts.play(cloud(70.0, 9, 4, 2))
    assert len(seen) > 2
    assert all(torch.equal(shift, seen[0]) for shift in seen)
    # 8·4 rows of the policy and as many of the demonstrations, raw
    assert normalizer.count == 64
    assert normalizer.mean[0].item() == pytest.approx(60, abs=0.2)


def test_invalid_rows_teach_nothing_and_are_in_no_window() -> None:
    rollouts = Rollouts({"num_frames": 3, "replay_iterations": 1}, [(cloud(0.0, 100, 1), 1.0)], 2, 6)
    frames, valid = cloud(0.0, 7, 2, 1), torch.ones(6, 2, dtype=torch.bool)
    # the episode of environment 0 is cut off after row 2; row 3 only resets
    frames[3, 0], valid[3, 0] = 1e9, False
    truncated = torch.zeros(6, 2, dtype=torch.bool)
    truncated[2, 0] = True
    out = rollouts.play(frames, valid, truncated=truncated)
    amp = rollouts.amp
    # K = 3: rows 0 and 4 are the first of an episode, the end of row 2 is not known
    assert amp.usable[:, 0].tolist() == [False, True, False, False, False, True]
    assert amp.usable[:, 1].tolist() == [False, True, True, True, True, True]
    assert out["Amp/usable"].item() == pytest.approx(7 / 11)
    assert out["reward"][valid].isfinite().all()
    assert amp.normalizer.mean.abs().max() < 1
    assert amp.replay is not None
    assert amp.replay.num_inserted.tolist() == [2, 5]
    assert amp.replay.sample(100).abs().max() < 1


def test_style_counts_only_where_the_mask_says_so() -> None:
    rollouts = Rollouts({"mask_group": "flag", "style_weight": 0.25}, [(cloud(0.0, 100, 1), 1.0)], 4, 6)
    flag = torch.zeros(7, 4, 1)
    flag[:, :2] = 1.0
    out = rollouts.play(cloud(0.0, 7, 4, 1), flag=flag)
    # 0.75·1 + 0.25·style, with a style above 0; without one 0.75·1
    assert (out["reward"][:, :2] > 0.75).all()
    assert (out["reward"][:, 2:] == 0.75).all()
    assert out["Amp/usable"].item() == 0.5
    assert (rollouts.amp.replay.num_inserted == torch.tensor([5, 5, 0, 0])).all()  # type: ignore[union-attr]


def test_with_nothing_to_learn_from_the_discriminator_rests() -> None:
    rollouts = Rollouts({"num_frames": 12}, [(cloud(0.0, 100, 1), 1.0)], 2, 6)
    before = {k: v.clone() for k, v in rollouts.amp.discriminator.state_dict().items()}
    out = rollouts.play(cloud(0.0, 7, 2, 1))
    assert out["Amp/usable"] == 0
    assert all(torch.equal(v, before[k]) for k, v in rollouts.amp.discriminator.state_dict().items())
    # the frames were carried: the next rollout has windows
    assert rollouts.play(cloud(0.0, 7, 2, 1))["Amp/usable"] > 0


def test_fewer_rows_than_mini_batches_make_as_many_mini_batches() -> None:
    rollouts = Rollouts({"disc_num_mini_batches": 8}, [(cloud(0.0, 100, 1), 1.0)], 1, 3)
    sizes, forward = [], rollouts.amp.discriminator.forward
    rollouts.amp.discriminator.forward = lambda x: (sizes.append(len(x)), forward(x))[1]  # type: ignore[method-assign]
    rollouts.play(cloud(0.0, 4, 1, 1))
    # three windows are scored for the reward, then learned from one by one, beside a demonstration each
    assert sizes == [3] + [1, 1] * 3


def test_the_discriminator_is_trained_at_its_interval() -> None:
    rollouts = Rollouts({"disc_update_interval": 3}, [(cloud(0.0, 100, 1), 1.0)], 2, 6)
    has_loss = ["Amp/loss" in rollouts.play(cloud(1.0, 7, 2, 1)) for _ in range(6)]
    assert has_loss == [True, False, False, True, False, False]


def test_mini_batches_mix_the_rollout_with_earlier_ones_and_as_many_demonstrations() -> None:
    config = {"replay_share": 0.25, "disc_num_mini_batches": 2, "disc_max_batch_size": 16}
    rollouts = Rollouts(config, [(cloud(0.0, 100, 1), 1.0)], 4, 12)
    amp, sizes, drawn = rollouts.amp, [], []
    assert amp.replay is not None
    rollouts.play(cloud(1.0, 13, 4, 1))
    forward, sample = amp.discriminator.forward, amp.replay.sample
    amp.discriminator.forward = lambda x: (sizes.append(len(x)), forward(x))[1]  # type: ignore[method-assign]
    amp.replay.sample = lambda n, g: (drawn.append(n), sample(n, g))[1]  # type: ignore[method-assign]
    rollouts.play(cloud(1.0, 13, 4, 1))
    # 48 windows are scored for the reward; then two mini-batches of 24, cut to 16, a quarter of them old
    assert sizes == [48, 16, 16, 16, 16]
    assert drawn == [4, 4]


# ---------------------------------------------------------------------- ends of episodes


class Counter(TinyEnv):
    """Counts its steps; an episode ends at 5, by task for even environments and by clock for the others.

    Args:
        knows_final: Give the count that the episode ended with.
    """

    def __init__(self, num_envs: int = 4, knows_final: bool = True) -> None:
        super().__init__(num_envs, 5, ("policy", "amp"), dim=1)
        self.knows_final = knows_final

    def observe(self) -> dict[str, Tensor]:
        count = self.elapsed.float().unsqueeze(-1)
        return {"policy": count, "amp": count}

    def judge(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        is_even = torch.arange(self.num_envs) % 2 == 0
        return torch.zeros(self.num_envs), (self.elapsed == 4) & is_even

    def draw_goals(self) -> Tensor:
        return torch.zeros_like(self.goal)

    def step(self, actions: Tensor) -> Step:
        step = super().step(actions)
        return (
            step
            if self.knows_final
            else Step(step.observations, step.rewards, step.terminated, step.truncated)
        )


def counting(_: float | None) -> list[tuple[Tensor, float]]:
    return [(torch.arange(20.0).unsqueeze(-1), 1.0)]


def run(env: Any, num_iterations: int, run_dir: Path | None = None, **amp_cfg: Any) -> OnPolicyRunner:
    """A small run with AMP."""
    config = {
        "num_steps_per_env": 8,
        "actor": {"hidden_dims": [8]},
        "critic": {"hidden_dims": [8]},
        "algorithm": {"class_name": "PPOAMP", "amp_cfg": {"hidden_dims": [8], "replay_size": 400} | amp_cfg},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SurefootWarning)
        runner = OnPolicyRunner(env, config, run_dir, quiet=True)
    runner.learn(num_iterations)
    return runner


def records(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("num_frames", [2, 3])
@pytest.mark.parametrize("knows_final", [True, False])
def test_p05_no_window_pairs_the_end_of_an_episode_with_the_next_ones_start(
    num_frames: int, knows_final: bool
) -> None:
    env = Counter(knows_final=knows_final)
    runner = run(env, 4, dataset=f"{MODULE}:counting", num_frames=num_frames, replay_iterations=1)
    amp = runner.alg.extensions[0]
    assert isinstance(amp, AMP)
    assert amp.replay is not None
    windows = amp.replay.sample(3000, torch.Generator().manual_seed(0)).squeeze(-1)
    assert (windows[:, 1:] - windows[:, :-1] == 1).all()
    # the last count of an episode is seen where the environment still has it, at both kinds of end
    assert windows.max().item() == (5 if knows_final else 4)
    # of the 5 rows of an episode, K = 3 wants a frame more and an unknown end takes one
    share = (5 - (num_frames - 2) - (not knows_final)) / 5
    assert amp.replay.num_inserted.sum().item() / (4 * 4 * 8) == pytest.approx(share, abs=0.1)


def test_p05_a_row_whose_end_is_unknown_gets_the_mean_style_of_the_others() -> None:
    runner = run(Counter(knows_final=False), 1, dataset=f"{MODULE}:counting", style_weight=1.0)
    amp, rollout = runner.alg.extensions[0], runner.alg.storage
    assert isinstance(amp, AMP)
    unknown = ~amp.usable
    assert torch.equal(unknown, rollout.terminated | rollout.truncated)
    assert unknown.any()
    mean = amp.style[amp.usable].mean()
    torch.testing.assert_close(amp.style[unknown], mean.expand(int(unknown.sum())))


def noise_of_three(_: float | None) -> list[tuple[Tensor, float]]:
    return [(torch.rand(40, 3, generator=torch.Generator().manual_seed(0)), 1.0)]


def test_discrete_actions(tmp_path: Path) -> None:
    run(DiscreteTargetEnv(4), 2, tmp_path, dataset=f"{MODULE}:noise_of_three", obs_group="policy")
    assert all(math.isfinite(r["Amp/loss"]) and math.isfinite(r["Reward/style"]) for r in records(tmp_path))


def test_p06_a_resumed_run_has_the_replay_buffer_of_the_first(tmp_path: Path) -> None:
    first = run(Counter(), 3, tmp_path, dataset=f"{MODULE}:counting")
    again = run(Counter(), 0, dataset=f"{MODULE}:counting")
    again.load(tmp_path / "checkpoints" / "last.pt")
    one, other = first.alg.state()["tensors"], again.alg.state()["tensors"]
    assert one["extensions.0.replay.num_inserted"].sum() > 0
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_p06_a_large_replay_buffer_says_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amp_module, "LARGE_REPLAY", 1000)
    # 4 environments · (250 + 1) windows · 2 frames · 5 features · 4 bytes
    with pytest.warns(UserWarning, match="takes 4e-05 GB.*lower replay_size"):
        Rollouts({}, [(cloud(0.0, 10, 5), 1.0)], 4, 2)


# ---------------------------------------------------------------------- that it works

STEP = 0.4
"""Radians of the circle per step of the demonstration."""


def circling(_: float | None) -> list[tuple[Tensor, float]]:
    """Counter-clockwise round the unit circle."""
    return [(on_circle(STEP * torch.arange(200.0)), 1.0)]


def on_circle(angle: Tensor) -> Tensor:
    """Points [..., 2]."""
    return torch.stack([angle.cos(), angle.sin()], -1)


class Point(TinyEnv):
    """A point in the plane that actions move by at most 0.5; no reward. It starts anywhere in a square."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, 32, ("policy", "amp"), dim=2, num_goals=2)
        self.action_space: gymnasium.Space[Any] = gymnasium.spaces.Box(-1.0, 1.0, (2,))

    def observe(self) -> dict[str, Tensor]:
        return {"policy": self.goal.clone(), "amp": self.goal.clone()}

    def judge(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        self.goal = self.goal + 0.5 * actions
        return torch.zeros(self.num_envs), torch.zeros(self.num_envs, dtype=torch.bool)

    def draw_goals(self) -> Tensor:
        return 3 * torch.rand(self.goal.shape, generator=self.generator) - 1.5


@pytest.mark.parametrize(
    ("num_iterations", "amp_cfg"),
    [
        (40, {"loss_type": "lsgan"}),
        pytest.param(80, {"loss_type": "bce", "grad_penalty_scale": 0.05}, marks=pytest.mark.slow),
        # a Wasserstein critic must be near its best for its slope to mean something
        pytest.param(
            90,
            {
                "loss_type": "wgan",
                "grad_penalty_on": "interpolated",
                "grad_penalty_scale": 10.0,
                "disc_num_epochs": 3,
            },
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_policy_learns_the_demonstrated_motion(num_iterations: int, amp_cfg: dict[str, Any]) -> None:
    common = {"disc_learning_rate": 2e-3, "hidden_dims": [64, 32], "grad_penalty_scale": 0.3}
    amp_cfg = {
        "dataset": f"{MODULE}:circling",
        "style_weight": 1.0,
        "replay_size": 20_000,
        **common,
        **amp_cfg,
    }
    config = {
        "num_steps_per_env": 16,
        "max_iterations": 80,
        "actor": {"hidden_dims": [32, 32], "distribution": {"init_std": 0.3}},
        "critic": {"hidden_dims": [32, 32]},
        "eval_episodes": 0,
        "algorithm": {"class_name": "PPOAMP", "gamma": 0.9, "num_learning_epochs": 4, "amp_cfg": amp_cfg},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SurefootWarning)
        runner = OnPolicyRunner(Point(128), config, quiet=True)
    angle = torch.linspace(0, 2 * math.pi, 60)
    here = on_circle(angle)

    def follows() -> Tensor:
        """Where the most likely actions lead from points on the circle."""
        return here + 0.5 * runner.policy.act({"policy": here}).clamp(-1, 1)

    def distance() -> float:
        """Of that to where the demonstration goes."""
        return (follows() - on_circle(angle + STEP)).norm(dim=-1).mean().item()

    at_first, before = distance(), follows()
    assert at_first == pytest.approx(STEP, abs=0.05)  # it stands still
    runner.learn(num_iterations)
    assert distance() < 0.5 * at_first
    amp = runner.alg.extensions[0]
    assert isinstance(amp, AMP)

    def score(to: Tensor) -> float:
        """Of the discriminator."""
        return amp.discriminator(amp.normalizer(torch.stack([here, to], 1)).flatten(1)).mean().item()

    assert score(follows()) > score(before) + 0.02
