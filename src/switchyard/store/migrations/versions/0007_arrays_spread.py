"""arrays spread: which clusters may lease tasks of an array, and which tasks a cluster leaves to the others.

Arrays from before have neither: they stay on one cluster to their end.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

IS_SPREAD = sa.text("is_ready AND spread IS NOT NULL")


def upgrade() -> None:
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.add_column(sa.Column("spread", sa.Text(), nullable=True))
        batch_op.add_column(sa.Column("task_avoid", sa.Text(), nullable=True))
        batch_op.create_index(
            "ix_jobs_spread",
            ["lane", sa.literal_column("priority DESC"), "id"],
            unique=False,
            sqlite_where=IS_SPREAD,
            postgresql_where=IS_SPREAD,
        )


def downgrade() -> None:
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_index("ix_jobs_spread", sqlite_where=IS_SPREAD, postgresql_where=IS_SPREAD)
        batch_op.drop_column("task_avoid")
        batch_op.drop_column("spread")
