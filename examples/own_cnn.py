# %% [markdown]
# # Your own network
#
# Any `torch.nn.Module` that treats each sample alone. Here a small CNN on drawn digits, over four clients with skewed
# labels.

# %%
import torch
from torch import nn

import alidpfl
from alidpfl.data import dirichlet

digits = alidpfl.load_dataset("strokes")  # drawn on this machine, once
inputs, targets = digits.train.inputs[:6000], digits.train.targets[:6000]
rows = dirichlet(targets, 4, beta=0.5, seed=0)
clients = [(inputs[own], targets[own]) for own in rows]
test = (digits.test.inputs[:2000], digits.test.targets[:2000])
print("records:", [len(own) for own in rows], "of shape", tuple(inputs.shape[1:]))

# %% [markdown]
# BatchNorm mixes samples, and would be refused with the reason; GroupNorm does not.

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
sigma = alidpfl.noise_multiplier_for(alidpfl.PrivacyBudget(epsilon=3.0, delta=1e-5), sample_rate=0.1, steps=80)
privacy = alidpfl.Privacy(epsilon=3.0, delta=1e-5, sample_rate=0.1, noise_multiplier=sigma)

with alidpfl.federate(
    model, clients, test=test, privacy=privacy, max_rounds=20, learning_rate=0.5, policy="ratio", evaluate_every=5
) as federation:
    for record in federation:
        if record.accuracy is not None:
            print(f"round {record.number}: tau = {record.local_steps}, accuracy {record.accuracy:.1f} %")

# %% [markdown]
# What comes out is an ordinary module, and what it cost.

# %%
trained = federation.model.eval()
with torch.no_grad():
    guesses = trained(test[0][:10]).argmax(1)
print("guesses", guesses.tolist(), "truth", test[1][:10].tolist())
print(f"epsilon = {max(federation.epsilons.values()):.3f} of 3")
assert max(federation.epsilons.values()) <= 3.0
