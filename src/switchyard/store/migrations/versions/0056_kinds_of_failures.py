"""attempts: the kinds of their failures, what they asked for, and a table of all failures for statistics."""

import sqlalchemy as sa
from alembic import op

revision = "0056"
down_revision = "0055"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("failure", sa.Text(), nullable=True))
    op.add_column("jobs", sa.Column("retried", sa.Text(), nullable=True))
    op.add_column("attempts", sa.Column("failure", sa.Text(), nullable=True))
    op.add_column("attempts", sa.Column("asked", sa.Text(), nullable=True))
    op.create_table(
        "failures",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=True),
        sa.Column("nodes", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("owner_id", sa.Text(), nullable=True),
        sa.Column("project", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "fence"),
    )
    op.create_index("ix_failures_at", "failures", ["at_us"])


def downgrade() -> None:
    op.drop_index("ix_failures_at", table_name="failures")
    op.drop_table("failures")
    for table in ("attempts", "jobs"):
        with op.batch_alter_table(table, schema=None) as batch_op:
            batch_op.drop_column("failure")
            batch_op.drop_column("retried" if table == "jobs" else "asked")
