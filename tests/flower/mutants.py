"""Bugs of the way over nodes that would let a liar in, charge twice or wait for ever; `tests/mutants.py` runs them."""

NODES, APPS = "tests/flower/test_run_over_nodes.py", "tests/flower/test_flower_apps.py"
ENGINES = "src/alidpfl/engines"

FLOWER_MUTANTS = (
    (
        "flower: a node's words reach the terminal as they are",
        f"{ENGINES}/nodes.py",
        "printable(self.reason, _LONGEST_REASON)",
        "self.reason[:_LONGEST_REASON]",
        APPS,
    ),
    (
        "flower: a node with less than a record a batch holds up all",
        "src/alidpfl/runs/flower.py",
        "if rate * node.info.num_records < 1:",
        "if rate * node.info.num_records < 0:",
        NODES,
    ),
    (
        "flower: another number of records is believed",
        f"{ENGINES}/vaults.py",
        "if told.num_records != (size := self._members[plan.client].num_records):",
        "if (size := 0):",
        NODES,
    ),
    (
        "flower: an answer to another request is taken",
        f"{ENGINES}/vaults.py",
        "if told.request != messages.request_digest(asked, weights):",
        "if False:",
        NODES,
    ),
    (
        "flower: a spent vault is asked again",
        f"{ENGINES}/vaults.py",
        "if failure.code == RefusalCode.BUDGET:",
        "if False:",
        NODES,
    ),
    (
        "flower: what a vault has left is not looked at",
        f"{ENGINES}/vaults.py",
        "        self._ledger.cap(plan.client, told.steps_left)\n",
        "",
        NODES,
    ),
    (
        "flower: signals that nobody asked for are used",
        f"{ENGINES}/vaults.py",
        'raw=told.raw if "raw" in signals else None',
        "raw=told.raw",
        NODES,
    ),
    (
        "flower: a resumed run has a new name",
        "src/alidpfl/runs/flower.py",
        'run = kept["run"] if kept else secrets.token_hex(8)',
        "run = secrets.token_hex(8)",
        NODES,
    ),
    (
        "flower: a round without a quorum of nodes is asked for",
        f"{ENGINES}/vaults.py",
        "if online == wanted or (len(online) >= least and waited >= _GRACE_SECONDS):",
        "if online == wanted or waited >= _GRACE_SECONDS:",
        NODES,
    ),
    (
        "flower: silence is waited for without end",
        f"{ENGINES}/flower_server.py",
        "end, waiting, answers = self._clock() + seconds,",
        "end, waiting, answers = self._clock() + 10 * seconds,",
        APPS,
    ),
    (
        "flower: the run's configuration says where the vault is",
        f"{ENGINES}/flower_client.py",
        "        return _Relay(context.node_config)\n",
        "        return _Relay({**context.node_config, **context.run_config})\n",
        APPS,
    ),
    (
        "flower: any run may train without a vault",
        f"{ENGINES}/flower_client.py",
        'if context.run_config.get("simulation") is True:',
        'if "simulation" in context.run_config:',
        APPS,
    ),
    (
        "flower: steps that were not run count for the mean gradient",
        "src/alidpfl/federation/loop.py",
        "        done = _as_done(plans, updates)\n",
        "        done = list(plans)\n",
        "tests/federation/test_loop.py",
    ),
)
