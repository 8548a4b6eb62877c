"""The paper, reproduced: its tables as grids, runs that can be continued for days, ours beside theirs."""
