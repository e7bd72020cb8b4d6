"""execution pools: the pool and the label that bound an execution when it was created.

Executions from before have none. Their jobs say under which pool and label each of them ran.
"""

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("executions", schema=None) as batch_op:
        batch_op.add_column(sa.Column("pool", sa.Text(), nullable=False, server_default=""))
        batch_op.add_column(sa.Column("label", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    with op.batch_alter_table("executions", schema=None) as batch_op:
        batch_op.drop_column("label")
        batch_op.drop_column("pool")
