"""Bugs that would make a vault spend more than its budget; `tests/mutants.py` runs them."""

CHAIN, ROUNDS, ENROLMENT, KILLS, SERVICE, TROUBLE, ACCOUNTS, ANCHOR, FOLDER, COMMAND, MESSAGES = (
    f"tests/vault/test_{name}.py"
    for name in (
        "chain",
        "rounds",
        "enrolment",
        "kills",
        "service",
        "trouble",
        "accounts",
        "anchor",
        "folder",
        "vault_command",
        "messages",
    )
)
VAULT = "src/alidpfl/vault"

VAULT_MUTANTS = (
    (
        "vault: the round is reserved after it was trained",
        f"{VAULT}/rounds.py",
        (
            "        number = self.ledger.reserve(self._reservation(request, steps, digest, rate))\n"
            "        update = _withheld(job, messages.flat(weights, self.enrolment.shapes), request.plan(steps))\n"
        ),
        (
            "        update = _withheld(job, messages.flat(weights, self.enrolment.shapes), request.plan(steps))\n"
            "        number = self.ledger.reserve(self._reservation(request, steps, digest, rate))\n"
        ),
        KILLS,
    ),
    (
        "vault: two may ask at once",
        f"{VAULT}/rounds.py",
        "            with self._turn:\n                return self._answer(content)\n",
        "            return self._answer(content)\n",
        ROUNDS,
    ),
    (
        "vault: a changed replay is answered",
        f"{VAULT}/rounds.py",
        "if book.reservations[number].request != digest:",
        "if False:",
        ROUNDS,
    ),
    (
        "vault: a lost round is trained again under its charge",
        f"{VAULT}/rounds.py",
        "        if known is not None:\n",
        "        if known is not None and known in self.ledger.book.answers:\n",
        f"{ROUNDS} {KILLS}",
    ),
    (
        "vault: rounds may go back",
        f"{VAULT}/rounds.py",
        "if request.round <= (last :=",
        "if request.round < -1 + 0 * (last :=",
        ROUNDS,
    ),
    (
        "vault: an answer is sent before it is stored",
        f"{VAULT}/rounds.py",
        "        self.answers.store(number, content)\n",
        "",
        ROUNDS,
    ),
    (
        "vault: the disk is found full only after the charge",
        f"{VAULT}/rounds.py",
        (
            "        self.answers.take_room(4 * self.enrolment.num_params + _ANSWER_OVERHEAD)\n"
            "        number = self.ledger.reserve(self._reservation(request, steps, digest, rate))\n"
        ),
        (
            "        number = self.ledger.reserve(self._reservation(request, steps, digest, rate))\n"
            "        self.answers.take_room(4 * self.enrolment.num_params + _ANSWER_OVERHEAD)\n"
        ),
        TROUBLE,
    ),
    (
        "vault: why training failed is told",
        f"{VAULT}/rounds.py",
        (
            '"training failed; the details may depend on records and are withheld. The round stays charged",\n'
            "        ) from None"
        ),
        ('f"training failed: {error}",\n        ) from None'),
        ROUNDS,
    ),
    (
        "vault: less noise than the policy's is served",
        f"{VAULT}/policy.py",
        "if not terms.min_noise_multiplier <= request.noise_multiplier <= 1e6:",
        "if not 0 < request.noise_multiplier <= 1e6:",
        f"{ROUNDS} {ACCOUNTS}",
    ),
    (
        "vault: a higher sampling rate is served",
        f"{VAULT}/policy.py",
        "<= request.sample_rate <= terms.sample_rate:",
        "<= request.sample_rate <= 1:",
        f"{ROUNDS} {ACCOUNTS}",
    ),
    (
        "vault: un-noised signals leave without the owner's word",
        f"{VAULT}/policy.py",
        'if "raw" in request.signals and UNACCOUNTED_SIGNALS not in policy.unsafe:',
        "if False:",
        ROUNDS,
    ),
    (
        "vault: steps are not cut to a round's most",
        f"{VAULT}/policy.py",
        "most = min(policy.limits.max_steps_per_round, affordable) if by_steps",
        "most = affordable if by_steps",
        ROUNDS,
    ),
    (
        "vault: an update is charged as a sampled step",
        f"{VAULT}/accounts.py",
        ('    if policy.terms.release == "update":\n        return 1.0\n'),
        "",
        f"{ROUNDS} {ACCOUNTS}",
    ),
    (
        "vault: the filter charges all noise alike",
        f"{VAULT}/accounts.py",
        "step = SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise_multiplier, steps=units)",
        "step = SampledGaussian(sample_rate=sample_rate, noise_multiplier=4.0, steps=units)",
        ACCOUNTS,
    ),
    (
        "vault: planned steps with more noise are free",
        f"{VAULT}/accounts.py",
        ("        self.units += units\n        self._ledger.restore"),
        (
            "        self.units += units if noise_multiplier <= self._noise_multiplier else 0\n"
            "        self._ledger.restore"
        ),
        ACCOUNTS,
    ),
    (
        "vault: the ledger is forgotten at a restart",
        f"{VAULT}/ledger.py",
        ("        for entry in entries:\n            self.read(entry)\n"),
        "        list(entries)\n",
        ROUNDS,
    ),
    (
        "vault: a ledger that was cut is served",
        f"{VAULT}/chain.py",
        "    if head.counter >= len(entries):",
        "    if False:",
        f"{CHAIN} {TROUBLE}",
    ),
    (
        "vault: a ledger with another history is served",
        f"{VAULT}/chain.py",
        "    if entries[head.counter].hash != head.hash:",
        "    if False:",
        CHAIN,
    ),
    (
        "vault: a damaged line ends the ledger",
        f"{VAULT}/chain.py",
        '    if rest and b"\\n" in rest[:-1]:',
        "    if False:",
        CHAIN,
    ),
    (
        "vault: lines are not chained",
        f"{VAULT}/chain.py",
        "if (counter, previous) == expected else None",
        "if counter == expected[0] else None",
        CHAIN,
    ),
    (
        "vault: lines are not sealed",
        f"{VAULT}/chain.py",
        "return found if line[-_SEAL_BYTES:] == _SEAL.format(found).encode() else None",
        "return found",
        CHAIN,
    ),
    (
        "vault: the reservation is not synced",
        f"{VAULT}/chain.py",
        ("            os.fsync(self._descriptor)\n            self._commit()\n        except"),
        ("            self._commit()\n        except"),
        CHAIN,
    ),
    (
        "vault: heads do not follow the ledger",
        f"{VAULT}/chain.py",
        ("            os.fsync(self._descriptor)\n            self._commit()\n        except"),
        ("            os.fsync(self._descriptor)\n        except"),
        TROUBLE,
    ),
    (
        "vault: what a full disk left of a line stays",
        f"{VAULT}/chain.py",
        "                os.ftruncate(self._descriptor, self._size)\n",
        "                pass\n",
        CHAIN,
    ),
    (
        "vault: noise is the same for equal rounds",
        f"{VAULT}/training.py",
        "            return RandomStream.secure()\n",
        "            return RandomStream.seeded(0, plan.round)\n",
        ROUNDS,
    ),
    (
        "vault: other data are served under the old ledger",
        f"{VAULT}/training.py",
        "    if content_hash(records) != enrolment.data_sha256:",
        "    if False:",
        ENROLMENT,
    ),
    (
        "vault: weights with NaN are trained on",
        f"{VAULT}/messages.py",
        "        if not np.isfinite(values).all():",
        "        if False:",
        ROUNDS,
    ),
    (
        "vault: a signal that is not finite is sent",
        f"{VAULT}/messages.py",
        "if value is not None and _is_finite(value)}",
        "if value is not None}",
        MESSAGES,
    ),
    (
        "vault: the hash of a request leaves the weights out",
        f"{VAULT}/messages.py",
        "        digest.update(np.ascontiguousarray(weights[name]).tobytes())\n",
        "",
        ROUNDS,
    ),
    (
        "vault: terms may be changed",
        f"{VAULT}/enrolment.py",
        "        if changed:\n",
        "        if False:\n",
        ENROLMENT,
    ),
    (
        "vault: anybody may connect",
        f"{VAULT}/service.py",
        "os.umask(0o777 - _OWNER_ONLY)",
        "os.umask(0)",
        SERVICE,
    ),
    (
        "vault: two processes serve one ledger",
        "src/alidpfl/store/lock.py",
        "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        TROUBLE,
    ),
    (
        "vault: bodies of any size are read",
        f"{VAULT}/service.py",
        "if len(content) > most:",
        "if False:",
        SERVICE,
    ),
    (
        "vault: heads and anchor are not compared before a line",
        f"{VAULT}/chain.py",
        "if not self._broken and self.entries and not self._heads_agree():",
        "if False:",
        ANCHOR,
    ),
    (
        "vault: only the head beside the ledger is compared",
        f"{VAULT}/chain.py",
        "return all(path.read_bytes() == expected for path in self._heads)",
        "return self._heads[0].read_bytes() == expected",
        f"{ANCHOR} {CHAIN}",
    ),
    (
        "vault: an anchor that is gone is made again",
        f"{VAULT}/chain.py",
        "            return all(path.read_bytes() == expected for path in self._heads)\n        except OSError:\n"
        "            return False\n",
        "            return all(path.read_bytes() == expected for path in self._heads)\n        except OSError:\n"
        "            return True\n",
        ANCHOR,
    ),
    (
        "vault: a head that was put back makes up for its absence",
        f"{VAULT}/chain.py",
        "        if self._broken:\n            raise refusal(RefusalCode.LEDGER,",
        "        if self._broken:\n            told, self._broken = self._broken, ''\n"
        "            raise refusal(RefusalCode.LEDGER, told +",
        f"{ANCHOR} {CHAIN}",
    ),
    (
        "vault: a folder and its copy are served at the same time",
        f"{VAULT}/folder.py",
        'with exclusive_lock(anchor.with_name(f".{anchor.name}{LOCK}"), owner_of=anchor, remedy=remedy):',
        "if anchor.exists():",
        ANCHOR,
    ),
    (
        "vault: the anchor's lock is made on a bare mount point",
        f"{VAULT}/folder.py",
        "            Head.read(anchor)  # first",
        "            # first",
        ANCHOR,
    ),
    (
        "vault: the anchor is not read when serving begins",
        f"{VAULT}/folder.py",
        "        heads = self._heads(policy)\n        vault =",
        "        heads = (self.path / HEAD,)\n        vault =",
        TROUBLE,
    ),
    (
        "vault: a link to the anchor is replaced by a file",
        f"{VAULT}/policy.py",
        "Path(self.anchor).resolve()",
        "Path(self.anchor)",
        ANCHOR,
    ),
    (
        "vault: an enrolment takes another's anchor",
        f"{VAULT}/enrolment.py",
        "os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE_FILE))",
        "os.O_WRONLY | os.O_CREAT, _PRIVATE_FILE))",
        ANCHOR,
    ),
    (
        "vault: an enrolment that fails deletes another's anchor",
        f"{VAULT}/enrolment.py",
        (
            "            _claim(policy.anchor_file)\n"
            "            undo.callback(policy.anchor_file.unlink, missing_ok=True)"
        ),
        (
            "            undo.callback(policy.anchor_file.unlink, missing_ok=True)\n"
            "            _claim(policy.anchor_file)"
        ),
        ANCHOR,
    ),
    (
        "vault: an enrolment that fails leaves its anchor behind",
        f"{VAULT}/enrolment.py",
        "            undo.callback(policy.anchor_file.unlink, missing_ok=True)",
        "            pass",
        ANCHOR,
    ),
    (
        "vault: a refusal quotes control characters",
        "src/alidpfl/errors.py",
        "return printable(super().__str__())",
        "return super().__str__()",
        COMMAND,
    ),
    (
        "vault: a refusal has any length",
        f"{VAULT}/refusals.py",
        "(code, message[:_LONGEST_TEXT])",
        "(code, message)",
        COMMAND,
    ),
    (
        "vault: a hostile server's markup is printed",
        "src/alidpfl/cli/vault.py",
        "escape(printable(f\"{entry['code']}: {entry['message']}\"))",
        "printable(f\"{entry['code']}: {entry['message']}\")",
        COMMAND,
    ),
    (
        "vault: noted control characters are printed",
        "src/alidpfl/cli/vault.py",
        "escape(printable(f\"{entry['code']}: {entry['message']}\"))",
        "escape(f\"{entry['code']}: {entry['message']}\")",
        COMMAND,
    ),
    (
        "vault: any file among the answers is taken for one",
        f"{VAULT}/folder.py",
        " if name.isdecimal() and self._path(int(name)).stem == name)",
        ")",
        FOLDER,
    ),
    (
        "vault: any number among the answers is taken for one",
        f"{VAULT}/folder.py",
        " if name.isdecimal() and self._path(int(name)).stem == name)",
        " if name.isdecimal())",
        FOLDER,
    ),
    (
        "vault: an answer is sent before it is synced",
        f"{VAULT}/folder.py",
        "                os.ftruncate(descriptor, len(content))\n                os.fsync(descriptor)\n",
        "                os.ftruncate(descriptor, len(content))\n",
        FOLDER,
    ),
    (
        "vault: an answer to another request is sent",
        f"{VAULT}/rounds.py",
        "return messages.decode_answer(content)[0].request == digest",
        "return bool(messages.decode_answer(content))",
        FOLDER,
    ),
    (
        "vault: a trial that fails is told in torch's words",
        f"{VAULT}/rounds.py",
        "except (ConfigError, UnsupportedModelError) as error:",
        "except (ConfigError, DataError, UnsupportedModelError) as error:",
        FOLDER,
    ),
    (
        "vault: a ledger is built upon before it is synced",
        f"{VAULT}/chain.py",
        "            os.fsync(descriptor)  # what was read",
        "            # what was read",
        CHAIN,
    ),
    (
        "vault: the filter's order is chosen anew at every start",
        f"{VAULT}/folder.py",
        "return enrolment, Ledger(chain, make_account(policy, enrolment.filter_order))",
        'return enrolment, Ledger(chain, make_account(policy, __import__("alidpfl.vault.accounts").vault.accounts'
        ".filter_order(policy)))",
        ACCOUNTS,
    ),
    (
        "vault: classes may be exchanged",
        f"{VAULT}/enrolment.py",
        "    digest.update(records.targets.contiguous().numpy().tobytes())\n",
        "",
        ENROLMENT,
    ),
    (
        "vault: the accountant may be changed",
        f"{VAULT}/enrolment.py",
        "if self.pinned.get(section, {}).get(key) != value\n",
        'if self.pinned.get(section, {}).get(key) != value and key != "accountant"\n',
        ENROLMENT,
    ),
    (
        "vault: the model's width may be changed",
        f"{VAULT}/enrolment.py",
        "if self.pinned.get(section, {}).get(key) != value\n",
        'if self.pinned.get(section, {}).get(key) != value and key != "hidden"\n',
        ENROLMENT,
    ),
    (
        "vault: a bug of ours is told",
        f"{VAULT}/service.py",
        '"the vault failed; the details are withheld"',
        "repr(error)",
        SERVICE,
    ),
    (
        "vault: its files are for everybody",
        f"{VAULT}/service.py",
        "    os.umask(0o077)\n",
        "",
        SERVICE,
    ),
    (
        "vault: a core file holds the records",
        f"{VAULT}/service.py",
        "    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
        "    # resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
        SERVICE,
    ),
    (
        "vault: a mean of the records goes out as if it were noised",
        f"{VAULT}/training.py",
        "return trainer.train(torch.from_numpy(weights), self._data, plan, self._random(plan))",
        "return __import__('dataclasses').replace(trainer.train(torch.from_numpy(weights), self._data, plan, "
        "self._random(plan)), gradient_norm=float(self._data.inputs.mean()))",
        "tests/replay/test_vaults.py",
    ),
    (
        "vault: a second writer's line is dropped, and its charge with it",
        "src/alidpfl/vault/chain.py",
        "if _seal_of(rest) is not None:",
        "if False:",
        "tests/vault/test_chain.py",
    ),
    (
        "vault: callers that do not ask keep their connections",
        "src/alidpfl/vault/service.py",
        "if self.cycle is None:  # no request yet",
        "if False:",
        "tests/vault/test_service.py",
    ),
)
"""Name, file, old text, new text, tests."""
