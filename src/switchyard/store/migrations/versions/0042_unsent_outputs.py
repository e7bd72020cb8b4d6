"""unsent outputs: how long an agent tries to send output files that did not fit, and an index of what a user holds.

Outputs that were on their way before the server noted agents get the agent of their attempt, if it is still known.
"""

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None

IS_UPLOADING = sa.text("state = 'uploading'")
IS_UNSENT = sa.text("(state = 'uploading' OR retry_until_us IS NOT NULL)")

# Task `lo + i` of a range runs under the fence `fence + i`.
NOTE_AGENTS = """
    UPDATE file_outputs SET agent_id = COALESCE(
        (SELECT j.agent_id FROM jobs j
            WHERE j.id = file_outputs.job_id AND j.fence = file_outputs.fence AND j.array IS NULL),
        (SELECT a.agent_id FROM attempts a WHERE a.job_id = file_outputs.job_id AND a.fence = file_outputs.fence),
        (SELECT r.agent_id FROM ranges r
            WHERE r.job_id = file_outputs.job_id AND r.fence <= file_outputs.fence
            AND file_outputs.fence <= r.fence + r.hi - r.lo ORDER BY r.fence DESC LIMIT 1)
    ) WHERE agent_id IS NULL AND state = 'uploading'
"""


def upgrade() -> None:
    with op.batch_alter_table("file_outputs", schema=None) as batch_op:
        batch_op.drop_index("ix_file_outputs_uploading", sqlite_where=IS_UPLOADING, postgresql_where=IS_UPLOADING)
        batch_op.add_column(sa.Column("retry_until_us", sa.BigInteger(), nullable=True))
    op.execute(NOTE_AGENTS)
    with op.batch_alter_table("file_outputs", schema=None) as batch_op:
        batch_op.create_index(
            "ix_file_outputs_unsent",
            ["cluster_id", "agent_id"],
            unique=False,
            sqlite_where=IS_UNSENT,
            postgresql_where=IS_UNSENT,
        )
    with op.batch_alter_table("file_holders", schema=None) as batch_op:
        batch_op.create_index("ix_file_holders_owner", ["owner", "digest"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("file_holders", schema=None) as batch_op:
        batch_op.drop_index("ix_file_holders_owner")
    with op.batch_alter_table("file_outputs", schema=None) as batch_op:
        batch_op.drop_index("ix_file_outputs_unsent", sqlite_where=IS_UNSENT, postgresql_where=IS_UNSENT)
        batch_op.drop_column("retry_until_us")
        batch_op.create_index(
            "ix_file_outputs_uploading",
            ["cluster_id", "agent_id"],
            unique=False,
            sqlite_where=IS_UPLOADING,
            postgresql_where=IS_UPLOADING,
        )
