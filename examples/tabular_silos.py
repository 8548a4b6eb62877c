# %% [markdown]
# # Your own tabular data, in five silos
#
# At the end you will have trained one model on the tables of five hospitals, within a privacy budget for each.
#
# The model predicts which patients come back within a month. No table may leave its hospital. Here the tables are made
# up, and all are on one machine. Replace them with your own.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

import alidpfl

NUM_COLUMNS = 12
folder = Path(tempfile.mkdtemp())
random = np.random.default_rng(0)
truth = random.normal(size=NUM_COLUMNS)
for number, size in enumerate((2400, 1800, 3000, 1500, 2100, 1000)):  # the last table is public, for testing
    shift = 0.5 * random.normal(size=NUM_COLUMNS)  # hospitals differ
    usual = random.normal(size=(size, NUM_COLUMNS)) + shift
    returned = (usual @ truth + random.normal(size=size) > 0).astype(int)
    table = (50 + 15 * usual).clip(0, 100)  # every column is a score from 0 to 100
    np.savetxt(folder / f"hospital{number}.csv", np.column_stack([table, returned]), delimiter=",")

# %% [markdown]
# A client is a pair: inputs of shape (n, columns) and classes of shape (n,). Scale columns by *public* knowledge. Here
# every column is a score from 0 to 100, so we map 50 to 0, and 0 and 100 to about -3 and 3. Do not use a mean of the
# tables: it would reveal something that ε does not cover.


# %%
def client(path):
    """Read one hospital's records."""
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    return torch.from_numpy((table[:, :-1] - 50) / 15), torch.from_numpy(table[:, -1]).long()


*clients, test = [client(path) for path in sorted(folder.glob("*.csv"))]
print([len(inputs) for inputs, _ in clients], "records;", len(test[0]), "that are not private")

# %% [markdown]
# Every hospital allows ε = 1 at δ = 1e-5, and there are at most 30 rounds. `noise_multiplier_for` finds the noise that
# 60 steps need within this budget.

# %%
budget = alidpfl.PrivacyBudget(epsilon=1.0, delta=1e-5)
sigma = alidpfl.noise_multiplier_for(budget, sample_rate=0.1, steps=60)
privacy = alidpfl.Privacy(epsilon=1.0, delta=1e-5, sample_rate=0.1, noise_multiplier=sigma)
print(f"sigma = {sigma:.3f}")

# %%
with alidpfl.federate(
    torch.nn.Linear(NUM_COLUMNS, 2),
    clients,
    test=test,
    privacy=privacy,
    max_rounds=30,
    learning_rate=0.5,
    policy="ratio",  # spread the steps evenly over the rounds
    schedule="late_decay",  # and let the step size fall late
    evaluate_every=1,
) as federation:
    records = list(federation)

spent = max(federation.epsilons.values())
print(f"{records[-1].accuracy:.1f} % of the public records, {len(records)} rounds, epsilon = {spent:.3f} of 1")
assert spent <= 1.0

# %%
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.plot([record.epsilon for record in records], [record.accuracy for record in records], marker=".")
axes.set(xlabel="ε of every hospital so far", ylabel="accuracy, %", title="One dot a round")
plt.show()
