"""what agents have uploaded for attempts: an attempt may name these objects and its inputs, and nothing else."""

import sqlalchemy as sa
from alembic import op

revision = "0054"
down_revision = "0053"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "file_attempt_uploads",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("is_sealed", sa.Boolean(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "fence", "digest"),
    )
    op.create_index("ix_file_attempt_uploads_at", "file_attempt_uploads", ["at_us"])


def downgrade() -> None:
    op.drop_index("ix_file_attempt_uploads_at", table_name="file_attempt_uploads")
    op.drop_table("file_attempt_uploads")
