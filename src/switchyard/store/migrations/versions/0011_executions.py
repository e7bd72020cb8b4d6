"""executions: Flyte's executions, their nodes and attempts, and the files that clients upload."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "executions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("domain", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("owner_id", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("spec", sa.LargeBinary(), nullable=False),
        sa.Column("inputs", sa.LargeBinary(), nullable=False),
        sa.Column("outputs", sa.LargeBinary(), nullable=True),
        sa.Column("error", sa.LargeBinary(), nullable=True),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("is_archived", sa.Boolean(), nullable=False),
        sa.Column("is_due", sa.Boolean(), nullable=False),
        sa.Column("is_stopping", sa.Boolean(), nullable=False),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("entity_kind", sa.Text(), nullable=False),
        sa.Column("entity_project", sa.Text(), nullable=False),
        sa.Column("entity_domain", sa.Text(), nullable=False),
        sa.Column("entity_name", sa.Text(), nullable=False),
        sa.Column("entity_version", sa.Text(), nullable=False),
        sa.Column("workflow_project", sa.Text(), nullable=False),
        sa.Column("workflow_domain", sa.Text(), nullable=False),
        sa.Column("workflow_name", sa.Text(), nullable=False),
        sa.Column("workflow_version", sa.Text(), nullable=False),
        sa.Column("abort_cause", sa.Text(), nullable=False),
        sa.Column("abort_by", sa.Text(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        sa.Column("started_us", sa.BigInteger(), nullable=True),
        sa.Column("ended_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("executions", schema=None) as batch_op:
        batch_op.create_index("uq_executions_name", ["project", "domain", "name"], unique=True)
        batch_op.create_index("ix_executions_created", ["project", "domain", "created_us"], unique=False)
        batch_op.create_index(
            "ix_executions_due",
            ["id"],
            unique=False,
            sqlite_where=sa.text("is_due"),
            postgresql_where=sa.text("is_due"),
        )
    op.create_table(
        "execution_nodes",
        sa.Column("execution_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("parent_id", sa.Text(), nullable=False),
        sa.Column("spec_id", sa.Text(), nullable=False),
        sa.Column("is_parent", sa.Boolean(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("user_failures", sa.Integer(), nullable=False),
        sa.Column("system_failures", sa.Integer(), nullable=False),
        sa.Column("inputs", sa.LargeBinary(), nullable=True),
        sa.Column("outputs", sa.LargeBinary(), nullable=True),
        sa.Column("error", sa.LargeBinary(), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        sa.Column("ended_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("execution_id", "node_id"),
    )
    op.create_table(
        "execution_attempts",
        sa.Column("execution_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("task_project", sa.Text(), nullable=False),
        sa.Column("task_domain", sa.Text(), nullable=False),
        sa.Column("task_name", sa.Text(), nullable=False),
        sa.Column("task_version", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("error", sa.LargeBinary(), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("started_us", sa.BigInteger(), nullable=True),
        sa.Column("ended_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("execution_id", "node_id", "attempt"),
    )
    with op.batch_alter_table("execution_attempts", schema=None) as batch_op:
        batch_op.create_index(
            "ix_execution_attempts_live",
            ["job_id"],
            unique=False,
            sqlite_where=sa.text("ended_us IS NULL"),
            postgresql_where=sa.text("ended_us IS NULL"),
        )
    op.create_table(
        "data_files",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("domain", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("md5", sa.LargeBinary(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("tree", sa.LargeBinary(), nullable=False),
        sa.Column("owner_id", sa.Text(), nullable=False),
        sa.Column("stored_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project", "domain", "path"),
    )
    op.create_table(
        "data_grants",
        sa.Column("token_hash", sa.LargeBinary(), nullable=False),
        sa.Column("verb", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("domain", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("md5", sa.LargeBinary(), nullable=False),
        sa.Column("owner_id", sa.Text(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("token_hash"),
    )
    with op.batch_alter_table("data_grants", schema=None) as batch_op:
        batch_op.create_index("ix_data_grants_expires", ["expires_us"], unique=False)


def downgrade() -> None:
    op.drop_table("data_grants")
    op.drop_table("data_files")
    op.drop_table("execution_attempts")
    op.drop_table("execution_nodes")
    op.drop_table("executions")
