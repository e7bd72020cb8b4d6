"""probation: how attempts ended, and which clusters and nodes get few tasks because of that."""

import sqlalchemy as sa
from alembic import op

revision = "0057"
down_revision = "0056"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "attempt_evidence",
        sa.Column("owner_id", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("fails", sa.Integer(), nullable=False),
        sa.Column("ok_us", sa.BigInteger(), nullable=False),
        sa.Column("last_us", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("owner_id", "cluster_id", "subject", "node"),
    )
    op.create_index("ix_attempt_evidence_last", "attempt_evidence", ["last_us"])
    op.create_table(
        "probations",
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("owner_id", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("is_confirmed", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("since_us", sa.BigInteger(), nullable=False),
        sa.Column("next_us", sa.BigInteger(), nullable=False),
        sa.Column("last_us", sa.BigInteger(), nullable=False),
        sa.Column("passed", sa.Integer(), nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("canaries", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("cluster_id", "owner_id", "node"),
    )


def downgrade() -> None:
    op.drop_table("probations")
    op.drop_table("attempt_evidence")
