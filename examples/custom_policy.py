# %% [markdown]
# # A policy of your own
#
# A policy says how many local steps the next round takes. It sees a `Situation`: budgets, rounds, what is affordable.
# With `needs_raw_signals = False` all of it is public or noised, so that no such policy can leak.

# %%
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch

import alidpfl


@dataclass(frozen=True)
class WarmUp:
    """Few local steps while the model is young, then whatever uses both budgets up together."""

    rounds: int = 5
    name = "warm_up"
    needs_raw_signals = False
    needs_curvature = False

    def decide(self, situation: alidpfl.Situation) -> alidpfl.Decision:
        """One step at first; afterwards an even share of the steps that are left."""
        if situation.round < self.rounds:
            return alidpfl.Decision(local_steps=1, why="warming up")
        share = max(1, situation.steps_left // situation.rounds_left)
        return alidpfl.Decision(local_steps=share, why=f"{situation.steps_left} steps left")


# %%
generator = torch.Generator().manual_seed(0)
truth = torch.randn(20, 3, generator=generator)


def made_up(count):
    """Records of three classes."""
    inputs = torch.randn(count, 20, generator=generator)
    return inputs, (inputs @ truth).argmax(1)


clients, test = [made_up(1500) for _ in range(5)], made_up(1000)
privacy = alidpfl.Privacy(epsilon=2.0, delta=1e-5, sample_rate=0.1, noise_multiplier=2.0)


def trained(policy):
    """Local steps of every round, and the last accuracy."""
    with alidpfl.federate(
        torch.nn.Linear(20, 3),
        clients,
        test=test,
        privacy=privacy,
        max_rounds=20,
        learning_rate=0.5,
        policy=policy,
        seed=0,  # the same noise for both: a fair comparison, and not private from whoever knows it
    ) as federation:
        records = list(federation)
    return [record.local_steps for record in records], records[-1].accuracy


figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
for policy in (WarmUp(), "ratio"):
    steps, accuracy = trained(policy)
    print(policy, steps, f"{accuracy:.1f} %")
    assert len(steps) == 20
    axes.step(range(1, 21), steps, where="mid", label=f"{getattr(policy, 'name', policy)}: {accuracy:.1f} %")
axes.set(xlabel="round", ylabel="local steps τ", ylim=(0, None), xticks=range(0, 21, 5))
axes.legend()
plt.show()
