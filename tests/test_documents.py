"""The reader of documents finds every command, and refuses what it does not understand."""

import pytest

from tests.documents import NotUnderstoodError, commands, fences, running_text

AFTER = "\n```\nalidpfl doctor\n```\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('```bash title="x"\nalidpfl run\n```', ["alidpfl run"]),
        ("``` { .bash .copy }\nalidpfl run\n```", ["alidpfl run"]),
        ("~~~\nalidpfl run\n~~~", ["alidpfl run"]),
        ("````\nalidpfl run\n````", ["alidpfl run"]),
        ("1. first\n\n   ```bash\n   alidpfl run \\\n       --json\n   ```", ["alidpfl run --json"]),
        ("- ```sh\n  alidpfl run\n  ```", ["alidpfl run"]),
        ("> ```\n> alidpfl run\n> ```", ["alidpfl run"]),
        ("```\ncd x && alidpfl run && .venv/bin/alidpfl show y\n```", ["cd x", "alidpfl run", "alidpfl show y"]),
        ("```\njupyter lab\nsource .venv/bin/activate\ngit clone x\n```", 3),
        ("```\n# first\nalidpfl run   # why\n\n```", ["alidpfl run"]),
        ("```\nalidpfl run --set 'a=\"#1\"' --out a#b # why\n```", ["alidpfl run --set 'a=\"#1\"' --out a#b"]),
        ("```\nA=1 B=2 /opt/x/bin/alidpfl run\n```", ["/opt/x/bin/alidpfl run"]),
        ("```\n$ alidpfl run\nε = 2\n$ alidpfl show x\n```", ["alidpfl run", "alidpfl show x"]),
        ("```text\nalidpfl: something is wrong\n```", []),
        ("```python\nimport alidpfl\n```", []),
    ],
)
def test_commands_are_found_and_those_after_them_too(text, found):
    *before, last = commands(text + AFTER)
    assert last == "alidpfl doctor"
    assert before == found or len(before) == found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```\nalidpfl run", "line 1: this fence is never closed"),
        ("```\nalidpfl run \\\n```", "goes on after the end"),
        ("x\n\n```\nalidpfl run\naccuracy 96 %\n```", "line 5: 'accuracy 96 %' is no command"),
        ("```\ncd x && alidpfI run\n```", "'alidpfI run' is no command"),
        ("```\nalidpfl-run\n```", "is no command"),
        ("```shel\nalidpfl run\n```", "a fence of 'shel'"),
        ("```console\nalidpfl run\n```", "begins with `\\$ `"),
        ("```\n$ alidpfl run\nalidpfl show x\n```", "without its prompt"),
    ],
)
def test_what_is_not_understood_is_said(text, says):
    with pytest.raises(NotUnderstoodError, match=says):
        commands(text)


def test_the_text_between():
    text = "a\n\n  ~~~bash\n  alidpfl run\n  ~~~\nb `alidpfl show`\n```x`y```\n"
    assert running_text(text).split() == ["a", "b", "`alidpfl", "show`", "```x`y```"]
    assert [(fence.language, fence.first_line, fence.lines) for fence in fences(text)] == [
        ("bash", 4, ("alidpfl run",))
    ]
