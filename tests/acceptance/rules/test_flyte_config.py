"""`yard server --config` takes a FlyteAdmin config: what its sections do, seen from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchyard.errors import EXIT_USAGE
from tests.acceptance.rules.pools import write
from tests.acceptance.stage import staged
from tests.programs import YARD, Program, isolated_env

pytestmark = pytest.mark.xdist_group("flyte-config")

# The samples that Flyte's documents show or name: of FlyteAdmin, its chart and the resource manager.
FLYTEADMIN = """\
server:
  httpPort: 8088
  grpcPort: 8089
  security: {secure: false, useAuth: true, allowedOrigins: ["*"]}
auth:
  disableForGrpc: true
flyteadmin:
  runScheduler: false
  roleNameKey: "iam.amazonaws.com/role"
  metricsScope: "flyte:"
  profilerPort: 10254
  testing:
    host: "http://localhost:8088"
  metadataStoragePrefix:
    - "metadata"
    - "admin"
  maxParallelism: 7
database:
  port: 5432
  username: postgres
scheduler:
  eventScheduler: {scheme: local}
remoteData:
  scheme: local
notifications:
  type: local
externalEvents:
  Enable: false
Logger:
  level: 6
storage:
  type: minio
  connection: {access-key: minio, secret-key: miniostorage}
  container: "flyte"
queues:
  executionQueues:
    - dynamic: "gpu_dynamic"
      attributes:
        - gpu
    - dynamic: "critical"
      attributes:
        - critical
    - dynamic: "default"
      attributes:
        - defaultclusters
  workflowConfigs:
    - project: "my_queue_1"
      domain: "production"
      workflowName: "my_workflow_1"
      tags:
        - critical
    - domain: "production"
      tags:
        - critical
    - tags:
        - default
task_type_whitelist:
  sparkonk8s:
    - project: my_queue_1
      domain: production
domains:
  - id: development
    name: development
  - id: staging
    name: staging
  - id: production
    name: production
qualityOfService:
  tierExecutionValues:
    LOW:
      queueingBudget: 30m
    HIGH:
      queueingBudget: 1m
  defaultTiers:
    development: LOW
clusters:
  clusterConfigs:
  - name: alpha
    endpoint: 127.0.0.1
    enabled: true
    auth:
      type: file_path
      tokenPath: /etc/token
      certPath: /etc/cert
  - name: beta
    endpoint: 127.0.0.2
    enabled: true
clusterPools:
  clusterPoolAssignments: {}
task_resource_defaults:
  task_resources:
    defaults:
      cpu: 100m
      memory: 500Mi
    limits:
      cpu: 2
      memory: 1Gi
      gpu: 1
clusterResources:
  templatePath: templates
  templateData:
    projectQuotaCpu: {value: "5"}
  customData:
    - production:
        - projectQuotaMemory: {value: "4000Mi"}
  refreshInterval: 5m
  standaloneDeployment: false
propeller:
  resourcemanager:
    type: noop
"""
REDIS = """\
    resourcemanager:
       type: redis
       resourceMaxQuota: 100
       redis:
         hostPaths:
           - foo
         hostKey: bar
         maxRetries: 0
"""


def test_a_flyteadmin_config_is_taken_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "quota.yaml").write_text(
        "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q, namespace: '{{ namespace }}'}\n"
        "spec: {hard: {limits.cpu: '{{ projectQuotaCpu }}', limits.memory: '{{ projectQuotaMemory }}'}}\n"
    )
    with staged(tmp_path, extra=["--config", write(tmp_path, FLYTEADMIN)]) as stage, stage.agent("alpha"):
        first = stage.ended(stage.submit("true"))
        job = stage.ended(stage.submit("true", domain="production"))
        assert (first["queue"], job["queue"]) == ("default", "critical")
        policy = {(used["kind"], used["field"]): used["value"] for used in job["policy"]["values"]}
        assert policy["workflow-execution-config", "max_parallelism"] == 7
        resources = stage.call("POST", "/v1/jobs", {"spec": {"command": ["true"], "resources": {"cores": 3}}})
        assert resources.status == 422, "over task_resource_defaults.limits.cpu"
        for key in (
            *("clusters.clusterConfigs[].endpoint", "clusters.clusterConfigs[].auth", "flyteadmin.roleNameKey"),
            *("auth", "database", "task_type_whitelist", "storage.connection", "clusterResources.standaloneDeployment"),
            *("queues.workflowConfigs[] with project or workflowName", "server", "Logger", "notifications"),
        ):
            assert f'event="a key of the config file is not used" key="{key}"' in stage.server.log.replace(
                f"key={key} ", f'key="{key}" '
            ), key
        assert "miniostorage" not in stage.server.log


def test_the_sample_of_the_resource_manager_is_taken_and_the_server_waits_for_its_redis(tmp_path: Path) -> None:
    with staged(tmp_path, extra=["--config", write(tmp_path, REDIS)]) as stage:
        assert stage.get("/v1/clusters")


def test_the_same_in_flytes_words_and_ours_is_refused_with_both_names(tmp_path: Path) -> None:
    text = FLYTEADMIN + "quality_of_service: {}\nquotas: {}\n"
    argv = [
        *YARD,
        "server",
        "--data",
        str(tmp_path / "data"),
        "--http",
        "127.0.0.1:1",
        "--config",
        write(tmp_path, text),
    ]
    with Program(argv, tmp_path, name="refused", env=isolated_env(tmp_path)) as program:
        assert program.wait() == EXIT_USAGE, program.tail()
        assert "qualityOfService: says the same as quality_of_service, which the file has too" in program.log
        assert "quotas: unknown key" in program.log
