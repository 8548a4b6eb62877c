"""The vault: a process on the data owner's machine that holds the records, draws the noise and keeps the ledger.

Limits in code that a federation's organiser submits bind only honest organisers. So the owner installs the vault. It
serves noised training rounds over a Unix socket, and no request makes it spend more than the owner's policy allows.
Importing `alidpfl.vault.client` does not import torch.
"""
