# %% [markdown]
# # Your own tabular data, in five silos
#
# Five hospitals have a table each, and want one model of who comes back within a month. No table may leave its owner.
# Here the tables are made up and lie side by side; put your own in their place.

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
for number, size in enumerate((2400, 1800, 3000, 1500, 2100, 1000)):  # the last one stands for public data
    shift = 0.5 * random.normal(size=NUM_COLUMNS)  # silos are not alike
    usual = random.normal(size=(size, NUM_COLUMNS)) + shift
    returned = (usual @ truth + random.normal(size=size) > 0).astype(int)
    table = (50 + 15 * usual).clip(0, 100)  # every column as a score from 0 to 100
    np.savetxt(folder / f"hospital{number}.csv", np.column_stack([table, returned]), delimiter=",")

# %% [markdown]
# A client is a pair: inputs (n, columns) and classes (n,). Scale columns by *public* knowledge: here every column is a
# score from 0 to 100, so that 50 becomes 0, and 0 and 100 become about -3 and 3. A mean taken from the tables would be
# a release that no ε covers.


# %%
def client(path):
    """One hospital's records."""
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    return torch.from_numpy((table[:, :-1] - 50) / 15), torch.from_numpy(table[:, -1]).long()


*clients, test = [client(path) for path in sorted(folder.glob("*.csv"))]
print([len(inputs) for inputs, _ in clients], "records;", len(test[0]), "that are not private")

# %% [markdown]
# The budget: every hospital may spend ε = 1 at δ = 1e-5, in at most 30 rounds. How much noise do 60 steps then need?

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
    policy="ratio",  # both budgets end together
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
