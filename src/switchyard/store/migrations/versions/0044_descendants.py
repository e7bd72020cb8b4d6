"""descendants: an execution counts all executions that began with it, also those that are over or removed."""

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None

COUNTS = "SELECT root_id, count(*) AS descendants FROM executions WHERE root_id IS NOT NULL GROUP BY root_id"


def upgrade() -> None:
    with op.batch_alter_table("executions", schema=None) as batch_op:
        batch_op.add_column(sa.Column("descendants", sa.BigInteger(), nullable=False, server_default="0"))
    connection = op.get_bind()
    for root_id, count in connection.execute(sa.text(COUNTS)).all():
        statement = sa.text("UPDATE executions SET descendants = :count WHERE id = :id")
        connection.execute(statement, {"count": count, "id": root_id})


def downgrade() -> None:
    with op.batch_alter_table("executions", schema=None) as batch_op:
        batch_op.drop_column("descendants")
