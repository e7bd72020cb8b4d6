"""which namespaces a Kubernetes cluster serves, as a platform administrator says it.

Clusters all of whose agents are Kubernetes agents serve all namespaces, as before. Others serve none: those with an
agent of another backend beside, ephemeral ones, and those that a group join token registered.
"""

import sqlalchemy as sa
from alembic import op

revision = "0052"
down_revision = "0051"
branch_labels = None
depends_on = None

SERVE_ALL = """
    UPDATE clusters SET namespaces = '["*"]'
    WHERE deleted_us IS NULL AND group_invite_id IS NULL AND NOT is_ephemeral
    AND EXISTS (SELECT 1 FROM agents WHERE cluster_id = clusters.id AND deleted_us IS NULL)
    AND NOT EXISTS (
        SELECT 1 FROM agents WHERE cluster_id = clusters.id AND deleted_us IS NULL AND backend <> 'kubernetes'
    )
"""


def upgrade() -> None:
    for table in ("clusters", "group_invites"):
        with op.batch_alter_table(table, schema=None) as batch_op:
            batch_op.add_column(sa.Column("namespaces", sa.Text(), nullable=False, server_default="[]"))
    op.execute(SERVE_ALL)


def downgrade() -> None:
    for table in ("clusters", "group_invites"):
        with op.batch_alter_table(table, schema=None) as batch_op:
            batch_op.drop_column("namespaces")
