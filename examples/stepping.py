# %% [markdown]
# # The loop, by hand
#
# A federation is an iterator of rounds, and `step()` is one of them. What is planned can be seen before it is charged,
# and you may stop whenever you like. What is proved then is still the budget: if you stop because of what you saw, the
# smaller epsilon shown so far was chosen by outputs, and is no claim to make.

# %%
import matplotlib.pyplot as plt
import torch

import alidpfl

generator = torch.Generator().manual_seed(0)
truth = torch.randn(20, 3, generator=generator)


def made_up(count):
    """Records of three classes."""
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
    evaluate_every=1,
)

# %%
records = []
with federation:
    while (plans := federation.training.next_plans()) is not None:
        print(f"next: {len(plans)} clients, {plans[0].steps} steps each, sigma = {plans[0].noise_multiplier}", end="; ")
        record = federation.step()
        records.append(record)
        spent = max(federation.epsilons.values())
        print(f"round {record.number}: {record.accuracy:.1f} %, epsilon so far {spent:.3f}")
        if record.accuracy > 90:  # on public data: it is no secret why we stop
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
# We stopped because of the accuracy, so the claim for this model is the budget, epsilon = 2, not the last number
# printed. Steps that were not run released nothing. Whoever keeps the accounts can run them later within the same
# budget: see the vault in the documentation.
