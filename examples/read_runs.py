# %% [markdown]
# # A run directory, read with pandas
#
# At the end you will have trained two runs, and read and plotted their files with pandas.
#
# A run writes one line of JSON for each round, and a summary at its end.

# %%
import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import alidpfl

folder = Path(tempfile.mkdtemp())
for policy in ("ratio", "fixed"):
    config = alidpfl.load_config(
        overrides=[
            "data.name=synthetic",
            "model.name=linear",
            f"method.policy={policy}",
            "method.learning_rate=0.5",
            "federation.max_rounds=20",
            "privacy.max_steps=70",  # 3.5 a round; one step a round leaves most of them unused
            "run.evaluate_every=1",
            *(["method.local_steps=1"] if policy == "fixed" else []),
        ]
    )
    alidpfl.execute(config, folder / policy)  # the same as `alidpfl run` on the command line

# %%
rounds = pd.concat(
    [pd.read_json(path, lines=True).assign(run=path.parent.name) for path in folder.glob("*/metrics.jsonl")]
)
print(rounds.groupby("run").agg({"local_steps": ["min", "max", "sum"], "accuracy": ["first", "last"]}))

# %%
curves = rounds.pivot_table(index="round", columns="run", values="accuracy")
curves.index += 1  # rounds count from 0 in the files
curves.plot(ylabel="accuracy, %", xticks=range(0, 21, 5), figsize=(6, 3))
plt.show()

# %%
summaries = pd.DataFrame({path.parent.name: json.loads(path.read_text()) for path in folder.glob("*/summary.json")}).T
print(summaries[["rounds", "accuracy", "epsilon", "covers_everything"]])

# %% [markdown]
# `RunDirectory` reads the same files as Python objects:

# %%
run = alidpfl.RunDirectory.open(folder / "ratio")
records = run.records()
print("local steps of every round:", [record.local_steps for record in records])
assert len(records) == len(rounds[rounds["run"] == "ratio"])
assert {record.local_steps for record in records} == {3, 4}
