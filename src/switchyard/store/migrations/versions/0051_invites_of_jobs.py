"""join tokens of pilots: a token that is for one job, and is used only from inside of it."""

import sqlalchemy as sa
from alembic import op

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("invites", schema=None) as batch_op:
        batch_op.add_column(sa.Column("is_for_job", sa.Boolean(), server_default=sa.false(), nullable=False))
        batch_op.add_column(sa.Column("job_id", sa.Text(), nullable=True))
    op.create_index("ix_invites_cluster", "invites", ["cluster_id"])


def downgrade() -> None:
    op.drop_index("ix_invites_cluster", table_name="invites")
    with op.batch_alter_table("invites", schema=None) as batch_op:
        batch_op.drop_column("job_id")
        batch_op.drop_column("is_for_job")
