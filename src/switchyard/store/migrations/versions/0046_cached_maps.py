"""cached maps: the inputs that all elements of a map get whole, for the keys of elements in the cache."""

import sqlalchemy as sa
from alembic import op

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("execution_maps", schema=None) as batch_op:
        batch_op.add_column(sa.Column("bound", sa.Text(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("execution_maps", schema=None) as batch_op:
        batch_op.drop_column("bound")
