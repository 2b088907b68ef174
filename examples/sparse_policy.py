"""A policy with exact zeros: REINFORCE on a pole that is to be balanced, with softmax and with sparse maps.

    python examples/sparse_policy.py [--quick] [--figure policy.svg] [--out results.json]

A cart is pushed by one of nine forces, the pole on it must not fall for 200 steps. A policy is a network whose scores a
map turns into probabilities; a sparse one rules actions out, and cannot choose them by accident. What it has ruled out
it cannot try again either: only a change of the scores of what is left brings an action back.
Takes a few minutes on one core.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from running import Found, command, summed_up
from torch import Tensor, nn

import sparsegen.torch as sgt

SEEDS, STEPS, CARTS = 5, 200, 32
FORCES = torch.linspace(-10, 10, 9)
POLICIES: dict[str, dict[str, Any]] = {
    "softmax": {"mapping": "softmax"},
    "entmax-1.5": {"mapping": "entmax15"},
    "sparsegen-lin, lam -4": {"mapping": "sparsegen_lin", "lam": -4.0},
    "sparsemax": {"mapping": "sparsemax"},
}


def moved(state: Tensor, force: Tensor) -> Tensor:
    """The carts a fiftieth of a second later (Barto, Sutton and Anderson's equations)."""
    x, speed, angle, turn = state.unbind(1)
    sin, cos = torch.sin(angle), torch.cos(angle)
    pushed = (force + 0.05 * turn**2 * sin) / 1.1
    bend = (9.8 * sin - cos * pushed) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    rate = pushed - 0.05 * bend * cos / 1.1
    return torch.stack([x + 0.02 * speed, speed + 0.02 * rate, angle + 0.02 * turn, turn + 0.02 * bend], 1)


def standing(state: Tensor) -> Tensor:
    """Which poles stand, with their carts on the track."""
    return (state[:, 0].abs() < 2.4) & (state[:, 2].abs() < 12 * math.pi / 180)


@torch.no_grad()
def played(policy: nn.Module, mapping: nn.Module, steps: int, best: bool = False) -> Found:
    """Play all carts at once; return what they met, did and earned at each step, and how many actions were possible."""
    state, alive = 0.1 * torch.rand(CARTS, 4) - 0.05, torch.ones(CARTS, dtype=torch.bool)
    states, actions, rewards, sizes = [], [], [], []
    for _ in range(steps):
        p = mapping(policy(state))
        action = p.argmax(1) if best else torch.multinomial(p, 1).squeeze(1)
        states.append(state)
        actions.append(action)
        rewards.append(alive.float())
        sizes.append(torch.where(alive, (p > 0).sum(1), 0))
        state = moved(state, FORCES[action])
        alive = alive & standing(state)
        if not alive.any():
            break
    found = {"states": states, "actions": actions, "rewards": rewards}
    game = {name: torch.stack(parts) for name, parts in found.items()}  # (steps, carts, ...)
    return {**game, "possible": (torch.stack(sizes).sum() / game["rewards"].sum()).item()}


def log_probabilities(policy: nn.Module, mapping: nn.Module, game: Found) -> Tensor:
    """Those of what was done, for all steps at once: what was done was possible, so none is infinite."""
    p = mapping(policy(game["states"])).gather(2, game["actions"].unsqueeze(2)).squeeze(2)
    return torch.log(torch.where(game["rewards"] > 0, p, 1.0))


def learn(controls: dict[str, Any], updates: int, steps: int, seed: int) -> tuple[list[float], Found]:
    """Train a policy; return how long it balanced at each update, and how it plays at the end."""
    torch.manual_seed(seed)
    policy, mapping = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, len(FORCES))), sgt.make_map(**controls)
    optimizer, curve = torch.optim.Adam(policy.parameters(), lr=1e-2), []
    for _ in range(updates):
        game = played(policy, mapping, steps)
        later = game["rewards"].flip(0).cumsum(0).flip(0)  # what a step earned from then on
        playing = game["rewards"] > 0
        advantage = torch.where(playing, later - later[playing].mean(), 0.0) / later[playing].std()
        loss = -(log_probabilities(policy, mapping, game) * advantage).sum() / playing.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(game["rewards"].sum(0).mean().item())
    last, greedy = played(policy, mapping, steps), played(policy, mapping, steps, best=True)
    found = {"balanced": last["rewards"].sum(0).mean().item(), "greedy": greedy["rewards"].sum(0).mean().item()}
    return curve, {**found, "possible": last["possible"], "mean_curve": sum(curve) / len(curve)}


def work(quick: bool) -> Found:
    """Train a policy for each map and seed."""
    updates, steps, seeds = (3, 20, 2) if quick else (150, STEPS, SEEDS)
    rows = []
    for seed in range(seeds):
        for name, controls in POLICIES.items():
            curve, last = learn(controls, updates, steps, seed)
            rows.append({"policy": name, "seed": seed, "curve": [round(value, 1) for value in curve], **last})
    measures = ("balanced", "greedy", "possible", "mean_curve")
    setting = {"updates": updates, "steps": steps, "seeds": seeds, "carts": CARTS, "actions": len(FORCES)}
    return {"setting": setting, "rows": rows, "summary": summed_up(rows, ("policy",), measures)}


def drawn(found: Found) -> Any:
    """A figure of the steps balanced while learning, the mean of the seeds in the middle of their range."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name in dict.fromkeys(row["policy"] for row in found["rows"]):
        curves = torch.tensor([row["curve"] for row in found["rows"] if row["policy"] == name])
        (line,) = axes.plot(curves.mean(0), label=name)
        axes.fill_between(range(curves.shape[1]), curves.amin(0), curves.amax(0), color=line.get_color(), alpha=0.12)
    axes.set(xlabel="update", ylabel=f"steps balanced, of {found['setting']['steps']}")
    axes.legend()
    return figure


if __name__ == "__main__":
    command(__doc__, work, drawn)
