# %% [markdown]
# # A policy of your own
#
# At the end you will have written your own policy and compared it with `ratio`.
#
# A policy chooses how many local steps τ each client takes in the next round. It gets a `Situation` with the budgets,
# the rounds and the steps that are left. With `needs_raw_signals = False`, all of that is public or noised. Such a
# policy cannot reveal anything about a record.

# %%
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch

import alidpfl


@dataclass(frozen=True)
class WarmUp:
    """Take one local step in the first rounds, then spread the steps that are left evenly."""

    rounds: int = 5
    name = "warm_up"
    needs_raw_signals = False
    needs_curvature = False

    def decide(self, situation: alidpfl.Situation) -> alidpfl.Decision:
        """Return the local steps of the next round, and why."""
        if situation.round < self.rounds:
            return alidpfl.Decision(local_steps=1, why="warming up")
        share = max(1, situation.steps_left // situation.rounds_left)
        return alidpfl.Decision(local_steps=share, why=f"{situation.steps_left} steps left")


# %%
generator = torch.Generator().manual_seed(0)
truth = torch.randn(20, 3, generator=generator)


def made_up(count):
    """Return made-up records of three classes."""
    inputs = torch.randn(count, 20, generator=generator)
    return inputs, (inputs @ truth).argmax(1)


clients, test = [made_up(1500) for _ in range(5)], made_up(1000)
privacy = alidpfl.Privacy(epsilon=2.0, delta=1e-5, sample_rate=0.1, noise_multiplier=2.0)


def trained(policy):
    """Train, and return the local steps of every round and the final accuracy."""
    with alidpfl.federate(
        torch.nn.Linear(20, 3),
        clients,
        test=test,
        privacy=privacy,
        max_rounds=20,
        learning_rate=0.5,
        policy=policy,
        seed=0,  # both policies get the same noise, which makes the comparison fair; a seeded run is not private
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
