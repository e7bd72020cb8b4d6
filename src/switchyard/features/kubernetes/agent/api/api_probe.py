"""Asks the Kubernetes API every few seconds whether it answers: a watch of a server that hangs only stays silent.

The question is a list of one Job, which the agent may ask and which the API server must look up: a server that cannot
reach its storage does not answer it.
"""

from __future__ import annotations

import logging
import threading

import msgspec

from switchyard.agent.backends.shared.contact import Contact
from switchyard.agent.log import line
from switchyard.errors import YardError
from switchyard.features.kubernetes.agent.api.api import KubernetesApi

PROBE_EVERY_S = 5.0
PROBE_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


class ApiProbe:
    """Runs on a thread of its own: the other threads may wait for the API for much longer."""

    def __init__(self, api: KubernetesApi, *, namespace: str = "") -> None:
        """`namespace`: the only one whose Jobs the agent may list; empty: it may list all."""
        self._api = api
        self._path = f"/apis/batch/v1{f'/namespaces/{namespace}' if namespace else ''}/jobs"
        self._stop = threading.Event()
        self.contact = Contact("Kubernetes")

    def start(self) -> None:
        threading.Thread(target=self._run, name="kubernetes-probe", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        was_silent = False
        while not self._stop.is_set():
            try:
                with self.contact.asking():
                    self._api.get_as(dict[str, msgspec.Raw], self._path, {"limit": 1}, timeout_s=PROBE_TIMEOUT_S)
            except YardError as exc:
                if exc.transient and not was_silent and not self._stop.is_set():
                    log.warning(line("kubernetes-silent", error=exc.detail))
                was_silent = exc.transient
            else:
                if was_silent:
                    log.info(line("kubernetes-answers"))
                was_silent = False
            self._stop.wait(PROBE_EVERY_S)
