"""Every word on a command line of Slurm has a grammar: hostile values are refused at the door and before sbatch.

The table is `GRAMMARS`. What a new option, a new field of `Native` or a new f-string would leave out fails here.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest
from msgspec.structs import replace

from switchyard.errors import Malformed, PolicyRefused
from switchyard.features.slurm import agent as slurm
from switchyard.features.slurm.agent.commands import command_lines
from switchyard.features.slurm.agent.commands.option_grammars import (
    GRAMMARS,
    build_option,
    check_word,
    native_options_refusal,
)
from switchyard.features.slurm.agent.jobs.evidence import ScriptStart
from switchyard.features.slurm.agent.slurm_site import SlurmSite
from switchyard.model.cluster.native_grammars import NATIVE_GRAMMARS, OPTION
from switchyard.model.job.job import JobRequest, JobSpec, Native, Resources
from switchyard.model.wire.decode import decode_json
from tests.agent.builders import a_lease

FOLDER = Path(str(slurm.__file__)).parent
# In each of these something is wrong for every grammar but those of free text and paths.
HOSTILE = {
    "newline": "a\nb",
    "trailing newline": "a\n",
    "blank": "a b",
    "another option": "a --uid=0",
    "leading dash": "-a",
    "leading option": "--uid=0",
    "quotes": "a'b\"c",
    "shell": "a;$(id)`id`",
    "backslash": "a\\b",
    "percent": "a%u",
    "nul": "a\0b",
    "escape": "a\x1b[2Jb",
    "unicode": "änderung",
    "line separator": "a\u2028b",
    "unicode digits": "٣",
    "empty list": ",",
    "very long": "a" * 200_000,
}
# A value by which somebody could ask for more than the field is for.
SMUGGLED = {
    "gpu_type": ["a100:8,license:matlab", "a100,gpu", "a100:4", "a=b", "*"],
    "account": ["a,b", "a:b", "a=b"],
    "qos": ["a,b", "a=b"],
    "licenses": ["matlab:2,ansys:9", "matlab:-1", "matlab:x", "matlab;ansys"],
    "reservation": [",a", "a,,b", "a,-b"],
    "constraint": ["-a", "a;b", "a{b}", "a<b", "$a"],
    "options": ["nice=5", "-n5", "--nice 5\n", "--Nice=5", "--=5"],
}
GOOD = {
    "gpu_type": ["a100", "nvidia_a100_80gb_pcie", "a100_3g.20gb", "rtx-4090"],
    "account": ["physics", "physics.sub", "p_1", "ada@site"],
    "qos": ["high", "high-prio"],
    "licenses": ["matlab", "matlab:2", "ansys@lm1", "ansys@lm1.example.org:3"],
    "reservation": ["r1", "root_1", "r1,r2"],
    "constraint": ["a&b", "[rack1|rack2]", "(a|b)&c", "a*2", "[rack1*2&rack2*4]", "gpu_mem:80", "a,b"],
    "options": ["--nice=5", "--hint=nomultithread", "--mail-user=ada@example.org", "--overcommit"],
}


def native_with(field: str, value: str) -> dict[str, Any]:
    return {field: [value] if field in ("licenses", "options") else value}


def hostile_natives() -> list[Any]:
    found = []
    for field in NATIVE_GRAMMARS:
        values = {**HOSTILE, **{text: text for text in SMUGGLED[field]}}
        if field == "options":  # the value of an option is free text: it is the site's word which options there are
            values = {key: text for key, text in values.items() if "newline" in key or "dash" in key or text[:1] != "-"}
        found += [pytest.param(field, text, id=f"{field}: {key}") for key, text in values.items()]
    return found


def test_every_word_of_native_has_a_grammar_and_examples() -> None:
    words = {name for name, kind in get_type_hints(Native).items() if kind is not bool}
    assert words == set(NATIVE_GRAMMARS) == set(SMUGGLED) == set(GOOD)


@pytest.mark.parametrize(("field", "value"), hostile_natives())
def test_hostile_words_are_refused_at_the_door_and_before_sbatch(field: str, value: str) -> None:
    body = msgspec.json.encode({"spec": {"command": ["true"], "native": native_with(field, value)}})
    with pytest.raises(Malformed, match=rf"native\.{field}\b") as refused:
        decode_json(body, JobRequest)
    assert NATIVE_GRAMMARS[field].hint in refused.value.detail or "length" in refused.value.detail
    assert "\n" not in refused.value.detail
    spec = JobSpec(["true"], resources=Resources(gpus=1), native=Native(**native_with(field, value)))
    assert native_options_refusal(spec).startswith(f"Slurm is not told this: native.{field}: ")
    with pytest.raises(PolicyRefused, match="Slurm is not told"):
        command_lines.resource_options(spec, partition="", account="")


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in GOOD.items() for value in values])
def test_what_sites_really_write_is_taken(field: str, value: str) -> None:
    body = msgspec.json.encode({"spec": {"command": ["true"], "native": native_with(field, value)}})
    spec = JobSpec(["true"], resources=Resources(gpus=1), native=decode_json(body, JobRequest).spec.native)
    assert native_options_refusal(spec) == ""
    assert any(value in each for each in command_lines.resource_options(spec, partition="", account=""))


def built_or_none(option: str, text: str) -> str | None:
    try:
        return build_option(option, text)
    except PolicyRefused:
        return None


@pytest.mark.parametrize("key", HOSTILE)
@pytest.mark.parametrize("option", GRAMMARS)
def test_no_hostile_value_reaches_a_command_line(option: str, key: str) -> None:
    """Free text and paths may have blanks and quotes: they are one word all the same, without control characters."""
    value = HOSTILE[key]
    values = [value, f"/{value}"] if GRAMMARS[option].allows("/x") else [value]
    for text in values:
        built = built_or_none(option, text)
        if built is None:
            continue
        is_free = option in ("--comment", "--chdir", "--output", "--error")
        assert is_free or (option, key) == ("--user", "backslash"), built
        assert built == f"{option}={text}"
        assert not any(ord(char) < 32 or char in "\x7f\u2028\u2029" for char in built)


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_hostile_words_from_elsewhere_are_refused_too(value: str) -> None:
    """Of the server (queue), the site (account), Slurm (nodes, numbers), and of accounts and names of jobs."""
    calls: list[Callable[[], object]] = [
        lambda: command_lines.resource_options(JobSpec(["true"]), partition=value, account=""),
        lambda: command_lines.resource_options(JobSpec(["true"]), partition="", account=value),
        lambda: command_lines.resource_options(JobSpec(["true"]), partition="", account="", excluded=value),
        lambda: command_lines.squeue([value], mark="m"),
        lambda: command_lines.squeue([], mark="m", names=[value]),
        lambda: command_lines.squeue([], mark="m", job=value),
        lambda: command_lines.sacct([value]),
        lambda: command_lines.sacct_by_name([value], user="", days=1),
        lambda: command_lines.sacct_by_name(["n"], user=value, days=1),
        lambda: command_lines.scancel([value]),
        lambda: command_lines.sbatch(a_lease("true"), value, "/f", partition="", account="", base=0),
        lambda: check_word(OPTION, value.replace("--uid=0", "-u")),
    ]
    for number, call in enumerate(calls):
        if (number, value) in ((3, HOSTILE["backslash"]), (8, HOSTILE["backslash"])):
            continue  # a directory service may name an account so
        with pytest.raises(PolicyRefused):
            call()
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"account": value}, SlurmSite)


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_a_comment_is_one_line_of_text(value: str) -> None:
    lease = replace(a_lease("true"), name=value, owner=value, project=value)
    words = command_lines.sbatch(lease, "n", "/f", partition="", account="", base=0)
    (comment,) = [each for each in words if each.startswith("--comment=")]
    assert comment.isprintable()
    assert len(comment) < 250


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_a_note_that_a_job_forged_gives_no_number(value: str) -> None:
    assert ScriptStart.read(f"{value} 0 n1 noted").native == ""
    assert ScriptStart.read("24_0 0 n1 noted").native == "24_0"


# --- a new word without a grammar fails ---


def built_elsewhere(text: str) -> list[int]:
    """The lines with an f-string, or a sum, that makes a word `--option=value` by hand."""
    found = []
    for node in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.expr)):
        first = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
            first = node.left
        if isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value.startswith("-"):
            found.append(node.lineno)
    return found


def options_built(text: str) -> set[str]:
    """The options that `word` is called with."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    named = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "word"]
    return {str(call.args[0].value) for call in named if isinstance(call.args[0], ast.Constant)}


def test_words_with_values_are_built_in_one_place() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.py")}
    assert {name: lines for name, text in texts.items() if (lines := built_elsewhere(text))} == {}
    used = {option for text in texts.values() for option in options_built(text)}
    assert used <= set(GRAMMARS)
    unused = {
        option
        for option in GRAMMARS
        if not any(f'"{option}"' in texts[name] for name in texts if name != "option_grammars.py")
    }
    assert unused == set()


def test_the_rule_finds_what_it_is_for() -> None:
    assert built_elsewhere('x = f"--nice={n}"') == [1]
    assert built_elsewhere('x = "--nice=" + n\ny = "--nice=%s" % n') == [1, 2]
    assert built_elsewhere('x = word("--nice", n)\ny = "--exclusive"\nz = f"{a}-{b}"') == []
    with pytest.raises(KeyError):
        build_option("--nice", 5)
