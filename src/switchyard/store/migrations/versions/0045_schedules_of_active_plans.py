"""schedules of active plans: launch plans that were made active before 0041 run by their schedule.

The executions belong to the user who made the plan active last, as the audit says; else to the user who registered it.
If there is no such user any more, the schedule has an owner without rights, and says so. Times before this upgrade do
not count as missed.
"""

import sqlalchemy as sa
from alembic import op

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None

NOW_US = {
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
    "postgresql": "CAST(extract(epoch FROM now()) * 1000000 AS BIGINT)",
}
# The owner `local-admin` is no user: its name is its id.
INSERT = """
    INSERT INTO schedules (project, domain, name, version, owner, owner_id, since_us, last_us, next_us, error)
    SELECT plans.project, plans.domain, plans.name, plans.version, plans.owner, coalesce(users.id, plans.owner),
        plans.updated_us, {now_us}, 0, ''
    FROM (
        SELECT entities.*, coalesce((
            SELECT audit.actor FROM audit
            WHERE audit.object = 'launch_plan:' || entities.project || ':' || entities.domain || ':' || entities.name
                || ':' || entities.version AND audit.action = 'launch_plan.activate'
            ORDER BY audit.id DESC LIMIT 1
        ), entities.created_by) AS owner
        FROM entities
        WHERE entities.kind = 'launch_plan' AND entities.is_active AND entities.schedule_type IN ('CRON', 'RATE')
    ) AS plans
    LEFT JOIN users ON users.name = plans.owner AND users.created_us <= plans.updated_us
    WHERE NOT EXISTS (
        SELECT 1 FROM schedules
        WHERE schedules.project = plans.project AND schedules.domain = plans.domain AND schedules.name = plans.name
    )
"""


def upgrade() -> None:
    connection = op.get_bind()
    connection.execute(sa.text(INSERT.format(now_us=NOW_US[connection.dialect.name])))


def downgrade() -> None:
    """The schedules stay: they belong to plans that are active."""
