"""The vault: a process of the data's owner that holds the data, the noise and the ledger.

Code that a federation's organiser submits binds only honest organisers. The vault is installed by the owner, on the
owner's machine, and serves noised training rounds over a Unix socket: nothing that is sent to it makes it spend more
than its own policy allows. Importing this package, or `alidpfl.vault.client`, never imports torch.
"""
