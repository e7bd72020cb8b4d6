"""What Flux adds to the agent's doctor and to `discover`."""

from __future__ import annotations

from typing import Any

from switchyard.agent.feature import AgentFeature, CanaryAdvice, SystemsQuestion
from switchyard.features.flux.agent.flux_site import ACCOUNTS_ADVICE, flux_of


class FluxFeature(AgentFeature):
    kind = "flux"
    accounts_advice = ACCOUNTS_ADVICE
    canary_advice = CanaryAdvice.of(
        "See `flux jobs -a` and `flux resource list`. Jobs write their output into a folder that the nodes share with "
        "this machine: `flux: {folder: /…}` in the site's file."
    )

    def describe_systems(self, question: SystemsQuestion) -> tuple[dict[str, Any], dict[str, str]]:
        from switchyard.features.flux.agent.cluster.node_systems import describe_flux_systems

        return describe_flux_systems(flux_of(question.site), question.environment, program=list(question.program))
