# %% [markdown]
# # Your own network
#
# At the end you will have trained your own CNN on four clients that hold different mixes of digits.
#
# Any `torch.nn.Module` works if each output depends on its own record only. The program generates the digits.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

import alidpfl
from alidpfl.data import dirichlet

digits = alidpfl.load_dataset("strokes")  # generated on this machine, then cached
inputs, targets = digits.train.inputs, digits.train.targets
rows = dirichlet(targets, 4, beta=0.5, seed=0)
clients = [(inputs[own], targets[own]) for own in rows]
test = (digits.test.inputs[:2000], digits.test.targets[:2000])
print("records:", [len(own) for own in rows], "of shape", tuple(inputs.shape[1:]))

# %% [markdown]
# Use GroupNorm instead of BatchNorm. BatchNorm mixes the records of a batch, so alidpfl refuses it. The learning rate
# can be large, because clipping limits the gradients.
#
# `noise_multiplier_for` finds the noise that 200 steps need within the budget.

# %%
model = nn.Sequential(
    nn.Conv2d(1, 8, 5, stride=2, padding=2),
    nn.GroupNorm(4, 8),
    nn.ReLU(),
    nn.Conv2d(8, 16, 3, stride=2, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(16 * 7 * 7, 10),
)
sigma = alidpfl.noise_multiplier_for(alidpfl.PrivacyBudget(epsilon=3.0, delta=1e-5), sample_rate=0.01, steps=200)
privacy = alidpfl.Privacy(epsilon=3.0, delta=1e-5, sample_rate=0.01, noise_multiplier=sigma)

with alidpfl.federate(
    model,
    clients,
    test=test,
    privacy=privacy,
    max_rounds=20,
    learning_rate=4.0,
    policy="ratio",
    schedule="late_decay",
    evaluate_every=1,
) as federation:
    records = list(federation)
print(f"{records[-1].accuracy:.1f} % after {len(records)} rounds of {records[0].local_steps} local steps")

# %%
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.plot([record.epsilon for record in records], [record.accuracy for record in records], marker=".")
axes.set(xlabel="ε spent so far", ylabel="accuracy, %", title="One dot a round")
plt.show()

# %% [markdown]
# The result is an ordinary torch module. `epsilons` has the privacy cost of each client.

# %%
trained = federation.model.eval()
with torch.no_grad():
    guesses = trained(test[0][:10]).argmax(1)
print("guesses", guesses.tolist(), "truth", test[1][:10].tolist())
print(f"epsilon = {max(federation.epsilons.values()):.3f} of 3")
assert max(federation.epsilons.values()) <= 3.0
