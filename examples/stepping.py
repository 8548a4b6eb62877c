# %% [markdown]
# # The loop, by hand
#
# At the end you will have trained round by round, looked at each plan before it ran, and stopped early.
#
# `step()` trains one round. Before it, you can look at what the round will do.

# %%
import matplotlib.pyplot as plt
import torch

import alidpfl

generator = torch.Generator().manual_seed(0)
truth = torch.randn(20, 3, generator=generator)


def made_up(count):
    """Return made-up records of three classes."""
    inputs = torch.randn(count, 20, generator=generator)
    return inputs, (inputs @ truth).argmax(1)


clients, test = [made_up(1500) for _ in range(5)], made_up(1000)
privacy = alidpfl.Privacy(epsilon=2.0, delta=1e-5, sample_rate=0.1, noise_multiplier=2.0)
federation = alidpfl.federate(
    torch.nn.Linear(20, 3),
    clients,
    test=test,
    privacy=privacy,
    max_rounds=20,
    learning_rate=0.5,
    policy="ratio",
    schedule="late_decay",
    evaluate_every=1,
)

# %%
records = []
with federation:
    while (plans := federation.next_plans()) is not None:
        print(f"next: {len(plans)} clients, {plans[0].steps} steps each, sigma = {plans[0].noise_multiplier}", end="; ")
        record = federation.step()
        records.append(record)
        spent = max(federation.epsilons.values())
        print(f"round {record.number}: {record.accuracy:.1f} %, epsilon so far {spent:.3f}")
        if record.accuracy > 90:  # measured on public test data
            break
    print("stopped:", federation.stop_reason or "by hand", "after", record.number, "rounds")

# %%
numbers = [record.number for record in records]
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
left.plot(numbers, [record.accuracy for record in records], marker=".")
left.set(xlabel="round", ylabel="accuracy, %")
right.plot(numbers, [record.epsilon for record in records], marker=".")
right.axhline(privacy.epsilon, linestyle="--", color="grey")
right.set(xlabel="round", ylabel="ε so far, and the budget", ylim=(0, None))
plt.show()

# %% [markdown]
# We stopped because of the accuracy, and the accuracy depends on the training. So the claim for this model is the whole
# budget, epsilon = 2. It is not the smaller number that was printed last.
#
# Steps that were not run have revealed nothing. A vault could still use them in a later run within the same budget.
