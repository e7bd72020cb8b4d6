"""The jobspec of an attempt: what Flux's own command would make, with our name, place and output."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from switchyard.agent.backends import marker_of
from switchyard.agent.loop.need import spec_of
from switchyard.agent.site.site import ImageRule, Site
from switchyard.errors import PolicyRefused
from switchyard.features.flux.agent.cluster.resource_sets import FluxNode, RankResources
from switchyard.features.flux.agent.flux_site import FluxSite
from switchyard.features.flux.agent.submit.jobspec import JobPlace, bare_jobspec, jobspec_of, resources_of
from switchyard.model.cluster.poll import Lease
from switchyard.model.files.files import JobFiles
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.model.job.image_rules import ImageRun
from switchyard.model.job.job import JobSpec, Native, Resources
from switchyard.model.jobspec.structure import check_canonical
from tests.agent.builders import a_lease
from tests.agent.flux.captures import DRY_RUN_RESOURCES, DRY_RUN_TASKS
from tests.sites import site_with

PLACE = JobPlace(cwd="/spool/a/work", stdout="/spool/a/stdout", stderr="/spool/a/stderr", claim="/spool/a/started")


def jobspec(lease: Lease, *, place: JobPlace = PLACE, site: Site | None = None) -> dict[str, Any]:
    made = jobspec_of(lease, place, cluster="alpha", site=site or Site())
    check_canonical(made, is_whole=True, is_run=True)
    return made


def system(lease: Lease, **more: Any) -> dict[str, Any]:
    return jobspec(lease, **more)["attributes"]["system"]


def test_it_is_what_flux_submit_would_make() -> None:
    lease = a_lease("hostname", resources={"nodes": 2, "tasks": 4, "cores": 2, "gpus": 1, "time_limit": "10m"})
    made = jobspec(lease, place=JobPlace(cwd="/c", stdout="/o", stderr="/e", claim="/s", queue="batch"))
    assert made["resources"] == DRY_RUN_RESOURCES
    (task,) = made["tasks"]
    assert [{**task, "command": task["command"][4:]}] == DRY_RUN_TASKS
    assert made["version"] == 1
    assert made["attributes"]["system"]["duration"] == 600
    assert made["attributes"]["system"]["queue"] == "batch"


def test_the_marker_is_in_name_and_attributes() -> None:
    lease = a_lease(fence=7)
    attributes = system(lease, place=replace(PLACE, key="1f"))
    assert attributes["job"]["name"] == marker_of(lease)
    assert attributes["switchyard"] == {"job": lease.job, "attempt": 1, "fence": 7, "submission": "1f"}


def test_parts_of_a_core_count_as_whole_ones_and_no_limit_is_zero() -> None:
    lease = a_lease(resources={"tasks": 3, "cores": "500m"})
    made = jobspec(lease)
    assert made["resources"] == [{"type": "slot", "count": 3, "with": [{"type": "core", "count": 1}], "label": "task"}]
    assert made["attributes"]["system"]["duration"] == 0


def test_an_uneven_spread_counts_tasks_in_all() -> None:
    resources, count = resources_of(spec_of(a_lease(resources={"nodes": 2, "tasks": 3})))
    assert (resources[0]["count"], resources[0]["with"][0]["count"], count) == (2, 2, {"total": 3})


def test_whole_nodes() -> None:
    resources, _ = resources_of(spec_of(a_lease(native=Native(exclusive=True))))
    assert (resources[0]["type"], resources[0]["exclusive"]) == ("node", True)
    with pytest.raises(PolicyRefused, match="nodes"):
        resources_of(spec_of(a_lease(native=Native(exclusive=True), resources={"tasks": 2})))


def test_named_resources_of_rainbow_become_what_the_plain_fields_say() -> None:
    rack = {
        "type": "rack",
        "replicas": 1,
        "with": [{"type": "node", "count": 2, "with": [{"type": "core", "count": 3}]}],
    }
    given = {"version": 1, "resources": {"hostname": rack}}
    lease = a_lease(demand=given, resources={"nodes": 2, "tasks": 2, "cores": 3})
    assert jobspec(lease)["resources"] == jobspec(a_lease(resources={"nodes": 2, "tasks": 2, "cores": 3}))["resources"]


def test_a_jobspec_keeps_its_own_resources_and_constraints() -> None:
    given = {
        "version": 9999,
        "resources": [{"type": "node", "count": 2, "with": [{"type": "slot", "with": [{"type": "core", "count": 4}]}]}],
        "attributes": {"system": {"duration": 60, "constraints": {"properties": ["amd"]}}},
    }
    made = jobspec(a_lease(demand=given))
    assert made["version"] == 1, "version 1 can say it, and every Flux knows that version"
    assert made["resources"][0]["with"][0]["label"] == "task"
    assert made["attributes"]["system"]["constraints"] == {"properties": ["amd"]}
    assert made["attributes"]["system"]["duration"] == 60


def vertex(kind: str, count: Any = 1, *held: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": kind, "count": count, **({"with": list(held)} if held else {}), **more}


def slot(count: Any, *held: dict[str, Any], **more: Any) -> dict[str, Any]:
    return vertex("slot", count, *held, label="s", **more)


def core(count: Any = 1) -> dict[str, Any]:
    return vertex("core", count)


def asked(*resources: dict[str, Any], count: dict[str, Any] | None = None) -> Lease:
    task = {"slot": "s", "count": count or {"per_slot": 1}}
    return a_lease(demand={"version": 9999, "resources": list(resources), "tasks": [task]})


RANGE = {"min": 2, "max": 8, "operator": "+", "operand": 1}


@pytest.mark.parametrize(
    ("resource", "made"),
    [
        (slot(2, core(RANGE)), slot(2, core(2))),
        (slot(RANGE, core()), slot(2, core())),
        (slot("3-5", core("4,8")), slot(3, core(4))),
        (slot("2+", core("2-8:2:*")), slot(2, core(2))),
        (vertex("node", RANGE, slot("1-3", core())), vertex("node", 2, slot(1, core()))),
        (slot(1, core(12), core(4)), slot(1, core(16))),
        (slot(1, core(2), vertex("gpu", 0)), slot(1, core(2))),
        (slot(2, vertex("gpu", 1)), slot(2, core(), vertex("gpu", 1))),
        (slot(2, vertex("node")), vertex("node", 2, slot(1, core()), exclusive=True)),
        (slot(2, vertex("node", 1, core(4))), vertex("node", 2, slot(1, core(4)), exclusive=True)),
        (slot(2, vertex("node"), exclusive=False), vertex("node", 2, slot(1, core()))),
        (slot(1, vertex("node", exclusive=False)), vertex("node", 1, slot(1, core()))),
        (vertex("node", 2, slot(1, core()), exclusive=True), vertex("node", 2, slot(1, core()), exclusive=True)),
        (vertex("node", 2, slot(1, core(), exclusive=True)), vertex("node", 2, slot(1, core()), exclusive=True)),
        (vertex("cluster", 1, vertex("node", 2, slot(1, core()))), vertex("node", 2, slot(1, core()))),
        (vertex("node", 2), vertex("node", 2, vertex("slot", 1, core(), label="task"))),
        (core(4), vertex("slot", 1, core(4), label="task")),
    ],
)
def test_a_jobspec_is_written_as_version_1_can_say_it(resource: dict[str, Any], made: dict[str, Any]) -> None:
    written = jobspec(asked(resource))
    assert (written["version"], written["resources"]) == (1, [made])
    assert written["tasks"][0]["count"] == {"per_slot": 1}


@pytest.mark.parametrize(
    ("resources", "why"),
    [
        ([slot(1, vertex("node", 2))], "a slot of 2 nodes is one task on several nodes"),
        ([slot(1, vertex("node", "2-4"))], "a slot of 2 nodes is one task on several nodes"),
        ([slot(1, vertex("node"), core())], "a slot that holds a node has 2 entries"),
        ([slot(1, vertex("rack"))], "a slot holds cores and GPUs, not rack"),
        ([slot(1, core(), vertex("memory", 4, unit="GB"))], "not memory"),
        ([slot(1, vertex("core", 1, vertex("pu", 2)))], "a core holds nothing"),
        ([slot(1, slot(1, core()))], "not slot"),
        ([slot(1, vertex("node", 1, vertex("socket", 1, core())))], "not socket"),
        ([vertex("rack", 1, slot(1, core()))], "no word for rack"),
        ([vertex("cluster", 2, slot(1, core()))], "no word for cluster"),
        ([vertex("node", 1, vertex("socket", 1, slot(1, core())))], "socket lies between node and slot"),
        ([vertex("node", 1, slot(1, core()), core())], "with of a node has 2 entries"),
        ([slot(1, core()), {**slot(1, core()), "label": "t"}], "resources has 2 entries"),
    ],
)
def test_what_version_1_cannot_say_never_reaches_flux(resources: list[dict[str, Any]], why: str) -> None:
    with pytest.raises(PolicyRefused, match=why) as raised:
        jobspec(asked(*resources))
    assert "node → slot → core" in raised.value.detail


@pytest.mark.parametrize(
    ("count", "made"),
    [
        ({"per_slot": 1}, {"per_slot": 1}),
        ({"total": 4}, {"per_slot": 1}),
        ({"total": 3}, {"total": 3}),
        ({"total": 2}, {"total": 2}),
        ({"total": 5}, "5 tasks in 4 slots"),
        ({"total": 1}, "1 tasks on 2 nodes"),
        ({"per_slot": 3}, "3 tasks in each slot"),
        ({"per_resource": {"type": "core", "count": 1}}, "one task in each slot"),
    ],
)
def test_a_command_runs_as_often_as_asked_or_not_at_all(count: dict[str, Any], made: dict[str, int] | str) -> None:
    lease = asked(vertex("node", 2, slot(2, core())), count=count)
    if isinstance(made, dict):
        assert jobspec(lease)["tasks"][0]["count"] == made
        return
    with pytest.raises(PolicyRefused, match=made):
        jobspec(lease)


def test_environment_place_and_output() -> None:
    place = JobPlace(
        cwd="/w",
        stdout="/o",
        stderr="/e",
        claim="/s",
        inherited={"PATH": "/bin", "SECRET": "x", "FLUX_URI": "local:"},
    )
    attributes = system(a_lease(env={"A": "1"}, files=JobFiles(out=["*"])), place=place)
    environment = attributes["environment"]
    assert (environment["PATH"], environment["A"], environment["SWITCHYARD_FILES"]) == ("/bin", "1", "/w")
    assert not {"SECRET", "FLUX_URI"} & set(environment)
    output = attributes["shell"]["options"]["output"]
    assert (output["stdout"]["path"], output["stderr"]["path"]) == ("/o", "/e")
    assert output["stdout"]["buffer"] == {"type": "none"}
    lines = system(a_lease(resources={"tasks": 2}))["shell"]["options"]["output"]
    assert "buffer" not in lines["stdout"], "lines of several tasks stay whole"


def test_the_shell_before_a_command_gets_no_variable_that_it_would_drop() -> None:
    made = jobspec(a_lease("env", env={"A": "1", "A-B": "2"}))
    environment = made["attributes"]["system"]["environment"]
    assert (environment["A"], "A-B" in environment) == ("1", False)
    assert "exec env -- A-B=2 nice -n 0 -- env" in made["tasks"][0]["command"][2]


def test_a_working_directory_is_entered_or_the_command_does_not_run() -> None:
    command = jobspec(a_lease("ls", "-l", cwd="/data"))["tasks"][0]["command"]
    assert command[3:] == ["/data", "ls", "-l"]
    assert command[2].endswith('cd -- "$0" || { true >/spool/a/started.cwd; exit 1; }; exec "$@"')


def test_options_of_the_site_and_of_the_job() -> None:
    site = site_with(flux=FluxSite(bank="physics", shell_options={"cpu-affinity": "off"}))
    options = ["--setopt=verbose=2", "--setattr=system.x.y=1", "--setattr=note", "--urgency=20"]
    attributes = system(a_lease(native=Native(options=options)), site=site)
    assert attributes["bank"] == "physics"
    assert attributes["shell"]["options"]["cpu-affinity"] == "off"
    assert attributes["shell"]["options"]["verbose"] == 2
    assert (attributes["x"], attributes["note"]) == ({"y": 1}, 1)
    assert system(a_lease(native=Native(account="chem")), site=site)["bank"] == "chem"


@pytest.mark.parametrize(
    ("native", "why"),
    [
        (Native(options=["--setattr=system.job.name=x"]), "sets job itself"),
        (Native(options=["--setattr=switchyard.fence=1"]), "sets switchyard itself"),
        (Native(options=["--setopt=output.stdout.path=/x"]), "sets output itself"),
        (Native(options=["--urgency=32"]), "from 0 to 31"),
        (Native(options=["--setattr=a..b=1"]), "NAME=VALUE"),
        (Native(options=["--wait"]), "not for this cluster"),
        (Native(qos="high"), "native.qos"),
        (Native(reservation="r"), "native.reservation"),
        (Native(constraint="a&b"), "native.constraint"),
    ],
)
def test_what_flux_has_no_word_for_is_refused(native: Native, why: str) -> None:
    with pytest.raises(PolicyRefused, match=why):
        jobspec(a_lease(native=native))


def test_images_run_with_apptainer_or_on_the_host() -> None:
    def command(run: ImageRun) -> list[str]:
        site = Site(images=[ImageRule(match="*", run=run)])
        words: list[str] = jobspec(a_lease("ls", image="alpine:3"), site=site)["tasks"][0]["command"]
        return words

    assert "apptainer exec" in command(ImageRun.APPTAINER)[2]
    assert command(ImageRun.HOST)[2].endswith(" ls")
    with pytest.raises(PolicyRefused, match="outlive"):
        command(ImageRun.PODMAN)


def flux_node(rank: int, *properties: str) -> FluxNode:
    return FluxNode(rank=rank, total=RankResources(4, 2), properties=frozenset(properties), host=f"n{rank}")


def test_a_type_of_gpu_becomes_the_properties_that_tell_it() -> None:
    nodes = [flux_node(0, "h100"), flux_node(1, "NVIDIA-H100-80GB@gpu"), flux_node(2, "a100"), flux_node(3)]
    spec = JobSpec(["true"], resources=Resources(gpus=2, gpu_type="nvidia_h100"))
    both = {"or": [{"properties": ["NVIDIA-H100-80GB@gpu"]}, {"properties": ["h100"]}]}
    made = bare_jobspec(spec, ["true"], nodes=nodes)
    assert made["attributes"]["system"]["constraints"] == both
    mixed = bare_jobspec(spec, ["true"], nodes=[*nodes, flux_node(4, "h100", "a100")])
    assert mixed["attributes"]["system"]["constraints"] == {"and": [both, {"not": [{"hostlist": ["n4"]}]}]}
    with pytest.raises(PolicyRefused, match="No property of nodes here tells gpu of type b200"):
        bare_jobspec(JobSpec(["true"], resources=Resources(gpus=1, gpu_type="b200")), ["true"], nodes=nodes)


def test_a_type_in_a_jobspec_of_its_own_is_asked_for_in_the_same_way() -> None:
    held = [{"type": "core", "count": 1}, {"type": "gpu:a100", "count": 2}]
    spec = JobSpec(["true"], demand={"resources": [{"type": "slot", "count": 1, "with": held}]})
    made = bare_jobspec(spec, ["true"], nodes=[flux_node(0, "a100")])
    assert made["resources"][0]["with"][1] == {"type": "gpu", "count": 2}
    assert made["attributes"]["system"]["constraints"] == {"properties": ["a100"]}


def test_the_properties_of_a_node_tell_the_type_of_its_gpus_if_they_name_only_one() -> None:
    execution = {
        "R_lite": [{"rank": "0-2", "children": {"core": "0-3", "gpu": "0-1"}}],
        "properties": {"h100": "0,2", "a100@gpu": "2", "fast": "1"},
    }
    graph = compile_graph({"version": 1, "execution": execution})
    told = [shape.properties for shape in graph.shapes if shape.type == "gpu"]
    assert sorted(told, key=len) == [{}, {"h100": True}]


def test_nodes_to_avoid_become_a_constraint() -> None:
    nodes = [flux_node(rank) for rank in range(8)]
    lease = msgspec.structs.replace(a_lease("ls"), avoid_nodes=["n3", "gone"])
    made = jobspec_of(lease, PLACE, cluster="alpha", site=Site(), nodes=nodes)
    assert made["attributes"]["system"]["constraints"] == {"not": [{"hostlist": ["n3"]}]}
    check_canonical(made, is_whole=True, is_run=True)
    assert "constraints" not in jobspec_of(lease, PLACE, cluster="alpha", site=Site(), nodes=nodes[:3])["attributes"]
