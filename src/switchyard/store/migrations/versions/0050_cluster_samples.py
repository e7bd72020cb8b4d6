"""cluster samples: the health and the load of clusters over the last week, for the pages of clusters."""

import sqlalchemy as sa
from alembic import op

revision = "0050"
down_revision = "0049"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "cluster_samples",
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("health", sa.Text(), nullable=False),
        sa.Column("cores", sa.BigInteger(), nullable=False),
        sa.Column("cores_used", sa.BigInteger(), nullable=True),
        sa.Column("gpus", sa.BigInteger(), nullable=False),
        sa.Column("gpus_used", sa.BigInteger(), nullable=True),
        sa.Column("running", sa.BigInteger(), nullable=True),
        sa.Column("queued", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("cluster_id", "at_us"),
    )
    op.create_index("ix_cluster_samples_at", "cluster_samples", ["at_us"])


def downgrade() -> None:
    op.drop_table("cluster_samples")
