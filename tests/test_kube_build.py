"""The build of Kubernetes for the tests: cut downloads are tried again, and half a build is never used.

Go itself is played by a script here; `make test-kubernetes` builds with the real one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import kube_build
from tests.kube_build import BuildError, build, built_programs, remove_broken_modules
from tests.processes import PATIENCE_S, until

ROOT = Path(__file__).resolve().parent.parent
VERSION = "v1.37.1"
CUT = "main.go:9:2: example.com/Some/thing@v1.2.3: reading the proxy's v1.2.3.zip: unexpected EOF"
# Called as `go env NAME`, `go list -deps .` and `go build ... -o FILE .`; each line of `plan` is what one `list` does.
GO = """\
#!/bin/sh
here={here}
case $1 in
env) case $2 in GOVERSION) echo go1.26.6 ;; *) echo $here/modules ;; esac ;;
list)
    echo list >>$here/calls
    step=$(sed -n 1p $here/plan)
    sed -i 1d $here/plan
    case $step in
    cut) echo "{cut}" >&2; exit 1 ;;
    hang) exec sleep 600 ;;
    esac
    echo "go: downloading example.com/Some/thing v1.2.3" >&2
    echo example.com/some/package
    ;;
build)
    echo build >>$here/calls
    [ ! -e $here/slow ] || {{ touch $here/building; exec sleep 600; }}
    [ ! -e $here/broken ] || {{ echo "main.go:1:1: syntax error" >&2; exit 1; }}
    while [ "$1" != -o ]; do shift; done
    printf '#!/bin/sh\\necho Client Version: {version}\\n' >"$2"
    chmod +x "$2"
    ;;
esac
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "go"
    program.parent.mkdir()
    program.write_text(GO.format(here=tmp_path, cut=CUT, version=VERSION))
    program.chmod(0o755)
    (tmp_path / "plan").write_text("")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("KUBERNETES_CACHE", str(tmp_path / "cache"))
    return tmp_path


def calls(here: Path) -> list[str]:
    return (here / "calls").read_text().split()


def test_a_build_is_made_once_and_found_again(here: Path) -> None:
    with pytest.raises(BuildError, match="make test-kubernetes"):
        built_programs()
    folder = build()
    assert build() == folder == built_programs()
    assert calls(here) == ["list", "build"]
    said = subprocess.run([str(folder / "kubelet")], capture_output=True, text=True, check=True).stdout
    assert said == f"Client Version: {VERSION}\n"
    assert sorted(path.name for path in (here / "cache").iterdir()) == sorted([folder.name, "lock"])


def test_a_cut_download_is_tried_again_and_what_is_broken_is_removed(here: Path) -> None:
    (here / "plan").write_text("cut\ncut\n")
    module = here / "modules" / "cache" / "download" / "example.com" / "!some" / "thing" / "@v"
    module.mkdir(parents=True)
    for name in ("v1.2.3.zip", "v1.2.3.ziphash", "v1.2.3.zip123.tmp", "v1.2.3.mod", "v1.2.4.zip"):
        (module / name).write_text("")
    build()
    assert calls(here) == ["list", "list", "list", "build"]
    assert sorted(path.name for path in module.iterdir()) == ["v1.2.3.mod", "v1.2.4.zip"]


def test_a_download_that_hangs_is_ended(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "plan").write_text("hang\n" * 2)
    monkeypatch.setattr(kube_build, "FETCH_S_MAX", 0.0)
    monkeypatch.setattr(kube_build, "FETCHES_MAX", 2)
    with pytest.raises(BuildError, match="could not be fetched"):
        build()
    assert list((here / "cache").glob("draft-*")) == []


def test_downloads_that_never_come_are_given_up_with_the_reason(here: Path) -> None:
    (here / "plan").write_text("cut\n" * 100)
    with pytest.raises(BuildError, match="unexpected EOF"):
        build()
    assert calls(here) == ["list"] * kube_build.FETCHES_MAX


def test_a_build_that_fails_leaves_nothing(here: Path) -> None:
    (here / "broken").touch()
    with pytest.raises(BuildError, match="syntax error"):
        build()
    assert [path.name for path in (here / "cache").iterdir()] == ["lock"]


def test_a_killed_build_is_not_used(here: Path) -> None:
    (here / "slow").touch()
    with subprocess.Popen([sys.executable, "-m", "tests.kube_build"], cwd=ROOT) as killed:
        until((here / "building").exists, PATIENCE_S, "the build is under way")
        killed.kill()
    assert list((here / "cache").glob("draft-*"))
    with pytest.raises(BuildError):
        built_programs()
    (here / "slow").unlink()
    build()
    assert list((here / "cache").glob("draft-*")) == []


def test_only_modules_that_an_error_names_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "download" / "k8s.io" / "api" / "@v"
    folder.mkdir(parents=True)
    (folder / "v0.37.1.zip").touch()
    assert remove_broken_modules("go: downloading k8s.io/api@v0.37.1\nsomething else failed", tmp_path) == []
    assert remove_broken_modules("k8s.io/api@v0.37.1: zip: not a valid zip file", tmp_path) == ["k8s.io/api@v0.37.1"]
    assert list(folder.iterdir()) == []
