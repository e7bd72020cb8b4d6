"""An image of the agent as deploy/kubernetes/Dockerfile makes one: this machine's Python, with Switchyard installed.

There is no registry and no builder on the tests' clusters, so the image is made of files.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
from pathlib import Path

from packaging.requirements import Requirement

from tests.acceptance.clients.wheel_needs import BUILD_S, PIP, ROOT, needed
from tests.kube_image import save_python_image

AGENT_IMAGE = "localhost/switchyard:1"
YARD_SCRIPT = "#!/usr/local/bin/python3\nimport sys\nfrom switchyard.main import main\nsys.exit(main())\n"


def save_agent_image(folder: Path) -> Path:
    """Build the wheel, and save an image with it, with what it declares and with nothing else."""
    packages = folder / "packages"
    wheels = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(wheels, check=True, timeout=BUILD_S)
    (wheel,) = folder.glob("switchyard-*.whl")
    install = [*PIP, "install", "--no-deps", "--no-index", "--no-compile", "--target", str(packages), str(wheel)]
    subprocess.run(install, check=True, timeout=BUILD_S)
    for name in needed(Requirement("switchyard")) - {"switchyard"}:
        for file in importlib.metadata.files(name) or ():
            if file.parts[0] == ".." or "__pycache__" in file.parts:
                continue
            (packages / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(file.locate()), packages / file)
    return save_python_image(folder / "agent.tar", name=AGENT_IMAGE, packages=packages, scripts={"yard": YARD_SCRIPT})
