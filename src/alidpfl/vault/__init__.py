"""The vault: a process on the data owner's machine that holds the records, draws the noise and keeps the ledger."""
